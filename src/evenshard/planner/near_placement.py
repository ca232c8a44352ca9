"""A request near an earlier answer: which of its tables have weights, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evenshard.placement.memory import SGD
from evenshard.placement.moves import SharedPiece, larger_machine, same_shape, shared_pieces
from evenshard.planner.answer import Nearness, PlacementAnswer, Saving
from evenshard.planner.request import PlacementRequest, kept_optimizers
from evenshard.sharders.search.moves import EarlierPlacement
from evenshard.sharders.search.near_placement import NearResult
from evenshard.tables.table import Table


@dataclass(frozen=True)
class Near:
    """An earlier answer, and the bytes that may move from it."""

    old: PlacementAnswer
    source: str  # its file
    max_move_bytes: int | None = None  # None for no bound

    @property
    def most_bytes(self) -> float:
        """Bytes that may move; infinite without a bound."""
        return float("inf") if self.max_move_bytes is None else self.max_move_bytes

    def earlier(self, request: PlacementRequest) -> EarlierPlacement:
        """The part of the old answer that a request can use."""
        of_old = {table.name: table for table in self.old.request.tables}
        usable = {
            table.name: self.old.parts_of_table[table.name]
            for table in request.tables
            if table.name in of_old and same_shape(of_old[table.name], table)
        }
        return EarlierPlacement(usable, self.old.request.nodes, kept_optimizers(self.old.request, request))


def pieces_of_both(
    old: PlacementAnswer, new: PlacementAnswer, tables: Sequence[Table], optimizer_of: Mapping[str, str]
) -> Iterator[SharedPiece]:
    """The pieces of tables that neither answer cuts, table after table by columns, then rows.

    Args:
        tables: tables of both answers, of the same shape in both.
        optimizer_of: the optimizer whose state moves with a table's weights; none moves with a table that it lacks.
    """
    machine = larger_machine(old.request.nodes, new.request.nodes)
    for table in tables:
        before, after = old.parts_of_table[table.name], new.parts_of_table[table.name]
        yield from shared_pieces(table, before, after, machine, optimizer_of.get(table.name, SGD))


def with_nearness(
    answer: PlacementAnswer, near: Near, found: NearResult, free_ms: float, stay_saves: Saving
) -> PlacementAnswer:
    """The answer with what it moves."""
    before = {table.name: table for table in near.old.request.tables}
    now = {table.name: table for table in answer.request.tables}
    usable = [table for name, table in now.items() if name in before and same_shape(before[name], table)]
    pieces = pieces_of_both(near.old, answer, usable, kept_optimizers(near.old.request, answer.request))
    moved = [piece for piece in pieces if piece.moved_bytes]
    return replace(
        answer,
        nearness=Nearness(
            source=near.source,
            max_move_bytes=near.max_move_bytes,
            moved_bytes=sum(piece.moved_bytes for piece in moved),
            moved_tables=tuple(dict.fromkeys(piece.table for piece in moved)),
            new_tables=(
                *(name for name in now if name not in before),
                *(name for name in now if name in before and not same_shape(before[name], now[name])),
            ),
            gone_tables=tuple(name for name in before if name not in now),
            stay_ms=found.stay.predicted_ms,
            stay_bytes=found.stay_bytes,
            free_ms=min(free_ms, answer.predicted_ms),  # what is near is free, too
            free_bytes=found.free_bytes,
            stay_saves=stay_saves,
        ),
    )
