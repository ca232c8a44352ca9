"""Explanations as text for the terminal: the slowest device, its times, and the best changes."""

from __future__ import annotations

from typing import TextIO

from evenshard.base.console import plain_console, plain_grid
from evenshard.base.messages import printable
from evenshard.base.units import decimals, ms_text
from evenshard.planner.changed_parts import devices_text
from evenshard.planner.explain import Explanation

# Narrower output breaks lines.
_NARROWEST = 80


def print_explanation(found: Explanation, file: TextIO | None = None) -> None:
    """Print all of it to a file, None for stdout; colours go to terminals only."""
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
    grid = plain_grid("ms", "mean of all", "change", texts=[f"device {found.slowest_device}, or a change"])
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
        return f"It is the only one; {longest.name} takes most, {_ms(found, longest.time_ms)} ms."
    own_ms, mean_ms = (sum(getattr(one, name) for one in found.times) for name in ("time_ms", "mean_ms"))
    most = max(found.times, key=lambda one: one.time_ms - one.mean_ms)
    return (
        f"It takes {_ms(found, own_ms - mean_ms)} ms more than the mean of the {found.num_devices} devices and "
        f"waits {_ms(found, max(found.step_ms - own_ms, 0.0))} ms for others: {most.name} differs most from the mean, "
        f"by {_change(found, most.time_ms - most.mean_ms)} ms."
    )


def _verdict(found: Explanation) -> str:
    tried = f"of {printable(found.table)}" if found.table else "of its table"
    if found.num_tried > 1:
        tried = f"of one of {found.num_tried} tables on it"
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
