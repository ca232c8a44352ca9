"""Random placements of random tables with their costs: what an estimator for TorchRec's planner is fitted to.

The tables are of made-up recommenders, over wide ranges, without histograms of reuse: TorchRec's planner knows none.
Rows and lookups are log-uniform, because their order of magnitude is not known in advance; one lookup for each sample
comes more often. None of the public sets of the catalogue is among them: they stay an honest test.

Half of the placements shard all tables alike where that is possible, so that each type has devices of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np

from evenshard.measure.collectives import Links
from evenshard.measure.hardware import HardwareName
from evenshard.measure.price.step import PartCosts
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import REPLICATED, SHARDING_TYPES
from evenshard.placement.task import ShardingTask
from evenshard.planner.model import model_of, named_with_hardware
from evenshard.planner.pricing import links_of_request, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.sharders.random import random_sharding
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

_UNLIMITED_BYTES = 10**15
# No table of the examples is larger than a part of this.
_DEVICE_BYTES = 64 * 2**30
LARGEST_REPLICA_BYTES = 2**30
ROW_RANGES, ROW_SHARES = ((1, 1e3), (1e3, 1e6), (1e6, 2e7), (2e7, 5e8)), (0.25, 0.35, 0.25, 0.15)
DIMS = (4, 8, 16, 32, 64, 128, 256, 512)
DIM_STEP = 4
POOLING = (0.01, 300.0)
ONE_HOT_SHARE = 0.4
# Of a device's memory: a larger table gets fewer dims, then fewer rows.
LARGEST_TABLE_SHARE = 0.6
LEAST_TABLES, MOST_TABLES = 8, 60

# [D, 3] forward compute, backward compute and all exchanges of each device, ms.
TimesOfParts = Callable[[Sequence[TablePart]], FloatArray]


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

    def costs(self, request: PlacementRequest) -> PartCosts:
        """What placements of a request cost."""
        return part_costs(request, self._known_model)

    def times(self, request: PlacementRequest) -> TimesOfParts:
        """Times of each device with a placement of a request, whatever it waits for."""
        costs = self.costs(request)

        def predict_times(parts: Sequence[TablePart]) -> FloatArray:
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

        return predict_times


def machine_to_fit(
    hardware: str | None,
    model: str | Path | Model | None,
    devices_per_node: int,
    intra: str,
    inter: str,
    batch_size: int = 65_536,
    optimizer: str = "sgd",
) -> FittedMachine:
    """A machine whose costs are known; see ``export_estimator`` for the arguments.

    Raises:
        BadInput: if something is unknown.
    """
    loaded, hardware = named_with_hardware(model, hardware)
    if hardware is None:
        raise BadConfig("neither --hardware nor --model is given. Name one, such as --hardware simulated:h100.")
    simulated = HardwareName.parse(hardware).kind.is_simulated
    if loaded is None and not simulated:
        raise BadConfig(
            f"hardware is {brief(hardware)}, and only a model knows its costs. Name one, such as --model work/round_3."
        )
    return FittedMachine(hardware, devices_per_node, intra, inter, batch_size, optimizer, loaded)


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
    large = [table.size_bytes > LARGEST_REPLICA_BYTES for table in task.tables]
    limits = [task.limits_of(position) for position in range(len(task.tables))]
    narrowed = (
        replace(own, types=own.types - {*REPLICATED}) if is_large else own
        for own, is_large in zip(limits, large, strict=True)
    )
    return random_sharding(replace(task, limits=tuple(narrowed)), SHARDING_TYPES, rng)


# Tables ---------------------------------------------------------------------------------------------------------------


def made_up_tables(name: str, memory_bytes: int, rng: np.random.Generator) -> Iterator[Table]:
    """The tables of one recommender.

    Args:
        name: begins their names.
        memory_bytes: memory of a device; no table is larger.
        rng: draws everything.
    """
    count = int(_log_uniform(rng, LEAST_TABLES, MOST_TABLES + 1))
    most_bytes = LARGEST_TABLE_SHARE * memory_bytes
    for number, (dim, bits) in enumerate(zip(_dims(count, rng), _weight_bits(count, rng), strict=True)):
        rows = int(_log_uniform(rng, *ROW_RANGES[rng.choice(len(ROW_RANGES), p=ROW_SHARES)]))
        pooling = 1.0 if rng.random() < ONE_HOT_SHARE else _log_uniform(rng, *POOLING)
        pooling = min(pooling, float(rows))  # a sample does not look up three rows a hundred times
        table = Table(f"{name}-{number:03d}", rows, dim, pooling, weight_bits=bits)
        while table.size_bytes > most_bytes and table.embedding_dim > DIM_STEP:
            table = replace(table, embedding_dim=max(DIM_STEP, table.embedding_dim // 2 // DIM_STEP * DIM_STEP))
        if table.size_bytes > most_bytes:
            table = replace(table, num_rows=int(table.num_rows * most_bytes / table.size_bytes))
        yield table


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _dims(count: int, rng: np.random.Generator) -> list[int]:
    """One dim for all, or a few powers of two, or anything that is a multiple of four."""
    habit = rng.random()
    if habit < 0.35:
        return [int(rng.choice(DIMS))] * count
    if habit < 0.75:
        first = int(rng.integers(len(DIMS) - 1))
        return [int(dim) for dim in rng.choice(DIMS[first : first + int(rng.integers(2, 6))], size=count)]
    return [DIM_STEP * int(_log_uniform(rng, 1, DIMS[-1] / DIM_STEP + 1)) for _ in range(count)]


def _weight_bits(count: int, rng: np.random.Generator) -> list[int]:
    habit = rng.random()
    if habit < 0.1:
        return [int(bits) for bits in rng.choice((8, 16, 32), size=count)]
    return [32 if habit < 0.55 else 16 if habit < 0.92 else 8] * count
