"""Explanations as text for the terminal.

Of a table: how it is sharded, every other way, every other device, a next move. Of a placement, the overview: the
slowest device, what makes it slow, its tables, the best changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table as Grid

from evenshard.compare.explain.changed_parts import devices_text, ranges_text
from evenshard.compare.explain.explanation import Explanation, Move, PartExplanation, WayOption
from evenshard.compare.explain.overview import Overview
from evenshard.compare.explain.storage_options import KeptOption
from evenshard.measure.price.device_price import ROUNDING
from evenshard.placement.sharding import TYPES
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import names_text, printable
from evenshard.utils.units import bytes_to_gb, decimals, ms_text, pct_text, size_text

# Narrower output breaks lines.
_NARROWEST = 80
# Tables of the slowest device that are shown.
_NUM_TABLES = 8
# Devices and parts that are shown where there are more: the fastest ones, and those that hold some of the table.
_MAX_LINES = 32


def print_explanation(explanation: Explanation, file: TextIO | None = None) -> None:
    """Prints all of it to a file, None for stdout; colours go to terminals only."""
    console = plain_console(file, _NARROWEST)
    _print_opening(console, explanation, f"{printable(explanation.table)} is sharded {explanation.sharding_type}. ")
    for line in _facts(explanation):
        console.print(line)
    console.print()
    console.print(_ways(explanation))
    console.print(_other_way(explanation))
    if explanation.kept:
        console.print()
        console.print(_storage_grid(explanation))
        console.print(_other_place(explanation))
    movable = [part for part in explanation.parts if part.options]
    if not movable:
        return
    console.print()
    console.print(_devices(explanation, movable[0]) if len(movable) == 1 else _parts(explanation, movable))
    shown = len(movable[0].options) if len(movable) == 1 else len(movable)
    if shown > _MAX_LINES:
        console.print(f"{shown - _MAX_LINES:,} more are left out here (--json lists all).")
    if len(movable) == 1:
        console.print(_next_move(explanation, movable[0]))
    else:
        console.print(f"Each device with one of them: --table '{printable(movable[0].name)}'.")


def _facts(explanation: Explanation) -> Iterator[str]:
    parts = explanation.parts
    devices = [device for part in parts for device in part.devices]
    if TYPES[explanation.sharding_type].is_replicated:
        where = f"A replica of it is on each of the {len(devices)} devices"
    elif len(parts) == 1:
        where = f"{printable(parts[0].name)} is on device {devices[0]}"
    else:
        where = f"Its {len(parts)} parts are on {devices_text(devices)}"
    weights = _range([size_text(part.weight_bytes) for part in _by(parts, "weight_bytes")])
    state = _range([size_text(part.state_bytes) for part in _by(parts, "state_bytes")])
    each = " each" if len(devices) > 1 else ""
    with_state = f" and {state} of optimizer state" if any(part.state_bytes for part in parts) else ""
    yield f"{where}: {weights} of weights{with_state}{each}."
    now = next((one for one in explanation.kept if one.is_now), None)
    if now is not None and not now.storage.is_on_device:
        missed = f"; it misses {_misses(now)} of a batch's distinct rows ({now.miss_source})" if now.miss_source else ""
        yield (
            f"It is kept as {now.storage}: {size_text(now.device_bytes)} of device memory and "
            f"{size_text(now.host_bytes)} elsewhere in all{missed}."
        )
    alone, adds, total = (
        _range([_ms(explanation, getattr(part, name)) for part in _by(parts, name)])
        for name in ("alone_ms", "adds_ms", "device_ms")
    )
    what = "It takes" if len(parts) == 1 else "A part takes"
    yield f"{what} {alone} ms alone, and adds {adds} ms to the {total} ms of its device."
    if explanation.moves_with:
        yield f"It must stay with {names_text(explanation.moves_with)}: they move as one."
    saved_ms = explanation.step_ms - explanation.without_ms
    if abs(saved_ms) <= explanation.step_ms * ROUNDING:
        yield "Without the table, embedding work would take the same: it does not decide."
    else:
        yield f"Without the table, embedding work would take {_ms(explanation, explanation.without_ms)} ms."


def _by(parts: Sequence[PartExplanation], name: str) -> tuple[PartExplanation, ...]:
    """The parts with the lowest and the highest value."""
    return min(parts, key=lambda part: getattr(part, name)), max(parts, key=lambda part: getattr(part, name))


def _range(texts: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(texts))


# Ways ----------------------------------------------------------------------------------------------------------------


def _ways(explanation: Explanation) -> Grid:
    grid = plain_grid("ms", "change", "memory, GB", texts=["sharded", "on", ""])
    for way in explanation.ways:
        if way.step_ms is None:
            grid.add_row("", "", "", way.sharding_type, f"impossible: {printable('; '.join(way.illegal))}", style="dim")
            continue
        times = _ms(explanation, way.step_ms), _change(explanation, way.change_ms or 0.0, way.is_now)
        cells = (*times, f"{bytes_to_gb(way.table_bytes):.2f}", way.sharding_type, _where(way))
        _add_option(grid, cells, "now" if way.is_now else "", way.illegal)
    return grid


def _add_option(grid: Grid, cells: Sequence[str], now: str, illegal: Sequence[str]) -> None:
    """A line that ends in what is to be said of an option: the word for the one of now, or why it may not be."""
    notes = [*([now] if now else []), *(f"no: {reason}" for reason in illegal)]
    grid.add_row(*cells, printable("; ".join(notes)), style="bold" if now else "dim" if illegal else None)


def _where(way: WayOption) -> str:
    widths = f"{len(way.widths)} x {_range([str(min(way.widths)), str(max(way.widths))])} columns, "
    cut = widths if len(way.widths) > 1 else "a replica on " if TYPES[way.sharding_type].is_replicated else ""
    if way.nodes:
        return f"{cut}node{'s' if len(way.nodes) > 1 else ''} {ranges_text(way.nodes)}"
    return f"{cut}{devices_text(way.devices)}"


def _other_way(explanation: Explanation) -> str:
    others = [way for way in explanation.ways if way.step_ms is not None and not way.is_now and not way.illegal]
    if not others:
        return "No other way is possible and allowed."
    best = min(others, key=lambda way: way.step_ms or 0.0)
    change_ms = best.change_ms or 0.0
    if change_ms < -ROUNDING * explanation.step_ms:
        return f"Sharded {best.sharding_type}, embedding work would take {_ms(explanation, -change_ms)} ms less."
    effect = _effect(explanation, change_ms)
    return f"No other way makes embedding work faster: the best one, {best.sharding_type}, {effect}."


# Places of weights ---------------------------------------------------------------------------------------------------


def _storage_grid(explanation: Explanation) -> Grid:
    grid = plain_grid("ms", "change", "devices, GB", "hosts, GB", "misses", texts=["kept", ""])
    for one in explanation.kept:
        sizes = (f"{bytes_to_gb(size):.2f}" for size in (one.device_bytes, one.host_bytes))
        times = _ms(explanation, one.step_ms), _change(explanation, one.change_ms, one.is_now)
        cells = (*times, *sizes, _misses(one), str(one.storage))
        _add_option(grid, cells, "now" if one.is_now else "", one.illegal)
    return grid


def _misses(one: KeptOption) -> str:
    return "" if one.miss_ratio is None else pct_text(100 * one.miss_ratio)


def _other_place(explanation: Explanation) -> str:
    others = [one for one in explanation.kept if not one.is_now and not one.illegal]
    best = min(others, key=lambda one: one.step_ms, default=None)
    if best is None or best.change_ms >= -ROUNDING * explanation.step_ms:
        return "No other place for it makes embedding work faster, as far as there is memory."
    return f"Kept as {best.storage}, embedding work would take {_ms(explanation, -best.change_ms)} ms less."


# Devices -------------------------------------------------------------------------------------------------------------


def _devices(explanation: Explanation, part: PartExplanation) -> Grid:
    grid = plain_grid("device", "ms with it", "step, ms", "change", "memory, GB", texts=[""])
    shown = sorted(part.options, key=lambda one: (one.device not in part.devices, bool(one.illegal), one.step_ms))
    for option in sorted(shown[:_MAX_LINES], key=lambda one: one.device):
        is_home = option.device in part.devices
        times = (_ms(explanation, option.device_ms), _ms(explanation, option.step_ms))
        change = _change(explanation, option.change_ms, is_home)
        memory = f"{bytes_to_gb(option.used_bytes):.2f} / {bytes_to_gb(option.room_bytes):.4g}"
        _add_option(grid, (str(option.device), *times, change, memory), "here" if is_home else "", option.illegal)
    return grid


def _next_move(explanation: Explanation, part: PartExplanation) -> str:
    best = part.best
    if best is None:
        return "Next best move: none. No other place is legal, or what is legal changes nothing but names."
    devices = (
        f"device {part.devices[0]} would take {_ms(explanation, best.from_ms)} ms, device {best.to_device} "
        f"{_ms(explanation, best.to_ms)} ms"
    )
    if best.helps:
        return (
            f"Next best move: {_move(best)}. Embedding work would take {_ms(explanation, best.step_ms)} ms, "
            f"{_ms(explanation, -best.change_ms)} ms less; {devices}."
        )
    effect = _effect(explanation, best.change_ms)
    return f"No move or swap of it makes embedding work faster. The best one, {_move(best)}, {effect}; {devices}."


def _move(move: Move) -> str:
    if move.swap_with:
        return f"swap it with {names_text(move.swap_with)} on device {move.to_device}"
    return f"to device {move.to_device}"


# Parts ---------------------------------------------------------------------------------------------------------------


def _parts(explanation: Explanation, parts: Sequence[PartExplanation]) -> Grid:
    """A line for each part, with the move that makes a step faster."""
    grid = plain_grid("device", "alone, ms", "adds, ms", "device, ms", "change", texts=["best move", "part"])
    for part in parts[:_MAX_LINES]:
        best = part.best
        grid.add_row(
            str(part.devices[0]),
            _ms(explanation, part.alone_ms),
            _ms(explanation, part.adds_ms),
            _ms(explanation, part.device_ms),
            *((_change(explanation, best.change_ms), _move(best)) if best is not None and best.helps else ("", "")),
            printable(part.name),
            style="bold" if part.on_slowest else None,
        )
    return grid


# Overviews ------------------------------------------------------------------------------------------------------------


def print_overview(found: Overview, file: TextIO | None = None) -> None:
    """Prints all of it to a file, None for stdout; colours go to terminals only."""
    console = plain_console(file, _NARROWEST)
    _print_opening(console, found)
    console.print(_why(found))
    console.print()
    times = plain_grid("ms", "mean of all", "more", texts=[f"device {found.slowest_device}"])
    for one in found.times:
        times.add_row(
            _ms(found, one.time_ms), _ms(found, one.mean_ms), _change(found, one.time_ms - one.mean_ms), one.name
        )
    console.print(times)
    console.print()
    tables = plain_grid("adds, ms", "alone, ms", "memory, GB", "parts", texts=["sharded", "table"])
    for share in found.tables[:_NUM_TABLES]:
        way = share.sharding_type if share.kernel == "fused" else f"{share.sharding_type}, {share.kernel}"
        size = f"{bytes_to_gb(share.size_bytes):.2f}"
        numbers = (_ms(found, share.adds_ms), _ms(found, share.alone_ms), size, f"{share.num_parts:,}")
        tables.add_row(*numbers, way, printable(share.table))
    console.print(tables)
    if len(found.tables) > _NUM_TABLES:
        console.print(f"{len(found.tables) - _NUM_TABLES:,} more tables are on it (--json lists all).", style="dim")
    console.print()
    console.print(_verdict(found), style="bold")
    if not found.changes:
        return
    changes = plain_grid("ms", "change", texts=["table", "best change"])
    for change in found.changes:
        cells = (_ms(found, change.step_ms), _change(found, change.change_ms), printable(change.table))
        changes.add_row(*cells, printable(change.change), style=None if change.helps else "dim")
    console.print(changes)
    console.print("What another change would do: --table NAME.", style="dim")


def _why(found: Overview) -> str:
    """What the slowest device does longer than the others, a sentence."""
    if found.num_devices == 1:
        longest = max(found.times, key=lambda one: one.time_ms)
        return f"It is the only one; {longest.name} takes most, {_ms(found, longest.time_ms)} ms."
    own_ms = sum(one.time_ms for one in found.times)
    most = max(found.times, key=lambda one: one.time_ms - one.mean_ms)
    return (
        f"It takes {_ms(found, own_ms - found.mean_ms)} ms more than the mean of the {found.num_devices} devices and "
        f"waits {_ms(found, max(found.step_ms - own_ms, 0.0))} ms for others: {most.name} differs most from the mean, "
        f"by {_change(found, most.time_ms - most.mean_ms)} ms."
    )


def _verdict(found: Overview) -> str:
    """What the changes promise, a sentence."""
    tried = f"of one of {found.num_tried} tables on it" if found.num_tried > 1 else "of its table"
    if not found.changes:
        return f"No change {tried} is legal."
    best = found.changes[0]
    if best.helps:
        return f"The best change {tried} saves {_ms(found, -best.change_ms)} ms per step:"
    return f"No change {tried} makes embedding work faster. The best ones:"


# Of both --------------------------------------------------------------------------------------------------------------


def _print_opening(console: Console, of_step: Explanation | Overview, before: str = "") -> None:
    """The time of a step and its slowest device; what stands behind the times."""
    console.print(
        f"{before}Embedding work takes {ms_text(of_step.step_ms)} ms per step; device {of_step.slowest_device} is the "
        f"slowest (predicted by {printable(of_step.model)}).",
        style="bold",
    )
    if of_step.device:
        console.print(f"{printable(of_step.device)}.", style="dim")


def _ms(of_step: Explanation | Overview, time_ms: float) -> str:
    """A time with one more decimal than a step's three digits, because differences are small."""
    return f"{time_ms:.{decimals(of_step.step_ms) + 1}f}"


def _change(of_step: Explanation | Overview, change_ms: float, is_now: bool = False) -> str:
    """A difference with its sign; empty for what is now, which differs from nothing."""
    text = f"{change_ms:+.{decimals(of_step.step_ms) + 1}f}"
    return "" if is_now else text if float(text) else "0"


def _effect(of_step: Explanation, change_ms: float) -> str:
    """What a change that makes nothing faster does to the step."""
    if change_ms > ROUNDING * of_step.step_ms:
        return f"makes it {_ms(of_step, change_ms)} ms slower"
    return "leaves it as it is"
