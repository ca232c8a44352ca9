"""Comparisons as text: a diff for the terminal and as Markdown for a pull-request comment, and an explanation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.table import Table as Grid

from evenshard.base.console import plain_console, plain_grid
from evenshard.base.messages import MAX_NAMES, count_text, names_text, printable
from evenshard.base.units import bytes_to_gb, decimals, ms_text, pct_text, size_text
from evenshard.planner.answer import PlacementAnswer, fullest_device
from evenshard.planner.changed_parts import devices_text
from evenshard.planner.difference import OWN_FIGURES, Difference, PartMove, Payback, Renaming, StorageChange, Traffic
from evenshard.planner.explain import Explanation
from evenshard.planner.output_order import BY_NAME
from evenshard.price.kernel_calls import ROUNDING
from evenshard.report.step_facts import ends_text, gap_text, warning_texts, worth_texts

_NARROWEST = 80
READ_BY_POSITION = f"A model that reads its values() by position would read the wrong columns. {BY_NAME}"
EQUAL = "The two placements are equal. Nothing moves."
_MAX_LINES = 32  # moves and devices that are shown if there are more, largest first
_MAX_ROWS = 20  # moves and names in a pull-request comment: GitHub allows 65,536 characters
# Zero-width space: GitHub looks for @name and #17 after it has decoded entities.
_NOTHING = "&#8203;"


def print_difference(difference: Difference, file: TextIO | None = None, paid: Payback | None = None) -> None:
    """Print a diff, and the payback of its move if given, to a file (default: stdout), in color only on terminals."""
    console = plain_console(file, _NARROWEST)
    console.print(_times(difference), style="bold")
    for line in (*_bytes(difference), *(() if paid is None else payback_lines(paid))):
        console.print(line)
    for style, line in _remarks(difference):
        console.print(line, style=style)
    if difference.moves:
        console.print()
        console.print(_devices(difference.traffic))
        console.print()
        console.print(_moves(difference.largest_moves))
    if len(difference.moves) > _MAX_LINES:
        console.print(f"{len(difference.moves) - _MAX_LINES:,} smaller moves are not shown (--json lists all).")


def _times(difference: Difference) -> str:
    times = difference.times
    digits = decimals(max(times.old_ms, times.new_ms)) + 1
    change = "the same as before"
    if times.old_ms > 0 and abs(times.saves_ms) > ROUNDING * times.old_ms:
        saves = saved_text(difference, f"{abs(times.saves_ms):.{digits}f} ms")
        change = f"{saves} than the {times.old_ms:.{digits}f} ms before"
    return (
        f"Embedding work takes {times.new_ms:.{digits}f} ms per step, {change}. "
        f"Lower bound {ms_text(times.lower_bound_ms)} ms. Predicted by {printable(times.predicted_by)}."
    )


def saved_text(difference: Difference, amount: str) -> str:
    """Return the saving with its share of the old step time and, if both answers have the same tables, its interval."""
    times = difference.times
    share, low, high = (100 * one / times.old_ms for one in (times.saves_ms, times.saves_low_ms, times.saves_high_ms))
    is_sure = low == high or not difference.is_of_same_tables
    interval = "" if is_sure else f"; 90 %: {ends_text(low, high, 'MORE', 'less')}"
    return f"{amount} ({pct_text(abs(share))}{interval}) {'less' if share > 0 else 'MORE'}"


def _bytes(difference: Difference) -> Iterator[str]:
    if difference.old_num_devices != difference.new_num_devices:
        yield f"The number of devices changes from {difference.old_num_devices} to {difference.new_num_devices}."
    if difference.equal:
        yield EQUAL
    elif not difference.moves:
        yield "Nothing moves to other devices." if difference.rekept else "Nothing moves."
    else:
        stay = size_text(difference.kept_bytes)
        yield f"Moves {difference.moved_text}; {stay} stay in place.{_seconds(difference.traffic)}"


def _seconds(traffic: Traffic) -> str:
    if traffic.seconds is None or not traffic.moved_bytes:
        return ""
    return f" This takes at least {traffic.seconds:.3g} s: {size_text(traffic.busiest_bytes)} for the busiest device."


def payback_lines(paid: Payback) -> Iterator[str]:
    """Yield sentences on the payback of a move; the second covers the requested number of steps."""
    saves = f"{_with_sign(paid.saves_ms, ms_text)} ms (90 %: {_ends(paid.saves_low_ms, paid.saves_high_ms, ms_text)})"
    once = duration_text(paid.transfer_seconds + paid.restart_seconds)
    restart = f", including {duration_text(paid.restart_seconds)} for a restart" if paid.restart_seconds else ""
    if paid.break_even_steps is None:
        slower = "is not faster" if paid.saves_high_ms > 0 else "is slower"
        verdict = f"The new placement {slower}: the move does not pay back."
    elif paid.soonest_steps is None or paid.latest_steps is None:
        verdict = f"Pays back after {_steps(paid.break_even_steps)}, or never: the interval of the saving includes 0."
    else:
        verdict = (
            f"Pays back after {_steps(paid.break_even_steps)} (90 %: {_whole(paid.soonest_steps):,} to "
            f"{_whole(paid.latest_steps):,})."
        )
    move = f"the move takes {once} over {printable(paid.link)}{restart}"
    yield f"{verdict} Each step saves {saves} of embedding work; {move}."
    word = "saved" if paid.gained_seconds >= 0 else "LOST"
    yield (
        f"After {_steps(paid.steps)}: {duration_text(abs(paid.gained_seconds))} {word} (90 %: "
        f"{_ends(paid.gained_low_seconds, paid.gained_high_seconds, duration_text)})."
    )


def _steps(count: float) -> str:
    return count_text(_whole(count), "step")


def _whole(count: float) -> int:
    """Round a count to an integer; round up to 1 if it is below 0.5."""
    return round(count) or math.ceil(count)


def _with_sign(value: float, text: Callable[[float], str]) -> str:
    return f"{'-' * (value < 0)}{text(abs(value))}"


def _ends(low: float, high: float, text: Callable[[float], str]) -> str:
    return f"{_with_sign(low, text)} to {_with_sign(high, text)}"


def duration_text(seconds: float) -> str:
    """Return a duration with about three digits in a suitable unit."""
    for unit, of_unit in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * of_unit:
            return f"{seconds / of_unit:,.1f} {unit}"
    return f"{seconds:.3g} s"


def _remarks(difference: Difference) -> Iterator[tuple[str, str]]:
    for one in difference.reordered:
        yield "bold yellow", f"{printable(one.text)} {READ_BY_POSITION}"
    if difference.renaming is not None:
        yield "bold yellow", _renaming_text(difference.renaming, difference.traffic)
    for line in _table_lines(difference, MAX_NAMES, printable):
        yield "cyan", line
    for note in difference.notes:
        yield "dim", f"Note: {printable(note).rstrip('.')}."


def _table_lines(difference: Difference, most: int, write: Callable[[str], str]) -> Iterator[str]:
    """Yield the tables that only one answer has, or that differ in shape, sharding type or storage."""

    def named(tables: Sequence[str]) -> str:
        return f"{names_text(tables, most, write)} ({count_text(len(tables), 'table')})"

    for word, names in (("Added", difference.added), ("Removed", difference.removed)):
        if names:
            yield f"{word}: {named(names)}."
    if difference.changed:
        shown = "; ".join(f"{write(one.table)}: {one.what}" for one in difference.changed[:_MAX_LINES])
        more = len(difference.changed) - _MAX_LINES
        yield f"Changed tables, which cannot move: {shown}{f'; {more:,} more' if more > 0 else ''}."
    by_type: dict[tuple[str, str], list[str]] = {}
    for table in difference.resharded:
        by_type.setdefault((table.old_type, table.new_type), []).append(table.table)
    for (old_type, new_type), tables in by_type.items():
        yield f"From {old_type} to {new_type}: {named(tables)}."
    groups: dict[tuple[str, str], list[StorageChange]] = {}
    for one in difference.rekept:
        groups.setdefault((one.old_storage, one.new_storage), []).append(one)
    for (old_storage, new_storage), kept in groups.items():
        out, back = sum(one.to_host_bytes for one in kept), sum(one.to_device_bytes for one in kept)
        crossing = f", {size_text(out)} go to host memory" if out else f", {size_text(back)} to devices" if back else ""
        text = f"{named([one.table for one in kept])}{crossing}. Checkpoints do not change."
        yield f"From {old_storage} to {new_storage}: {text}"


def _renaming_text(renaming: Renaming, traffic: Traffic) -> str:
    names = ", ".join(f"{new} -> {name}" for new, name in enumerate(renaming.new_names) if new != name)
    left = size_text(renaming.traffic.moved_bytes) if renaming.traffic.moved_bytes else "nothing"
    return (
        f"Rename the new placement's devices to move {left} instead of {size_text(traffic.moved_bytes)}, for the same "
        f"predicted time: {names}.{_seconds(renaming.traffic)}"
    )


def _devices(traffic: Traffic) -> Grid:
    grid = plain_grid("device", "out, GB", "in, GB")
    busiest = sorted(traffic.devices, key=lambda one: -max(one.out_bytes, one.in_bytes))[:_MAX_LINES]
    for one in sorted(busiest, key=lambda one: one.device):
        grid.add_row(str(one.device), _gb(one.out_bytes), _gb(one.in_bytes))
    return grid


def _moves(moves: Sequence[PartMove]) -> Grid:
    grid = plain_grid("from", "to", "GB", "rows", "columns", texts=["table"])
    for move in moves[:_MAX_LINES]:
        where = (str(move.from_device), str(move.to_device))
        grid.add_row(*where, _gb(move.num_bytes), str(move.rows), str(move.columns), printable(move.table))
    return grid


def _gb(num_bytes: int) -> str:
    gigabytes = bytes_to_gb(num_bytes)
    return f"{gigabytes:.2f}" if gigabytes >= 0.1 or not num_bytes else f"{gigabytes:.2g}"


# As Markdown ----------------------------------------------------------------------------------------------------------


def marker(title: str) -> str:
    """Return an HTML comment with the escaped title: the first line of a pull-request comment, to find it again."""
    said = re.sub("--+|[<>&@]", lambda found: _entities(found[0]), printable(title))
    return f"<!-- evenshard placement of {said} -->"


def difference_markdown(
    difference: Difference, old: PlacementAnswer, new: PlacementAnswer, title: str = "", paid: Payback | None = None
) -> str:
    """Return a comment on the diff of two answers; its title is the new answer's table file by default."""
    title = title or str(new.lineage.get("tables") or "placement")
    lines = [marker(title), f"### evenshard: {code(title)}", ""]
    if warnings := warning_texts(new):
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
    if tables := [f"- {line}" for line in _table_lines(difference, _MAX_ROWS, code)]:
        lines += ["", *tables]
    if difference.moves:
        lines += ["", *_fold("Moves", list(_move_rows(difference.largest_moves)))]
    notes = [f"- {escape_markdown(note.rstrip('.'))}." for note in difference.notes]
    if notes:
        lines += ["", *_fold("Accuracy", notes)]
    return "\n".join(lines) + "\n"


def _headline(old: PlacementAnswer, new: PlacementAnswer) -> str:
    change = new.predicted_ms - old.predicted_ms
    worth = "" if new.num_devices == 1 else f", {gap_text(new)}"
    if old.predicted_ms <= 0 or abs(change) <= ROUNDING * old.predicted_ms:
        return f"**Embedding work takes {ms_text(new.predicted_ms)} ms per step, the same as before{worth}.**"
    share = pct_text(100 * abs(change) / old.predicted_ms)
    more = "MORE" if change > 0 else "less"
    return f"**Embedding work takes {ms_text(new.predicted_ms)} ms per step, {share} {more} than before{worth}.**"


def _figures(difference: Difference, old: PlacementAnswer, new: PlacementAnswer) -> Iterator[str]:
    """Yield a Markdown table of the old plan, the new plan, and the old plan with the new tables."""
    yield "| | before | after |"
    yield "|---|---:|---:|"
    steps = (ms_text(one.predicted_ms) for one in (old, new))
    yield f"| embedding work, ms per step | {' | '.join(steps)} |"
    ends = (f"{ms_text(one.low_ms)} to {ms_text(one.high_ms)}" for one in (old, new))
    yield f"| 90 % interval | {' | '.join(ends)} |"
    times = difference.times
    if times.predicted_by != OWN_FIGURES and old.parts != new.parts:
        yield f"| old plan with the new tables, ms per step | | {ms_text(times.old_ms)} |"
    if difference.is_of_same_tables and abs(times.saves_ms) > ROUNDING * times.old_ms > 0:
        saves = saved_text(difference, ms_text(abs(times.saves_ms)))
        yield f"| change from the old plan, ms per step | | {saves} |"
    yield f"| fullest device, GB | {' | '.join(map(_memory, (old, new)))} |"
    yield f"| tables | {len(old.request.tables):,} | {len(new.request.tables):,} |"
    if old.num_devices != new.num_devices:
        yield f"| devices | {old.num_devices:,} | {new.num_devices:,} |"
    what = difference.moved_text if difference.traffic.moved_bytes else "nothing"
    yield f"| moves to other devices | | {what}; {size_text(difference.kept_bytes)} stay |"


def _memory(answer: PlacementAnswer) -> str:
    one = fullest_device(answer)
    return f"{bytes_to_gb(one.most_bytes):.2f} of {bytes_to_gb(one.limit_bytes):.2f} ({one.full * 100:.0f} %)"


def _move_rows(moves: Sequence[PartMove]) -> Iterator[str]:
    yield "| table | rows | columns | from | to | size |"
    yield "|---|---:|---:|---:|---:|---:|"
    for move in moves[:_MAX_ROWS]:
        where = f"{move.rows} | {move.columns} | {move.from_device} | {move.to_device}"
        yield f"| {code(move.table)} | {where} | {size_text(move.num_bytes)} |"
    if len(moves) > _MAX_ROWS:
        yield f"\n{len(moves) - _MAX_ROWS:,} smaller moves are not shown."


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>"]


def code(text: str) -> str:
    """Format a name as code, safe against Markdown, mentions and table cells."""
    shown = printable(text)
    if shown == shown.strip() != "" and not set(shown) & set("`|\\"):
        return f"`{shown}`"
    return f"<code>{_entities(shown)}</code>"  # characters that would end a code span or a cell


def escape_markdown(text: str) -> str:
    """Escape a sentence: no Markdown, HTML, mentions or issue references remain."""
    return "".join(
        _entities(sign) + _NOTHING * (sign in "@#") if sign in "\\`*_<>|[]@#&" else sign for sign in printable(text)
    )


def _entities(text: str) -> str:
    return "".join(f"&#{ord(sign)};" for sign in text)


# Explanations ---------------------------------------------------------------------------------------------------------


def print_explanation(found: Explanation, file: TextIO | None = None) -> None:
    """Print an explanation to a file, by default stdout, with colors only on terminals."""
    console = plain_console(file, _NARROWEST)
    console.print(
        f"Embedding work takes {ms_text(found.step_ms)} ms per step; device {found.slowest_device} is the slowest "
        f"(predicted by {printable(found.model)}).",
        style="bold",
    )
    if found.device:
        console.print(f"{printable(found.device)}.", style="dim")
    console.print(_reason(found))
    if found.table:
        console.print(
            f"{printable(found.table)} is sharded {found.sharding_type} on {devices_text(found.devices)}, and adds "
            f"{_ms(found, found.adds_ms)} ms to the time of {'its' if len(found.devices) == 1 else 'a'} device."
        )
    console.print()
    grid = plain_grid("ms", "mean", "change", texts=[f"device {found.slowest_device}, or a change"])
    for one in found.times:
        cells = (_ms(found, one.time_ms), _ms(found, one.mean_ms), _change(found, one.time_ms - one.mean_ms))
        grid.add_row(*cells, one.name)
    for number, change in enumerate(found.changes):
        cells = (_ms(found, change.step_ms), "", _change(found, change.change_ms))
        words = printable(f"{change.table}: {change.change}")
        grid.add_row(*cells, words, style="bold" if change.helps and not number else None)
    console.print(grid)
    console.print(_verdict(found), style="bold")


def _reason(found: Explanation) -> str:
    if found.num_devices == 1:
        longest = max(found.times, key=lambda one: one.time_ms)
        return f"It is the only device. Its longest part is {longest.name}, {_ms(found, longest.time_ms)} ms."
    own_ms, mean_ms = (sum(getattr(one, name) for one in found.times) for name in ("time_ms", "mean_ms"))
    most = max(found.times, key=lambda one: one.time_ms - one.mean_ms)
    return (
        f"It takes {_ms(found, own_ms - mean_ms)} ms more than the average of {found.num_devices} devices, and waits "
        f"{_ms(found, max(found.step_ms - own_ms, 0.0))} ms. Largest difference from the average: {most.name}, "
        f"{_change(found, most.time_ms - most.mean_ms)} ms."
    )


def _verdict(found: Explanation) -> str:
    tried = f"of {printable(found.table)}" if found.table else f"of the table on device {found.slowest_device}"
    if found.num_tried > 1:
        tried = f"of a table on device {found.slowest_device} ({found.num_tried} tables tried)"
    if not found.changes:
        return f"No change {tried} is legal."
    best = found.changes[0]
    if best.helps:
        return f"The best change {tried} saves {_ms(found, -best.change_ms)} ms per step."
    return f"No change {tried} makes embedding work faster."


def _ms(found: Explanation, time_ms: float) -> str:
    """Format a time with one more decimal than a step's three digits, because differences are small."""
    return f"{time_ms:.{decimals(found.step_ms) + 1}f}"


def _change(found: Explanation, change_ms: float) -> str:
    text = f"{change_ms:+.{decimals(found.step_ms) + 1}f}"
    return text if float(text) else "0"
