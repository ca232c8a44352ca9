"""A simulated machine of many GPUs: what any placement of parts costs on it, by the device model and the links.

Times are simulated, as those of ``SimulatedHardware`` are; what both leave out stands in docs/measure.md.

Legend: P parts looked up, D devices, C calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evenshard.measure.collectives import GRADIENT_BYTES, Links, exchange_times, volumes_of
from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.measure.kernel_calls import EVERY_DEVICE, KernelCall, held_parts
from evenshard.measure.link import start_skew_ms
from evenshard.measure.simulated.device_model import NS_PER_MS, backward_ms, forward_ms
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import NUMBERS, SGD
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import ShardingTask, parts_by_table
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
        """[D] forward and backward compute time: that of all calls, one after the other."""
        calls: dict[KernelCall, int] = {}
        looked_up: list[tuple[Table, int]] = []
        cells: list[int] = []
        dense: dict[KernelCall, list[tuple[Table, int]]] = {}
        for held in held_parts(task, by_table):
            if held.device == EVERY_DEVICE:
                dense.setdefault(held.call, []).extend(held.looked_up)
                continue
            cell = calls.setdefault(held.call, len(calls)) * task.num_devices + held.device
            looked_up += held.looked_up
            cells += [cell] * len(held.looked_up)
        forward_D, backward_D = np.zeros(task.num_devices), np.zeros(task.num_devices)
        device_of_P = np.array(cells, dtype=np.int64) % task.num_devices
        for kind, (profile, counter) in enumerate(self._kinds):
            own_D = self._kind_of_D == kind
            own_P = own_D[device_of_P] if len(cells) else np.zeros(0, dtype=bool)
            if own_P.any():
                work = counter.shard_work(
                    columns_of(counter, [one for one, own in zip(looked_up, own_P, strict=True) if own]),
                    np.array(cells, dtype=np.int64)[own_P],
                    len(calls) * task.num_devices,
                )
                forward_D += forward_ms(profile, work).reshape(-1, task.num_devices).sum(axis=0)
                backward_D += backward_ms(profile, work, self._optimizer).reshape(-1, task.num_devices).sum(axis=0)
            for held_by_all in dense.values():
                columns_PC = columns_of(counter, held_by_all)
                work = counter.shard_work(columns_PC, np.zeros(len(columns_PC), dtype=np.int64), 1)
                forward_D[own_D] += float(forward_ms(profile, work)[0])
                backward_D[own_D] += float(backward_ms(profile, work)[0])
            backward_D[own_D] += dense_ms(_dense_values(by_table), profile.hbm_bytes_per_ns, self._optimizer)
        return forward_D, backward_D


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


def dense_ms(values: float, bytes_per_ns: float, optimizer: str) -> float:
    """Time that a device takes to clear dense gradients and to update weights and states with them, ms."""
    states = NUMBERS[optimizer][1]
    return values * GRADIENT_BYTES * (DENSE_PASSES + 2 * states) / bytes_per_ns / NS_PER_MS


def _dense_values(by_table: Mapping[str, Sequence[TablePart]]) -> float:
    """Weights of all replicated tables."""
    replicated = (part for parts in by_table.values() for part in parts if len(part.devices) > 1)
    return float(sum(part.rows.size * part.columns.size for part in replicated))
