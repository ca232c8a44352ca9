"""Pieces that cannot be shared out: bounds of tasks whose best placement is known, or enumerated."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from evenshard.placement.machine import Machine
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.bounds.whole_pieces import FUNCTIONS
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.table import Table
from support.additive_price import Additive


def whole_tables(weights: list[float], devices: int) -> Additive:
    """Tables that may only be whole, on devices that take their weights, and 0.5."""
    tables = tuple(Table(f"t{at}", 100, 4, 1.0) for at in range(len(weights)))
    limits = (TableLimits(frozenset({TABLE_WISE})),) * len(weights)
    task = ShardingTask(tables, Machine.one_node(devices), (2**30,) * devices, 1_024, limits=limits)
    return Additive(task, tuple(weights))


@pytest.mark.parametrize(
    ("weights", "devices", "least"),
    [
        ([6.0] * 3, 2, 12.0),  # one device has two of three: 9 on the mean
        ([6.0] * 5, 2, 18.0),  # and one three of five: 15 on the mean
        ([8.0, 8.0, 8.0, 4.0, 4.0], 3, 12.0),  # no small ones are beside each other: 10.7 on the mean
        ([5.0, 5.0, 4.0, 4.0, 3.0], 3, 8.0),
    ],
)
def test_pieces_are_not_shared_out(weights: list[float], devices: int, least: float) -> None:
    bound_ms = lower_bound_ms(SearchSpace(whole_tables(weights, devices).costs))
    assert bound_ms == pytest.approx(least + 0.5, rel=0.01)
    assert bound_ms <= least + 0.5


@pytest.mark.parametrize("seed", range(30))
def test_no_placement_is_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 4))
    task = whole_tables(rng.choice([1.0, 2.0, 3.5, 5.0, 8.0], int(rng.integers(3, 7))).tolist(), devices)
    placed = product(range(devices), repeat=len(task.weights))
    best = min(task.slowest(Placement(one, devices)) for one in placed)
    bound_ms = lower_bound_ms(SearchSpace(task.costs))
    assert 0.8 * best < bound_ms <= best


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_pieces_that_fit_together_have_at_most_one(number: int) -> None:
    """Drawn shares of a room that they fill, or nearly, small ones and equal ones among them."""
    rng = np.random.default_rng(number)
    for _ in range(500):
        count = int(rng.integers(1, 8))
        shares = rng.dirichlet(np.full(count, rng.choice([0.3, 3.0, 1e4]))) * rng.choice([1.0, 0.97])
        assert FUNCTIONS[number](shares).sum() <= 1 + 1e-9
