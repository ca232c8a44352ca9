"""Generated pools against the published statistics of the DLRM 2021 data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig
from evenshard.tables.generator import GeneratorConfig, generate_tables, pool_reuse
from evenshard.tables.reuse import BIN_MEAN_COUNTS, DLRM_2021_REUSE, feasible_reuse_bins
from evenshard.tables.table import Table

BATCH_SIZE = 65_536
POOLS = tuple(generate_tables(GeneratorConfig(856), BATCH_SIZE, seed) for seed in range(8))


def rows_of(tables: tuple[Table, ...]) -> np.ndarray:
    return np.array([table.num_rows for table in tables], dtype=np.float64)


def pooling_of(tables: tuple[Table, ...]) -> np.ndarray:
    return np.array([table.pooling_factor for table in tables])


def reuse_residual(tables: tuple[Table, ...], batch_size: int) -> float:
    reuse_TK = np.array([table.reuse_bins for table in tables])
    return float(np.abs(pool_reuse(reuse_TK, pooling_of(tables) * batch_size) - DLRM_2021_REUSE).max())


def test_the_same_seed_gives_the_same_pool_and_another_seed_another() -> None:
    assert generate_tables(GeneratorConfig(856), BATCH_SIZE, 0) == POOLS[0]
    assert rows_of(POOLS[0]).tolist() != rows_of(POOLS[1]).tolist()


@pytest.mark.parametrize("tables", POOLS[:2])
def test_marginals_are_the_published_ones(tables: tuple[Table, ...]) -> None:
    rows, _ = np.histogram(rows_of(tables), [1, 200, 1e3, 1e4, 1e5, 1e6, 3e6, 5.5e6, 6.2e6, 7e6, 1e7, 12.5e6])
    np.testing.assert_allclose(rows, [143, 15, 36, 31, 29, 58, 98, 341, 66, 5, 34], atol=1)
    pooling, _ = np.histogram(pooling_of(tables), [0, 1, 2, 3, 6, 11, 21, 51, 101, 194])
    np.testing.assert_allclose(pooling, [144, 156, 65, 90, 94, 120, 121, 49, 17], atol=1)
    highest = np.sort(pooling_of(tables))[::-1]
    assert highest.mean() == pytest.approx(15.8, abs=0.1)
    assert highest[:86].sum() / highest.sum() == pytest.approx(0.51, abs=0.01)
    assert (highest > 0).all() and highest.max() < 194
    assert (highest != np.floor(highest)).all()  # never cut to whole numbers


def test_rows_and_pooling_depend_as_published() -> None:
    correlations = [np.corrcoef(rows_of(tables), pooling_of(tables))[0, 1] for tables in POOLS]
    assert np.mean(correlations) == pytest.approx(0.19, abs=0.04)
    rows = np.concatenate([rows_of(tables) for tables in POOLS])
    pooling = np.concatenate([pooling_of(tables) for tables in POOLS])
    assert pooling[rows < 1000].mean() == pytest.approx(2.0, abs=0.4)
    for low, high in [(1e3, 1e5), (1e5, 5.5e6), (5.5e6, 6.2e6), (6.2e6, 2e7)]:
        assert 15 < pooling[(rows >= low) & (rows < high)].mean() < 27


@pytest.mark.parametrize(("num_tables", "batch_size", "seed"), [(200, 1024, 1), (856, 65_536, 2)])
def test_the_pool_as_a_whole_has_the_published_reuse(num_tables: int, batch_size: int, seed: int) -> None:
    tables = generate_tables(GeneratorConfig(num_tables), batch_size, seed)
    assert reuse_residual(tables, batch_size) < 2e-4


def test_tables_differ_in_reuse_and_only_as_much_as_asked() -> None:
    def spread(reuse_spread: float) -> float:
        tables = generate_tables(GeneratorConfig(300, reuse_spread=reuse_spread), BATCH_SIZE, 0)
        large = [table.reuse_bins for table in tables if table.num_rows > 1e6]
        return float(np.std([bins[0] for bins in large if bins is not None]))

    assert spread(0.0) < 1e-6 < 0.05 < spread(0.3)


def test_unique_indices_fit_into_the_rows() -> None:
    """Except where one row is read more often than the last bin's mean."""
    for table in POOLS[0]:
        lookups = table.pooling_factor * BATCH_SIZE
        assert table.reuse_bins is not None
        unique = lookups / (np.minimum(BIN_MEAN_COUNTS, max(lookups, 1)) @ np.array(table.reuse_bins))
        assert unique <= table.num_rows * (1 + 1e-6) or max(table.reuse_bins) == 1


def test_a_limit_of_rows_or_of_weights_cuts_rows_and_nothing_else_of_the_draw() -> None:
    config = GeneratorConfig(200, (4, 128), weight_bits=32)
    uncut, few, small = (
        generate_tables(one, BATCH_SIZE, 0)
        for one in (config, replace(config, max_rows=300_000), replace(config, max_table_gb=64 * 2**20 / 2**30))
    )
    for cut in (few, small):
        assert [one.embedding_dim for one in cut] == [one.embedding_dim for one in uncut]
        assert pooling_of(cut).tolist() == pooling_of(uncut).tolist()
    assert rows_of(few).tolist() == np.minimum(rows_of(uncut), 300_000).tolist()
    assert reuse_residual(few, BATCH_SIZE) < 0.01
    most = {4: 2**22, 128: 2**17}  # 64 MB of FP32
    assert [one.num_rows for one in small] == [min(one.num_rows, most[one.embedding_dim]) for one in uncut]
    assert {one.num_rows for one in small} >= {*most.values()}


def test_a_pool_with_too_few_rows_is_left_unraked() -> None:
    """200 tables of at most 1000 rows cannot hold the 30 million unique indices that the published reuse implies."""
    tables = generate_tables(GeneratorConfig(200, max_rows=1000, reuse_spread=0.0), BATCH_SIZE, 0)
    for table in tables[:50]:
        lone = feasible_reuse_bins(table.num_rows, table.pooling_factor * BATCH_SIZE)
        np.testing.assert_allclose(np.array(table.reuse_bins), lone, rtol=1e-9)


def test_dims_are_drawn_evenly_and_bits_are_passed_on() -> None:
    tables = generate_tables(GeneratorConfig(3000, embedding_dims=(4, 12), weight_bits=16), 1024, 0)
    dims = [table.embedding_dim for table in tables]
    assert set(dims) == {4, 12} and 0.45 < dims.count(4) / 3000 < 0.55
    assert {table.weight_bits for table in tables} == {16}
    assert tables[7].name == "t007" and tables[2999].name == "t2999"


@settings(max_examples=15, deadline=None)
@given(
    num_tables=st.integers(1, 60),
    max_rows=st.none() | st.integers(1, 10_000),
    reuse_spread=st.floats(0, 1),
    batch_size=st.integers(1, 200_000),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_generated_table_is_possible(
    num_tables: int, max_rows: int | None, reuse_spread: float, batch_size: int, seed: int
) -> None:
    config = GeneratorConfig(num_tables, max_rows=max_rows, reuse_spread=reuse_spread)
    tables = generate_tables(config, batch_size, seed)
    assert len(tables) == num_tables == len({table.name for table in tables})
    assert [table.problem() for table in tables] == [None] * num_tables
    assert max_rows is None or max(table.num_rows for table in tables) <= max_rows


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"num_tables": 0}, "num_tables is 0"),
        ({"embedding_dims": (16, 0)}, "embedding_dims"),
        ({"max_rows": 0}, "max_rows is 0"),
        ({"max_table_gb": 0.0}, "max_table_gb is 0.0"),
        ({"weight_bits": 5}, "weight_bits is 5"),
        ({"reuse_spread": -0.1}, "reuse_spread is -0.1"),
        ({}, "batch_size is 0"),
    ],
)
def test_senseless_settings_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        generate_tables(GeneratorConfig(**{"num_tables": 10, **setting}), 0, 0)
