"""The answer to a placement request: the device and storage of every shard, its predicted cost, and its provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.memory import PartMemory
from evenshard.placement.moves import EarlierPlacement, shape_changes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Storage, TablePart
from evenshard.placement.placement import parts_by_table, require_row_wise_means
from evenshard.placement.sharding import TABLE_WISE, TYPES, sharding_type
from evenshard.placement.task import ShardingTask, memory_of_part
from evenshard.planner.memory import (
    DeviceMemory,
    NodeMemory,
    OffloadedPart,
    device_memories,
    host_memories,
    list_offloaded,
    warn_of_full_memory,
)
from evenshard.planner.request import PlacementRequest, match_optimizers
from evenshard.price.costs import PlacementCost
from evenshard.price.dense import EmbeddingTimes, StepTime, given_step, predict_step
from evenshard.price.evidence import DeviceError, widen_interval
from evenshard.price.step import PredictedDevice, exchange_share
from evenshard.tables.assumptions import Assumption, assume_miss_ratios
from evenshard.tables.locality import COUNTED

if TYPE_CHECKING:  # it needs SciPy
    from evenshard.search.near_placement import NearResult


@dataclass(frozen=True)
class DifferenceInterval:
    """Step time that one placement saves relative to another, ms, with its 90 % interval; negative if it is slower.

    Errors of the cost model that are equal for both placements cancel out and are not included.
    """

    ms: float
    low_ms: float
    high_ms: float


# Plans of a sharder with many settings: TorchRec's default, the best by TorchRec's rating, the best by this cost model.
DEFAULT_PLAN, BY_RATING, BY_MODEL = "as it comes", "best by its own rating", "best by this model"


@dataclass(frozen=True)
class Baseline:
    """Another sharder's placement of the same tables, with its step time predicted by the same cost model.

    Attributes:
        sharder: name of the sharder.
        predicted_ms: predicted step time; None if the sharder found no placement.
        measured_ms: step time on the hardware; None if not measured.
        note: reason that there is no placement, or the rules that it violates.
        setting: options of the sharder.
        chosen: ``DEFAULT_PLAN``, ``BY_RATING`` or ``BY_MODEL``, if the sharder made several plans and this is one.
        saves: step time that the answer saves relative to this placement.
    """

    sharder: str
    predicted_ms: float | None
    measured_ms: float | None = None
    note: str = ""
    setting: str = ""
    chosen: str = ""
    saves: DifferenceInterval | None = None


@dataclass(frozen=True)
class Nearness:
    """Comparison of an answer with the current placement; bytes are counted as in ``evenshard diff``.

    Attributes:
        source: file of the current placement.
        max_move_bytes: limit on the bytes that may move; None for no limit.
        moved_bytes: weights and optimizer state that devices must newly receive.
        moved_tables: tables of which a part moves.
        new_tables: tables that the current placement lacks or has with another shape; they move no bytes.
        gone_tables: tables that only the current placement has.
        stay_ms: predicted step time of the placement that moves the fewest bytes.
        stay_bytes: bytes that this placement moves, 0 unless a table cannot stay.
        free_ms: predicted step time of the best placement without a limit.
        free_bytes: bytes that this placement moves, with devices numbered to move the fewest.
        stay_saves: step time that the answer saves relative to staying; None in older files.
    """

    source: str
    max_move_bytes: int | None
    moved_bytes: int
    moved_tables: tuple[str, ...]
    new_tables: tuple[str, ...]
    gone_tables: tuple[str, ...]
    stay_ms: float
    stay_bytes: int
    free_ms: float
    free_bytes: int
    stay_saves: DifferenceInterval | None = None


@dataclass(frozen=True, kw_only=True)
class PricedParts:
    """Table parts (shards) with their predicted times, ms.

    Attributes:
        parts: table parts in the order of the tables; those of one table are sorted by columns, then rows.
        alone_ms: time of each part alone on its device.
        adds_ms: time that the device would save without the part.
        devices: predicted times of each device, by device id.
        predicted_ms: step time.
        model_low_ms: lower end of the 90 % interval for the cost model's error alone, to compare placements on the
            same hardware, which share all other errors.
        model_high_ms: upper end of this interval.
    """

    parts: tuple[TablePart, ...]
    alone_ms: tuple[float, ...]
    adds_ms: tuple[float, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    model_low_ms: float
    model_high_ms: float


def model_interval_ms(priced: PricedParts) -> tuple[float, float, float]:
    """Return the predicted time, and the ends of its 90 % interval for the cost model's error alone."""
    return priced.predicted_ms, priced.model_low_ms, priced.model_high_ms


def interval_ms(
    priced: PricedParts, device: DeviceError | None, links: DeviceError | None, pipeline: str
) -> tuple[float, float]:
    """Return the 90 % interval of a predicted time, including device and link errors."""
    return widen_interval(device, *model_interval_ms(priced), links, exchange_share(priced.devices, pipeline))


@dataclass(frozen=True, kw_only=True)
class PlacementAnswer(PricedParts):
    """A placement of table parts, with its prediction and provenance. Times are milliseconds of one training step.

    Attributes:
        request: request that this placement answers.
        lower_bound_ms: no placement that the request allows has a lower predicted step time.
        warnings: values in an unlikely unit, then values outside the training range, as clauses.
        comparison: placements by other sharders (baselines).
        measured: cost of a step on the hardware; None if not measured.
        lineage: model, tables and code that made the answer, as JSON values.
        link: link between the devices on which the model's training data was measured; empty if unknown.
        notes: notes on the accuracy of times, one or two sentences each.
        device_error: error of the simulated device; None for real hardware.
        link_error: error of modelled communication; None without communication, or in older files.
        nearness: comparison with the current placement; None if none was given.
        measured_ms: step time on the hardware; None if not measured.
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
        """Sort the parts by table, columns and rows."""
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
        """Return the number of devices of the request."""
        return self.request.num_devices

    @cached_property
    def task(self) -> ShardingTask:
        """Return the sharding task. If this answer cuts MEAN tables of a collection by rows, the task requires that."""
        task = self.request.task()
        return require_row_wise_means(task, parts_by_table(task, self.parts))

    @cached_property
    def parts_of_table(self) -> Mapping[str, tuple[TablePart, ...]]:
        """Return the parts of each table, by its name."""
        return parts_by_table(self.task, self.parts)

    @cached_property
    def type_of_table(self) -> Mapping[str, str]:
        """Return the sharding type of each table, by its name."""
        machine = self.request.nodes
        return {
            table.name: sharding_type(self.parts_of_table[table.name], table, machine) for table in self.request.tables
        }

    @property
    def replicated_values(self) -> int:
        """Return the number of weights of replicated tables, which each device has."""
        replicated = {name for name, own_type in self.type_of_table.items() if TYPES[own_type].is_replicated}
        return sum(table.num_rows * table.embedding_dim for table in self.request.tables if table.name in replicated)

    @property
    def step(self) -> StepTime | None:
        """Return the time of the whole step; None if its dense part or the device is unknown."""
        return self.step_on(self.request.nodes)

    def step_on(self, machine: Nodes) -> StepTime | None:
        """Return the time of the whole step if gradients are reduced over a machine of groups with this placement."""
        request, pipeline = self.request, self.request.training_pipeline
        found = EmbeddingTimes(
            self.devices, pipeline, self.predicted_ms, self.low_ms, self.high_ms, self.replicated_values
        )
        if request.dense_ms is not None:
            return given_step(found, request.dense_ms)
        if request.dense is None:
            return None
        hardware = {machine.hardware_of(device) or request.hardware for device in range(machine.num_devices)}
        batch_size = request.batch_size * machine.num_devices / request.num_devices
        return predict_step(
            found, request.dense, sorted(hardware), machine, self.link, batch_size, request.dense_optimizer
        )

    @property
    def device_of_table(self) -> tuple[int, ...]:
        """Return the device of each table; raise BadConfig if a table is cut or replicated."""
        cut = next((name for name, own_type in self.type_of_table.items() if own_type != TABLE_WISE), None)
        if cut is not None:
            raise BadConfig(
                f"table {brief(cut)} is sharded {self.type_of_table[cut]}, so it has no single device. Read "
                f"parts instead, or place with sharding_types table_wise."
            )
        return tuple(part.device for part in self.parts)

    @cached_property
    def storage_of_table(self) -> Mapping[str, Storage]:
        """Return the storage of each table, by its name."""
        return {name: parts[0].storage for name, parts in self.parts_of_table.items()}

    @cached_property
    def part_memory(self) -> tuple[PartMemory, ...]:
        """Return the device, host and SSD memory that each part uses."""
        by_name = {table.name: table for table in self.request.tables}
        return tuple(memory_of_part(self.task, by_name[part.table], part) for part in self.parts)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Return the memory that each part uses on each of its devices."""
        return tuple(one.device_bytes for one in self.part_memory)

    @cached_property
    def parts_on_device(self) -> tuple[tuple[int, ...], ...]:
        """Return the indices of the parts on each device, by device id."""
        held: list[list[int]] = [[] for _ in range(self.num_devices)]
        for number, part in enumerate(self.parts):
            for device in part.devices:
                held[device].append(number)
        return tuple(tuple(numbers) for numbers in held)

    @cached_property
    def used_bytes(self) -> tuple[int, ...]:
        """Return the memory that table parts use on each device, at most ``request.rooms_bytes``.

        It includes weights and optimizer state; with a training pipeline, also caches, inputs, outputs with their
        gradients, and dense gradients of replicas. ``memory`` adds the dense model and each device's own samples.
        """
        sizes = self.part_bytes
        return tuple(sum(sizes[number] for number in numbers) for numbers in self.parts_on_device)

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of each device, split by what uses it."""
        return device_memories(self.request, self.parts, self.part_memory)

    @cached_property
    def host_memory(self) -> tuple[NodeMemory, ...]:
        """Return the memory of each host."""
        return host_memories(self.request, self.parts, self.part_memory)

    @cached_property
    def offloaded(self) -> tuple[OffloadedPart, ...]:
        """Return the parts outside of device memory, with the time that this adds."""
        return list_offloaded(self.request, self.task, self.parts)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions about tables and about caches."""
        sources = {one.part.table: one.source for one in self.offloaded if one.source not in ("", COUNTED)}
        return (*self.request.assumptions, *(assume_miss_ratios(*one) for one in sources.items()))

    @property
    def memory_warnings(self) -> tuple[str, ...]:
        """Return warnings about devices and hosts that are almost full."""
        return tuple(warn_of_full_memory(self.memory, self.host_memory))

    @property
    def low_ms(self) -> float:
        """Return the lower end of the 90 % interval of ``predicted_ms``, including device and link errors."""
        return self._ends_ms[0]

    @property
    def high_ms(self) -> float:
        """Return the upper end of the 90 % interval of ``predicted_ms``, including device and link errors."""
        return self._ends_ms[1]

    @property
    def _ends_ms(self) -> tuple[float, float]:
        return interval_ms(self, self.device_error, self.link_error, self.request.training_pipeline)

    @property
    def measured_device_ms(self) -> tuple[float, ...]:
        """Return the busy time of each device in the measured step, without waits; empty if not measured."""
        return () if self.measured is None else self.measured.device_ms(self.request.training_pipeline)

    @property
    def uncertainty_ms(self) -> float:
        """Return half the width of the 90 % interval."""
        return (self.high_ms - self.low_ms) / 2

    @property
    def gap_pct(self) -> float:
        """Return the gap to the lower bound, in per cent of the bound: the largest possible gain under the model."""
        return (self.predicted_ms / self.lower_bound_ms - 1) * 100


@dataclass(frozen=True)
class Near:
    """The current placement with its file, and the most bytes that devices may newly receive (None for no limit)."""

    old: PlacementAnswer
    source: str
    max_move_bytes: int | None = None

    @property
    def most_bytes(self) -> float:
        """Return the limit on moved bytes; infinite if there is none."""
        return float("inf") if self.max_move_bytes is None else self.max_move_bytes

    def add_to(
        self, answer: PlacementAnswer, found: NearResult, free_ms: float, stay_saves: DifferenceInterval
    ) -> PlacementAnswer:
        """Return the answer with ``nearness``: its moves, and step times with the fewest and with unlimited moves."""
        now = {table.name: table for table in answer.request.tables}
        before = {table.name for table in self.old.request.tables}
        earlier = match_earlier_placement(self.old, answer.request)
        overlaps = earlier.list_overlaps(now.values(), answer.parts_of_table, answer.request.nodes)
        moved = [overlap for overlap in overlaps if overlap.moved_bytes]
        return replace(
            answer,
            nearness=Nearness(
                source=self.source,
                max_move_bytes=self.max_move_bytes,
                moved_bytes=sum(overlap.moved_bytes for overlap in moved),
                moved_tables=tuple(dict.fromkeys(overlap.table for overlap in moved)),
                new_tables=tuple(
                    sorted((name for name in now if name not in earlier.parts_of_table), key=before.__contains__)
                ),
                gone_tables=tuple(table.name for table in self.old.request.tables if table.name not in now),
                stay_ms=found.stay.predicted_ms,
                stay_bytes=found.stay_bytes,
                free_ms=min(free_ms, answer.predicted_ms),  # without a limit, the answer is also a candidate
                free_bytes=found.free_bytes,
                stay_saves=stay_saves,
            ),
        )


def match_earlier_placement(old: PlacementAnswer, request: PlacementRequest) -> EarlierPlacement:
    """Return the old placement of the tables that have the same shape in the request."""
    of_old = {table.name: table for table in old.request.tables}
    usable = {
        table.name: old.parts_of_table[table.name]
        for table in request.tables
        if table.name in of_old and not shape_changes(of_old[table.name], table)
    }
    return EarlierPlacement(usable, old.request.nodes, match_optimizers(old.request, request))


def slowest_device(devices: Sequence[PredictedDevice]) -> int:
    """Return the device with the largest predicted busy time, the first if several are equal."""
    return max(range(len(devices)), key=lambda device: devices[device].predicted_total_ms)


def fullest_device(answer: PlacementAnswer) -> DeviceMemory:
    """Return the memory of the fullest device, the first if several are equal."""
    return max(answer.memory, key=lambda one: one.full)


def model_lineage(answer: PlacementAnswer) -> Mapping[str, Any]:
    """Return the recorded lineage of the answer's cost model; empty if there is none."""
    return answer.lineage.get("model") or {}
