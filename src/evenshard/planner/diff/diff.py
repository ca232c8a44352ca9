"""The columns that move between two answers, in bytes, and what the move saves.

Columns are compared, not parts: splits and joins move exactly the columns that change devices. Where an answer cuts a
table, its pieces count apart, each with optimizer state of its own, so that the way back takes the same bytes. Device
ids are names: two answers may differ in nothing else, and then a renaming saves the whole move.

Legend: D devices, O devices of the old answer, N devices of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evenshard.placement.items import Items
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import by_table
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff.times import StepTimes, step_times
from evenshard.sharders.models import PlacementModel
from evenshard.tables.table import Table
from evenshard.utils.units import gb_to_bytes

Bytes = npt.NDArray[np.int64]
SHAPE = ("num_rows", "embedding_dim", "weight_bits")


@dataclass(frozen=True)
class PartMove:
    """Rows and columns of a table that change devices.

    Attributes:
        table: its name.
        rows, columns: rows and columns that move.
        from_device, to_device: device in the old answer, and in the new one.
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
class Difference:
    """Between an old answer and a new one.

    Attributes:
        old_num_devices, new_num_devices: devices of the two answers.
        moves: parts that change devices, in the order of the new answer's tables.
        kept_bytes: bytes that stay, weights and optimizer state.
        traffic: bytes that move.
        renaming: saves some or all of that; None where none does.
        added, removed: tables that only the new answer has, or the old one.
        changed: tables whose shape differs.
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
    held_NO = _held_NO(pieces, old.num_devices, new.num_devices)
    same_tables = len(movable) == len(of_old) == len(of_new)
    times, notes = step_times(old, new, model if same_tables else None)
    if old.request.optimizer != new.request.optimizer:
        notes = (*notes, f"{old.request.optimizer} became {new.request.optimizer}: no optimizer state is counted")
    return Difference(
        old_num_devices=old.num_devices,
        new_num_devices=new.num_devices,
        moves=tuple(piece for piece in pieces if piece.from_device != piece.to_device),
        kept_bytes=int(held_NO.trace()),
        traffic=_traffic(held_NO, link_gb_s),
        renaming=_renaming(held_NO, new, link_gb_s),
        added=tuple(name for name in of_new if name not in of_old),
        removed=tuple(name for name in of_old if name not in of_new),
        changed=changed,
        times=times,
        notes=(*notes, *new.notes),
    )


def _other_shape(old: Table, new: Table) -> str:
    values = [(name, getattr(old, name), getattr(new, name)) for name in SHAPE]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in values if before != after)


# Columns -------------------------------------------------------------------------------------------------------------


def _pieces(old: PlacementAnswer, new: PlacementAnswer, tables: Sequence[Table], optimizer: str) -> Iterator[PartMove]:
    """All columns of the tables, in pieces that neither answer cuts; those that stay too."""
    before = by_table(old.parts, old.request.tables, old.num_devices)
    after = by_table(new.parts, new.request.tables, new.num_devices)
    for table in tables:
        parts = (before[table.name], after[table.name])
        edges = sorted({0, *(part.columns.stop for of_answer in parts for part in of_answer)})
        for columns in map(Span, edges, edges[1:]):
            piece = replace(table, embedding_dim=columns.size)
            yield PartMove(
                table=table.name,
                rows=Span(0, table.num_rows),
                columns=columns,
                from_device=_device(parts[0], columns),
                to_device=_device(parts[1], columns),
                weight_bytes=piece.size_bytes,
                state_bytes=state_bytes(piece, optimizer),
            )


def _device(parts: Sequence[TablePart], columns: Span) -> int:
    return next(part.device for part in parts if part.columns.stop >= columns.stop)


# Bytes ---------------------------------------------------------------------------------------------------------------


def _held_NO(pieces: Sequence[PartMove], num_old: int, num_new: int) -> Bytes:
    """Bytes that a device holds in the new answer, by the device that holds them in the old one; square."""
    most = max(num_old, num_new)
    held_NO = np.zeros((most, most), dtype=np.int64)
    for piece in pieces:
        held_NO[piece.to_device, piece.from_device] += piece.weight_bytes + piece.state_bytes
    return held_NO


def _traffic(held_NO: Bytes, link_gb_s: float | None) -> Traffic:
    moved_NO = held_NO - np.diag(held_NO.diagonal())
    in_D, out_D = moved_NO.sum(axis=1).tolist(), moved_NO.sum(axis=0).tolist()
    busiest = max(*in_D, *out_D)
    to_D, from_D = (device_D.tolist() for device_D in np.nonzero(moved_NO))
    return Traffic(
        moved_bytes=int(moved_NO.sum()),
        busiest_bytes=busiest,
        seconds=None if link_gb_s is None else busiest / gb_to_bytes(link_gb_s),
        pairs=tuple(PairTraffic(a, b, int(moved_NO[b, a])) for a, b in sorted(zip(from_D, to_D, strict=True))),
        devices=tuple(
            DeviceTraffic(device, sent, received)
            for device, (sent, received) in enumerate(zip(out_D, in_D, strict=True))
            if sent or received
        ),
    )


def _renaming(held_NO: Bytes, new: PlacementAnswer, link_gb_s: float | None) -> Renaming | None:
    """The best one: the assignment of names that keeps the most bytes where they are (Hungarian algorithm)."""
    from scipy.optimize import linear_sum_assignment

    most, num_new = len(held_NO), new.num_devices
    # Only devices with the same memory and rules may trade names; those that are gone count where all are alike.
    kinds = Items.of(new.task).device_kinds()
    kinds += [kinds[0] if len(set(kinds)) == 1 else -1] * (most - num_new)
    worth_NO = held_NO.astype(np.float64) * (most + 1) + np.eye(most)  # of equals, the most devices keep their names
    worth_NO[np.not_equal.outer(kinds, kinds)] = -1.0 - worth_NO.sum()
    device_N, name_N = linear_sum_assignment(worth_NO, maximize=True)
    if held_NO[device_N, name_N].sum() <= held_NO.trace():
        return None
    renamed_NO = np.zeros_like(held_NO)
    renamed_NO[name_N] = held_NO[device_N]
    return Renaming(tuple(name_N[:num_new].tolist()), _traffic(renamed_NO, link_gb_s))
