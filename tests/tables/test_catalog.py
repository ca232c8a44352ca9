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
    "dlrm_v3": (3, 1_010_000_128, 2 * 2032 + 1, 512),
    "primus": (4, 15_051_712, 3 * 1501 + 1, 64),
}


@pytest.mark.parametrize("name", catalog_names())
def test_totals_are_the_published_ones(name: str) -> None:
    assert catalog_names() == tuple(sorted([*NVIDIA, *COLUMNS]))
    tables = load_catalog(name, 65_536)
    count, size, lookups = (NVIDIA | COLUMNS)[name][:3]
    assert (len(tables), sum(table.pooling_factor for table in tables)) == (count, lookups)
    if name in COLUMNS:
        assert sum(table.num_rows for table in tables) == size
        assert {table.embedding_dim for table in tables} == {COLUMNS[name][3]}
    else:
        assert bytes_to_gb(sum(table.size_bytes for table in tables)) == pytest.approx(size, abs=0.051)
    assert [table.problem() for table in tables if table.problem()] == [] and duplicate_name(tables) is None
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
    multi_hot = load_catalog("mlperf_dlrm_v2", 1024)[20]
    assert (multi_hot.name, multi_hot.pooling_factor) == ("C21", 100.0)
    assert multi_hot.reuse_bins == feasible_reuse_bins(40_000_000, 100 * 1024)


def test_a_dim_can_be_asked_for_where_the_set_has_one_dim() -> None:
    assert {table.embedding_dim for table in load_catalog("avazu", 1024, embedding_dim=64)} == {64}
    with pytest.raises(BadConfig, match="for each table"):
        load_catalog("nvidia_tiny", 1024, embedding_dim=64)


def test_unknown_names_and_impossible_numbers_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"'criteo_kagle'.*one of: criteo_kaggle, .*nvidia_tiny"):
        load_catalog("criteo_kagle", 1024)
    with pytest.raises(BadConfig, match="avazu"):
        load_catalog("../tables", 1024)
    with pytest.raises(BadConfig, match="batch_size is 0"):
        load_catalog("avazu", 0)
    with pytest.raises(BadConfig, match="embedding_dim is 0"):
        load_catalog("avazu", 1024, embedding_dim=0)
