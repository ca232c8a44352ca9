"""The answer beside other placements, in words: those of other sharders, and the one that it was to be near to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.rivals import FULL_SPACE, MOST_SHARDS, asked_full_space
from evenshard.report.facts.setting import may_cut
from evenshard.report.facts.step import AS_FAST_PCT
from evenshard.sharders.catalog import label_of
from evenshard.utils.messages import printable, tables_text
from evenshard.utils.units import ms_text, pct_text, size_text


def best_rival(answer: PlacementAnswer) -> Rival | None:
    """The fastest of those that found a placement and broke no rule; measured times count where there are any."""
    return min(legal_rivals(answer), key=lambda rival: (_rival_ms(rival), rival.sharder == "random"), default=None)


def legal_rivals(answer: PlacementAnswer) -> list[Rival]:
    """Those that found a placement and broke no rule."""
    return [rival for rival in answer.comparison if rival.predicted_ms is not None and not rival.note]


def rival_pct(answer: PlacementAnswer, rival: Rival) -> float | None:
    """How much slower than the answer a rival is, per cent; negative where it is faster, None without a placement.

    Measured against measured where both are, predicted against predicted otherwise.
    """
    if rival.predicted_ms is None:
        return None
    if answer.measured_ms is not None and rival.measured_ms is not None:
        return _pct(rival.measured_ms, answer.measured_ms)
    return _pct(rival.predicted_ms, answer.predicted_ms)


def rival_difference(answer: PlacementAnswer, rival: Rival) -> str:
    """How much slower than the answer a rival is, in words; empty without a placement."""
    difference_pct = rival_pct(answer, rival)
    return "" if difference_pct is None else difference_text(difference_pct)


def _rival_ms(rival: Rival) -> float:
    time_ms = rival.predicted_ms if rival.measured_ms is None else rival.measured_ms
    return math.inf if time_ms is None else time_ms


def _pct(time_ms: float, reference_ms: float) -> float:
    return (time_ms / reference_ms - 1) * 100 if reference_ms and math.isfinite(reference_ms) else 0.0


def rival_text(answer: PlacementAnswer) -> str | None:
    """How the answer compares with the best of the others; None where there is nothing to compare with.

    An answer that may cut tables is not called faster by so much than others that may not.
    """
    rival = best_rival(answer)
    if rival is None or answer.num_devices == 1:
        return None
    count = len(legal_rivals(answer))
    who = f"The best of {count} others ({label_of(rival.sharder)})" if count > 1 else label_of(rival.sharder)
    text = f"{who}{whole_tables_text(answer, rival)}: {ms_text(_rival_ms(rival))} ms"
    return text if _no_rival_cuts(answer) else f"{text}, {rival_difference(answer, rival)}"


def asked_text(answer: PlacementAnswer) -> str:
    """What TorchRec's planner was asked with where it might shard tables in every way; empty where it was not."""
    settings = (one.setting for one in answer.comparison if one.sharder == FULL_SPACE)
    setting = next(settings, "")
    return f"{label_of(FULL_SPACE)}: {setting}" if setting else ""


def _no_rival_cuts(answer: PlacementAnswer) -> bool:
    """Whether the answer might cut tables, and none of the others might."""
    return may_cut(answer.request) and all(rival.sharder != FULL_SPACE for rival in answer.comparison)


def whole_tables_text(answer: PlacementAnswer, rival: Rival) -> str:
    """What to add to a rival's name where the answer might cut tables and it might not."""
    return ", whole tables" if may_cut(answer.request) and rival.sharder != FULL_SPACE else ""


def not_compared_text(answer: PlacementAnswer, reason: str = "") -> str | None:
    """What to say where TorchRec's planner is missing among the others, or is there for whole tables only.

    Args:
        reason: why it is missing; empty where it was not asked for.
    """
    who = "TorchRec's planner"
    if _no_rival_cuts(answer):
        who += ", which shards tables in every way too,"
        if not asked_full_space(answer.request):
            reason = f"it takes minutes for more than {MOST_SHARDS:,} tables times devices"
        reason = reason or "add --report"
    return f"{who} was not compared: {reason.rstrip('.')}." if reason and answer.num_devices > 1 else None


def difference_text(difference_pct: float) -> str:
    """A difference of step times in words."""
    if abs(difference_pct) < AS_FAST_PCT:
        return "as fast"
    return f"{pct_text(abs(difference_pct))} {'slower' if difference_pct > 0 else 'faster'}"


def near_texts(answer: PlacementAnswer) -> Iterator[str]:
    """A line for each thing to know; nothing where the answer is near to nothing."""
    near = answer.nearness
    if near is None:
        return
    most = "" if near.max_move_bytes is None else f" of at most {_size(near.max_move_bytes)}"
    if near.moved_bytes:
        what = f"moves {_size(near.moved_bytes)}{most}: {tables_text(near.moved_tables)}"
    else:
        what = f"moves nothing{most}"
    yield f"{printable(near.source)}: {what}"
    if near.new_tables:
        yield f"new tables, which move nothing: {tables_text(near.new_tables)}"
    if near.gone_tables:
        yield f"tables that are gone: {tables_text(near.gone_tables)}"
    stay = "nothing moved" if not near.stay_bytes else f"as little moved as possible ({_size(near.stay_bytes)})"
    yield (
        f"{stay}: {ms_text(near.stay_ms)} ms; this one: {ms_text(answer.predicted_ms)} ms; with no bound "
        f"({_size(near.free_bytes)} moved): {ms_text(near.free_ms)} ms"
    )


def _size(num_bytes: int) -> str:
    return size_text(num_bytes) if num_bytes else "0 GB"
