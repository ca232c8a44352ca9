"""The rows and columns that move between two answers, in bytes, and what the move saves.

Pieces of tables are compared, which neither answer cuts: splits and joins move exactly what a device lacks. A piece has
optimizer state of its own. A replica is copied to every device that lacks it; one that disappears moves nothing. Device
ids are names: two answers may differ in nothing else, and then a renaming saves the whole move.

Legend: D devices, O devices of the old answer, N devices of the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import Span
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff.renaming import best_names, device_kinds
from evenshard.planner.diff.times import StepTimes, step_times
from evenshard.sharders.models import PlacementModel
from evenshard.tables.table import Table
from evenshard.utils.units import gb_to_bytes

SHAPE = ("num_rows", "embedding_dim", "weight_bits")


@dataclass(frozen=True)
class PartMove:
    """Rows and columns of a table that go to a device which lacks them.

    Attributes:
        table: its name.
        rows, columns: rows and columns that move.
        from_device, to_device: a device that has them in the old answer, and one that needs them in the new one.
        weight_bytes, state_bytes: bytes that move: weights, and optimizer state.
    """

    table: str
    rows: Span
    columns: Span
    from_device: int
    to_device: int
    weight_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class PairTraffic:
    """What one device sends another."""

    from_device: int
    to_device: int
    num_bytes: int


@dataclass(frozen=True)
class DeviceTraffic:
    """What a device sends and receives."""

    device: int
    out_bytes: int
    in_bytes: int


@dataclass(frozen=True)
class Traffic:
    """All that moves.

    Attributes:
        moved_bytes: weights and optimizer state.
        busiest_bytes: the most that a device sends, or receives.
        seconds: time of the transfer over a link; None if its speed is unknown.
        pairs: devices that exchange something, by id.
        devices: those that send or receive, by id.
    """

    moved_bytes: int
    busiest_bytes: int
    seconds: float | None
    pairs: tuple[PairTraffic, ...]
    devices: tuple[DeviceTraffic, ...]


@dataclass(frozen=True)
class Renaming:
    """Other ids for the devices of the new answer, with which less moves. Devices that differ keep theirs.

    Attributes:
        new_names: the old device that each device of the new answer should be.
        traffic: traffic that remains then.
    """

    new_names: tuple[int, ...]
    traffic: Traffic


@dataclass(frozen=True)
class ChangedTable:
    """A table whose shape differs: its weights cannot move.

    Attributes:
        table: its name.
        what: differs, such as "num_rows 100 -> 200".
    """

    table: str
    what: str


@dataclass(frozen=True)
class Resharded:
    """A table that is sharded in another way.

    Attributes:
        table: its name.
        old_type, new_type: its sharding types.
    """

    table: str
    old_type: str
    new_type: str


@dataclass(frozen=True)
class Difference:
    """Between an old answer and a new one.

    Attributes:
        old_num_devices, new_num_devices: devices of the two answers.
        moves: pieces that go to another device, in the order of the new answer's tables.
        kept_bytes: bytes that stay, weights and optimizer state.
        traffic: bytes that move.
        renaming: saves some or all of that; None where none does.
        added, removed: tables that only the new answer has, or the old one.
        changed: tables whose shape differs.
        resharded: tables that are sharded in another way.
        times: predicted, before and after.
        notes: notes on the comparison; a clause each.
    """

    old_num_devices: int
    new_num_devices: int
    moves: tuple[PartMove, ...]
    kept_bytes: int
    traffic: Traffic
    renaming: Renaming | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedTable, ...]
    resharded: tuple[Resharded, ...]
    times: StepTimes
    notes: tuple[str, ...]


def diff(
    old: PlacementAnswer, new: PlacementAnswer, model: PlacementModel | None = None, link_gb_s: float | None = None
) -> Difference:
    """What it takes to go from one answer to another, and what it brings.

    Args:
        model: judges both placements on the new answer's request, where both have the same tables. Without it, or
            with other tables, the answers' own figures stand.
        link_gb_s: GB per second that a device sends, and receives at the same time.
    """
    of_old = {table.name: table for table in old.request.tables}
    of_new = {table.name: table for table in new.request.tables}
    shared = {name: table for name, table in of_new.items() if name in of_old}
    changed = tuple(
        ChangedTable(name, what) for name, table in shared.items() if (what := _other_shape(of_old[name], table))
    )
    cannot = {one.table for one in changed}
    movable = [table for name, table in shared.items() if name not in cannot]
    # States of different optimizers are of no use to each other.
    optimizer = new.request.optimizer if old.request.optimizer == new.request.optimizer else "sgd"
    pieces = list(_pieces(old, new, movable, optimizer))
    moves = _moves(pieces, range(new.num_devices))
    kept_bytes = sum(piece.num_bytes * len(set(piece.old_devices) & set(piece.new_devices)) for piece in pieces)
    same_tables = len(movable) == len(of_old) == len(of_new)
    times, notes = step_times(old, new, model if same_tables else None)
    if old.request.optimizer != new.request.optimizer:
        notes = (*notes, f"{old.request.optimizer} became {new.request.optimizer}: no optimizer state is counted")
    return Difference(
        old_num_devices=old.num_devices,
        new_num_devices=new.num_devices,
        moves=moves,
        kept_bytes=kept_bytes,
        traffic=_traffic(moves, link_gb_s),
        renaming=_renaming(pieces, old, new, link_gb_s),
        added=tuple(name for name in of_new if name not in of_old),
        removed=tuple(name for name in of_old if name not in of_new),
        changed=changed,
        resharded=tuple(
            Resharded(table.name, old.type_of_table[table.name], new.type_of_table[table.name])
            for table in movable
            if old.type_of_table[table.name] != new.type_of_table[table.name]
        ),
        times=times,
        notes=(*notes, *new.notes),
    )


def _other_shape(old: Table, new: Table) -> str:
    values = [(name, getattr(old, name), getattr(new, name)) for name in SHAPE]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in values if before != after)


# Pieces --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Rows and columns that neither answer cuts, and the devices that have them."""

    table: str
    rows: Span
    columns: Span
    old_devices: tuple[int, ...]
    new_devices: tuple[int, ...]
    weight_bytes: int
    state_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.state_bytes


def _pieces(old: PlacementAnswer, new: PlacementAnswer, tables: Sequence[Table], optimizer: str) -> Iterator[_Piece]:
    """All of the tables, table after table by columns, then rows."""
    for table in tables:
        found = []
        for before in old.parts_of_table[table.name]:
            for after in new.parts_of_table[table.name]:
                rows, columns = _common(before.rows, after.rows), _common(before.columns, after.columns)
                if rows.size > 0 and columns.size > 0:
                    found.append((columns, rows, before.devices, after.devices))
        for columns, rows, old_devices, new_devices in sorted(found):
            piece = replace(table, num_rows=rows.size, embedding_dim=columns.size)
            size = piece.size_bytes
            yield _Piece(table.name, rows, columns, old_devices, new_devices, size, state_bytes(piece, optimizer))


def _common(one: Span, other: Span) -> Span:
    return Span(max(one.start, other.start), min(one.stop, other.stop))


def _moves(pieces: Sequence[_Piece], name_of_new: Sequence[int]) -> tuple[PartMove, ...]:
    """What devices lack, from one that has it: replicas of the old answer share the work.

    Args:
        name_of_new: the old device that each device of the new answer is.
    """
    return tuple(
        PartMove(
            table=piece.table,
            rows=piece.rows,
            columns=piece.columns,
            from_device=piece.old_devices[name % len(piece.old_devices)],
            to_device=name,
            weight_bytes=piece.weight_bytes,
            state_bytes=piece.state_bytes,
        )
        for piece in pieces
        for name in (name_of_new[device] for device in piece.new_devices)
        if name not in piece.old_devices
    )


# Bytes ---------------------------------------------------------------------------------------------------------------


def _traffic(moves: Sequence[PartMove], link_gb_s: float | None) -> Traffic:
    pairs: Counter[tuple[int, int]] = Counter()
    for move in moves:
        pairs[move.from_device, move.to_device] += move.weight_bytes + move.state_bytes
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (sender, receiver), num_bytes in pairs.items():
        sent[sender] += num_bytes
        received[receiver] += num_bytes
    busiest = max((*sent.values(), *received.values()), default=0)
    return Traffic(
        moved_bytes=pairs.total(),
        busiest_bytes=busiest,
        seconds=None if link_gb_s is None else busiest / gb_to_bytes(link_gb_s),
        pairs=tuple(PairTraffic(*pair, pairs[pair]) for pair in sorted(pairs)),
        devices=tuple(
            DeviceTraffic(device, sent[device], received[device]) for device in sorted(sent.keys() | received.keys())
        ),
    )


def _renaming(
    pieces: Sequence[_Piece], old: PlacementAnswer, new: PlacementAnswer, link_gb_s: float | None
) -> Renaming | None:
    """The names that keep the most bytes where they are; None where those of now do."""
    most = max(old.num_devices, new.num_devices)
    held_NO = np.zeros((most, most), dtype=np.int64)
    for piece in pieces:
        held_NO[np.ix_(piece.new_devices, piece.old_devices)] += piece.num_bytes
    machine = new.request.nodes if new.num_devices >= old.num_devices else old.request.nodes
    names = best_names(held_NO, device_kinds(new.task), machine)
    if held_NO[np.arange(most), names].sum() <= held_NO.trace():
        return None
    new_names = tuple(names[: new.num_devices].tolist())
    return Renaming(new_names, _traffic(_moves(pieces, new_names), link_gb_s))
