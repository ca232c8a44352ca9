"""How near an answer is to an earlier placement: what moves, and what moving less or more would be worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Nearness:
    """An answer beside the placement that it was to be near to. Bytes are those that ``evenshard diff`` counts.

    Attributes:
        source: the file of the earlier placement.
        max_move_bytes: that may move; None for no bound.
        moved_bytes: weights and optimizer state that go to a device which lacks them.
        moved_tables: tables of which something moves.
        new_tables: that the earlier placement does not have, or not in this shape; they move nothing.
        gone_tables: that it has and the answer does not.
        stay_ms: predicted where as little as possible moves, new tables placed beside.
        stay_bytes: that moves then: 0 unless something cannot stay.
        free_ms: predicted of the best placement without a bound.
        free_bytes: that moves then, with those names of the devices with which least does.
    """

    source: str
    max_move_bytes: int | None
    moved_bytes: int
    moved_tables: tuple[str, ...]
    new_tables: tuple[str, ...]
    gone_tables: tuple[str, ...]
    stay_ms: float
    stay_bytes: int
    free_ms: float
    free_bytes: int
