"""The answer to a request: where every row and column lives, its predicted cost, and where the answer comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.memory import PartMemory
from evenshard.placement.moves import EarlierPlacement, shape_changes
from evenshard.placement.parts import Storage, TablePart
from evenshard.placement.placement import as_cut, parts_by_table
from evenshard.placement.sharding import TABLE_WISE, sharding_type
from evenshard.placement.task import ShardingTask, memory_of_part
from evenshard.planner.memory import (
    DeviceMemory,
    NodeMemory,
    OffloadedPart,
    brim_warnings,
    device_memories,
    host_memories,
    offloaded_of,
)
from evenshard.planner.request import PlacementRequest, kept_optimizers
from evenshard.price.costs import PlacementCost
from evenshard.price.evidence import DeviceError, with_device_error
from evenshard.price.step import PredictedDevice, exchange_share
from evenshard.tables.assumptions import Assumption, assumed_miss_ratios
from evenshard.tables.locality import COUNTED

if TYPE_CHECKING:  # it needs SciPy
    from evenshard.search.near_placement import NearResult


@dataclass(frozen=True)
class DifferenceInterval:
    """The step time that a placement saves against another, ms, below 0 where it takes longer, and its 90 % interval.

    An error that the cost model makes alike for both placements is no part of the interval.
    """

    ms: float
    low_ms: float
    high_ms: float


# Names of the plans that a sharder makes with many settings: as it comes, and the best by its rating or by this model.
PLAIN_PLAN, BY_RATING, BY_MODEL = "as it comes", "best by its own rating", "best by this model"


@dataclass(frozen=True)
class Baseline:
    """Another sharder's placement of the same tables, with its time by the same cost model."""

    sharder: str
    predicted_ms: float | None  # None where it found no placement
    measured_ms: float | None = None  # on the hardware
    note: str = ""  # why there is no placement, or the rules that it breaks
    setting: str = ""  # options of the sharder
    chosen: str = ""  # the plan of several: ``PLAIN_PLAN``, ``BY_RATING`` or ``BY_MODEL``
    saves: DifferenceInterval | None = None  # by the answer, against this placement


@dataclass(frozen=True)
class Nearness:
    """An answer beside the placement that it was to be near to. Bytes are those that ``evenshard diff`` counts."""

    source: str  # file of the earlier placement
    max_move_bytes: int | None  # None for no bound
    moved_bytes: int  # weights and optimizer state that go to a device which lacks them
    moved_tables: tuple[str, ...]
    new_tables: tuple[str, ...]  # not in the earlier placement, or of another shape there; they move nothing
    gone_tables: tuple[str, ...]
    stay_ms: float  # predicted where the fewest bytes move
    stay_bytes: int  # moved then: 0 unless a table cannot stay
    free_ms: float  # predicted of the best placement without a bound
    free_bytes: int  # moved then, under the names of devices with which the fewest do
    stay_saves: DifferenceInterval | None = None  # by the answer, against staying; older files lack it


@dataclass(frozen=True, kw_only=True)
class PricedParts:
    """The parts of tables with their predicted times, ms."""

    parts: tuple[TablePart, ...]  # tables in their order, each by columns, then rows
    alone_ms: tuple[float, ...]  # of each part, alone on its device
    adds_ms: tuple[float, ...]  # that its device would save without a part
    devices: tuple[PredictedDevice, ...]  # by device id
    predicted_ms: float  # of the step
    # Its 90 % interval by the cost model alone, wider outside of the training range: two placements on one hardware
    # share the other errors.
    model_low_ms: float
    model_high_ms: float


def model_interval_ms(priced: PricedParts) -> tuple[float, float, float]:
    """Return the predicted time with the ends of its interval by the cost model alone."""
    return priced.predicted_ms, priced.model_low_ms, priced.model_high_ms


def interval_ms(
    priced: PricedParts, device: DeviceError | None, links: DeviceError | None, pipeline: str
) -> tuple[float, float]:
    """Return the 90 % interval of a predicted time with the errors of device and links."""
    return with_device_error(device, *model_interval_ms(priced), links, exchange_share(priced.devices, pipeline))


@dataclass(frozen=True, kw_only=True)
class PlacementAnswer(PricedParts):
    """A placement of parts of tables with all that is known about it. Times are milliseconds of one training step.

    Attributes:
        lower_bound_ms: no placement that the request allows is predicted to cost less.
        warnings: clauses on values in an unlikely unit, then on how the request lies outside the training range.
        comparison: placements of other sharders and their costs.
        measured, measured_ms: cost and time of a step on the hardware, where that was asked for.
        lineage: model, tables and code that made it; JSON.
        link: name of the link in the training data; empty where a file does not state it.
        notes: notes on how far to trust a time; a sentence or two each.
        device_error: how far the simulated device is from the real one; None for real hardware.
        link_error: how far modelled exchanges are from real ones; None where there are none, or no file states it.
        nearness: what moves from the placement that it was to be near to; None where it was to be near to none.
    """

    request: PlacementRequest
    lower_bound_ms: float
    warnings: tuple[str, ...]
    comparison: tuple[Baseline, ...]
    measured: PlacementCost | None
    lineage: Mapping[str, Any]
    link: str = ""
    notes: tuple[str, ...] = ()
    device_error: DeviceError | None = None
    link_error: DeviceError | None = None
    nearness: Nearness | None = None
    measured_ms: float | None = None

    def __post_init__(self) -> None:
        """The parts are in the order of tables, columns and rows."""
        by_table = parts_by_table(self.request.task(), self.parts)
        ordered = [part for parts in by_table.values() for part in parts]
        if ordered != list(self.parts):
            number = {part: position for position, part in enumerate(self.parts)}
            order = [number[part] for part in ordered]
            for name in ("parts", "alone_ms", "adds_ms"):
                values = getattr(self, name)
                object.__setattr__(self, name, tuple(values[position] for position in order))

    @property
    def num_devices(self) -> int:
        """Devices of the request."""
        return self.request.num_devices

    @cached_property
    def task(self) -> ShardingTask:
        """The task of sharding the tables; collections whose MEAN tables are cut by rows may only be cut so."""
        task = self.request.task()
        return as_cut(task, parts_by_table(task, self.parts))

    @cached_property
    def parts_of_table(self) -> Mapping[str, tuple[TablePart, ...]]:
        """The parts of each table."""
        return parts_by_table(self.task, self.parts)

    @cached_property
    def type_of_table(self) -> Mapping[str, str]:
        """The way in which each table is sharded, by its name."""
        machine = self.request.nodes
        return {
            table.name: sharding_type(self.parts_of_table[table.name], table, machine) for table in self.request.tables
        }

    @property
    def device_of_table(self) -> tuple[int, ...]:
        """The device of each table, where all tables are whole.

        Raises:
            BadConfig: if a table is cut or replicated.
        """
        cut = next((name for name, way in self.type_of_table.items() if way != TABLE_WISE), None)
        if cut is not None:
            raise BadConfig(
                f"table {brief(cut)} is sharded {self.type_of_table[cut]}: it has no device of its own. Use parts, or "
                f"allow table_wise only (sharding_types)."
            )
        return tuple(part.device for part in self.parts)

    @cached_property
    def storage_of_table(self) -> Mapping[str, Storage]:
        """Where the weights of each table are kept, by its name."""
        return {name: parts[0].storage for name, parts in self.parts_of_table.items()}

    @cached_property
    def part_memory(self) -> tuple[PartMemory, ...]:
        """Memory that each part takes of each of its devices, of its host and of the SSD."""
        by_name = {table.name: table for table in self.request.tables}
        return tuple(memory_of_part(self.task, by_name[part.table], part) for part in self.parts)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Memory that each part takes of each of its devices, all components together."""
        return tuple(one.device_bytes for one in self.part_memory)

    @cached_property
    def parts_on_device(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the parts on each device, by device id."""
        held: list[list[int]] = [[] for _ in range(self.num_devices)]
        for number, part in enumerate(self.parts):
            for device in part.devices:
                held[device].append(number)
        return tuple(tuple(numbers) for numbers in held)

    @cached_property
    def used_bytes(self) -> tuple[int, ...]:
        """Memory that the parts of tables take on each device, at most ``request.rooms_bytes``.

        Weights and optimizer state; where the request names a training pipeline, caches, inputs, outputs with their
        gradients, and dense gradients of replicas too. What every device holds wherever tables are, such as the dense
        model and its own samples, is no part of it: see ``memory``.
        """
        sizes = self.part_bytes
        return tuple(sum(sizes[number] for number in numbers) for numbers in self.parts_on_device)

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of each device, component by component."""
        return device_memories(self.request, self.parts, self.part_memory)

    @cached_property
    def host_memory(self) -> tuple[NodeMemory, ...]:
        """The memory of each host."""
        return host_memories(self.request, self.parts, self.part_memory)

    @cached_property
    def offloaded(self) -> tuple[OffloadedPart, ...]:
        """The parts that are not in device memory, and what that takes."""
        return offloaded_of(self.request, self.task, self.parts)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the request, and what is assumed of caches."""
        sources = {one.part.table: one.source for one in self.offloaded if one.source not in ("", COUNTED)}
        return (*self.request.assumptions, *(assumed_miss_ratios(*one) for one in sources.items()))

    @property
    def memory_warnings(self) -> tuple[str, ...]:
        """Warnings where a device or a host is full to the brim."""
        return tuple(brim_warnings(self.memory, self.host_memory))

    @property
    def low_ms(self) -> float:
        """Lower end of the 90 % interval of ``predicted_ms``, with the errors of device and links."""
        return self._ends_ms[0]

    @property
    def high_ms(self) -> float:
        """Upper end of it."""
        return self._ends_ms[1]

    @property
    def _ends_ms(self) -> tuple[float, float]:
        return interval_ms(self, self.device_error, self.link_error, self.request.training_pipeline)

    @property
    def measured_device_ms(self) -> tuple[float, ...]:
        """What each device did in the step that was measured, waits left aside; empty where none was."""
        return () if self.measured is None else self.measured.device_ms(self.request.training_pipeline)

    @property
    def uncertainty_ms(self) -> float:
        """Half the width of the 90 % interval."""
        return (self.high_ms - self.low_ms) / 2

    @property
    def gap_pct(self) -> float:
        """How much worse than the best possible placement it is at most, by the model, per cent."""
        return (self.predicted_ms / self.lower_bound_ms - 1) * 100


@dataclass(frozen=True)
class Near:
    """An earlier answer, and the bytes that may move from it."""

    old: PlacementAnswer
    source: str  # its file
    max_move_bytes: int | None = None  # None for no bound

    @property
    def most_bytes(self) -> float:
        """Bytes that may move; infinite without a bound."""
        return float("inf") if self.max_move_bytes is None else self.max_move_bytes

    def add_to(
        self, answer: PlacementAnswer, found: NearResult, free_ms: float, stay_saves: DifferenceInterval
    ) -> PlacementAnswer:
        """Return the answer with the bytes that it moves."""
        now = {table.name: table for table in answer.request.tables}
        before = {table.name for table in self.old.request.tables}
        earlier = earlier_placement(self.old, answer.request)
        pieces = earlier.shared_pieces(now.values(), answer.parts_of_table, answer.request.nodes)
        moved = [piece for piece in pieces if piece.moved_bytes]
        return replace(
            answer,
            nearness=Nearness(
                source=self.source,
                max_move_bytes=self.max_move_bytes,
                moved_bytes=sum(piece.moved_bytes for piece in moved),
                moved_tables=tuple(dict.fromkeys(piece.table for piece in moved)),
                new_tables=tuple(
                    sorted((name for name in now if name not in earlier.parts_of_table), key=before.__contains__)
                ),
                gone_tables=tuple(table.name for table in self.old.request.tables if table.name not in now),
                stay_ms=found.stay.predicted_ms,
                stay_bytes=found.stay_bytes,
                free_ms=min(free_ms, answer.predicted_ms),  # the answer is a placement without a bound, too
                free_bytes=found.free_bytes,
                stay_saves=stay_saves,
            ),
        )


def earlier_placement(old: PlacementAnswer, request: PlacementRequest) -> EarlierPlacement:
    """Return the part of an old answer that a request can use: tables of the same shape."""
    of_old = {table.name: table for table in old.request.tables}
    usable = {
        table.name: old.parts_of_table[table.name]
        for table in request.tables
        if table.name in of_old and not shape_changes(of_old[table.name], table)
    }
    return EarlierPlacement(usable, old.request.nodes, kept_optimizers(old.request, request))


def slowest_device(devices: Sequence[PredictedDevice]) -> int:
    """Return the device that does most in a step, by the model; the first of equals."""
    return max(range(len(devices)), key=lambda device: devices[device].predicted_total_ms)


def fullest_device(answer: PlacementAnswer) -> DeviceMemory:
    """Return the memory of the device that is filled most, the first of equals."""
    return max(answer.memory, key=lambda one: one.full)


def model_lineage(answer: PlacementAnswer) -> Mapping[str, Any]:
    """Return the lineage of the model that made the answer; empty where it says nothing."""
    return answer.lineage.get("model") or {}
