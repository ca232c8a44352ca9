"""A diff as Markdown, for a comment of a pull request: time, memory, moves, and the rest folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from evenshard.compare.difference import Difference, PartMove
from evenshard.compare.payback import Payback
from evenshard.compare.times import OWN_FIGURES
from evenshard.measure.price.device_price import ROUNDING
from evenshard.planner.answer import PlacementAnswer, fullest_device
from evenshard.report.difference import EQUAL, READ_BY_POSITION, payback_lines, saved_text
from evenshard.report.step_facts import gap_text, warning_texts, worth_texts
from evenshard.utils.messages import names_text, printable
from evenshard.utils.units import bytes_to_gb, ms_text, pct_text, size_text

# Moves that are listed, the largest ones: GitHub takes 65,536 characters for a comment.
_MAX_LINES = 20
_MAX_NAMES = 20
# A space without a width: GitHub looks for @name and #17 after it has resolved entities.
_NOTHING = "&#8203;"


def marker(title: str) -> str:
    """The first line of a comment, by which it is found again: the same for the same title, which cannot end it."""
    said = re.sub("--+|[<>&@]", lambda found: _entities(found[0]), printable(title))
    return f"<!-- evenshard placement of {said} -->"


def difference_markdown(
    difference: Difference,
    old: PlacementAnswer,
    new: PlacementAnswer,
    title: str = "",
    paid: Payback | None = None,
) -> str:
    """The diff of two answers.

    Args:
        difference: between them.
        old, new: the answers.
        title: what was placed; where left out, the new answer's table file.
        paid: when the move pays back.
    """
    title = title or str(new.lineage.get("tables") or "placement")
    lines = [marker(title), f"### evenshard: {code(title)}", ""]
    if warnings := [*warning_texts(new), *new.memory_warnings]:
        lines += ["> [!WARNING]", *(f"> {escape_markdown(one)}  " for one in warnings), ""]
    lines += [_headline(old, new), ""]
    lines += [f"{escape_markdown(line)}.  " for line in worth_texts(new)]
    lines += [""] * (lines[-1] != "")
    lines += _figures(difference, old, new)
    if reordered := [f"{one.text} {READ_BY_POSITION}" for one in difference.reordered]:
        lines += ["", "> [!WARNING]", *(f"> {escape_markdown(one)}  " for one in reordered)]
    if difference.equal:
        lines += ["", EQUAL]
    elif paid is not None:
        lines += ["", *(escape_markdown(line) for line in payback_lines(paid))]
    tables = list(_tables(difference))
    if tables:
        lines += ["", *tables]
    if difference.moves:
        lines += ["", *_fold("What moves", list(_moves(difference.largest_moves)))]
    notes = [f"- {escape_markdown(note.rstrip('.'))}." for note in difference.notes]
    if notes:
        lines += ["", *_fold("How far to trust it", notes)]
    return "\n".join(lines) + "\n"


def _headline(old: PlacementAnswer, new: PlacementAnswer) -> str:
    change = new.predicted_ms - old.predicted_ms
    worth = "" if new.num_devices == 1 else f", {gap_text(new)}"
    if old.predicted_ms <= 0 or abs(change) <= ROUNDING * old.predicted_ms:
        return f"**Embedding work takes as long as before: {ms_text(new.predicted_ms)} ms per step{worth}.**"
    share = pct_text(100 * abs(change) / old.predicted_ms)
    way = "MORE" if change > 0 else "less"
    return f"**Embedding work takes {ms_text(new.predicted_ms)} ms per step, {share} {way} than before{worth}.**"


def _figures(difference: Difference, old: PlacementAnswer, new: PlacementAnswer) -> Iterator[str]:
    """The table: each side with its own tables; where they are the same, the old plan with the new loads, too."""
    yield "| | before | after |"
    yield "|---|---:|---:|"
    steps = (ms_text(one.predicted_ms) for one in (old, new))
    yield f"| embedding work, ms per step | {' | '.join(steps)} |"
    ends = (f"{ms_text(one.low_ms)} to {ms_text(one.high_ms)}" for one in (old, new))
    yield f"| 90 % interval | {' | '.join(ends)} |"
    times = difference.times
    if times.predicted_by != OWN_FIGURES and old.parts != new.parts:
        yield f"| the plan of before with these tables, ms | | {ms_text(times.old_ms)} |"
    if difference.is_of_same_tables and abs(times.saves_ms) > ROUNDING * times.old_ms > 0:
        saves = saved_text(difference, ms_text(abs(times.saves_ms)))
        yield f"| the new plan against that of before, ms per step | | {saves} |"
    yield f"| fullest device, GB | {' | '.join(map(_memory, (old, new)))} |"
    yield f"| tables | {len(old.request.tables):,} | {len(new.request.tables):,} |"
    if old.num_devices != new.num_devices:
        yield f"| devices | {old.num_devices:,} | {new.num_devices:,} |"
    what = difference.moved_text if difference.traffic.moved_bytes else "nothing"
    yield f"| moves to other devices | | {what}; {size_text(difference.kept_bytes)} stay |"


def _memory(answer: PlacementAnswer) -> str:
    one = fullest_device(answer)
    return f"{bytes_to_gb(one.most_bytes):.2f} of {bytes_to_gb(one.limit_bytes):.2f} ({one.full * 100:.0f} %)"


def _tables(difference: Difference) -> Iterator[str]:
    for word, names in difference.only_in_one:
        yield f"- {word}: {_names(names)}"
    if difference.changed:
        shown = "; ".join(f"{code(one.table)}: {one.what}" for one in difference.changed[:_MAX_NAMES])
        yield f"- Of another shape, and so new: {shown}"
    for (old_type, new_type), tables in difference.resharded_by_type.items():
        yield f"- From {old_type} to {new_type}: {_names(tables)}"
    for kept in difference.rekept[:_MAX_NAMES]:
        yield f"- Kept as {kept.new_storage}, before {kept.old_storage}: {code(kept.table)}"


def _moves(moves: Sequence[PartMove]) -> Iterator[str]:
    yield "| table | rows | columns | from | to | size |"
    yield "|---|---:|---:|---:|---:|---:|"
    for move in moves[:_MAX_LINES]:
        where = f"{move.rows} | {move.columns} | {move.from_device} | {move.to_device}"
        yield f"| {code(move.table)} | {where} | {size_text(move.num_bytes)} |"
    if len(moves) > _MAX_LINES:
        yield f"\n{len(moves) - _MAX_LINES:,} smaller ones are left out here."


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>"]


def _names(names: Sequence[str]) -> str:
    return names_text(names, _MAX_NAMES, code)


def code(text: str) -> str:
    """A name as code: nothing in it is Markdown, a mention or a cell."""
    shown = printable(text)
    if shown == shown.strip() != "" and not set(shown) & set("`|\\"):
        return f"`{shown}`"
    return f"<code>{_entities(shown)}</code>"  # what would end a code span or a cell


def escape_markdown(text: str) -> str:
    """A sentence in which nothing is Markdown or HTML, nor a mention of somebody or of an issue."""
    return "".join(
        _entities(sign) + _NOTHING * (sign in "@#") if sign in "\\`*_<>|[]@#&" else sign for sign in printable(text)
    )


def _entities(text: str) -> str:
    return "".join(f"&#{ord(sign)};" for sign in text)
