"""The answer beside other placements, in words: those of other sharders, and the one that it was to be near to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evenshard.planner.answer import BY_RATING, PLAIN_PLAN, PlacementAnswer, Rival, Saving
from evenshard.planner.rivals import CUTTING, FULL_SPACE, MOST_SHARDS, asked_full_space, rival_label
from evenshard.report.facts.step import AS_FAST_PCT
from evenshard.utils.messages import printable, tables_text
from evenshard.utils.units import ms_text, pct_text, size_text


def best_rival(answer: PlacementAnswer) -> Rival | None:
    """The fastest of those that found a placement and broke no rule; measured times count where there are any."""

    def rank(rival: Rival) -> tuple[float, bool, bool]:
        return _rival_ms(rival), rival.sharder == "random", rival.chosen in (PLAIN_PLAN, BY_RATING)

    return min(legal_rivals(answer), key=rank, default=None)


def legal_rivals(answer: PlacementAnswer) -> list[Rival]:
    """The rivals that found a placement and broke no rule."""
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
    who = f"The best of {count} others ({rival_label(rival)})" if count > 1 else rival_label(rival)
    text = f"{who}{whole_tables_text(answer, rival)}: {ms_text(_rival_ms(rival))} ms"
    return text if _no_rival_cuts(answer) else f"{text}, {rival_difference(answer, rival)}"


def asked_texts(answer: PlacementAnswer) -> Iterator[str]:
    """Each rival that might cut tables, with what it was asked with, or which rule it is."""
    for one in answer.comparison:
        if one.setting:
            time = "" if one.predicted_ms is None else f"{ms_text(one.predicted_ms)} ms, "
            yield f"{rival_label(one)}: {time}{one.setting}"


def worth_texts(answer: PlacementAnswer) -> Iterator[str]:
    """How it differs from TorchRec's plan as it comes, where there is one, and from the placement in use, where given.

    Each with an interval of the difference: what a model errs in alike for both is no part of it.
    """
    plain = [one for one in answer.comparison if one.saves is not None and one.chosen in ("", PLAIN_PLAN)]
    if plain:
        rival = max(plain, key=lambda one: one.chosen)
        yield f"TorchRec's default plan: {_saved_text(answer, rival.predicted_ms or 0.0, rival.saves)}"
    near = answer.nearness
    if near is not None and near.stay_saves is not None:
        in_use = "The placement in use" if not near.stay_bytes else "As near as possible to the placement in use"
        yield f"{in_use}: {_saved_text(answer, near.stay_ms, near.stay_saves)}"


def _saved_text(answer: PlacementAnswer, other_ms: float, saves: Saving | None) -> str:
    if saves is None or saves.low_ms == saves.high_ms:
        return f"{ms_text(other_ms)} ms, {difference_text(_pct(other_ms, answer.predicted_ms))}"
    low_pct, high_pct = (100 * one / answer.predicted_ms for one in (saves.low_ms, saves.high_ms))
    share = difference_text(100 * saves.ms / answer.predicted_ms)
    return f"{ms_text(other_ms)} ms, {share} (90 %: {ends_text(low_pct, high_pct, 'faster', 'slower')})"


def ends_text(low_pct: float, high_pct: float, below: str, above: str) -> str:
    """The ends of an interval of a difference, per cent; with words for either side of 0 where it includes that."""
    if low_pct < 0 < high_pct:
        return f"{pct_text(-low_pct)} {below} to {pct_text(high_pct)} {above}"
    return " to ".join(pct_text(one) for one in sorted((abs(low_pct), abs(high_pct))))


def _no_rival_cuts(answer: PlacementAnswer) -> bool:
    """Whether the answer might cut tables, and none of the others might."""
    return not answer.request.is_whole and all(rival.sharder not in CUTTING for rival in answer.comparison)


def whole_tables_text(answer: PlacementAnswer, rival: Rival) -> str:
    """What to add to a rival's name where the answer might cut tables and it might not."""
    return ", whole tables" if not answer.request.is_whole and rival.sharder not in CUTTING else ""


def not_compared_text(answer: PlacementAnswer, reason: str = "") -> str | None:
    """What to say where TorchRec's planner is missing among the others, or is there for whole tables only.

    Args:
        reason: why it is missing; empty where it was not asked for.
    """
    who = "TorchRec's planner"
    if not answer.request.is_whole and all(rival.sharder != FULL_SPACE for rival in answer.comparison):
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
