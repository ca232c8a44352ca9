"""The true cost of a placement on a simulated cluster, kept up to date while tables change one after the other.

``SimulatedCluster.cost`` counts every part again; here only the kernel calls that a change touches are. Both agree to
rounding, and what a search finds is priced by ``SimulatedCluster`` in the end.

Legend: T tables, D devices, Q cells: a kernel call on a device, C columns of work, P parts of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import Volumes, exchange_times, part_volume
from evenshard.measure.kernel_calls import KernelCall, kernel_call, part_lookups, replica_lookups
from evenshard.measure.price.step import dense_ms
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.device_model import backward_ns, beside_kernels_ms, forward_ns, pass_ms
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.measure.simulated.price import work_columns
from evenshard.measure.simulated.shard_work import MAXIMA, ShardWork, WorkCounter
from evenshard.measure.step_time import Phases, windows
from evenshard.placement.optimizer_state import SGD
from evenshard.placement.parts import TablePart, lookup_share
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import DATA_PARALLEL, sharding_type
from evenshard.placement.task import ShardingTask, part_bytes
from evenshard.tables.reuse import FloatArray

# Column of the work that counts tables.
_TABLES = 0
# Changes after which sums are added up from the start, as rounding piles up.
REBUILD_AFTER = 2000


@dataclass(frozen=True)
class Share:
    """What a table adds to the cluster.

    Attributes:
        way: its sharding type; empty for a table that is not placed.
        cells_P: [P] cells of its parts.
        work_PC: [P, C] work.
        volumes_P4: [P, 4] values sent, summed, summed in the node, and bytes of input.
        devices_P, bytes_P: [P] where it takes memory, and how much; replicas on every device.
    """

    way: str
    cells_P: npt.NDArray[np.int64]
    work_PC: FloatArray
    volumes_P4: FloatArray
    devices_P: npt.NDArray[np.int64]
    bytes_P: FloatArray


class ClusterState:
    """A placement and the time of every device, ms. The devices are of one kind.

    Attributes:
        parts: of each table.
        windows_WD: time of every device in each window of a step.
        used_D: bytes that every device holds.
    """

    def __init__(
        self, cluster: SimulatedCluster, task: ShardingTask, profile: GpuProfile, optimizer: str = SGD
    ) -> None:
        self.task, self._links, self._profile, self._optimizer = task, cluster.links, profile, optimizer
        self._counter = WorkCounter(profile, optimizer)
        self._calls: dict[KernelCall, int] = {}
        self._known_work: dict[tuple[int, str, int, int, int], tuple[FloatArray, FloatArray]] = {}
        self._known_shares: dict[tuple[int, tuple[TablePart, ...]], Share] = {}
        self._room_D = np.array(task.room_bytes, dtype=float)
        self.parts: list[tuple[TablePart, ...]] = []

    def start(self, parts: Sequence[TablePart]) -> None:
        """Takes a placement of all tables."""
        by_table = parts_by_table(self.task, parts)
        self.parts = [by_table[table.name] for table in self.task.tables]
        self._rebuild()

    def start_empty(self) -> None:
        """Takes no table yet; ``change`` places them."""
        self.parts = [()] * len(self.task.tables)
        self._rebuild()

    def _rebuild(self) -> None:
        devices, tables = self.task.num_devices, len(self.task.tables)
        shares = [self._share(position, parts) for position, parts in enumerate(self.parts)]
        cells = max(len(self._calls), 1) * devices
        width = self._counter.columns(self.task.tables[:1], self.task.batch_size).shape[1]
        self._sums_QC = np.zeros((cells, width))
        self._maxima_MQT = np.zeros((MAXIMA.stop - MAXIMA.start, cells, tables))
        self._times_3Q = np.zeros((3, cells))
        self._volumes_D4 = np.zeros((devices, 4))
        self.used_D = np.zeros(devices)
        self._dense: dict[int, FloatArray] = {}
        self._dense_known: dict[frozenset[int], FloatArray] = {}
        self._ways: dict[tuple[str, str], int] = {}
        self._changes = 0
        for position, share in enumerate(shares):
            self._add(position, share, 1)
        self._time(np.arange(cells))
        self._finish()

    def change(self, new: dict[int, tuple[TablePart, ...]]) -> None:
        """Shards tables otherwise."""
        self._changes += 1
        touched = []
        for position, parts in new.items():
            before, after = self._share(position, self.parts[position]), self._share(position, parts)
            if len(self._calls) * self.task.num_devices > len(self._sums_QC):
                self.parts = [new.get(number, kept) for number, kept in enumerate(self.parts)]
                self._rebuild()
                return
            self._add(position, before, -1)
            self._add(position, after, 1)
            touched += [before.cells_P, after.cells_P]
            self.parts[position] = parts
        if self._changes > REBUILD_AFTER:
            self._rebuild()
            return
        self._time(np.unique(np.concatenate(touched)))
        self._finish()

    def fits(self) -> bool:
        """Whether every device has room."""
        return bool((self.used_D <= self._room_D + 0.5).all())

    # ------------------------------------------------------------------------------------------------------------------

    def _share(self, position: int, parts: tuple[TablePart, ...]) -> Share:
        key = (position, parts)
        if key not in self._known_shares:
            if len(self._known_shares) > 200_000:
                self._known_shares.clear()
            self._known_shares[key] = self._make_share(position, parts)
        return self._known_shares[key]

    def _make_share(self, position: int, parts: tuple[TablePart, ...]) -> Share:
        table, devices = self.task.tables[position], self.task.num_devices
        if not parts:
            nothing = np.zeros(0, dtype=np.int64)
            return Share("", nothing, np.zeros((0, 0)), np.zeros((0, 4)), nothing, np.zeros(0))
        way = sharding_type(parts, table, self.task.machine)
        homes = np.array([device for part in parts for device in part.devices], dtype=np.int64)
        sizes = np.array([part_bytes(self.task, table, part) for part in parts for _ in part.devices], dtype=float)
        if way == DATA_PARALLEL:
            work = self._combine(work_columns(self._counter, replica_lookups(table, self.task)))
            none = np.zeros(0, dtype=np.int64)
            return Share(way, none, work[None], np.zeros((0, 4)), homes, sizes)
        call = self._calls.setdefault(kernel_call(table, way), len(self._calls))
        known = [self._part(position, way, part) for part in parts]
        return Share(
            way,
            call * devices + homes,
            np.array([work for work, _ in known]),
            np.array([volumes for _, volumes in known]),
            homes,
            sizes,
        )

    def _part(self, position: int, way: str, part: TablePart) -> tuple[FloatArray, FloatArray]:
        key = (position, way, part.rows.start, part.rows.stop, part.columns.size)
        if key not in self._known_work:
            table = self.task.tables[position]
            work = work_columns(self._counter, part_lookups(part, table, self.task))
            share = lookup_share(table, part.rows)
            one = part_volume(table, way, part.columns.size, share, self.task.num_devices)
            volumes = np.array([one.sent, one.summed, one.summed_in_node, one.input_bytes])
            self._known_work[key] = (self._combine(work), volumes)
        return self._known_work[key]

    @staticmethod
    def _combine(work_PC: FloatArray) -> FloatArray:
        found = work_PC.sum(axis=0)
        found[MAXIMA] = work_PC[:, MAXIMA].max(axis=0)
        return np.asarray(found)

    def _add(self, position: int, share: Share, sign: int) -> None:
        if not share.way:
            return
        self.used_D[share.devices_P] += sign * share.bytes_P
        key = kernel_call(self.task.tables[position], share.way)[:2]
        self._ways[key] = self._ways.get(key, 0) + sign
        if share.way == DATA_PARALLEL:
            if sign > 0:
                self._dense[position] = share.work_PC[0]
            else:
                self._dense.pop(position)
            return
        self._sums_QC[share.cells_P] += sign * share.work_PC
        self._maxima_MQT[:, share.cells_P, position] = share.work_PC[:, MAXIMA].T if sign > 0 else 0.0
        self._volumes_D4[share.devices_P] += sign * share.volumes_P4

    def _time(self, cells: npt.NDArray[np.int64]) -> None:
        """Times the calls of cells again."""
        sums = self._sums_QC[cells]
        sums[:, MAXIMA] = self._maxima_MQT[:, cells].max(axis=2).T
        filled = sums[:, _TABLES] > 0.5
        self._times_3Q[:, cells[~filled]] = 0.0
        if filled.any():
            self._times_3Q[:, cells[filled]] = self._times(self._counter.work_of_sums(sums[filled]), self._optimizer)

    def _times(self, work: ShardWork, optimizer: str) -> FloatArray:
        """[3, N] kernels of the forward and backward calls, ns, and what backward calls take beside these, ms."""
        profile = self._profile
        kernels_2N = [forward_ns(profile, work), backward_ns(profile, work, optimizer)]
        return np.array([*kernels_2N, beside_kernels_ms(profile, work.lookups)])

    def _finish(self) -> None:
        """Adds up the devices' times, as ``SimulatedCluster`` does."""
        devices, profile = self.task.num_devices, self._profile
        times_3CD = self._times_3Q.reshape(3, -1, devices)
        replicas_5 = self._replicas()
        calls_2D = (times_3CD[:2] > 0).sum(axis=1) + replicas_5[:2, None]
        forward_D, backward_D = times_3CD[:2].sum(axis=1) + replicas_5[2:4, None]
        forward_ms_D = pass_ms(forward_D, calls_2D[0], profile.fwd_overhead_us, profile.fwd_host_us)
        backward_ms_D = pass_ms(backward_D, calls_2D[1], profile.bwd_overhead_us, profile.bwd_host_us)
        backward_ms_D = backward_ms_D + np.maximum(times_3CD[2].max(axis=0), replicas_5[4])
        volumes = Volumes(*np.ascontiguousarray(self._volumes_D4.T))
        volumes.replicated_values = self._replicated_values()
        volumes.collectives = {key for key, count in self._ways.items() if count > 0}
        exchanges = exchange_times(self.task, volumes, self._links)
        backward_ms_D += dense_ms(volumes.replicated_values, profile.hbm_bytes_per_ns, self._optimizer)
        phases = Phases(exchanges.input_dist, forward_ms_D, exchanges.forward, exchanges.backward, backward_ms_D)
        alike = (np.broadcast_to(window.total, devices) for window in windows(phases, self.task.pipeline))
        self.windows_WD = np.stack(list(alike))

    @property
    def totals_D(self) -> FloatArray:
        """What every device does in a step, waits left aside."""
        return np.asarray(self.windows_WD.sum(axis=0))

    @property
    def step_ms(self) -> float:
        """Time of a step."""
        return float(self.windows_WD.max(axis=1).sum())

    def _replicated_values(self) -> float:
        tables = self.task.tables
        return float(sum(tables[one].num_rows * tables[one].embedding_dim for one in self._dense))

    def _replicas(self) -> FloatArray:
        """[5] calls of replicated tables and their kernels, ns, forward and backward, and what is beside these, ms."""
        key = frozenset(self._dense)
        if key not in self._dense_known:
            if len(self._dense_known) > 10_000:
                self._dense_known.clear()
            self._dense_known[key] = self._count_replicas()
        return self._dense_known[key]

    def _count_replicas(self) -> FloatArray:
        if not self._dense:
            return np.zeros(5)
        by_call: dict[KernelCall, list[FloatArray]] = {}
        for position, work in self._dense.items():
            by_call.setdefault(kernel_call(self.task.tables[position], DATA_PARALLEL), []).append(work)
        calls = self._counter.work_of_sums(np.array([self._combine(np.array(one)) for one in by_call.values()]))
        times_3N = self._times(calls, SGD)
        return np.array([*(times_3N[:2] > 0).sum(axis=1), *times_3N[:2].sum(axis=1), times_3N[2].max()])
