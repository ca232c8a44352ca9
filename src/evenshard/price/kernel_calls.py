"""Kernel calls of table parts: which parts share a call, its lookups, and the price interface.

On each device, TorchRec makes one fused call per module, sharding type, weight data type, pooling and optimizer.
Weighted lookups have separate calls, and replicated tables use a dense call. TorchRec plans have whole pooled tables as
column_wise with one part, and rows on a node as a grid of one column, so that they share the call
(``evenshard.torchrec``). A part is looked up as one table per feature. Bags are the samples of each feature, also for a
sequence, where every lookup is an output: FBGEMM's kernels run over samples in both cases, and TorchRec's dedup of a
sequence's indices distributes the remaining indices evenly to the same bags.

A price (``DevicePrice``) describes each looked-up table by a row of features, its columns. Most columns add up over the
tables of a kernel call; the last few, the maxima, are the largest over these tables. A call's times are a function of
these sums, and a device's times are a function of the times of its calls. There are two prices: the device model
(``simulated_price``) and a learned model (``sharders.cost_model``).

Legend: B samples of the global batch, P tables looked up, N devices or calls, D devices, G sums of a device (one, or
one for each call), H columns, Q times of a call, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenshard.placement.memory import SGD
from evenshard.placement.parts import TablePart, deduplicate_table, part_table, replica_table
from evenshard.placement.sharding import TYPES, sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import SUM, Table

Columns = npt.NDArray[Any]
# Largest relative difference of 32-bit sums in another order.
ROUNDING = 1e-5


class Lookup(NamedTuple):
    """Lookups of one table (or part) in a kernel call, for ``bags`` samples.

    Each lookup of a sequence is an output. ``optimizer`` updates the table in the same call; for replicas it is sgd,
    because their dense gradients are applied later. ``is_cached`` is True for a table with a cache,
    ``is_dense`` in a dense call.
    """

    table: Table
    bags: int
    optimizer: str = SGD
    is_cached: bool = False
    is_dense: bool = False

    @property
    def pooled(self) -> Lookup:
        """Return pooled lookups with the same number of outputs: each sequence lookup becomes a bag of one."""
        if not self.table.is_sequence:
            return self
        lookups = self.table.pooling_factor * self.bags
        bags = max(round(lookups), 1)
        return self._replace(table=self.table.with_fields(pooling=SUM, pooling_factor=lookups / bags), bags=bags)

    def with_dim(self, dim: int) -> Lookup:
        """Return the same lookups with another embedding dimension."""
        return self._replace(table=self.table.with_fields(embedding_dim=dim))


class KernelCall(NamedTuple):
    """Properties that all parts of a kernel call share; dense calls have the ``sharding_type`` data_parallel."""

    module: str
    sharding_type: str
    data_type: str
    pooling: str
    is_weighted: bool
    optimizer: str = SGD

    @property
    def is_dense(self) -> bool:
        """Return True if the call produces dense gradients, which are all-reduced before the optimizer step."""
        return TYPES[self.sharding_type].is_replicated


@dataclass(frozen=True)
class HeldPart:
    """Part on a device with the data that its kernel call needs; device -1 marks a replica on every device."""

    call: KernelCall
    device: int
    lookups: tuple[Lookup, ...]


EVERY_DEVICE = -1  # device of a replica


def kernel_call(table: Table, name: str, optimizer: str = SGD) -> KernelCall:
    """Return the call that looks up and updates the parts of a table of this sharding type."""
    word = name if table.is_sequence else TYPES[name].call or name
    fused = SGD if TYPES[name].is_replicated else optimizer
    return KernelCall(table.module, word, table.dtype, table.pooling, table.is_weighted, fused)


def list_held_parts(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> Iterator[HeldPart]:
    """Yield every part by table; replicas once for all devices."""
    for table in task.tables:
        parts = by_table[table.name]
        call = kernel_call(table, sharding_type(parts, table, task.machine), task.optimizer_of(table.name))
        if call.is_dense:
            yield HeldPart(call, EVERY_DEVICE, replica_lookups(table, task))
            continue
        for part in parts:
            yield HeldPart(call, part.device, part_lookups(part, table, task))


def part_lookups(part: TablePart, whole: Table, task: ShardingTask) -> tuple[Lookup, ...]:
    """Return the lookups of a part on its device, for the samples of all devices."""
    own = deduplicate_table(part_table(part, whole), task.num_devices)
    return split_features(own, task.batch_size, task.optimizer_of(whole.name), part.storage.is_cached)


def replica_lookups(table: Table, task: ShardingTask) -> tuple[Lookup, ...]:
    """Return the lookups of a replicated table on a device, for the device's own samples."""
    own = deduplicate_table(replica_table(table, task.num_devices), 1)
    found = split_features(own, max(round(task.local_batch), 1))
    return tuple(one._replace(is_dense=True) for one in found)


def split_features(table: Table, batch_size: int, optimizer: str = SGD, is_cached: bool = False) -> tuple[Lookup, ...]:
    """Split a table or part by feature; a sequence is not split, because its features share distinct rows."""
    features = table.num_features
    if table.is_sequence and features > 1:
        mean = _plain(table).with_fields(pooling_factor=table.pooling_factor / features)
        return (Lookup(mean, batch_size * features, optimizer, is_cached),)
    return tuple(Lookup(one, batch_size, optimizer, is_cached) for one in feature_tables(table))


def group_by_bags(lookups: Sequence[Lookup]) -> dict[int, list[int]]:
    """Map each number of bags to the positions of the lookups with this number."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(lookups):
        found.setdefault(one.bags, []).append(number)
    return found


def feature_tables(table: Table) -> tuple[Table, ...]:
    """Split a multi-feature table into one table per feature, with numbered names."""
    plain = _plain(table)
    if table.num_features == 1:
        return (plain,)
    return tuple(
        plain.with_fields(name=f"{table.name}#{number}", pooling_factor=one)
        for number, one in enumerate(table.feature_lookups)
    )


def _plain(table: Table) -> Table:
    """Drop the fields that the kernel does not use."""
    if table.feature_names or table.feature_pooling_factors or table.miss_ratios is not None:
        return table.with_fields(feature_names=(), feature_pooling_factors=(), miss_ratios=None)
    return table


class DevicePrice(Protocol):
    """Interface of prices: the kernel times of one kind of device, ms. ``price_bounds`` has their lower bounds."""

    @property
    def num_maxima(self) -> int:
        """Return how many columns, the last ones, are maxima over the tables of a call instead of sums."""

    @property
    def is_by_call(self) -> bool:
        """Return True if kernel calls are priced separately; False if all calls of a device are priced together."""

    @property
    def lane_limits(self) -> tuple[int, ...]:
        """Return, ascending, the dims up to which a row takes fewer warp lanes; empty if lanes do not matter."""
        return ()

    @property
    def sees_hot_rows(self) -> bool:
        """Return True if times depend on whether hot rows are adjacent in memory (``tables/locality.py``)."""
        return False

    def columns(self, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None) -> Columns:
        """Return the price columns (additive features) of looked-up tables, [P, H].

        Args:
            dims_P: dims that replace the tables' own, so that parts of a table can share a ``Lookup``.
        """

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        """Return the times of calls from the sums of their columns, [Q, N]; 0 without lookups."""

    def device_ms(self, times_QGN: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """Return the forward and backward time of devices, [2, N]; a device without a call takes no time.

        Args:
            times_QGN: results of ``call_ms``.
            calls_N: kernel calls of each device.
        """

    def held_parts_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """Return forward and backward times of devices that hold these parts, by ensemble member, [D, M, 2]."""

    def interval(self, members_M: FloatArray) -> float:
        """Return the half-width of the 90 % interval of log step time for the model alone; 0 for a device model.

        Args:
            members_M: time of the slowest device for each member.
        """


def alone_ms(price: DevicePrice, columns_PH: Columns) -> FloatArray:
    """Return the forward plus backward time of tables that each have their own call and device, [P]."""
    calls_P = np.ones(len(columns_PH), dtype=np.int64)
    return np.asarray(price.device_ms(price.call_ms(columns_PH)[:, None], calls_P).sum(axis=0))
