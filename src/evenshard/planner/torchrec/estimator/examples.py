"""Random placements of random tables with their costs: what an estimator for TorchRec's planner is fitted to.

The tables are made up (``made_up_tables``), without histograms of reuse: TorchRec's
planner knows none. Half of the placements shard all tables alike where that is possible, so that each type has devices
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from evenshard.measure.collectives import Links
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import check_sharding
from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES
from evenshard.placement.task import ShardingTask
from evenshard.planner.model import model_of
from evenshard.planner.pricing import links_of_request, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.planner.torchrec.estimator.made_up_tables import made_up_tables
from evenshard.sharders.model import Model
from evenshard.sharders.random import random_sharding
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

_UNLIMITED_BYTES = 10**15
_DEVICE_BYTES = 64 * 2**30
"""No table of the examples is larger than a part of this."""
LARGEST_REPLICA_BYTES = 2**30

TimesOfParts = Callable[[Sequence[TablePart]], FloatArray]
"""[D, 3] forward compute, backward compute and all exchanges of each device, ms."""


@dataclass(frozen=True)
class FittedMachine:
    """What an estimator is fitted to.

    Attributes:
        hardware: of all devices.
        devices_per_node: devices of a node.
        intra, inter: links within a node, empty for that of the hardware, and between nodes.
        batch_size: samples of all devices together.
        optimizer: updates the weights.
        model: predicts the costs; None for a simulated device, whose device model prices them.
    """

    hardware: str
    devices_per_node: int = 8
    intra: str = ""
    inter: str = "infiniband_ndr"
    batch_size: int = 65_536
    optimizer: str = "sgd"
    model: Model | None = None

    def request(self, tables: Sequence[Table], nodes: int, memory_bytes: int = _UNLIMITED_BYTES) -> PlacementRequest:
        """A request for such devices."""
        devices = nodes * self.devices_per_node
        machine = Machine(devices, self.devices_per_node, intra=self.intra, inter=self.inter if nodes > 1 else "")
        return PlacementRequest(
            tables=tuple(tables),
            caps_bytes=(memory_bytes,) * devices,
            batch_size=self.batch_size,
            hardware=self.hardware,
            optimizer=self.optimizer,
            machine=machine,
        )

    def links(self) -> Links:
        """The links of several nodes."""
        return links_of_request(self.request([Table("any", 1, 4, 1.0)], 2), self._known_model)

    @property
    def _known_model(self) -> Model:
        return self.model or model_of(None, self.hardware)

    def times(self, request: PlacementRequest) -> TimesOfParts:
        """What placements of a request cost."""
        costs = part_costs(request, self._known_model)

        def predicted(parts: Sequence[TablePart]) -> FloatArray:
            return np.array(
                [
                    [
                        one.predicted_fwd_compute_ms,
                        one.predicted_bwd_compute_ms,
                        one.predicted_input_dist_ms + one.predicted_fwd_all_to_all_ms + one.predicted_bwd_all_to_all_ms,
                    ]
                    for one in costs.predict(parts).devices
                ]
            )

        return predicted


@dataclass(frozen=True)
class Example:
    """A placement and its cost.

    Attributes:
        task: tables and machine.
        parts: of the tables.
        times_D3: ``TimesOfParts``.
    """

    task: ShardingTask
    parts: tuple[TablePart, ...]
    times_D3: FloatArray


def draw_examples(
    machine: FittedMachine, nodes: Sequence[int], num_worlds: int, per_world: int, seed: int
) -> Iterator[list[Example]]:
    """Examples of one set of tables after the other, on machines of these numbers of nodes in turn."""
    rng = np.random.default_rng(seed)
    for number, num_nodes in zip(range(num_worlds), cycle(nodes), strict=False):
        request = machine.request([*made_up_tables(f"example-{number}", _DEVICE_BYTES, rng)], num_nodes)
        task, times_of = request.task(), machine.times(request)
        drawn = (random_parts(task, rng) for _ in range(per_world))
        yield [Example(task, parts, times_of(parts)) for parts in drawn]


def random_parts(task: ShardingTask, rng: np.random.Generator) -> tuple[TablePart, ...]:
    """A random placement in which large tables are not replicated.

    Raises:
        InfeasibleTask: if memory is so tight that random placements do not fit.
    """
    small = [table for table in task.tables if table.size_bytes <= LARGEST_REPLICA_BYTES]
    large = [table for table in task.tables if table.size_bytes > LARGEST_REPLICA_BYTES]
    divided = tuple(way for way in SHARDING_TYPES if way != DATA_PARALLEL)
    parts: list[TablePart] = []
    for tables, types in ((small, SHARDING_TYPES), (large, divided)):
        if tables:
            parts += random_sharding(replace(task, tables=tuple(tables)), types, rng)
    check_sharding(task, parts)
    return tuple(parts)
