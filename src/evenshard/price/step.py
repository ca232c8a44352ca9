"""Predicted training step of a placement: compute from device prices, communication from links.

``step_time`` combines the times of the devices into the step time.

Legend: D devices, K kinds of devices, P parts, H columns, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.parts import TablePart, lookup_share, whole_part
from evenshard.placement.placement import Placement, parts_by_table, row_wise_means
from evenshard.placement.sharding import sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.price import collectives
from evenshard.price.collectives import ExchangeTimes, Links, Volumes
from evenshard.price.kernel_calls import EVERY_DEVICE, DevicePrice, HeldPart, alone_ms, list_held_parts
from evenshard.price.loads import CellChanges, Indices, Loads, LookupColumns
from evenshard.price.offload import HostLink, part_offload_ms
from evenshard.price.step_time import Phases, device_ms, hidden_ms, hides_inputs, kernels_ms, step_ms
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

NS_PER_MS = 1e6
# Memory passes over a dense gradient: cleared, then read with the weights, which are written.
DENSE_PASSES = 4
# Memory passes of a division by lengths of the same size as the outputs, forward and backward.
DIVISION_PASSES = 9
# Tables and devices of the whole placements that are predicted in one batch: some 50 MB.
MOST_AT_ONCE = 2**16


Numbers = TypeVar("Numbers", float, FloatArray)


def dense_ms(values: Numbers, bytes_per_ns: float, optimizer: str) -> Numbers:
    """Return the time to zero dense gradients and apply the dense optimizer, ms."""
    states = STATE_NUMBERS[optimizer][1]
    return values * (collectives.GRADIENT_BYTES * (DENSE_PASSES + 2 * states) / bytes_per_ns / NS_PER_MS)


@dataclass(frozen=True)
class DeviceKind:
    """Kind of identical devices: price, memory bandwidth (for dense gradients) and link to the host."""

    price: DevicePrice
    bytes_per_ns: float
    host: HostLink = field(default_factory=HostLink)


@dataclass(frozen=True)
class PredictedDevice:
    """Predicted times of one device in one training step, ms; a device without tables only communicates.

    The hidden part of the input dist overlaps the previous step. ``predicted_wait_ms`` is spent waiting for other
    devices; together with ``predicted_total_ms`` it is the step time.
    """

    predicted_fwd_compute_ms: float
    predicted_fwd_all_to_all_ms: float
    predicted_bwd_all_to_all_ms: float
    predicted_bwd_compute_ms: float
    predicted_input_dist_ms: float = 0.0
    predicted_hidden_ms: float = 0.0
    predicted_wait_ms: float = 0.0

    @property
    def predicted_total_ms(self) -> float:
        """Return the device's own time in a step, without waits and hidden time."""
        return sum(predicted_step_times(self))


STEP_PARTS = ("input dist", "forward", "forward communication", "backward communication", "backward")


def predicted_step_times(device: PredictedDevice) -> tuple[float, ...]:
    """Return a device's non-hidden step times, in the order of ``STEP_PARTS``."""
    return (
        device.predicted_input_dist_ms - device.predicted_hidden_ms,
        device.predicted_fwd_compute_ms,
        device.predicted_fwd_all_to_all_ms,
        device.predicted_bwd_all_to_all_ms,
        device.predicted_bwd_compute_ms,
    )


def collect_phases(devices: Sequence[PredictedDevice]) -> Phases:
    """Return the phases of devices, [D] each."""
    names = ("input_dist", "fwd_compute", "fwd_all_to_all", "bwd_all_to_all", "bwd_compute")
    return Phases(*(np.array([getattr(one, f"predicted_{name}_ms") for one in devices]) for name in names))


def step_shares_ms(devices: Sequence[PredictedDevice], pipeline: str) -> tuple[float, float]:
    """Return the times of kernels and of communication in a step."""
    phases = collect_phases(devices)
    compute_ms = kernels_ms(phases, pipeline)
    return compute_ms, float(step_ms(phases, pipeline)) - compute_ms


def exchange_share(devices: Sequence[PredictedDevice], pipeline: str) -> float:
    """Return the share of communication in the step time, 0 to 1."""
    compute_ms, exchanged_ms = step_shares_ms(devices, pipeline)
    total_ms = compute_ms + exchanged_ms
    return exchanged_ms / total_ms if total_ms > 0 else 0.0


@dataclass(frozen=True)
class PredictedParts:
    """Prediction of a placement; the 90 % interval covers only the cost model's error."""

    parts: tuple[TablePart, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    low_ms: float
    high_ms: float
    members_ms: tuple[float, ...]


class PartCosts:
    """Predictor of the step time for any placement of a task's tables.

    ``pipeline`` determines how the phases of devices form a step (``step_time.windows``); by default, the task's.
    """

    def __init__(
        self,
        task: ShardingTask,
        kinds: Sequence[DeviceKind],
        kind_of_D: Sequence[int],
        links: Links,
        pipeline: str | None = None,
    ) -> None:
        self.task, self.links = task, links
        self.kinds, self.kind_of_D = tuple(kinds), np.asarray(kind_of_D)
        self.prices = tuple(kind.price for kind in kinds)
        self.pipeline = task.pipeline if pipeline is None else pipeline

    def of_task(self, task: ShardingTask) -> PartCosts:
        """Return a predictor for another task with the same tables and machine but other rules."""
        found = copy(self)
        found.task = task
        return found

    def predict(self, parts: Sequence[TablePart]) -> PredictedParts:
        """Predict the times of every device and of the step, with an interval.

        Raises:
            BadConfig: if the parts do not belong to the task's tables.
        """
        by_table = parts_by_table(self.task, parts)
        device_1P = np.array(
            [[one.device for of in by_table.values() for one in of if len(one.devices) == 1]], dtype=int
        )
        return self._predict_side_by_side(by_table, device_1P, [parts])[0]

    def division_ms(self, collections: Collection[object]) -> float:
        """Return the time that row-wise MEAN collections need to divide their outputs by lengths, ms.

        The device with the slowest memory determines this time, which ``predict`` leaves out.
        """
        tables = [table for table in self.task.tables if table.collection in collections]
        moved = (
            DIVISION_PASSES * 4 * self.task.local_batch * sum(one.embedding_dim * one.num_features for one in tables)
        )
        return moved / min(kind.bytes_per_ns for kind in self.kinds) / NS_PER_MS

    def divisions_ms(self, parts: Sequence[TablePart]) -> float:
        """Return the division time of the row-wise MEAN collections of a placement, ms."""
        return self.division_ms(row_wise_means(self.task, parts_by_table(self.task, parts)))

    def predict_whole(self, placements: Sequence[Placement]) -> list[PredictedParts]:
        """Predict many placements of whole tables like ``predict``, but faster: shared terms are priced once."""
        tables, found = self.task.tables, []
        by_table = {table.name: (whole_part(table, (0,)),) for table in tables}
        at_once = max(1, MOST_AT_ONCE // (len(tables) + self.task.num_devices))
        for first in range(0, len(placements), at_once):
            some = placements[first : first + at_once]
            device_NT = np.array([one.device_of_table for one in some])
            found += self._predict_side_by_side(by_table, device_NT, [one.parts(tables) for one in some])
        return found

    def _predict_side_by_side(
        self, by_table: Mapping[str, Sequence[TablePart]], device_NP: Indices, placed: Sequence[Sequence[TablePart]]
    ) -> list[PredictedParts]:
        """Predict N placements that differ only in device assignment, as one batch."""
        volumes = collectives.volumes_of(self.task, by_table, device_NP)
        exchanges = collectives.exchange_times(self.task, volumes, self.links)
        numbers = iter((device_NP + self.task.num_devices * np.arange(len(placed))[:, None]).ravel().tolist())
        held = [
            one if one.device == EVERY_DEVICE else HeldPart(one.call, next(numbers), one.lookups)
            for one in [*list_held_parts(self.task, by_table)] * len(placed)
        ]
        compute_NDM2 = self._compute_ms(held, sum_replicas(by_table), len(placed)) + self._offload_D12(by_table)
        return [
            self._prediction(parts, compute_DM2, ExchangeTimes(*(times_ND[number] for times_ND in exchanges)))
            for number, (parts, compute_DM2) in enumerate(zip(placed, compute_NDM2, strict=True))
        ]

    def _prediction(
        self, parts: Sequence[TablePart], compute_DM2: FloatArray, exchanges: ExchangeTimes
    ) -> PredictedParts:
        members_M = step_ms(_phases(compute_DM2.T, exchanges), self.pipeline)
        mean = _phases(compute_DM2.mean(axis=1).T, exchanges)
        predicted_ms = float(step_ms(mean, self.pipeline))
        waits_D = np.maximum(predicted_ms - device_ms(mean, self.pipeline), 0.0)
        rows = np.stack([*mean, hidden_ms(mean, self.pipeline), waits_D]).T.tolist()
        devices = tuple(
            PredictedDevice(fwd, out, back, bwd, inputs, *more) for inputs, fwd, out, back, bwd, *more in rows
        )
        half = max(price.interval(members_M) for price in self.prices)
        low_ms, high_ms = predicted_ms * float(np.exp(-half)), predicted_ms * float(np.exp(half))
        return PredictedParts(tuple(parts), devices, predicted_ms, low_ms, high_ms, tuple(members_M.tolist()))

    def part_ms(self, parts: Sequence[TablePart]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return each part's time alone on its device, and the time it adds to the other parts there, ms.

        Communication times are those of devices with equal volumes.
        """
        by_table = parts_by_table(self.task, parts)
        slopes_V, replica_ms = self.exchange_slopes
        held = list(list_held_parts(self.task, by_table))
        lookups = LookupColumns(self.prices)
        calls = {call: number for number, call in enumerate(dict.fromkeys(one.call for one in held))}
        row_E = np.array([lookups.row(one.lookups) for one in held])
        lookups.update()
        spans = [self.task.num_devices if call.is_dense else 1 for call in calls]
        loads = Loads(lookups, self.prices, self.kind_of_D, spans, 1)
        number_E, only_E = np.arange(len(held)), np.zeros(len(held), dtype=np.int64)
        is_replica_E = np.array([one.device == EVERY_DEVICE for one in held])
        device_E = np.where(is_replica_E, 0, [one.device for one in held])
        cells = CellChanges(only_E, np.array([calls[one.call] for one in held]), row_E, device_E, only_E + 1)
        loads.recompute(cells)
        compute_D = loads.compute_2ND[:, 0].sum(axis=0)
        device_E = np.where(is_replica_E, compute_D.argmax(), device_E)
        left_ED = loads.try_out(only_E, replace(cells, change_E=number_E, sign_E=only_E - 1)).sum(axis=0)
        adds = compute_D[device_E] - left_ED[number_E, device_E]
        alone_KP = [alone_ms(price, of_kind) for price, of_kind in zip(self.prices, lookups.columns_KPH, strict=True)]
        alone = np.stack(alone_KP)[self.kind_of_D[device_E], row_E]
        tables = {table.name: table for table in self.task.tables}
        ordered = [part for of_table in by_table.values() for part in of_table]
        for number, part in enumerate(ordered):
            more = self._outside_kernels_ms(part, tables[part.table], by_table[part.table], slopes_V, replica_ms)
            alone[number] += more
            adds[number] += more
        position = {part: number for number, part in enumerate(ordered)}
        order = [position[part] for part in parts]
        return tuple(alone[order].tolist()), tuple(adds[order].tolist())

    def _outside_kernels_ms(
        self, part: TablePart, table: Table, of_table: Sequence[TablePart], slopes_V: FloatArray, replica_ms: float
    ) -> float:
        """Return a part's time outside of kernels: communication, dense gradients and offloading."""
        if len(part.devices) > 1:
            values = table.num_rows * table.embedding_dim
            return values * replica_ms + dense_ms(values, self.kinds[0].bytes_per_ns, self.task.optimizer)
        name = sharding_type(of_table, table, self.task.machine)
        share = lookup_share(table, part.rows)
        volume = collectives.part_volume(table, name, part.columns.size, share, self.task.num_devices)
        kind = self.kinds[self.kind_of_D[part.device]]
        return float(slopes_V @ volume) + sum(part_offload_ms(self.task, part, table, kind.host))

    def offload_K2(self, part: TablePart, table: Table) -> tuple[tuple[float, float], ...]:
        """Return the extra forward and backward time of an offloaded part by kind of device; empty for other parts."""
        if part.storage.is_on_device:
            return ()
        return tuple(part_offload_ms(self.task, part, table, kind.host) for kind in self.kinds)

    def _offload_D12(self, by_table: Mapping[str, Sequence[TablePart]]) -> FloatArray:
        found = np.zeros((self.task.num_devices, 1, 2))
        for table in self.task.tables:
            for part in by_table[table.name]:
                if not part.storage.is_on_device:
                    host = self.kinds[self.kind_of_D[part.device]].host
                    found[part.device, 0] += part_offload_ms(self.task, part, table, host)
        return found

    @cached_property
    def exchange_slopes(self) -> tuple[FloatArray, float]:
        """Return communication times per unit of each volume, [V], and per replicated weight, at equal volumes.

        Both are lower bounds without latencies. An input dist that overlaps the previous step adds 0.
        """
        volumes = Volumes.empty(self.task.num_devices)
        volumes.replicated_values = 1.0
        return self.slopes_V(np.ones(self.task.num_devices)), sum(exchanges_ms_3(self.task, volumes, self.links.floor))

    def slopes_V(self, held_D: FloatArray) -> FloatArray:
        """Return the first device's communication time per unit of each volume; ``held_D`` has each device's volume."""
        found, counted = [], slice(1 if hides_inputs(self.pipeline) else 0, None)
        for name in collectives.VOLUMES:
            volumes = Volumes.empty(self.task.num_devices)
            getattr(volumes, name)[:] = held_D
            found.append(sum(exchanges_ms_3(self.task, volumes, self.links.floor)[counted]))
        return np.array(found)

    def _compute_ms(self, held: Sequence[HeldPart], dense_values: float = 0.0, copies: int = 1) -> FloatArray:
        """Return forward and backward compute times by ensemble member, [N, D, M, 2], of N placements at once."""
        devices = copies * self.task.num_devices
        found = [kind.price.held_parts_ms(held, devices) for kind in self.kinds]
        total = np.zeros((devices, max(times.shape[1] for times in found), 2))
        kind_of_D = np.tile(self.kind_of_D, copies)
        for number, (kind, times) in enumerate(zip(self.kinds, found, strict=True)):
            own_D = kind_of_D == number
            total[own_D] = times[own_D]
            total[own_D, :, 1] += dense_ms(dense_values, kind.bytes_per_ns, self.task.optimizer)
        return total.reshape(copies, self.task.num_devices, *total.shape[1:])


def exchanges_ms_3(task: ShardingTask, volumes: Volumes, links: Links) -> FloatArray:
    """Return the first device's input dist, forward and backward communication time without latencies, [3]."""
    found = collectives.exchange_times(task, volumes, links)
    return np.array([times_D[0] for times_D in found])


def _phases(compute: FloatArray, exchanges: ExchangeTimes) -> Phases:
    forward, backward = compute
    inputs, out, back = (np.broadcast_to(times, forward.shape) for times in exchanges)
    return Phases(inputs, forward, out, back, backward)


def sum_replicas(by_table: Mapping[str, Sequence[TablePart]]) -> float:
    """Return the number of weights of all replicated tables."""
    replicated = (part for parts in by_table.values() for part in parts if len(part.devices) > 1)
    return float(sum(part.rows.size * part.columns.size for part in replicated))
