"""Device times of a simulated device while tables move, from running sums, for searches.

``SimulatedHardware`` measures whole placements. A search changes two shards at a time, a million times: it keeps the
sums of each shard's columns, adds and subtracts tables, and asks here for the time. The physics are those of
``device_model``, ``collectives`` and ``shard_work``; there is no second copy.

Legend: T tables of the task, N shards, C columns of a table's work, M of them maxima.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import all_to_all_ms
from evenshard.measure.link import BYTES_PER_VALUE, Link
from evenshard.measure.simulated.device_model import ROW_LIMITS, backward_ms, forward_ms
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.measure.simulated.shard_work import MAXIMA, NUM_ROWS, NUM_WORK_COLUMNS, OUTPUT_BYTES, SIZE_BYTES
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import FloatArray

IntArray = npt.NDArray[np.int64]
FEW_IN_FLIGHT = 0.2  # of another table: then how tables share the L2 is left out, which makes a shard 0.1 % cheaper
MANTISSA_BITS = 52


class ShardTimes:
    """Times of shards of one task, from the sums of their tables' columns.

    The columns are rounded to a grid on which sums of all tables are exact, so a shard's sums do not depend on the
    order in which tables came and went.

    Attributes:
        columns_TC: [T + 1, C] of the tables, and zeros, which stand for no table.
        alone_ms_T: [T] time of each table on a device of its own, without the exchange.
        room_bytes: memory of a device: the task's cap, or what the device has.
        row_limits: rows beyond which the sort of a shard's indices takes another pass, as far as the task's rows go.
    """

    def __init__(self, hardware: SimulatedHardware, task: ShardingTask) -> None:
        self._profile, self._counter, self._optimizer = hardware.profile, hardware.counter, hardware.optimizer
        self._link = replace(hardware.link, slowest_gb_s=math.inf)
        self._slowest_gb_s = hardware.link.slowest_gb_s
        columns_TC = self._counter.columns(task.tables, task.batch_size)
        if self._counter.tables_in_flight(task.batch_size) < FEW_IN_FLIGHT:
            columns_TC = columns_TC[:, :NUM_WORK_COLUMNS]
        self.columns_TC = np.concatenate([_on_a_grid(columns_TC), np.zeros((1, columns_TC.shape[1]))])
        self.room_bytes = min(float(task.memory_cap_bytes), self._profile.memory_bytes)
        self._num_devices, self._batch_size = task.num_devices, task.batch_size
        rows = float(self.columns_TC[:, NUM_ROWS].sum())
        self.row_limits = tuple(limit for limit in ROW_LIMITS if limit < rows)
        self._total_dims = float(sum(table.embedding_dim for table in task.tables))
        work = self._counter.work_of_sums(self.columns_TC[:-1])
        self.alone_ms_T = forward_ms(self._profile, work) + backward_ms(self._profile, work, self._optimizer)

    def device_ms(self, sums_NC: FloatArray) -> FloatArray:
        """[N] the four times of a device together: compute, and its exchanges with the other devices of the task.

        Without the wait for the device that exchanges most, which all devices share.
        """
        work = self._counter.work_of_sums(sums_NC)
        dims_N = self._dims(sums_NC)
        exchange_N = self._exchanges_ms(self._link, dims_N, self._total_dims - dims_N)
        return np.asarray(
            forward_ms(self._profile, work) + backward_ms(self._profile, work, self._optimizer) + exchange_N
        )

    def wait_ms(self, sums_NC: FloatArray) -> FloatArray:
        """[N] what all devices wait for a device's bytes if it exchanges most."""
        dims_N = self._dims(sums_NC)
        return self._exchanges_ms(Link(0.0, "wait", slowest_gb_s=self._slowest_gb_s), dims_N, np.zeros_like(dims_N))

    def alone_with_wait_ms(self, sums_NC: FloatArray) -> FloatArray:
        """[N] both, as if each device were the one that exchanges most."""
        return self.device_ms(sums_NC) + self.wait_ms(sums_NC)

    def _dims(self, sums_NC: FloatArray) -> FloatArray:
        return np.asarray(sums_NC[:, OUTPUT_BYTES] / (self._batch_size * BYTES_PER_VALUE))

    def _exchanges_ms(self, link: Link, dims_N: FloatArray, others_N: FloatArray) -> FloatArray:
        """[N] both exchanges of a device: which of the others has how many of their dims is all the same to it."""
        dims_ND = np.zeros((len(dims_N), self._num_devices))
        dims_ND[:, -1] = others_N
        dims_ND[:, 0] = dims_N
        both = 1 + self._link.forward_share
        return both * all_to_all_ms(link, dims_ND, self._batch_size)[:, 0]

    def fits(self, sums_NC: FloatArray) -> npt.NDArray[np.bool_]:
        """[N] whether the device has room."""
        return np.asarray(sums_NC[:, SIZE_BYTES] <= self.room_bytes)

    def rows(self, sums_NC: FloatArray) -> FloatArray:
        """[N] rows of all the shard's tables."""
        return np.asarray(sums_NC[:, NUM_ROWS])

    def slowest_ms(self, device_of_T: IntArray) -> float:
        """The slowest device of a placement; infinite if one of its devices has no room for its shard."""
        sums_DC = self.sums(device_of_T)
        if not self.fits(sums_DC).all():
            return math.inf
        return float(self.device_ms(sums_DC).max() + self.wait_ms(sums_DC).max())

    def sums(self, device_of_T: IntArray) -> FloatArray:
        """[D, C] sums of the shards of a placement."""
        sums_DC = np.zeros((self._num_devices, self.columns_TC.shape[1]))
        np.add.at(sums_DC, device_of_T, self.columns_TC[:-1])
        sums_DC[:, MAXIMA] = 0
        np.maximum.at(sums_DC[:, MAXIMA], device_of_T, self.columns_TC[:-1, MAXIMA])
        return sums_DC

    def after_exchange(
        self, sums_NC: FloatArray, left_N: IntArray, came_N: IntArray, others_NS: IntArray
    ) -> FloatArray:
        """[N, C] sums after one table left a shard and another came.

        Args:
            sums_NC: sums before the exchange.
            left_N: position of the table that leaves; T for none.
            came_N: likewise, that comes.
            others_NS: [N, S] the shard's tables, T where there is none; the one that leaves may be among them.
        """
        after_NC = sums_NC + (self.columns_TC[came_N] - self.columns_TC[left_N])
        maxima_TM = self.columns_TC[:, MAXIMA]
        stay_NM = sums_NC[:, MAXIMA].copy()
        gone = np.flatnonzero(((maxima_TM[left_N] >= stay_NM) & (stay_NM > 0)).any(axis=1))
        if gone.size:
            maxima_GSM = maxima_TM[others_NS[gone]]
            maxima_GSM[others_NS[gone] == left_N[gone, None]] = 0
            stay_NM[gone] = maxima_GSM.max(axis=1)
        after_NC[:, MAXIMA] = np.maximum(stay_NM, maxima_TM[came_N])
        return np.asarray(after_NC)


def _on_a_grid(columns_TC: FloatArray) -> FloatArray:
    """The columns, rounded to multiples of a power of two that is 2**-52 of each column's sum or a little more."""
    totals_C = np.maximum(columns_TC.sum(axis=0), 1.0)
    grid_C = np.exp2(np.ceil(np.log2(totals_C)) - MANTISSA_BITS)
    return np.asarray(np.round(columns_TC / grid_C) * grid_C)
