"""Samples of real traffic: read piece by piece, counted in windows of one batch, and turned into tables."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import table
from evenshard.dlrm_batch import read_dlrm_batch, tables_from_batch
from evenshard.errors import BadConfig, BadFile
from evenshard.reuse import NUM_REUSE_BINS, feasible_reuse_bins, reuse_bins_of_counts
from evenshard.traffic import Assumption, tables_from_traffic
from evenshard.traffic import counts as counts_module
from evenshard.traffic import tables as tables_module

Samples = dict[str, list[list[int]]]
"""Lookups of each sample, by table."""

# Four samples in windows of two. ads: the first window reads 7 twice and 2 once; the second reads 1, 3 and 5 once.
# user: one lookup each; rows 0, 0 and 4, 5.
TRAFFIC: Samples = {"ads": [[7, 7], [2], [], [1, 3, 5]], "user": [[0], [0], [4], [5]]}


def bins(*shares: float) -> tuple[float, ...]:
    return shares + (0.0,) * (NUM_REUSE_BINS - len(shares))


def write_parquet(folder: Path, traffic: Samples, *cuts: int, **options: Any) -> Path:
    """One file per stretch between the cuts."""
    folder.mkdir(exist_ok=True)
    borders = [0, *cuts, len(next(iter(traffic.values())))]
    for number, (first, last) in enumerate(pairwise(borders)):
        columns = {name: pa.array(samples[first:last], pa.list_(pa.int64())) for name, samples in traffic.items()}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", **options)
    return folder


def write_batches(folder: Path, traffic: Samples, *cuts: int) -> Path:
    folder.mkdir(exist_ok=True)
    borders = [0, *cuts, len(next(iter(traffic.values())))]
    for number, (first, last) in enumerate(pairwise(borders)):
        torch.save(jagged({name: samples[first:last] for name, samples in traffic.items()}), folder / f"{number}.pt")
    return folder


def jagged(traffic: Samples) -> dict[str, Any]:
    samples = [one for of_table in traffic.values() for one in of_table]
    return {
        "keys": list(traffic),
        "values": torch.tensor([row for one in samples for row in one], dtype=torch.int64),
        "lengths": torch.tensor([len(one) for one in samples], dtype=torch.int32),
    }


def dlrm(traffic: Samples) -> tuple[torch.Tensor, ...]:
    content = jagged(traffic)
    lengths = content["lengths"]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return content["values"], offsets, lengths.reshape(len(traffic), -1)


def write_column(path: Path, column: Any) -> Path:
    pq.write_table(pa.table({"ads": column}), path)
    return path


def complaint(source: Path, **options: Any) -> str:
    with pytest.raises(BadFile) as caught:
        tables_from_traffic(source, 2, **({"embedding_dim": 8} | options))
    message = str(caught.value)
    assert "\n" not in message
    return message


# Figures by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(), (2,), (1,), (1, 3), (0, 1, 1, 2, 3)])
@pytest.mark.parametrize("write", [write_parquet, write_batches])
def test_figures_by_hand_wherever_the_files_are_cut(tmp_path: Path, write: Any, cuts: tuple[int, ...]) -> None:
    found = tables_from_traffic(write(tmp_path, TRAFFIC, *cuts), 2, embedding_dim=8)
    ads, user = found.tables
    assert (found.num_samples, found.num_windows) == (4, 2)
    assert (ads.name, ads.num_rows, ads.embedding_dim, ads.weight_bits) == ("ads", 8, 8, 32)
    assert ads.pooling_factor == 6 / 4 and ads.reuse_bins == bins(4 / 5, 1 / 5)
    assert (user.name, user.num_rows, user.pooling_factor) == ("user", 6, 1.0)
    assert user.reuse_bins == bins(2 / 3, 1 / 3)
    assert [one.problem() for one in found.tables] == [None, None]
    assert found.assumptions == (
        Assumption("ads", "num_rows", "8, the largest index seen + 1"),
        Assumption("ads", "weight_bits", "32, the default"),
        Assumption("user", "num_rows", "6, the largest index seen + 1"),
        Assumption("user", "weight_bits", "32, the default"),
    )


def test_a_window_weighs_as_much_as_it_has_unique_rows(tmp_path: Path) -> None:
    # One window reads a single row 8 times, the other 8 rows once: 16 lookups of 9 unique rows.
    source = write_parquet(tmp_path, {"ads": [[3] * 8, list(range(8))]})
    (ads,) = tables_from_traffic(source, 1, embedding_dim=8).tables
    assert ads.reuse_bins == bins(8 / 9, 0, 0, 1 / 9)


def test_the_histogram_is_that_of_the_batch_size(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[3]] * 8})
    for batch_size, position in ((1, 0), (2, 1), (4, 2), (8, 3)):
        found = tables_from_traffic(source, batch_size, embedding_dim=8)
        assert found.num_windows == 8 // batch_size
        assert found.tables[0].reuse_bins == bins(*[0.0] * position, 1.0)


def test_an_incomplete_last_window_counts_for_the_pooling_factor_only(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[1], [1], [1, 2, 3, 4]]})
    found = tables_from_traffic(source, 2, embedding_dim=8, weight_bits=16)
    assert (found.num_samples, found.num_windows) == (3, 1)
    assert found.tables[0].pooling_factor == 2.0 and found.tables[0].reuse_bins == bins(0, 1)
    assert found.tables[0].num_rows == 5
    assert [one.column for one in found.assumptions] == ["num_rows"]


def test_fewer_samples_than_a_batch_are_used_and_said_to_be_assumed(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[0], [1], [1]]})
    many = table("ads", rows=10**6)
    found = tables_from_traffic(source, 4, [many])
    assert found.num_windows == 0 and found.tables[0].reuse_bins == pytest.approx(bins(0.5, 0.5))
    text = "those of 3 samples; a batch of 4 comes back to rows more often"
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
    assert "those of 1 samples" in found.assumptions[0].text


def test_a_table_that_is_never_read(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, {"ads": [[], []]})
    found = tables_from_traffic(source, 2, [table("ads", rows=50)])
    (ads,) = found.tables
    assert (ads.num_rows, ads.pooling_factor, ads.reuse_bins) == (50, 0.0, None)
    assert found.assumptions == (Assumption("ads", "reuse_bins", "none, since no row was looked up"),)
    found = tables_from_traffic(source, 2, embedding_dim=8, weight_bits=8)
    assert found.tables[0].num_rows == 1 and found.assumptions[0].text == "1, since no row was looked up"


@settings(max_examples=25, deadline=None)
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


# Parquet --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, 3, None, 1], pa.int64()),
        pa.array([3, 3, None, 1], pa.uint16()),
        pa.array([[3], [3], None, [1]], pa.list_(pa.int32())),
        pa.array([[3], [3], [], [1]], pa.large_list(pa.uint64())),
    ],
    ids=lambda column: str(column.type),
)
def test_numbers_and_lists_of_any_width_and_nulls_for_no_lookup(tmp_path: Path, column: Any) -> None:
    (ads,) = tables_from_traffic(write_column(tmp_path / "a.parquet", column), 2, embedding_dim=8).tables
    assert (ads.num_rows, ads.pooling_factor, ads.reuse_bins) == (4, 3 / 4, bins(0.5, 0.5))


def test_lists_of_one_size(tmp_path: Path) -> None:
    column = pa.array([[3, 5], [3, 4]], pa.list_(pa.int64(), 2))
    (ads,) = tables_from_traffic(write_column(tmp_path / "a.parquet", column), 2, embedding_dim=8).tables
    assert (ads.pooling_factor, ads.reuse_bins) == (2.0, bins(2 / 3, 1 / 3))


def test_a_file_of_nothing_but_nulls_has_no_type_and_no_lookups(tmp_path: Path) -> None:
    write_column(tmp_path / "a.parquet", pa.array([[1], [1]]))
    write_column(tmp_path / "b.parquet", pa.nulls(2))
    write_column(tmp_path / "c.parquet", pa.array([[], []]))
    (ads,) = tables_from_traffic(tmp_path, 2, embedding_dim=8).tables
    assert (ads.pooling_factor, ads.reuse_bins) == (2 / 6, bins(0, 1))


def test_names_with_dots_are_names(tmp_path: Path) -> None:
    columns = {"ads": [[1], [1]], "ads.list": [[2, 3], []], "ads.click": [4, 5]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = tables_from_traffic(tmp_path, 2, [table(name) for name in ("ads.click", "ads", "ads.list")])
    assert [(one.name, one.pooling_factor) for one in found.tables] == [("ads.click", 1), ("ads", 1), ("ads.list", 1)]
    assert [one.reuse_bins for one in found.tables] == [bins(1), bins(0, 1), bins(1)]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.0, None]), "column 'ads': holds double, not row numbers. "),
        (pa.array([[1.0], []]), "pandas makes floats"),
        (pa.array(["a", "b"]), "holds string"),
        (pa.array([True, False]), "holds bool"),
        (pa.array([[[1]], []]), "not row numbers"),
        (pa.array([{"x": 1}, None]), "holds struct<x: int64>"),
        (pa.array([[1, None], []]), "column 'ads': a list holds a null"),
        (pa.array([[1], [2**63]], pa.list_(pa.uint64())), "column 'ads': row numbers exceed 2**63 - 1"),
        (pa.array([[1], [-1]]), "table 'ads': index -1 is negative"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, column: Any, words: str) -> None:
    path = write_column(tmp_path / "a.parquet", column)
    message = complaint(tmp_path)
    assert words in message and message.startswith(str(path))


def test_columns_that_are_not_wanted_may_hold_anything(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0.5, 1.0], "ads": [[1], [1]]}), tmp_path / "a.parquet")
    found = tables_from_traffic(tmp_path, 2, [table("ads")], ignore_unmatched=True)
    assert found.tables[0].reuse_bins == bins(0, 1) and found.assumptions == ()


@pytest.mark.parametrize("kind", ["parquet", "pt"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    write = write_parquet if kind == "parquet" else write_batches
    (path,) = write(tmp_path, TRAFFIC).iterdir()
    whole = path.read_bytes()
    for length in range(0, len(whole), 1 + len(whole) // 25):
        path.write_bytes(whole[:length])
        assert complaint(path).startswith(str(path))


def test_damaged_pages_are_refused(tmp_path: Path) -> None:
    path = write_column(tmp_path / "a.parquet", pa.array(list(range(10_000))))
    content = bytearray(path.read_bytes())
    content[4:4000] = b"\xff" * 3996
    path.write_bytes(content)
    assert "cannot be read as Parquet" in complaint(path)


# .pt files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch.pt", "batch.pt.gz", "old.pt"])
def test_a_dlrm_batch_gives_the_figures_of_dlrm_batch(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    traffic = {f"t{k:03d}": [rng.zipf(1.5, rng.poisson(k)).clip(max=99).tolist() for _ in range(64)] for k in range(5)}
    plain = tmp_path / "plain.pt"
    torch.save(dlrm(traffic), plain, _use_new_zipfile_serialization=name != "old.pt")
    source = tmp_path / name
    source.write_bytes(gzip.compress(plain.read_bytes()) if name.endswith(".gz") else plain.read_bytes())
    found = tables_from_traffic(source, 64, embedding_dim=8)
    assert found.tables == tables_from_batch(read_dlrm_batch(source), [8], seed=0)


def test_windows_within_a_dlrm_batch(tmp_path: Path) -> None:
    torch.save(dlrm(TRAFFIC), tmp_path / "a.pt")
    ads, user = tables_from_traffic(tmp_path, 2, embedding_dim={"t000": 4, "t001": 12}).tables
    assert (ads.name, ads.embedding_dim, ads.reuse_bins) == ("t000", 4, bins(4 / 5, 1 / 5))
    assert (user.name, user.embedding_dim, user.reuse_bins) == ("t001", 12, bins(2 / 3, 1 / 3))


def test_the_order_of_the_keys_and_other_entries_do_not_matter(tmp_path: Path) -> None:
    torch.save(jagged(TRAFFIC) | {"dense": torch.ones(4)}, tmp_path / "a.pt")
    turned = jagged({name: TRAFFIC[name] for name in ("user", "ads")})
    torch.save(turned | {"lengths": turned["lengths"].reshape(2, 4), "weights": None}, tmp_path / "b.pt")
    ads, user = tables_from_traffic(tmp_path, 4, embedding_dim=8).tables
    assert (ads.name, ads.pooling_factor, user.pooling_factor) == ("ads", 1.5, 1)
    assert ads.reuse_bins == bins(4 / 5, 1 / 5)


GOOD = jagged(TRAFFIC)
INDICES, OFFSETS, LENGTHS = dlrm(TRAFFIC)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds list. It must hold (indices, offsets, lengths) or"),
        ({"keys": ["a"]}, "holds a dict with ['keys']"),
        (GOOD | {"keys": []}, "keys is not a list of table names"),
        (GOOD | {"keys": ["ads", 3]}, "keys is not a list of table names"),
        (GOOD | {"keys": ["ads", "ads"]}, "keys holds 'ads' twice"),
        (GOOD | {"keys": ["a", "b", "c"]}, "lengths of shape [8] cannot be shared among 3 tables"),
        (GOOD | {"lengths": GOOD["lengths"].reshape(4, 2)}, "lengths of shape [4, 2] cannot be shared among 2 tables"),
        (GOOD | {"values": [1, 2]}, "values is a list, not a tensor"),
        (GOOD | {"values": GOOD["values"].float()}, "values holds torch.float32"),
        (GOOD | {"values": GOOD["values"][None]}, "values has 2 dimensions, not 1"),
        (GOOD | {"values": GOOD["values"][:-1]}, "lengths add up to 10, but there are 9 row numbers"),
        (GOOD | {"lengths": GOOD["lengths"].bool()}, "lengths holds torch.bool"),
        (GOOD | {"lengths": torch.tensor([2, 1, 0, 3, 1, -1, 3, 1])}, "'user': a sample has a negative number"),
        (GOOD | {"values": GOOD["values"] - 1}, "table 'user': index -1 is negative"),
        ((INDICES, OFFSETS), "holds tuple"),
        ((INDICES, OFFSETS, LENGTHS.flatten()), "lengths has shape [8], not [tables, samples]"),
        ((INDICES, OFFSETS[:-1], LENGTHS), "offsets of shape [8] do not start at 0 with one more than 8 values"),
        ((INDICES, OFFSETS + 1, LENGTHS), "offsets of shape [9] do not start at 0"),
        ((INDICES[:-1], OFFSETS, LENGTHS), "offsets end at 10, but there are 9 row numbers"),
        ((INDICES, OFFSETS, LENGTHS.flip(0)), "table 't000': offsets do not match the lengths"),
        ((INDICES, torch.tensor([0, 2, 3, 3, 99, 7, 8, 9, 10]), LENGTHS), "table 't001': offsets fall"),
        ((INDICES, torch.tensor([0, 2, 3, 3, 6, 7, 6, 9, 10]), LENGTHS), "table 't001': offsets do not match"),
        (
            (INDICES, torch.tensor([0, 2, 3, 3, 6, 7, 6, 9, 10]), torch.tensor([[2, 1, 0, 3], [1, -1, 3, 1]])),
            "table 't001': offsets do not match",
        ),
    ],
)
def test_batches_that_contradict_themselves_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert words in complaint(tmp_path)


class _Innocent:
    """Any class will do: only tensors and plain containers may be in the file."""


def test_a_pickle_that_could_run_code_is_refused(tmp_path: Path) -> None:
    torch.save(GOOD | {"values": _Innocent()}, tmp_path / "a.pt")
    assert "cannot be read" in complaint(tmp_path)


# Folders and tables ---------------------------------------------------------------------------------------------------


def test_a_folder_holds_one_kind_of_file_and_sparks_leftovers(tmp_path: Path) -> None:
    write_parquet(tmp_path, TRAFFIC, 2)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").touch()
    assert tables_from_traffic(tmp_path, 2, embedding_dim=8).num_samples == 4
    write_batches(tmp_path, TRAFFIC)
    assert "holds both 0.pt and part-0.parquet" in complaint(tmp_path)
    (tmp_path / "0.pt").rename(tmp_path / "0.csv")
    assert "0.csv: is neither a .parquet nor a .pt file" in complaint(tmp_path)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    assert "holds no file" in complaint(tmp_path)
    assert "no such file or folder" in complaint(tmp_path / "absent")
    (tmp_path / "year=2024.parquet").mkdir()
    assert "is neither a .parquet nor a .pt file" in complaint(tmp_path)
    (tmp_path / "a.pt.gz").write_bytes(b"\x1f\x8b but nothing more")
    assert "cannot be unpacked" in complaint(tmp_path / "a.pt.gz")
    assert "holds no sample" in complaint(write_parquet(tmp_path / "empty", {"ads": []}))
    pq.write_table(pa.table({}), tmp_path / "none.parquet")
    assert "has no column" in complaint(tmp_path / "none.parquet")
    pq.write_table(pa.table([[1], [2]], names=["ads", "ads"]), tmp_path / "twice.parquet")
    assert "several columns 'ads'" in complaint(tmp_path / "twice.parquet")


def test_all_files_hold_the_same_tables(tmp_path: Path) -> None:
    for write, suffix in ((write_parquet, "part-1.parquet"), (write_batches, "1.pt")):
        source = write(tmp_path / suffix, {"ads": [[1], [2]], "user": [[1], [2]]}, 1)
        write(tmp_path / "other", {"ads": [[1], [2]]}, 1)
        (source / suffix).write_bytes((tmp_path / "other" / suffix).read_bytes())
        assert f"{suffix}: lacks table 'user', which stands in" in complaint(source)
        source = write(tmp_path / "other", {"ads": [[1], [2]], "user": [[1], [2]]}, 1)
        write(tmp_path / suffix, {"ads": [[1], [2]]}, 1)
        (tmp_path / suffix / suffix).write_bytes((source / suffix).read_bytes())
        assert f"{suffix}: holds table 'user', which is not in" in complaint(tmp_path / suffix)


def test_given_tables_keep_everything_but_the_traffic(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, TRAFFIC)
    given_tables = [table("user", rows=6, dim=12, bits=16), table("ads", rows=1000, dim=64, pooling=99.0)]
    found = tables_from_traffic(source, 2, given_tables)
    user, ads = found.tables
    assert (user.name, user.num_rows, user.embedding_dim, user.weight_bits) == ("user", 6, 12, 16)
    assert (ads.name, ads.num_rows, ads.embedding_dim, ads.pooling_factor) == ("ads", 1000, 64, 1.5)
    assert found.assumptions == ()


@pytest.mark.parametrize("write", [write_parquet, write_batches])
def test_an_index_beyond_the_table_is_refused(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path, TRAFFIC, 2)
    assert tables_from_traffic(source, 2, [table("ads", rows=8), table("user", rows=6)]).num_samples == 4
    message = complaint(source, tables=[table("ads"), table("user", rows=5)], embedding_dim=None)
    assert "table 'user': index 5 is beyond the table's 5 rows" in message
    assert message.startswith(str(sorted(source.iterdir())[1]))


def test_tables_and_traffic_that_do_not_find_each_other(tmp_path: Path) -> None:
    source = write_parquet(tmp_path, TRAFFIC)
    ads, item = table("ads", pooling=9.0), table("item", pooling=3.0)
    assert "holds traffic of table 'user'." in complaint(source, tables=[ads], embedding_dim=None)
    both = [ads, table("user"), item]
    message = complaint(source, tables=both, embedding_dim=None)
    assert "holds no traffic of table 'item'; it holds tables 'ads', 'user'." in message
    assert "holds no traffic of table 'item'" in complaint(source, embedding_dim={"ads": 4, "user": 4, "item": 4})
    assert "none of the tables" in complaint(source, tables=[item], embedding_dim=None, ignore_unmatched=True)
    found = tables_from_traffic(source, 2, [item, ads], ignore_unmatched=True)
    assert found.tables[0] == item and found.tables[1].pooling_factor == 1.5
    text = "as given, since the sample does not hold the table"
    assert found.assumptions == tuple(Assumption("item", column, text) for column in ("pooling_factor", "reuse_bins"))
    many = write_parquet(tmp_path / "many", {f"t{k}": [[1]] for k in range(5)})
    assert "of tables 't0', 't1', 't2' and 2 more" in complaint(many, tables=[ads], embedding_dim=None)


def test_senseless_settings_are_refused(tmp_path: Path) -> None:
    for words, options in (
        ("batch_size is 0", {"batch_size": 0, "embedding_dim": 8}),
        ("does not tell the dims", {}),
        ("embedding_dim is 0", {"embedding_dim": 0}),
        ("embedding_dim is -4", {"embedding_dim": {"ads": 8, "user": -4}}),
        ("weight_bits is 4", {"embedding_dim": 8, "weight_bits": 4}),
        ("come with the tables", {"embedding_dim": 8, "tables": [table("ads")]}),
        ("come with the tables", {"weight_bits": 8, "tables": [table("ads")]}),
        ("Several tables are called 'ads'", {"tables": [table("ads")] * 2}),
    ):
        settings_ = {"batch_size": 2} | options
        with pytest.raises(BadConfig, match=words):
            tables_from_traffic(tmp_path, **settings_)  # type: ignore[arg-type]


# Memory ---------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("name", ["a.parquet", "a.pt"])
def test_reading_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    num_samples = 1 << 19
    rows = np.random.default_rng(0).integers(0, 10**6, 4 * num_samples)
    if name == "a.parquet":  # 16 MiB of each table, in one row group
        column = pa.ListArray.from_arrays(np.arange(0, len(rows) + 1, 4, dtype=np.int32), pa.array(rows))
        pq.write_table(pa.table({"a": column, "b": column}), tmp_path / name, row_group_size=num_samples)
    else:
        lengths = torch.full((2 * num_samples,), 4, dtype=torch.int16)
        content = {"keys": ["a", "b"], "values": torch.from_numpy(rows).repeat(2), "lengths": lengths}
        torch.save(content, tmp_path / name)
        del content
    monkeypatch.setattr(tables_module, "GROUP_LOOKUPS", 1 << 14)
    monkeypatch.setattr(tables_module, "BLOCK_LOOKUPS", 1 << 14)

    write = write_parquet if name == "a.parquet" else write_batches
    tables_from_traffic(write(tmp_path / "small", TRAFFIC), 2, embedding_dim=8)  # imports take memory too
    resident, arrow = [resident_bytes()], [pa.total_allocated_bytes()]
    add = counts_module.WindowedCounts.add

    def watched(self: Any, *args: Any) -> None:
        resident.append(resident_bytes())
        arrow.append(pa.total_allocated_bytes())
        add(self, *args)

    monkeypatch.setattr(counts_module.WindowedCounts, "add", watched)
    found = tables_from_traffic(tmp_path / name, 4096, embedding_dim=8)
    assert found.num_windows == 128 and [one.pooling_factor for one in found.tables] == [4, 4]
    assert found.tables[0].reuse_bins == found.tables[1].reuse_bins
    assert len(resident) > 300 and max(resident) - resident[0] < 24 << 20  # the files hold 32 MiB and more
    assert max(arrow) - arrow[0] < 4 << 20  # Arrow keeps freed memory, so it is not seen in the resident memory


def test_a_hot_table_is_kept_as_counts() -> None:
    counts = counts_module.TableCounts("ads", None)
    block = np.arange(1000, dtype=np.int64).repeat(100)
    tracemalloc.start()
    for _ in range(100):
        counts.add(block.copy(), Path("a.pt"))  # 76 MiB together
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counts.close_window(is_full=True)
    assert counts.unique_K.tolist() == [0] * 14 + [1000, 0, 0]  # 10,000 times each
    assert peak < 40 << 20


def test_importing_it_brings_neither_torch_nor_pyarrow() -> None:
    script = "import sys, evenshard.traffic; assert not {'torch', 'pyarrow', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
