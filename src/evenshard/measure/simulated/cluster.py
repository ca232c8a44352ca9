"""A simulated machine of many GPUs: what any placement of parts costs on it, by the device model and the links.

Times are simulated, as those of ``SimulatedHardware`` are; what both leave out stands in docs/measure.md.

Legend: P parts looked up, D devices, C calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import GRADIENT_BYTES, Links, exchange_times, volumes_of
from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.measure.kernel_calls import EVERY_DEVICE, KernelCall, held_parts
from evenshard.measure.link import start_skew_ms
from evenshard.measure.offload import host_link, part_offload_times
from evenshard.measure.simulated.device_model import (
    NS_PER_MS,
    backward_ms,
    backward_ns,
    forward_ms,
    forward_ns,
    pass_ms,
    short_ms,
)
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import NUMBERS, SGD
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

DENSE_PASSES = 4
"""Times that a dense gradient's values move: zeroed, then read with the weights, which are written."""


class SimulatedCluster:
    """Devices of one profile, or of several, and the links between them. Deterministic.

    Args:
        machine: the machine.
        profiles: the profile of every device, by device id.
        links: of the machine's tiers.
        optimizer: updates the weights.
    """

    def __init__(self, machine: Machine, profiles: Sequence[GpuProfile], links: Links, optimizer: str = SGD) -> None:
        assert len(profiles) == machine.num_devices
        self.machine, self.links, self._optimizer = machine, links, optimizer
        kinds = list(dict.fromkeys(profiles))
        self._kind_of_D = np.array([kinds.index(profile) for profile in profiles])
        self._kinds = [(profile, WorkCounter(profile, optimizer)) for profile in kinds]
        self._host_of_D = [host_link(machine, profile) for profile in profiles]

    def cost(self, task: ShardingTask, parts: Sequence[TablePart]) -> PlacementCost:
        """What a placement of parts costs.

        Raises:
            BadConfig: if the parts are not those of the task's tables.
        """
        by_table = parts_by_table(task, parts)
        forward_D, backward_D = self._compute_ms(task, by_table)
        exchanges = exchange_times(task, volumes_of(task, by_table), self.links)
        waits = start_skew_ms(forward_D.tolist())
        columns = (forward_D, exchanges.forward, exchanges.backward, backward_D, exchanges.input_dist)
        return PlacementCost(
            tuple(
                DeviceCost(fwd, out, back, bwd, fwd_wait_ms=wait, input_dist_ms=inputs)
                for fwd, out, back, bwd, inputs, wait in zip(
                    *(column.tolist() for column in columns), waits, strict=True
                )
            ),
            "modelled",
        )

    def _compute_ms(
        self, task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]
    ) -> tuple[FloatArray, FloatArray]:
        """[D] forward and backward compute time: that of all calls of a device, one after the other."""
        devices = task.num_devices
        fused, dense = _Lookups(), _Lookups()
        for held in held_parts(task, by_table):
            if held.device == EVERY_DEVICE:
                dense.add(held.call, 1, 0, held.looked_up)
            else:
                fused.add(held.call, devices, held.device, held.looked_up)
        update_values = _dense_values(by_table)
        forward_D, backward_D = np.zeros(devices), np.zeros(devices)
        for kind, (profile, counter) in enumerate(self._kinds):
            own_D = self._kind_of_D == kind
            shards = _passes(profile, counter, fused.of_devices(own_D), devices, self._optimizer)
            replicas = _passes(profile, counter, dense, 1, SGD)  # the same on every device
            calls_D = shards.calls + replicas.calls
            update_ms = dense_ms(update_values, profile.hbm_bytes_per_ns, self._optimizer)
            backward_ns_D = shards.backward_ns + replicas.backward_ns + NS_PER_MS * update_ms
            forward_ns_D = shards.forward_ns + replicas.forward_ns
            short_D = np.maximum(shards.short_ms, replicas.short_ms)
            forward_ms_D = pass_ms(forward_ns_D, calls_D, profile.fwd_overhead_us, profile.fwd_host_us)
            backward_ms_D = pass_ms(backward_ns_D, calls_D, profile.bwd_overhead_us, profile.bwd_host_us) + short_D
            forward_D[own_D], backward_D[own_D] = forward_ms_D[own_D], backward_ms_D[own_D]
        for table in task.tables:
            for part in by_table[table.name]:
                if not part.storage.is_on_device:
                    times = part_offload_times(task, part, table, self._host_of_D[part.device])
                    forward_D[part.device] += times.forward_ms
                    backward_D[part.device] += times.backward_ms
        return forward_D, backward_D


@dataclass
class _Lookups:
    """What is looked up in which cell: a kernel call of a device, call after call.

    Attributes:
        calls: numbers of the calls.
        looked_up: tables, each with the samples of its bags.
        cells: of each.
    """

    calls: dict[KernelCall, int] = field(default_factory=dict)
    looked_up: list[tuple[Table, int]] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)

    def add(self, call: KernelCall, devices: int, device: int, looked_up: Sequence[tuple[Table, int]]) -> None:
        """A part."""
        cell = self.calls.setdefault(call, len(self.calls)) * devices + device
        self.looked_up += looked_up
        self.cells += [cell] * len(looked_up)

    def of_devices(self, own_D: npt.NDArray[np.bool_]) -> _Lookups:
        """Those of some devices."""
        if own_D.all():
            return self
        own = [bool(own_D[cell % len(own_D)]) for cell in self.cells]
        return _Lookups(self.calls, [*compress(self.looked_up, own)], [*compress(self.cells, own)])


class _Passes(NamedTuple):
    """The calls of devices, [D] each: how many, their kernels, and what short ones add."""

    calls: FloatArray
    forward_ns: FloatArray
    backward_ns: FloatArray
    short_ms: FloatArray


def _passes(profile: GpuProfile, counter: WorkCounter, lookups: _Lookups, devices: int, optimizer: str) -> _Passes:
    if not lookups.cells:
        return _Passes(*np.zeros((4, devices)))
    cells = np.array(lookups.cells, dtype=np.int64)
    work = counter.shard_work(columns_of(counter, lookups.looked_up), cells, len(lookups.calls) * devices)
    return _Passes(
        (work.num_tables > 0).reshape(-1, devices).sum(axis=0).astype(np.float64),
        forward_ns(profile, work).reshape(-1, devices).sum(axis=0),
        backward_ns(profile, work, optimizer).reshape(-1, devices).sum(axis=0),
        short_ms(profile, work).reshape(-1, devices).max(axis=0),
    )


def columns_of(counter: WorkCounter, looked_up: Sequence[tuple[Table, int]]) -> FloatArray:
    """[P, columns] work of tables, each for the samples of its bags."""
    found: list[FloatArray | None] = [None] * len(looked_up)
    by_batch: dict[int, list[int]] = {}
    for number, (_, batch_size) in enumerate(looked_up):
        by_batch.setdefault(batch_size, []).append(number)
    for batch_size, numbers in by_batch.items():
        rows = counter.columns([looked_up[number][0] for number in numbers], batch_size)
        for number, row in zip(numbers, rows, strict=True):
            found[number] = row
    return np.array(found)


def alone_ms(counter: WorkCounter, profile: GpuProfile, looked_up: Sequence[tuple[Table, int]]) -> FloatArray:
    """[P, 2] forward and backward time of tables alone on a device, with SGD."""
    work = counter.shard_work(columns_of(counter, looked_up), np.arange(len(looked_up)), len(looked_up))
    return np.stack([forward_ms(profile, work), backward_ms(profile, work)], axis=1)


def dense_ms(values: float, bytes_per_ns: float, optimizer: str) -> float:
    """Time that a device takes to clear dense gradients and to update weights and states with them, ms."""
    states = NUMBERS[optimizer][1]
    return values * GRADIENT_BYTES * (DENSE_PASSES + 2 * states) / bytes_per_ns / NS_PER_MS


def _dense_values(by_table: Mapping[str, Sequence[TablePart]]) -> float:
    """Weights of all replicated tables."""
    replicated = (part for parts in by_table.values() for part in parts if len(part.devices) > 1)
    return float(sum(part.rows.size * part.columns.size for part in replicated))
