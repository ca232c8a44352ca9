"""An explanation as text for the terminal: a sentence, then all devices, then the next best move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.table import Table as Grid

from evenshard.planner.explain.explanation import DeviceOption, Explanation, Move, PartExplanation
from evenshard.planner.highlights import DECIDES, names_text
from evenshard.sharders.convex_search.cost_model import ROUNDING
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable
from evenshard.utils.units import bytes_to_gb, decimals, ms_text, size_text

_HEADS = ("device", "ms with it", "step, ms", "change", "memory, GB", "")
_NARROWEST = 80
"""Narrower output breaks lines."""


def print_explanation(explanation: Explanation, file: TextIO | None = None) -> None:
    """Prints all of it.

    Args:
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file)
    console.width = max(console.width, _NARROWEST)
    for line in _opening(explanation):
        console.print(line, style="bold")
    if explanation.device:
        console.print(f"{printable(explanation.device)}.", style="dim")
    for part in explanation.parts:
        console.print()
        for line in _facts(explanation, part):
            console.print(line)
        console.print()
        console.print(_devices(explanation, part))
        console.print()
        for line in _next_move(explanation, part):
            console.print(line)


def _opening(explanation: Explanation) -> Iterator[str]:
    of = f"{len(explanation.parts)} parts, " if len(explanation.parts) > 1 else ""
    yield (
        f"{printable(explanation.table)}: {of}a step takes {ms_text(explanation.step_ms)} ms, device "
        f"{explanation.slowest_device} is the slowest (predicted by {printable(explanation.model)})."
    )


def _facts(explanation: Explanation, part: PartExplanation) -> Iterator[str]:
    name = printable(part.name)
    state = f" and {size_text(part.state_bytes)} of optimizer state" if part.state_bytes else ""
    yield f"{name} lives on device {part.device}: {size_text(part.weight_bytes)} of weights{state}."
    yield (
        f"A device that holds it takes {ms_text(part.alone_ms)} ms at least. It adds {_ms(explanation, part.adds_ms)} "
        f"to the {_ms(explanation, part.device_ms)} ms of its own."
    )
    if part.moves_with:
        yield f"It must stay with {names_text(part.moves_with)}: they move as one."
    if not part.on_slowest:
        yield f"Device {explanation.slowest_device} decides how long a step takes, not its own."
        return
    saved_ms = explanation.step_ms - part.without_ms
    without = f"without it, a step would take {_ms(explanation, part.without_ms)} ms"
    if saved_ms <= explanation.step_ms * ROUNDING:
        without = "without it, a step would take the same, as another device takes as long"
    yield f"Its device decides how long a step takes; {without}."
    if part.alone_ms >= DECIDES * explanation.step_ms:
        yield (
            f"Alone it takes {part.alone_ms / explanation.step_ms:.0%} of a step: no place for it makes a step much "
            f"faster. Only fewer dims or lookups do, as when it is split by columns (--allow-column-split)."
        )


def _devices(explanation: Explanation, part: PartExplanation) -> Grid:
    others = {other.device: other.name for other in explanation.parts if other is not part}
    grid = plain_grid(*_HEADS[:-1])
    grid.add_column(_HEADS[-1])
    for option in part.options:
        notes = ["here" if option.device == part.device else "", *(f"no: {why}" for why in option.illegal)]
        if option.device in others:
            notes.append(f"holds {others[option.device]}")
        grid.add_row(
            str(option.device),
            _ms(explanation, option.device_ms),
            _ms(explanation, option.step_ms),
            _change(explanation, option.change_ms) if option.device != part.device else "",
            f"{bytes_to_gb(option.used_bytes):.2f} / {bytes_to_gb(option.room_bytes):.4g}",
            printable("; ".join(note for note in notes if note)),
            style=_style(part, option),
        )
    return grid


def _style(part: PartExplanation, option: DeviceOption) -> str | None:
    if option.device == part.device:
        return "bold"
    return "dim" if option.illegal else None


def _next_move(explanation: Explanation, part: PartExplanation) -> Iterator[str]:
    best = part.best
    if best is None:
        yield "Next best move: none. No other place is legal, or what is legal changes nothing but names."
        return
    devices = (
        f"device {part.device} would take {_ms(explanation, best.from_ms)} ms, device {best.to_device} "
        f"{_ms(explanation, best.to_ms)} ms"
    )
    if best.helps:
        yield (
            f"Next best move: {_move(best)}. A step would take {_ms(explanation, best.step_ms)} ms, "
            f"{_ms(explanation, -best.change_ms)} ms less; {devices}."
        )
        return
    if best.change_ms > ROUNDING * explanation.step_ms:
        effect = f"makes it {_ms(explanation, best.change_ms)} ms slower"
    else:
        effect = "leaves it as it is"
    yield f"No move or swap of it makes a step faster. The best one, {_move(best)}, {effect}; {devices}."


def _move(move: Move) -> str:
    if move.swap_with:
        return f"swap it with {names_text(move.swap_with)} on device {move.to_device}"
    return f"to device {move.to_device}"


def _ms(explanation: Explanation, time_ms: float) -> str:
    """With the decimals of the step's time, one more than its three digits: differences are small."""
    return f"{time_ms:.{decimals(explanation.step_ms) + 1}f}"


def _change(explanation: Explanation, change_ms: float) -> str:
    text = f"{change_ms:+.{decimals(explanation.step_ms) + 1}f}"
    return "0" if not float(text) else text
