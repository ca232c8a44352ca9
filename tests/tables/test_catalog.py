"""The public table sets against published totals."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from evenshard.base.errors import BadConfig
from evenshard.base.units import bytes_to_gb
from evenshard.tables.reuse import feasible_reuse_bins, power_law_reuse_bins
from evenshard.tables.sources import catalog_names, load_catalog
from evenshard.tables.table import duplicate_name

# Tables, total rows (criteo, avazu: summed by hand from the published lists) or GiB of float32 weights (nvidia: as
# published beside the models), and lookups per sample.
NVIDIA = {
    "nvidia_tiny": (55, 4.2, 55 + 3 * 10),
    "nvidia_small": (107, 26.3, 107 + 9 * 30),
    "nvidia_medium": (311, 206.2, 311 + 26 * 50),
    "nvidia_large": (612, 773.8, 612 + 57 * 100),
    "nvidia_jumbo": (1022, 3109.5, 1022 + 75 * 200),
    "nvidia_colossal": (2002, 22327.4, 2002 + 151 * 300),
}
COLUMNS = {
    "criteo_kaggle": (26, 33_762_577, 26, 16),
    "criteo_1tb": (26, 187_767_399, 26, 128),
    "mlperf_dlrm_v2": (26, 204_184_588, 214, 128),
    "avazu": (21, 9_449_205, 21, 16),
}


def test_the_catalogue_holds_these_sets() -> None:
    assert catalog_names() == tuple(sorted([*NVIDIA, *COLUMNS]))


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_per_table_sets(name: str) -> None:
    tables = load_catalog(name, 2048)
    totals = (len(tables), sum(table.num_rows for table in tables), sum(table.pooling_factor for table in tables))
    assert totals == COLUMNS[name][:3]
    assert {table.embedding_dim for table in tables} == {COLUMNS[name][3]}


@pytest.mark.parametrize("name", NVIDIA)
def test_nvidia_sets_have_the_published_count_and_size(name: str) -> None:
    tables = load_catalog(name, 65_536)
    count, size_gb, lookups = NVIDIA[name]
    assert len(tables) == count
    assert bytes_to_gb(sum(table.size_bytes for table in tables)) == pytest.approx(size_gb, abs=0.051)
    assert sum(table.pooling_factor for table in tables) == lookups


@pytest.mark.parametrize("name", catalog_names())
def test_every_table_is_possible_and_every_file_states_its_source(name: str) -> None:
    tables = load_catalog(name, 1024)
    assert [table.problem() for table in tables if table.problem()] == []
    assert duplicate_name(tables) is None
    content = json.loads((resources.files("evenshard.tables.catalog") / f"{name}.json").read_text(encoding="utf-8"))
    assert len(content["source"]) > 20


def test_a_shared_table_serves_all_hotnesses_of_its_list() -> None:
    """nvidia_tiny by hand: 1x10k x8 [1, 10] shared comes first, 1x25M x16 [1] fourth, then 16x10 x8."""
    tables = load_catalog("nvidia_tiny", 65_536)
    assert [(t.num_rows, t.embedding_dim, t.pooling_factor) for t in tables[:5]] == [
        (10_000, 8, 11.0),
        (1_000_000, 16, 11.0),
        (25_000_000, 16, 11.0),
        (25_000_000, 16, 1.0),
        (10, 8, 1.0),
    ]
    assert [t.num_rows for t in tables].count(10) == 16


def test_reuse_holds_for_the_batch_size_asked_for() -> None:
    shared = load_catalog("nvidia_tiny", 1024)[1]
    assert shared.reuse_bins == power_law_reuse_bins(1_000_000, 11 * 1024, 1.05)
    assert shared.reuse_bins != load_catalog("nvidia_tiny", 65_536)[1].reuse_bins
    multi_hot = load_catalog("mlperf_dlrm_v2", 1024)[20]
    assert (multi_hot.name, multi_hot.pooling_factor) == ("C21", 100.0)
    assert multi_hot.reuse_bins == feasible_reuse_bins(40_000_000, 100 * 1024)


def test_a_dim_can_be_asked_for_where_the_set_has_one_dim() -> None:
    assert {table.embedding_dim for table in load_catalog("avazu", 1024, embedding_dim=64)} == {64}
    with pytest.raises(BadConfig, match="for each table"):
        load_catalog("nvidia_tiny", 1024, embedding_dim=64)


def test_an_unknown_name_lists_the_known_ones_closest_first() -> None:
    with pytest.raises(BadConfig, match=r"'criteo_kagle'.*one of: criteo_kaggle, .*nvidia_tiny"):
        load_catalog("criteo_kagle", 1024)
    with pytest.raises(BadConfig, match="avazu"):
        load_catalog("../tables", 1024)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(BadConfig, match="batch_size is 0"):
        load_catalog("avazu", 0)
    with pytest.raises(BadConfig, match="embedding_dim is 0"):
        load_catalog("avazu", 1024, embedding_dim=0)
