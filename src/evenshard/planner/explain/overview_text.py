"""An overview as text for the terminal: the slowest device, what makes it slow, its tables, the best changes."""

from __future__ import annotations

from typing import TextIO

from evenshard.planner.explain.overview import Overview
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable
from evenshard.utils.units import bytes_to_gb, decimals, ms_text

_NARROWEST = 80
"""Narrower output breaks lines."""
_NUM_TABLES = 8
"""Tables of the slowest device that are shown."""


def print_overview(found: Overview, file: TextIO | None = None) -> None:
    """Prints all of it.

    Args:
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, _NARROWEST)
    console.print(
        f"Embedding work takes {ms_text(found.step_ms)} ms per step; device {found.slowest_device} is the slowest "
        f"(predicted by {printable(found.model)}).",
        style="bold",
    )
    if found.device:
        console.print(f"{printable(found.device)}.", style="dim")
    console.print(_why(found))
    console.print()
    times = plain_grid("ms", "mean of all", "more")
    times.add_column(f"device {found.slowest_device}")
    for one in found.times:
        times.add_row(
            _ms(found, one.time_ms), _ms(found, one.mean_ms), _change(found, one.time_ms - one.mean_ms), one.name
        )
    console.print(times)
    console.print()
    tables = plain_grid("adds, ms", "alone, ms", "memory, GB", "parts")
    for head in ("sharded", "table"):
        tables.add_column(head)
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
    changes = plain_grid("ms", "change")
    for head in ("table", "best change"):
        changes.add_column(head)
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
    more_ms = found.step_ms - found.mean_ms
    most = max(found.times, key=lambda one: one.time_ms - one.mean_ms)
    return (
        f"It takes {_ms(found, more_ms)} ms more than the mean of the {found.num_devices} devices: {most.name} differs "
        f"most, by {_change(found, most.time_ms - most.mean_ms)} ms."
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


def _ms(found: Overview, time_ms: float) -> str:
    """With the decimals of the step's time, one more than its three digits: differences are small."""
    return f"{time_ms:.{decimals(found.step_ms) + 1}f}"


def _change(found: Overview, change_ms: float) -> str:
    text = f"{change_ms:+.{decimals(found.step_ms) + 1}f}"
    return "0" if not float(text) else text
