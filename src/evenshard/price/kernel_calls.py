"""Kernel calls of tables' parts: the parts that share one, the tables that each looks up, and the price of a device.

TorchRec makes one fused call on a device for each module, sharding type, data type of the weights, pooling and
optimizer, and for weighted lookups apart; replicated tables are looked up by a dense call. Whole pooled tables are
written as column_wise with one part, and rows on a node as a grid of one column, so that they share the call
(``evenshard.torchrec``). A part is looked up as one table or more: one for each feature that it pools. Bags are the
samples of each feature, those of a sequence too, whose lookups are outputs each: FBGEMM's kernels run over samples
either way, and TorchRec's dedup of a sequence's indices deals what is left of them evenly to the same bags.

A price (``DevicePrice``) gives each table that is looked up a row of columns. Most of them add up over the tables of a
kernel call; of the last few, the maxima, a call has the largest. The times of a call follow from its sums, and those of
a device from the times of all its calls. Two prices exist: the device model (``simulated_price``) and a learned model
(``sharders.cost_model``).

Legend: B samples of the global batch, P tables looked up, N devices or calls asked for, D devices, G sums of a device
(one, or one for each call), H columns, Q times of a call, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenshard.placement.memory import SGD
from evenshard.placement.parts import TablePart, deduplicated_table, part_table, replica_table
from evenshard.placement.sharding import TYPES, sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import SUM, Table

Columns = npt.NDArray[Any]
# Sums of 32-bit numbers in another order differ by less, relatively.
ROUNDING = 1e-5


class Lookup(NamedTuple):
    """A table that a call looks up for ``bags`` samples of the batch.

    ``table`` is a table or a part of one; of a sequence, each lookup is an output. ``optimizer`` updates it in the same
    call; of replicas it is sgd, as their dense gradients are used later. ``is_cached`` if rows are looked up in a
    cache.
    """

    table: Table
    bags: int
    optimizer: str = SGD
    is_cached: bool = False

    @property
    def pooled(self) -> Lookup:
        """The same lookups with as many outputs by a table that pools: those of a sequence are bags of one."""
        if not self.table.is_sequence:
            return self
        lookups = self.table.pooling_factor * self.bags
        bags = max(round(lookups), 1)
        return self._replace(table=self.table.with_fields(pooling=SUM, pooling_factor=lookups / bags), bags=bags)

    def with_dim(self, dim: int) -> Lookup:
        """The same lookups of embeddings of another length."""
        return Lookup(self.table.with_fields(embedding_dim=dim), self.bags, self.optimizer, self.is_cached)


class KernelCall(NamedTuple):
    """Properties that the parts that share a call have in common; of dense calls ``sharding_type`` is data_parallel."""

    module: str
    sharding_type: str
    data_type: str
    pooling: str
    is_weighted: bool
    optimizer: str = SGD

    @property
    def is_dense(self) -> bool:
        """True if it leaves dense gradients, which all devices reduce before an optimizer takes them."""
        return TYPES[self.sharding_type].is_replicated


@dataclass(frozen=True)
class HeldPart:
    """A part on a device, as its kernel call sees it; device -1 is every one, each with a replica."""

    call: KernelCall
    device: int
    lookups: tuple[Lookup, ...]


EVERY_DEVICE = -1


def kernel_call(table: Table, name: str, optimizer: str = SGD) -> KernelCall:
    """Return the call that looks up the parts of a table of this sharding type, and updates them."""
    word = name if table.is_sequence else TYPES[name].call or name
    fused = SGD if TYPES[name].is_replicated else optimizer
    return KernelCall(table.module, word, table.dtype, table.pooling, table.is_weighted, fused)


def held_parts(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> Iterator[HeldPart]:
    """Yield every part, table after table; replicas once for all devices."""
    for table in task.tables:
        parts = by_table[table.name]
        call = kernel_call(table, sharding_type(parts, table, task.machine), task.optimizer_of(table.name))
        if call.is_dense:
            yield HeldPart(call, EVERY_DEVICE, replica_lookups(table, task))
            continue
        for part in parts:
            yield HeldPart(call, part.device, part_lookups(part, table, task))


def part_lookups(part: TablePart, whole: Table, task: ShardingTask) -> tuple[Lookup, ...]:
    """Return the lookups of a part on its device: those of all devices' samples."""
    own = deduplicated_table(part_table(part, whole), task.num_devices)
    return lookups_of(own, task.batch_size, task.optimizer_of(whole.name), part.storage.is_cached)


def replica_lookups(table: Table, task: ShardingTask) -> tuple[Lookup, ...]:
    """Return the lookups of a replicated table on a device: those of its own samples."""
    own = deduplicated_table(replica_table(table, task.num_devices), 1)
    return lookups_of(own, max(round(task.local_batch), 1))


def lookups_of(table: Table, batch_size: int, optimizer: str = SGD, is_cached: bool = False) -> tuple[Lookup, ...]:
    """Return a table or part as tables of one feature; a sequence as one, whose features share distinct rows."""
    features = table.num_features
    if table.is_sequence and features > 1:
        mean = _plain(table).with_fields(pooling_factor=table.pooling_factor / features)
        return (Lookup(mean, batch_size * features, optimizer, is_cached),)
    return tuple(Lookup(one, batch_size, optimizer, is_cached) for one in feature_tables(table))


def numbers_by_bags(lookups: Sequence[Lookup]) -> dict[int, list[int]]:
    """Return the numbers of lookups by their bags."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(lookups):
        found.setdefault(one.bags, []).append(number)
    return found


def feature_tables(table: Table) -> tuple[Table, ...]:
    """A table as tables of one feature each, called after it where there are several: lookups are drawn by the name."""
    plain = _plain(table)
    if table.num_features == 1:
        return (plain,)
    return tuple(
        plain.with_fields(name=f"{table.name}#{number}", pooling_factor=one)
        for number, one in enumerate(table.feature_lookups)
    )


def _plain(table: Table) -> Table:
    """Drop the fields that the kernel does not see."""
    if table.feature_names or table.feature_pooling_factors or table.miss_ratios is not None:
        return table.with_fields(feature_names=(), feature_pooling_factors=(), miss_ratios=None)
    return table


class DevicePrice(Protocol):
    """Compute times of one kind of device, ms. ``search.bound_lines.price_bounds`` has lower bounds of each price."""

    @property
    def num_maxima(self) -> int:
        """Number of columns, the last ones, that are maxima."""
        ...

    @property
    def is_by_call(self) -> bool:
        """True if each kernel call of a device has its own price; False if all of them have one."""
        ...

    @property
    def lane_limits(self) -> tuple[int, ...]:
        """Largest dims of calls whose rows take so many lanes, the fewest first; empty where lanes cost nothing."""
        return ()

    @property
    def sees_hot_rows(self) -> bool:
        """True if times depend on hot rows that lie side by side in memory (``tables/locality.py``)."""
        return False

    def columns(self, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None) -> Columns:
        """Return the columns of tables, [P, H].

        Args:
            dims_P: dims in place of the tables' own, so that parts of a table can share a ``Lookup``.
        """
        ...

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        """Return the times of calls from the sums of their columns, [Q, N]; zero where nothing is looked up."""
        ...

    def device_ms(self, times_QGN: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """Return the forward and backward time of devices, [2, N]; a device without a call takes no time.

        Args:
            times_QGN: of ``call_ms``.
            calls_N: kernel calls of each device.
        """
        ...

    def held_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """Return the forward and backward time of devices with these parts, by ensemble member, [D, M, 2]."""
        ...

    def interval(self, members_M: FloatArray) -> float:
        """Return half the 90 % interval of a step's logarithm, by the model alone; 0 of a device model.

        Args:
            members_M: time of the slowest device by each member.
        """
        ...


def alone_ms(price: DevicePrice, columns_PH: Columns) -> FloatArray:
    """Return the time of tables that have a call and a device to themselves, forward and backward together, [P]."""
    calls_P = np.ones(len(columns_PH), dtype=np.int64)
    return np.asarray(price.device_ms(price.call_ms(columns_PH)[:, None], calls_P).sum(axis=0))
