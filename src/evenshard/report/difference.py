"""A diff as text for the terminal: what it saves, what it takes, and the largest moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.table import Table as Grid

from evenshard.compare.difference import Difference, PartMove, Rekept, Renaming, Traffic
from evenshard.compare.payback import Payback
from evenshard.measure.price.device_price import ROUNDING
from evenshard.planner.output_order import BY_NAME
from evenshard.report.step_facts import ends_text
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import count_text, printable, tables_text
from evenshard.utils.units import bytes_to_gb, decimals, ms_text, pct_text, size_text

_NARROWEST = 80
READ_BY_POSITION = f"A model that takes its values() reads other columns. {BY_NAME}"
EQUAL = "Nothing moves: the two placements are equal, so there is no move to pay back."
# Moves and devices that are shown where there are more, the largest ones.
_MAX_LINES = 32


def print_difference(difference: Difference, file: TextIO | None = None, paid: Payback | None = None) -> None:
    """Prints it.

    Args:
        paid: when the move pays back, to be printed too.
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, _NARROWEST)
    console.print(_times(difference), style="bold")
    for line in _bytes(difference):
        console.print(line)
    for line in payback_lines(paid) if paid is not None else ():
        console.print(line)
    for style, line in _remarks(difference):
        console.print(line, style=style)
    if difference.moves:
        console.print()
        console.print(_devices(difference.traffic))
        console.print()
        console.print(_moves(difference.largest_moves))
    if len(difference.moves) > _MAX_LINES:
        console.print(f"{len(difference.moves) - _MAX_LINES:,} smaller moves are left out here (--json lists all).")


def _times(difference: Difference) -> str:
    times = difference.times
    digits = decimals(max(times.old_ms, times.new_ms)) + 1
    change = "as long as before"
    if times.old_ms > 0 and abs(times.saves_ms) > ROUNDING * times.old_ms:
        saves = saved_text(difference, f"{abs(times.saves_ms):.{digits}f} ms")
        change = f"{saves} than the {times.old_ms:.{digits}f} ms before"
    return (
        f"Embedding work takes {times.new_ms:.{digits}f} ms per step, {change}. "
        f"Lower bound {ms_text(times.lower_bound_ms)} ms. Predicted by {printable(times.predicted_by)}."
    )


def saved_text(difference: Difference, amount: str) -> str:
    """What the new placement saves, with its share of the old one's step and, of the same tables, its interval."""
    times = difference.times
    share, low, high = (100 * one / times.old_ms for one in (times.saves_ms, times.saves_low_ms, times.saves_high_ms))
    is_sure = low == high or not difference.is_of_same_tables
    interval = "" if is_sure else f"; 90 %: {ends_text(low, high, 'MORE', 'less')}"
    return f"{amount} ({pct_text(abs(share))}{interval}) {'less' if share > 0 else 'MORE'}"


def _bytes(difference: Difference) -> Iterator[str]:
    if difference.old_num_devices != difference.new_num_devices:
        yield f"{difference.old_num_devices} devices became {difference.new_num_devices}."
    if difference.equal:
        yield EQUAL
    elif not difference.moves:
        yield "Nothing moves to other devices." if difference.rekept else "Nothing moves."
    else:
        stay = size_text(difference.kept_bytes)
        yield f"Moves {difference.moved_text}; {stay} stay.{_seconds(difference.traffic)}"


def _seconds(traffic: Traffic) -> str:
    if traffic.seconds is None or not traffic.moved_bytes:
        return ""
    return f" {traffic.seconds:.3g} s at least, for the {size_text(traffic.busiest_bytes)} of the busiest device."


def payback_lines(paid: Payback) -> Iterator[str]:
    """When a move pays back, in sentences; the second is of the steps that were asked for."""
    saves = f"{_with_sign(paid.saves_ms, ms_text)} ms (90 %: {_ends(paid.saves_low_ms, paid.saves_high_ms, ms_text)})"
    once = duration_text(paid.transfer_seconds + paid.restart_seconds)
    restart = f", {duration_text(paid.restart_seconds)} of it a restart" if paid.restart_seconds else ""
    if paid.break_even_steps is None:
        slower = "is not faster" if paid.saves_high_ms > 0 else "is slower"
        verdict = f"The new placement {slower}: the move does not pay back."
    elif paid.soonest_steps is None or paid.latest_steps is None:
        why = "the interval of the saving includes 0"
        verdict = f"Pays back after {_steps(paid.break_even_steps)}, but perhaps never: {why}."
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
    """Rounded; a part of one step is a step."""
    return round(count) or math.ceil(count)


def _with_sign(value: float, text: Callable[[float], str]) -> str:
    return f"{'-' * (value < 0)}{text(abs(value))}"


def _ends(low: float, high: float, text: Callable[[float], str]) -> str:
    return f"{_with_sign(low, text)} to {_with_sign(high, text)}"


def duration_text(seconds: float) -> str:
    """Three digits or so, with the unit that suits."""
    for unit, of_unit in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * of_unit:
            return f"{seconds / of_unit:,.1f} {unit}"
    return f"{seconds:.3g} s"


def _remarks(difference: Difference) -> Iterator[tuple[str, str]]:
    for one in difference.reordered:
        yield "bold yellow", f"{printable(one.text)} {READ_BY_POSITION}"
    if difference.renaming is not None:
        yield "bold yellow", _renaming_text(difference.renaming, difference.traffic)
    for word, names in difference.only_in_one:
        yield "cyan", f"{word}: {tables_text(names)}."
    if difference.changed:
        shown = "; ".join(f"{printable(one.table)}: {one.what}" for one in difference.changed[:_MAX_LINES])
        more = len(difference.changed) - _MAX_LINES
        yield "cyan", f"Changed, and so not movable: {shown}{f'; {more:,} more' if more > 0 else ''}."
    for line in (*_resharding_lines(difference), *_rekept(difference)):
        yield "cyan", line
    for note in difference.notes:
        yield "dim", f"Note: {printable(note).rstrip('.')}."


def _resharding_lines(difference: Difference) -> Iterator[str]:
    for (old_type, new_type), tables in difference.resharded_by_type.items():
        yield f"From {old_type} to {new_type}: {tables_text(tables)}."


def _rekept(difference: Difference) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Rekept]] = {}
    for one in difference.rekept:
        groups.setdefault((one.old_storage, one.new_storage), []).append(one)
    for (old_storage, new_storage), tables in groups.items():
        out, back = sum(one.to_host_bytes for one in tables), sum(one.to_device_bytes for one in tables)
        crossing = f", {size_text(out)} go to host memory" if out else f", {size_text(back)} to devices" if back else ""
        names = tables_text([one.table for one in tables])
        yield (f"Kept as {new_storage}, before {old_storage}: {names}{crossing}. Checkpoints stay as they are.")


def _renaming_text(renaming: Renaming, traffic: Traffic) -> str:
    names = ", ".join(f"{new} -> {name}" for new, name in enumerate(renaming.new_names) if new != name)
    left = size_text(renaming.traffic.moved_bytes) if renaming.traffic.moved_bytes else "nothing"
    return (
        f"Device ids are names only: move {left} instead of {size_text(traffic.moved_bytes)}, for the same predicted "
        f"time, with the new placement's devices renamed: {names}.{_seconds(renaming.traffic)}"
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
    """GB with two decimals; what is less than that in three digits."""
    gigabytes = bytes_to_gb(num_bytes)
    return f"{gigabytes:.2f}" if gigabytes >= 0.1 or not num_bytes else f"{gigabytes:.2g}"
