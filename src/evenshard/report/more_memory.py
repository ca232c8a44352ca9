"""What more device memory would save, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from evenshard.compare.more_memory import MemoryOption, MoreMemory
from evenshard.utils.console import plain_console, plain_grid, print_whole
from evenshard.utils.messages import count_text
from evenshard.utils.units import decimals, ms_text, size_text


def print_more_memory(found: MoreMemory, file: TextIO | None = None) -> None:
    """Prints a line for each size of memory and the one that is worth it, to a file or, with None, to stdout."""
    console = plain_console(file)
    grid = plain_grid("memory of a device", "", "embeddings, ms", "change", "not in device memory")
    options = (*found.less, found.now, *found.more)
    digits = decimals(found.now.predicted_ms or 0.0) + 1
    for one in options:
        grid.add_row(*_cells(one, found.now, digits), style="bold" if one is found.now else None)
    print_whole(console, grid)
    for one in options:
        if one.problem:
            console.print(f"With {size_text(one.cap_bytes)}: {one.problem}", style="dim")
    console.print(worth_it_text(found), style="bold")


def _cells(one: MemoryOption, now: MemoryOption, digits: int) -> Sequence[str]:
    times = "now" if one is now else f"x {one.factor:.3g}"
    if one.predicted_ms is None:
        return size_text(one.cap_bytes), times, "", "", "no placement"
    change = "" if one is now else f"{one.predicted_ms - (now.predicted_ms or 0.0):+.{digits}f}"
    outside = "nothing"
    if one.offloaded_tables:
        outside = f"{size_text(one.offloaded_bytes)} of {count_text(one.offloaded_tables, 'table')}"
    return size_text(one.cap_bytes), times, f"{one.predicted_ms:.{digits}f}", change, outside


def worth_it_text(found: MoreMemory) -> str:
    """What more memory saves, in a sentence."""
    best, now_ms = found.worth_it, found.now.predicted_ms or 0.0
    if best is None:
        return f"More device memory saves nothing: embedding work takes {ms_text(now_ms)} ms per step."
    more = size_text(best.cap_bytes - found.now.cap_bytes)
    return (
        f"With {more} more per device, embedding work is predicted to take {ms_text(best.predicted_ms or 0.0)} ms per "
        f"step instead of {ms_text(now_ms)}."
    )
