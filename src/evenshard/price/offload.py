"""Extra step time of offloaded rows, read over the host link (UVM, with or without cache) or from SSDs.

A device reads and writes host memory row by row while its kernels run (FBGEMM's managed tables, UVM):

    forward   the rows looked up. The L2 does not keep them: lookups of a row share a transfer only while it is in
              flight, so a few hundred kilobytes of rows are reused, for any batch size.
    backward  each distinct row, and its optimizer states per weight, read and written. Row-wise states are in device
              memory wherever the weights are.

With a cache in device memory, the forward pass first finds the cached rows, which takes time for each lookup and for
the call (``ShardWork.cached``). Then it reads each missing distinct row while another row is evicted. The backward pass
finds all weights in the cache, but no optimizer states, because FBGEMM does not cache them.

The constants are for an H100 with PCIe 5, fitted at commit 98165ba4 to public measurements of rows of 512 bytes
(benchmarks/offload_h100_202611.md). ``key_value`` and ``host`` were not measured: their times are bytes divided by
bandwidths that the user gives or that are assumed.

Legend: P tables looked up, K = 17 reuse bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evenshard.placement.memory import STATE_BYTES, STATE_NUMBERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, FUSED_UVM_CACHING, HOST, KEY_VALUE, Storage, TablePart, part_table
from evenshard.placement.task import ShardingTask
from evenshard.price.device_model import NS_PER_MS
from evenshard.price.gpu_profile import HOST_GB_S, GpuProfile
from evenshard.price.kernel_calls import Lookup, part_lookups
from evenshard.price.shard_work import PLAIN_BYTES, missed_bytes, sector_bytes
from evenshard.tables.locality import set_miss_ratio, table_rows_and_counts
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

# Fitted at commit 98165ba4, like HOST_GB_S; see HostLink for their meanings.
UNDER_WAY_BYTES = 143e3
UPDATE_SHARE = 0.89
FIND_NS_PER_LOOKUP = 0.79
CACHED_UPDATE_NS_PER_LOOKUP = 0.07

# Assumptions.
LINE_BYTES = 64  # cache line of host memory: the least bytes of a read
PROCESSOR_GB_S = 51 * 1.024**3  # if the host's bandwidth is unknown: TorchRec's constant for host memory
SSD_GB_S = 0.1 * 1.024**2  # a device's share of its host's SSDs; TorchRec's constant


@dataclass(frozen=True)
class HostLink:
    """Bandwidths of one device to its host's memory and SSDs, 10**9 bytes per second."""

    host_gb_s: float = HOST_GB_S  # rate of the link to the host, in each direction
    memory_gb_s: float = math.inf  # share of the host's memory bandwidth, reads and writes; infinite if unknown
    ssd_gb_s: float = SSD_GB_S  # share of the host's SSDs, reads and writes together
    under_way_bytes: float = UNDER_WAY_BYTES  # bytes of rows in flight; other lookups of these rows share the transfer
    update_share: float = UPDATE_SHARE  # share of the link's rate for kernels that read rows and write them back
    find_ns_per_lookup: float = FIND_NS_PER_LOOKUP  # time to find the cached rows, forward
    cached_update_ns_per_lookup: float = CACHED_UPDATE_NS_PER_LOOKUP  # additional time to update cached rows, backward

    @property
    def read_gb_s(self) -> float:
        """Return the rate for rows that are only read."""
        return min(self.host_gb_s, self.memory_gb_s)

    @property
    def exchange_gb_s(self) -> float:
        """Return the rate for rows that are read while as many are written."""
        return min(self.host_gb_s, self.memory_gb_s / 2)

    @property
    def update_gb_s(self) -> float:
        """Return the rate for rows that are read, changed and written back."""
        return min(self.update_share * self.host_gb_s, self.memory_gb_s / 2)

    @property
    def processor_gb_s(self) -> float:
        """Return the rate for rows that the host's processor reads or writes for the device."""
        return self.memory_gb_s if math.isfinite(self.memory_gb_s) else PROCESSOR_GB_S


def host_link(machine: Nodes, profile: GpuProfile | None = None) -> HostLink:
    """Return one device's equal share of its host's bandwidths.

    Bandwidths that are 0 in the machine, and devices without a profile, use defaults.
    """
    share = 1 / machine.devices_per_node
    return HostLink(
        HOST_GB_S if profile is None else profile.host_gb_s,
        machine.host_gb_s * share if machine.host_gb_s else math.inf,
        machine.ssd_gb_s * share if machine.ssd_gb_s else SSD_GB_S,
    )


def part_offload_ms(task: ShardingTask, part: TablePart, table: Table, link: HostLink) -> tuple[float, float]:
    """Return the additional forward and backward time of a part that is outside of device memory, ms.

    Args:
        table: the whole table of the part.
        link: the device's link.
    """
    storage = part.storage
    if storage.is_on_device:
        return 0.0, 0.0
    miss = set_miss_ratio(part_table(part, table), task.batch_size, storage.load_factor) if storage.is_cached else 1.0
    return offload_ms(part_lookups(part, table, task), storage, miss, link)


def offload_ms(lookups: Sequence[Lookup], storage: Storage, miss: float, link: HostLink) -> tuple[float, float]:
    """Return the additional forward and backward time of rows outside of device memory, ms.

    Args:
        lookups: lookups of a part, from ``kernel_calls.part_lookups``.
        storage: memory that keeps the rows.
        miss: share of the batch's distinct rows that the cache misses, if there is a cache.
        link: the device's link.
    """
    if storage.is_on_device:
        return 0.0, 0.0
    rows = _rows_of(tuple(lookups))
    forward_P, backward_P = _PASSES[storage.kernel](rows, miss * rows.weight_bytes, link)
    return float((forward_P / NS_PER_MS).sum()), float((backward_P / NS_PER_MS).sum())


@dataclass(frozen=True)
class _Rows:
    """Looked-up rows of tables and their bytes, [P] each."""

    lookups: FloatArray
    read_bytes: FloatArray
    weight_bytes: FloatArray
    state_bytes: FloatArray
    row_state_bytes: FloatArray
    output_bytes: FloatArray
    unique_bytes_PK: FloatArray
    counts_PK: FloatArray


@lru_cache(maxsize=10_000)  # a part is priced with several cache sizes
def _rows_of(lookups: tuple[Lookup, ...]) -> _Rows:
    tables = [one.table for one in lookups]
    bags_P = np.array([one.bags for one in lookups], dtype=np.float64)
    dims_P = np.array([table.embedding_dim for table in tables], dtype=np.int64)
    bits_P = np.array([table.weight_bits for table in tables], dtype=np.int64)
    lookups_P = np.array([table.pooling_factor for table in tables]) * bags_P
    uniques_PK, counts_PK = table_rows_and_counts(tables, lookups_P)
    outputs_P: FloatArray = np.where([table.is_sequence for table in tables], lookups_P, bags_P)
    uniques_P, row_bytes_P = uniques_PK.sum(axis=1), sector_bytes(dims_P * bits_P // 8, LINE_BYTES)
    per_row_P, per_weight_P = np.array([STATE_NUMBERS[one.optimizer] for one in lookups], dtype=np.float64).T
    return _Rows(
        lookups_P,
        lookups_P * row_bytes_P,
        uniques_P * row_bytes_P,
        uniques_P * per_weight_P * sector_bytes(dims_P * STATE_BYTES, LINE_BYTES),
        uniques_P * per_row_P * LINE_BYTES,
        outputs_P * dims_P * PLAIN_BYTES,
        uniques_PK * row_bytes_P[:, None],
        counts_PK,
    )


_Passes = tuple[FloatArray, FloatArray]


def _managed_ns(rows: _Rows, missing_P: FloatArray, link: HostLink) -> _Passes:
    # Overlapping lookups of a row share a transfer.
    read_bytes_PK, under_way_P = rows.unique_bytes_PK * rows.counts_PK, np.full(len(rows.lookups), link.under_way_bytes)
    sent_bytes_P = missed_bytes(rows.unique_bytes_PK, read_bytes_PK, rows.counts_PK, under_way_P)
    return sent_bytes_P / link.read_gb_s, (rows.weight_bytes + rows.state_bytes) / link.update_gb_s


def _cached_ns(rows: _Rows, missing_P: FloatArray, link: HostLink) -> _Passes:
    return (
        link.find_ns_per_lookup * rows.lookups + missing_P / link.exchange_gb_s,
        link.cached_update_ns_per_lookup * rows.lookups + rows.state_bytes / link.update_gb_s,
    )


def _on_ssd_ns(rows: _Rows, missing_P: FloatArray, link: HostLink) -> _Passes:
    """Return the time to read missing rows from SSDs and write evicted rows back."""
    forward, backward = _cached_ns(rows, np.zeros_like(missing_P), link)
    return forward + 2 * missing_P / link.ssd_gb_s, backward


def _on_host_ns(rows: _Rows, missing_P: FloatArray, link: HostLink) -> _Passes:
    """Return the time for tables that the host looks up: the link carries only pooled embeddings and gradients."""
    exchanged = rows.output_bytes / link.read_gb_s
    updated = 2 * (rows.weight_bytes + rows.state_bytes + rows.row_state_bytes)
    return exchanged + rows.read_bytes / link.processor_gb_s, exchanged + updated / link.processor_gb_s


# Forward and backward time, ns, [P], for each memory other than device memory.
_PASSES: dict[str, Callable[[_Rows, FloatArray, HostLink], _Passes]] = {
    FUSED_UVM: _managed_ns,
    FUSED_UVM_CACHING: _cached_ns,
    KEY_VALUE: _on_ssd_ns,
    HOST: _on_host_ns,
}
