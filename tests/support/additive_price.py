"""A price that adds up: each table has a weight, and a device takes the sum of its tables' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links
from evenshard.price.kernel_calls import Columns, DevicePrice, HeldPart, Lookup
from evenshard.price.link_model import Link
from evenshard.price.step import DeviceKind, PartCosts
from evenshard.search.bound_lines import PriceBounds, TangentLine, price_bounds
from evenshard.tables.reuse import FloatArray

FORWARD_2 = np.array([1.0, 0.0])  # all of it is forward time


@dataclass(frozen=True)
class AdditivePrice(DevicePrice):
    """See ``DevicePrice``; ``weights`` by the table's name."""

    weights: Mapping[str, float]
    num_maxima: int = 0
    is_by_call: bool = False

    def columns(self, lookups: Sequence[Lookup], dims_P: np.ndarray | None = None) -> Columns:
        return np.array([[self.weights[one.table.name]] for one in lookups])

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        return np.asarray(sums_NH.T)

    def device_ms(self, times_QGN: FloatArray, calls_N: np.ndarray) -> FloatArray:
        return FORWARD_2[:, None] * np.where(calls_N > 0, times_QGN[0, 0] + 0.5, 0.0)

    def held_parts_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        found = np.zeros((num_devices, 1, 2))
        for one in held:
            found[one.device, 0, 0] += sum(self.weights[own.table.name] for own in one.lookups)
        found[found.any(axis=2), 0] += 0.5
        return found

    def interval(self, members_M: FloatArray) -> float:
        return 0.0


class AdditiveBounds(PriceBounds):
    def line_at(self, sums_H: FloatArray, calls: int = 0) -> TangentLine:
        return TangentLine(0.5 * FORWARD_2, FORWARD_2[:, None])


price_bounds.register(AdditivePrice, AdditiveBounds)


@dataclass(frozen=True)
class Additive:
    """Costs of a task whose device takes its tables' weights, drawn or given, and 0.5 where it holds any."""

    task: ShardingTask
    weights: tuple[float, ...]

    @staticmethod
    def drawn(task: ShardingTask, seed: int = 0) -> Additive:
        return Additive(task, tuple(np.random.default_rng(seed).uniform(0.1, 9.1, len(task.tables)).tolist()))

    @property
    def costs(self) -> PartCosts:
        by_name = {table.name: own for table, own in zip(self.task.tables, self.weights, strict=True)}
        kind = DeviceKind(AdditivePrice(by_name), float("inf"))
        return PartCosts(self.task, [kind], [0] * self.task.num_devices, Links(Link(0.0, "none"), counts_inputs=False))

    def slowest(self, placement: Placement) -> float:
        return max(sum(self.weights[at] for at in shard) for shard in placement.shards()) + 0.5
