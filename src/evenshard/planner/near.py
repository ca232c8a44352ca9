"""A request near an earlier answer: which of its tables have weights, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenshard.placement.moves import same_shape
from evenshard.planner.answer import Nearness, PlacementAnswer
from evenshard.planner.diff.diff import diff
from evenshard.planner.request import PlacementRequest, kept_optimizers
from evenshard.sharders.plan_search.moves import EarlierPlacement
from evenshard.sharders.plan_search.near import NearResult


@dataclass(frozen=True)
class Near:
    """What an answer is to be near to.

    Attributes:
        old: an earlier answer.
        source: its file.
        max_move_bytes: that may move from it; None for no bound.
    """

    old: PlacementAnswer
    source: str
    max_move_bytes: int | None = None

    @property
    def most_bytes(self) -> float:
        """That may move; infinite without a bound."""
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


def with_nearness(answer: PlacementAnswer, near: Near, found: NearResult, free_ms: float) -> PlacementAnswer:
    """The answer with what it moves, as a diff counts it."""
    difference = diff(near.old, answer)
    return replace(
        answer,
        nearness=Nearness(
            source=near.source,
            max_move_bytes=near.max_move_bytes,
            moved_bytes=difference.traffic.moved_bytes,
            moved_tables=tuple(dict.fromkeys(move.table for move in difference.moves)),
            new_tables=(*difference.added, *(one.table for one in difference.changed)),
            gone_tables=difference.removed,
            stay_ms=found.stay.predicted_ms,
            stay_bytes=found.stay_bytes,
            free_ms=min(free_ms, answer.predicted_ms),  # what is near is free, too
            free_bytes=found.free_bytes,
        ),
    )
