"""Samples of real traffic: counted in windows of one batch, and turned into tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig
from evenshard.placement.parts import Span, lookup_share
from evenshard.tables.assumptions import Assumption
from evenshard.tables.reuse import feasible_reuse_bins, reuse_bins_of_counts
from evenshard.tables.traffic import counts as counts_module
from evenshard.tables.traffic import tables as tables_module
from evenshard.tables.traffic import tables_from_traffic
from support.builders import table
from support.traffic_builders import TRAFFIC, bins, complaint, write_batches, write_parquet

# Figures by hand ------------------------------------------------------------------------------------------------------


def test_a_window_weighs_as_much_as_it_has_unique_rows(tmp_path: Path) -> None:
    # One window reads a single row 8 times, the other 8 rows once: 16 lookups of 9 unique rows.
    source = write_parquet(tmp_path, {"ads": [[3] * 8, list(range(8))]})
    (ads,) = tables_from_traffic(source, 1, embedding_dim=8).tables
    assert ads.reuse_bins == bins(8 / 9, 0, 0, 1 / 9)


def test_an_incomplete_last_window_counts_for_the_pooling_factor_only(tmp_path: Path) -> None:
    found = tables_from_traffic(write_parquet(tmp_path, {"ads": [[1], [1], [1, 2, 3, 4]]}), 2, embedding_dim=8)
    (ads,) = found.tables
    assert (ads.pooling_factor, ads.reuse_bins, ads.num_rows) == (2.0, bins(0, 1), 5)
    assert [one.column for one in found.assumptions] == ["num_rows", "weight_bits"]


def test_fewer_samples_than_a_batch_are_used_and_said_to_be_assumed(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[0], [1], [1]]})
    many = table("ads", rows=10**6)
    found = tables_from_traffic(source, 4, [many])
    assert found.tables[0].reuse_bins == pytest.approx(bins(0.5, 0.5))
    text = "counted over 3 samples; larger batches repeat rows more often"
    assert found.assumptions == (Assumption("ads", "reuse_bins", text),)
    # 1024 lookups cannot be of rows that are read once or twice when there are only two rows.
    (few,) = tables_from_traffic(source, 1024, [table("ads", rows=2)]).tables
    assert few.reuse_bins == feasible_reuse_bins(2, 1024, base=bins(0.5, 0.5)) != bins(0.5, 0.5)


def test_a_table_that_only_the_last_window_reads_gets_that_ones_histogram(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[], [], [5, 6]], "user": [[1], [1], [1]]})
    found = tables_from_traffic(source, 2, [table("ads"), table("user")])
    assert found.tables[0].reuse_bins == pytest.approx(bins(1)) and found.tables[0].pooling_factor == 2 / 3
    assert found.tables[1].reuse_bins == bins(0, 1)
    assert [(one.table, one.column) for one in found.assumptions] == [("ads", "reuse_bins")]
    assert "counted over 1 sample;" in found.assumptions[0].text


def test_a_table_that_is_never_read(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[], []]})
    found = tables_from_traffic(source, 2, [table("ads", rows=50)])
    (ads,) = found.tables
    assert (ads.num_rows, ads.pooling_factor, ads.reuse_bins) == (50, 0.0, None)
    assert found.assumptions == (Assumption("ads", "reuse_bins", "none, since no row was looked up"),)
    found = tables_from_traffic(source, 2, embedding_dim=8)
    assert found.tables[0].num_rows == 1 and found.assumptions[0].text == "1, since no row was looked up"


@settings(max_examples=12)
@given(st.data())
def test_any_cut_into_files_groups_and_blocks_counts_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    num_samples, batch_size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    lists = st.lists(st.integers(0, 9), max_size=6)
    traffic = {
        name: data.draw(st.lists(lists, min_size=num_samples, max_size=num_samples), name) for name in ("a", "b", "c")
    }
    cuts = sorted(data.draw(st.lists(st.integers(0, num_samples), max_size=3)))
    write = data.draw(st.sampled_from([write_parquet, write_batches]))
    source = write(tmp_path_factory.mktemp("traffic"), traffic, *cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "GROUP_LOOKUPS", data.draw(st.integers(1, 60)))
        patch.setattr(tables_module, "BLOCK_LOOKUPS", data.draw(st.integers(1, 60)))
        patch.setattr(counts_module, "COMPACT_AT", data.draw(st.integers(1, 20)))
        found = tables_from_traffic(source, batch_size, [table(name, rows=10) for name in traffic])
    for one in found.tables:
        samples = traffic[one.name]
        assert one.pooling_factor == sum(map(len, samples)) / num_samples
        firsts = range(0, num_samples - batch_size + 1, batch_size)
        windows = [list(chain(*samples[first : first + batch_size])) for first in firsts]
        counts = [np.unique(window, return_counts=True)[1] for window in windows if window]
        if counts:
            assert one.reuse_bins == reuse_bins_of_counts(np.concatenate(counts))


# Features ------------------------------------------------------------------------------------------------------------

SHARED = replace(table("songs", rows=8), feature_names=("ads", "user"), feature_pooling_factors=(1.0, 1.0))


def test_a_table_of_several_features_counts_their_columns_together(tmp_path: Path) -> None:
    """Window 1 looks up 7 and 0 twice and 2 once; window 2 looks up 4, 1, 3 once and 5 twice."""
    found = tables_from_traffic(write_parquet(tmp_path, TRAFFIC), 2, [SHARED])
    (songs,) = found.tables
    assert (songs.pooling_factor, songs.feature_pooling_factors) == (2.5, (1.5, 1.0))
    assert songs.reuse_bins == pytest.approx(bins(4 / 7, 3 / 7))
    assert songs.row_shares == (0.2, 0.1, 0.1, 0.1, 0.1, 0.2, 0.0, 0.2)
    assert found.assumptions == () and songs.problem() is None


def test_a_feature_of_two_tables_counts_for_both(tmp_path: Path) -> None:
    other = replace(table("other", rows=9), feature_names=("ads",))
    for group_lookups in (1, 1 << 24):  # tables read one after the other, and together
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables_module, "GROUP_LOOKUPS", group_lookups)
            songs, both = tables_from_traffic(write_parquet(tmp_path, TRAFFIC), 2, [SHARED, other]).tables
        assert (songs.pooling_factor, both.pooling_factor) == (2.5, 1.5)
        assert both.feature_names == ("ads",) and both.feature_pooling_factors == ()


def test_a_feature_that_the_sample_lacks_keeps_its_lookups(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": TRAFFIC["ads"]})
    found = tables_from_traffic(source, 2, [SHARED])
    assert found.tables[0].feature_pooling_factors == (1.5, 1.0)
    text = "as given for feature 'user', which the sample lacks"
    assert found.assumptions == (Assumption("songs", "feature_pooling_factors", text),)


@pytest.mark.parametrize("names", [(), ("x", "y")])
def test_a_column_of_a_table_stands_for_all_its_features(tmp_path: Path, names: tuple[str, ...]) -> None:
    songs = replace(SHARED, name="ads", feature_names=names, pooling_factor=4.0, feature_pooling_factors=(1.0, 3.0))
    (found,) = tables_from_traffic(write_parquet(tmp_path, {"ads": TRAFFIC["ads"]}), 2, [songs]).tables
    assert (found.pooling_factor, found.feature_pooling_factors) == (1.5, (0.375, 1.125))


def test_a_column_of_a_feature_is_not_a_table_of_its_name(tmp_path: Path) -> None:
    """Table ads has the feature x; the column ads is a feature of songs."""
    ads = replace(table("ads", rows=8, pooling=9.0), feature_names=("x",))
    songs, kept = tables_from_traffic(write_parquet(tmp_path, TRAFFIC), 2, [SHARED, ads]).tables
    assert (songs.pooling_factor, kept) == (2.5, ads)


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [7, 256, 257, 3_000_001])
def test_shares_of_rows_are_those_of_256_equal_runs(tmp_path: Path, num_rows: int) -> None:
    rows = (np.random.default_rng(0).random(1_000) ** 3 * num_rows).astype(np.int64)
    source = write_parquet(tmp_path, {"ads": rows.reshape(10, -1).tolist()})
    (found,) = tables_from_traffic(source, 5, [table("ads", rows=num_rows)]).tables
    runs = min(num_rows, 256)
    expected = np.bincount(rows * runs // num_rows, minlength=runs) / 1_000
    assert found.row_shares == pytest.approx(tuple(expected.tolist())) and found.problem() is None
    half = lookup_share(found, Span(0, num_rows // 2))
    assert half == pytest.approx(float((rows < num_rows // 2).mean()), abs=0.015)


def test_rows_that_only_the_sample_tells_are_counted_in_growing_runs(tmp_path: Path) -> None:
    """A tenth of the lookups is of row 5, the others are even over the rows."""
    rng = np.random.default_rng(0)
    rows = np.where(rng.random(10_000) < 0.1, 5, rng.integers(1_000_000, size=10_000))
    source = write_parquet(tmp_path, {"ads": np.sort(rows).reshape(10, -1).tolist()})
    (found,) = tables_from_traffic(source, 5, embedding_dim=8).tables
    assert found.num_rows == rows.max() + 1 and found.problem() is None
    assert found.row_shares is not None and len(found.row_shares) == 256
    assert found.row_shares[0] == pytest.approx(0.1, abs=0.01) and max(found.row_shares[1:]) < 0.01
    for part in (10, 100, 700):
        row = part * 1000
        assert lookup_share(found, Span(0, row)) == pytest.approx(float((rows < row).mean()), abs=0.02)


def test_an_index_beyond_the_table_is_refused(tmp_path: Path) -> None:
    source = write_batches(tmp_path, TRAFFIC, 2)
    assert tables_from_traffic(source, 2, [table("ads", rows=8), table("user", rows=6)]).tables
    message = complaint(source, tables=[table("ads"), table("user", rows=5)], embedding_dim=None)
    assert "table 'user': index 5 is beyond the table's 5 rows" in message
    assert message.startswith(str(sorted(source.iterdir())[1]))


def test_tables_and_traffic_that_do_not_find_each_other(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, TRAFFIC)
    ads, item = table("ads", pooling=9.0), table("item", pooling=3.0)
    message = complaint(source, tables=[item], embedding_dim=None)
    assert "has tables 'ads', 'user', but none of the given tables. Use the sample's names for the tables." in message
    feature = replace(item, feature_names=("clicks",))
    assert "Use the sample's names for the features." in complaint(source, tables=[feature], embedding_dim=None)
    found = tables_from_traffic(source, 2, [item, ads])
    assert found.tables[0] == item and found.tables[1].pooling_factor == 1.5
    text = "as given, since the sample lacks the table"
    assert found.assumptions == tuple(Assumption("item", column, text) for column in ("pooling_factor", "reuse_bins"))
    many = write_parquet(tmp_path / "many", {f"t{k}": [[1]] for k in range(5)})
    assert "has tables 't0', 't1', 't2' and 2 more, but none of" in complaint(many, tables=[ads], embedding_dim=None)


def test_senseless_settings_are_refused(tmp_path: Path) -> None:
    for words, options in (
        ("batch_size is 0", {"batch_size": 0, "embedding_dim": 8}),
        ("embedding_dim is 0", {"embedding_dim": 0}),
        ("Several tables are named 'ads'", {"tables": [table("ads")] * 2}),
    ):
        settings_ = {"batch_size": 2} | options
        with pytest.raises(BadConfig, match=words):
            tables_from_traffic(tmp_path, **settings_)  # type: ignore[arg-type]
