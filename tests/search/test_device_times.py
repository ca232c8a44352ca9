"""Shards that cannot be shared out: bounds of tasks whose best placement is known, or enumerated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.kernel_calls import Columns, Lookup
from evenshard.price.link_model import Link
from evenshard.price.simulated_price import DeviceModelPrice
from evenshard.price.step import DeviceKind, PartCosts
from evenshard.search.bound_lines import PriceBounds, TangentLine, price_bounds
from evenshard.search.device_times import FUNCTIONS, Options, least_time_ms
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from support.additive_price import FORWARD_2, Additive, AdditivePrice


def whole_tables(weights: list[float], devices: int) -> Additive:
    """Tables that may only be whole, on devices that take their weights, and 0.5."""
    tables = tuple(Table(f"t{at}", 100, 4, 1.0) for at in range(len(weights)))
    limits = (TableLimits(frozenset({TABLE_WISE})),) * len(weights)
    task = ShardingTask(tables, Nodes.one_node(devices), (2**30,) * devices, 1_024, limits=limits)
    return Additive(task, tuple(weights))


def test_the_host_launches_the_calls_of_a_device_one_after_the_other() -> None:
    profile = gpu_profile("h100")
    launched_2 = price_bounds(DeviceModelPrice(profile)).least_launch_ms_2(3)
    forward_us = profile.fwd_overhead_us + 3 * profile.fwd_host_us
    backward_us = profile.bwd_overhead_us + 3 * profile.bwd_host_us
    assert launched_2.tolist() == pytest.approx([forward_us / 1e3, backward_us / 1e3])


@pytest.mark.parametrize(
    ("weights", "devices", "least"),
    [
        ([6.0] * 3, 2, 12.0),  # one device has two of three: 9 on the mean
        ([6.0] * 5, 2, 18.0),  # and one three of five: 15 on the mean
        ([8.0, 8.0, 8.0, 4.0, 4.0], 3, 12.0),  # no small ones are beside each other: 10.7 on the mean
        ([5.0, 5.0, 4.0, 4.0, 3.0], 3, 8.0),
    ],
)
def test_shards_are_not_shared_out(weights: list[float], devices: int, least: float) -> None:
    bound_ms = lower_bound_ms(SearchSpace(whole_tables(weights, devices).costs))
    assert bound_ms == pytest.approx(least + 0.5, rel=0.01)
    assert bound_ms <= least + 0.5


@pytest.mark.parametrize("seed", range(8))
def test_no_placement_is_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 4))
    task = whole_tables(rng.choice([1.0, 2.0, 3.5, 5.0, 8.0], int(rng.integers(3, 7))).tolist(), devices)
    placed = product(range(devices), repeat=len(task.weights))
    best = min(task.slowest(Placement(one, devices)) for one in placed)
    bound_ms = lower_bound_ms(SearchSpace(task.costs))
    assert 0.8 * best < bound_ms <= best


@dataclass(frozen=True)
class OncePrice(AdditivePrice):
    """Beside the weights of its tables, a device takes the most that one of them takes once."""

    once: Mapping[str, float] = field(default_factory=dict)
    num_maxima: int = 1

    def columns(self, lookups: Sequence[Lookup], dims_P: np.ndarray | None = None) -> Columns:
        return np.array([[self.weights[one.table.name], self.once[one.table.name]] for one in lookups])

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        return np.asarray(sums_NH.sum(axis=1)[None])


class OnceBounds(PriceBounds):
    def line_at(self, sums_H: FloatArray, calls: int = 0) -> TangentLine:
        return TangentLine(0.5 * FORWARD_2, np.outer(FORWARD_2, [1.0, 0.0]))

    def least_call_ms(self, columns_PH: Columns) -> FloatArray:
        return np.outer(FORWARD_2, columns_PH[:, 1])


price_bounds.register(OncePrice, OnceBounds)


@pytest.mark.parametrize(
    ("weights", "once", "least", "best"),
    [
        ([4.0] * 4, [2.0, 2.0, 0.0, 0.0], 9.3, 10.5),  # two on each: as much as the mean of what they take once
        ([1.0, 6.0], [2.0, 0.0], 6.4, 6.5),  # each alone; the second takes nothing once
        ([6.0, 6.0], [2.0, 2.0], 8.4, 8.5),
    ],
)
def test_a_device_takes_once_what_one_of_its_shards_does(
    weights: list[float], once: list[float], least: float, best: float
) -> None:
    task = whole_tables(weights, 2).task
    names = [table.name for table in task.tables]
    price = OncePrice(dict(zip(names, weights, strict=True)), once=dict(zip(names, once, strict=True)))
    costs = PartCosts(task, [DeviceKind(price, float("inf"))], [0, 0], Links(Link(0.0, "none"), counts_inputs=False))
    assert least < lower_bound_ms(SearchSpace(costs)) <= best


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_shards_that_fit_together_have_at_most_one(number: int) -> None:
    """Drawn shares of a room that they fill, or nearly, small ones and equal ones among them."""
    rng = np.random.default_rng(number)
    for _ in range(200):
        count = int(rng.integers(1, 8))
        shares = rng.dirichlet(np.full(count, rng.choice([0.3, 3.0, 1e4]))) * rng.choice([1.0, 0.97])
        assert FUNCTIONS[number](shares).sum() <= 1 + 1e-9


def test_memory_has_a_price_that_keeps_the_bound_below_the_best_choice() -> None:
    """Two groups take 1 ms with 10 bytes, or 3 ms without memory. 10 bytes suffice for one: 4 ms, on one device."""
    work_GW = np.array([[1.0, 3.0]] * 2)
    options = Options(work_GW, work_GW, np.array([[10.0, 0.0]] * 2))
    found_ms, _ = least_time_ms(options, offset=0.0, room=10.0, devices=1)
    assert 3.8 < found_ms <= 4.0
    assert least_time_ms(options, offset=0.0, room=20.0, devices=1)[0] == pytest.approx(2.0, rel=0.01)
