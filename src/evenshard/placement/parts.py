"""Parts of tables (TorchRec: shards): ranges of rows and columns, their devices, and the storage of their weights.

A column part has all lookups of its table, so features, cost networks, simulator and kernels treat it as a table with
fewer columns (docs/decisions/0017).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import Range
from evenshard.base.messages import brief
from evenshard.tables.reuse import deduplicate_reuse, feasible_reuse_bins, thin_reuse_bins
from evenshard.tables.table import Table

FUSED, FUSED_UVM_CACHING, FUSED_UVM = "fused", "fused_uvm_caching", "fused_uvm"
KEY_VALUE, HOST = "key_value", "host"
# TorchRec's names, except ``host``, which TorchRec supports only on machines without GPUs.
COMPUTE_KERNELS = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE, HOST)
CACHED_KERNELS = (FUSED_UVM_CACHING, KEY_VALUE)
HOST_KERNELS = (FUSED_UVM_CACHING, FUSED_UVM, HOST)  # kernels that store all weights in host memory
# Kernels that a search may use if the machine has host memory; others must be requested.
USUAL_KERNELS = (FUSED, FUSED_UVM_CACHING, FUSED_UVM)
_LOAD_FACTORS = Range(0, 1, above=True)


@dataclass(frozen=True)
class Storage:
    """Storage of a table's weights (TorchRec: compute kernel), the same for all parts of a table.

    ::

        fused                device memory, the only storage of replicas
        fused_uvm_caching    host memory, with a cache in device memory
        fused_uvm            host memory, read and written by the device over PCIe or NVLink
        key_value            SSD, with a cache in device memory
        host                 host memory, read and written by the host's processor
    """

    kernel: str = FUSED  # one of ``COMPUTE_KERNELS``
    load_factor: float = 1.0  # fraction of the rows that fit in the cache; 1 without a cache

    def __post_init__(self) -> None:
        """Raise BadConfig for an unknown kernel or an invalid load factor."""
        if self.kernel not in COMPUTE_KERNELS:
            raise BadConfig(f"compute kernel is {brief(self.kernel)}. Choose from {', '.join(COMPUTE_KERNELS)}.")
        if problem := _LOAD_FACTORS.problem(self.load_factor):
            raise BadConfig(f"load_factor {problem}. Correct it.")
        if self.load_factor != 1 and not self.is_cached:
            raise BadConfig(f"kernel {self.kernel} has no cache. Remove load_factor ({self.load_factor:g}).")

    @property
    def is_cached(self) -> bool:
        """Return True if device memory has a cache of the weights."""
        return self.kernel in CACHED_KERNELS

    @property
    def is_on_device(self) -> bool:
        """Return True if all weights are in device memory."""
        return self.kernel == FUSED

    @property
    def is_on_host(self) -> bool:
        """Return True if all weights are in host memory."""
        return self.kernel in HOST_KERNELS

    def __str__(self) -> str:
        return f"{self.kernel} {self.load_factor:g}" if self.is_cached else self.kernel


ON_DEVICE = Storage()


def storages_of(kernel: str, load_factors: Sequence[float]) -> tuple[Storage, ...]:
    """Return the storages with a compute kernel: one per load factor if the kernel has a cache, otherwise one."""
    return tuple(Storage(kernel, share) for share in load_factors) if kernel in CACHED_KERNELS else (Storage(kernel),)


COLUMN_STEP = 4  # FBGEMM's kernels read vectors of four weights, so the widths of column parts are multiples of four
# Columns of the widest table or part that FBGEMM trains on a GPU; its CPU kernels have no such limit.
MAX_GPU_COLUMNS = 2_048

# Lookups per batch of a deduplicated table without a reuse histogram; its default histogram depends on them.
LOOKUPS_WHERE_UNCOUNTED = 1e6


class Span(NamedTuple):
    """A half-open range of rows or columns."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return the number of rows or columns in the span."""
        return self.stop - self.start

    def common(self, other: Span) -> Span:
        """Return the intersection of two spans; its size is 0 or negative if they are disjoint."""
        return Span(max(self.start, other.start), min(self.stop, other.stop))

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


@dataclass(frozen=True)
class TablePart:
    """A range of rows and columns of a table, on one device, or replicated on several devices."""

    table: str  # name of the whole table
    rows: Span
    columns: Span
    # Its device (TorchRec: rank), or all devices with a replica; empty before the part is placed.
    devices: tuple[int, ...] = ()
    storage: Storage = ON_DEVICE  # the same for all parts of a table

    @property
    def device(self) -> int:
        """Return the device of a part that is on one device."""
        (device,) = self.devices
        return device


def whole_part(table: Table, devices: tuple[int, ...] = (), storage: Storage = ON_DEVICE) -> TablePart:
    """Return a whole table as one part, on one device or replicated on several devices."""
    return TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), devices, storage)


def tables_of_parts(parts: Sequence[TablePart], tables: Iterable[Table]) -> tuple[Table, ...]:
    """Convert parts to tables whose names contain the columns, such as ads[0:64].

    Raises:
        BadConfig: if a part would have the same name as a table.
    """
    by_name = {table.name: table for table in tables}
    found = tuple(part_table(part, by_name[part.table]) for part in parts)
    twice = next((name for name, count in Counter(table.name for table in found).items() if count > 1), None)
    if twice is not None:
        raise BadConfig(f"the table name {brief(twice)} is also the name of another table's shard. Rename the table.")
    return found


def part_table(part: TablePart, whole: Table) -> Table:
    """Convert a part to a table with the part's rows, columns and lookups.

    The rows are assumed to be a random sample of the table's rows, so the reuse histogram and the miss ratios do not
    change.
    """
    if part.rows == (0, whole.num_rows):
        if part.columns == (0, whole.embedding_dim):
            return whole
        return whole.with_fields(name=f"{whole.name}[{part.columns}]", embedding_dim=part.columns.size)
    share = lookup_share(whole, part.rows)
    return whole.with_fields(
        name=f"{whole.name}[rows {part.rows}, {part.columns}]",
        num_rows=part.rows.size,
        embedding_dim=part.columns.size,
        pooling_factor=whole.pooling_factor * share,
        feature_pooling_factors=tuple(share * factor for factor in whole.feature_pooling_factors),
        row_shares=None,
    )


# "ads[0:64]", or "ads[rows 0:100, 0:64]" if the part is cut by rows.
_NAME = re.compile(r"(.*)\[(?:rows (\d+):(\d+), )?(\d+):(\d+)\]", re.DOTALL)


def find_part(name: str, by_name: Mapping[str, Table]) -> TablePart | None:
    """Return the part that a name such as ads[0:64] means; None if it names no part of a table in ``by_name``."""
    if name in by_name:
        return whole_part(by_name[name])
    found = _NAME.fullmatch(name)
    whole = by_name.get(found[1]) if found else None
    if found is None or whole is None:
        return None
    rows = Span(int(found[2]), int(found[3])) if found[2] else Span(0, whole.num_rows)
    part = TablePart(whole.name, rows, Span(int(found[4]), int(found[5])))
    inside = 0 <= rows.start < rows.stop <= whole.num_rows and part.columns.stop <= whole.embedding_dim
    return part if inside and part.columns.size >= 1 and part_table(part, whole).name == name else None


def lookup_share(table: Table, rows: Span) -> float:
    """Return the share of a table's lookups that read these rows; without counts, all rows are read equally often."""
    if table.row_shares is None:
        return rows.size / table.num_rows
    edges = np.linspace(0, table.num_rows, len(table.row_shares) + 1)
    running = np.concatenate([[0.0], np.cumsum(table.row_shares)])
    start, stop = np.interp([rows.start, rows.stop], edges, running / running[-1])
    return float(stop - start)


def row_starts(num_rows: int, devices: int) -> range:
    """Return the first rows of TorchRec's row-wise blocks: ceil(rows / devices) rows each, the last block shorter."""
    return range(0, num_rows, -(-num_rows // devices))


def row_spans(table: Table, devices: int) -> list[Span]:
    """Return the blocks of ``row_starts``, one per device; fewer if there are not enough rows."""
    starts = row_starts(table.num_rows, devices)
    return [Span(start, min(start + starts.step, table.num_rows)) for start in starts]


def busiest_rows(table: Table, devices: int) -> Span:
    """Return the block of ``row_spans`` with the most lookups."""
    if table.row_shares is None:
        return Span(0, row_starts(table.num_rows, devices).step)
    return max(row_spans(table, devices), key=lambda span: lookup_share(table, span))


def cut_rows(
    table: Table, devices: Sequence[int], columns: Span | None = None, storage: Storage = ON_DEVICE
) -> list[TablePart]:
    """Cut a table, or some of its columns, into TorchRec's blocks of rows, one per device (``row_spans``)."""
    columns = columns or Span(0, table.embedding_dim)
    cut = zip(row_spans(table, len(devices)), devices, strict=False)
    return [TablePart(table.name, rows, columns, (device,), storage) for rows, device in cut]


def spans_of_sizes(sizes: Iterable[int]) -> list[Span]:
    """Return consecutive spans of the given sizes, from 0."""
    return [Span(*edges) for edges in pairwise(accumulate(sizes, initial=0))]


def even_widths(columns: int, parts: int) -> tuple[int, ...]:
    """Return the widths of column parts: multiples of ``COLUMN_STEP``, as equal as possible, the wider parts first."""
    each, more = divmod(columns // COLUMN_STEP, parts)
    return (COLUMN_STEP * (each + 1),) * more + (COLUMN_STEP * each,) * (parts - more)


def replica_table(table: Table, num_devices: int) -> Table:
    """Return a replicated table with the reuse histogram of one device's samples, which the device alone looks up."""
    if table.reuse_bins is None or num_devices == 1:
        return table
    return table.with_fields(reuse_bins=thin_reuse_bins(table.reuse_bins, 1 / num_devices))


def deduplicate_table(table: Table, num_devices: int) -> Table:
    """Return a table with the lookups that remain after index deduplication; unchanged if it is not deduplicated."""
    if not table.is_deduplicated:
        return table
    bins = table.reuse_bins or feasible_reuse_bins(table.num_rows, LOOKUPS_WHERE_UNCOUNTED)
    sent, share = deduplicate_reuse(bins, num_devices)
    return table.with_fields(
        pooling_factor=table.pooling_factor * share,
        feature_pooling_factors=tuple(share * factor for factor in table.feature_pooling_factors),
        reuse_bins=sent,
    )
