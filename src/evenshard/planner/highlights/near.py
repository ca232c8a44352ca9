"""An answer near an earlier placement in words: what moves, and what moving nothing or anything would be worth."""

from __future__ import annotations

from collections.abc import Iterator

from evenshard.planner.answer import PlacementAnswer
from evenshard.utils.messages import names_text, printable
from evenshard.utils.units import ms_text, size_text


def near_texts(answer: PlacementAnswer) -> Iterator[str]:
    """A line for each thing to know; nothing where the answer is near to nothing."""
    near = answer.nearness
    if near is None:
        return
    most = "" if near.max_move_bytes is None else f" of at most {_size(near.max_move_bytes)}"
    if near.moved_bytes:
        what = f"moves {_size(near.moved_bytes)}{most}: {_tables(near.moved_tables)}"
    else:
        what = f"moves nothing{most}"
    yield f"{printable(near.source)}: {what}"
    if near.new_tables:
        yield f"new tables, which move nothing: {_tables(near.new_tables)}"
    if near.gone_tables:
        yield f"tables that are gone: {_tables(near.gone_tables)}"
    stay = "nothing moved" if not near.stay_bytes else f"as little moved as possible ({_size(near.stay_bytes)})"
    yield (
        f"{stay}: {ms_text(near.stay_ms)} ms; this one: {ms_text(answer.predicted_ms)} ms; with no bound "
        f"({_size(near.free_bytes)} moved): {ms_text(near.free_ms)} ms"
    )


def _size(num_bytes: int) -> str:
    return size_text(num_bytes) if num_bytes else "0 GB"


def _tables(names: tuple[str, ...]) -> str:
    return f"{names_text(names)} ({len(names):,} table{'s' * (len(names) > 1)})"
