"""Who looks up and exchanges what, of a placement of parts: read off the parts, before anything runs.

Tables of one module that are sharded alike are exchanged together, as TorchRec does. Within such a group the unit is a
block: columns of a table with all of its rows, on one device or cut by rows over several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenshard.measure.kernel_calls import KernelCall, kernel_call
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.sharding import EVERYWHERE, TYPES, sharding_type
from evenshard.tables.table import MEAN, SUM, Table


@dataclass(frozen=True)
class ColumnBlock:
    """Columns of a table, with all of its rows.

    Attributes:
        table: the whole one.
        columns: of the block.
        devices: that get its lookups: the one that holds it, or all that its rows are cut over.
        rows: that each of these devices holds, in the order of the rows; some may hold none.
    """

    table: Table
    columns: Span
    devices: tuple[int, ...]
    rows: tuple[Span, ...]

    def rows_on(self, device: int) -> Span:
        """The rows that a device holds of it."""
        return self.rows[self.devices.index(device)]


@dataclass(frozen=True)
class BlockFeature:
    """One feature of the table of a block, with a bag and an output of its own."""

    block: ColumnBlock
    feature: int


@dataclass(frozen=True)
class ExchangeGroup:
    """Tables whose inputs, outputs and gradients travel together.

    Attributes:
        module: path of their collection.
        sharding_type: of all of them.
        is_sequence: whether every lookup's embedding travels.
        blocks: those that a kernel call takes together stand together.
    """

    module: str
    sharding_type: str
    is_sequence: bool
    blocks: tuple[ColumnBlock, ...]

    @property
    def is_in_rows(self) -> bool:
        """Whether lookups go to whoever has their row."""
        return TYPES[self.sharding_type].cuts_rows

    @property
    def is_on_all(self) -> bool:
        """Whether the rows are cut over all devices, rather than those of a node."""
        return TYPES[self.sharding_type].scope == EVERYWHERE

    @property
    def tables(self) -> tuple[Table, ...]:
        """Each one once."""
        return tuple(dict.fromkeys(block.table for block in self.blocks))

    def features(self) -> tuple[BlockFeature, ...]:
        """The features of all blocks."""
        return tuple(BlockFeature(block, feature) for block in self.blocks for feature in _features(block))

    def features_on(self, device: int) -> tuple[BlockFeature, ...]:
        """The features that a device looks up."""
        return tuple(one for one in self.features() if device in one.block.devices)

    def calls_on(self, device: int) -> tuple[tuple[KernelCall, tuple[ColumnBlock, ...]], ...]:
        """The kernel calls of a device, in the order of their blocks."""
        found: dict[tuple[KernelCall, int], list[ColumnBlock]] = {}
        for block in self.blocks:
            if device in block.devices:
                found.setdefault(_call_key(block, self.sharding_type), []).append(block)
        return tuple((call, tuple(blocks)) for (call, _), blocks in found.items())

    def width_on(self, device: int) -> int:
        """Values of a sample's pooled outputs on a device."""
        return sum(one.block.columns.size for one in self.features_on(device))


def exchange_groups(
    tables: Sequence[Table], by_table: Mapping[str, Sequence[TablePart]], machine: Machine
) -> tuple[ExchangeGroup, ...]:
    """The groups of a placement; that of the replicas of a module is not exchanged, but reduced.

    Args:
        by_table: the parts of each table, by columns and then rows.
    """
    blocks: dict[tuple[str, str, bool], list[ColumnBlock]] = {}
    for table in tables:
        way = sharding_type(by_table[table.name], table, machine)
        found = _blocks(table, by_table[table.name], way, machine)
        blocks.setdefault((table.module, way, table.is_sequence), []).extend(found)
    return tuple(
        ExchangeGroup(module, way, is_sequence, tuple(_by_call(of_group, way)))
        for (module, way, is_sequence), of_group in blocks.items()
    )


def _blocks(table: Table, parts: Sequence[TablePart], way: str, machine: Machine) -> list[ColumnBlock]:
    if not TYPES[way].cuts_rows:
        return [ColumnBlock(table, part.columns, part.devices, (part.rows,) * len(part.devices)) for part in parts]
    found = []
    for columns in sorted({part.columns for part in parts}):
        own = [part for part in parts if part.columns == columns]
        devices = [part.device for part in own]
        everyone = TYPES[way].row_devices(machine, devices[0])
        # A collective takes all devices of its group: one without rows sends zeros.
        empty = [device for device in everyone if device not in devices]
        rows = (*(part.rows for part in own), *(Span(table.num_rows, table.num_rows) for _ in empty))
        found.append(ColumnBlock(table, columns, (*devices, *empty), rows))
    return found


def _by_call(blocks: Sequence[ColumnBlock], way: str) -> list[ColumnBlock]:
    order = list(dict.fromkeys(_call_key(block, way) for block in blocks))
    return sorted(blocks, key=lambda block: order.index(_call_key(block, way)))


def _call_key(block: ColumnBlock, way: str) -> tuple[KernelCall, int]:
    """Blocks of one fused call; the embeddings that a call for sequences returns have one width."""
    return kernel_call(block.table, way), block.columns.size if block.table.is_sequence else 0


def _features(block: ColumnBlock) -> range:
    return range(block.table.num_features)


def kernel_pooling(call: KernelCall) -> str:
    """What a kernel does with a bag: of a mean over rows on several devices, each has a part of the sum."""
    return SUM if call.pooling == MEAN and TYPES[call.sharding_type].cuts_rows else call.pooling


def is_replicated(group: ExchangeGroup) -> bool:
    """Whether every device holds its tables."""
    return TYPES[group.sharding_type].is_replicated
