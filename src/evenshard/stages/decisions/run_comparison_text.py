"""A comparison of loops as text: settings that differ, cost of each sharder, other headline metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TextIO

from rich.table import Table as Grid

from evenshard.measure.hardware import measured_or_simulated
from evenshard.stages.decisions.run_comparison import BETWEEN_RUNS, Comparison, SharderDifference, SharderRow
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable
from evenshard.utils.units import ms_text

WIDTH_OF_RUN = 34


def print_comparison(comparison: Comparison, file: TextIO | None = None) -> None:
    """Prints it.

    Args:
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, 40 + WIDTH_OF_RUN * len(comparison.runs))
    settings = _grid("settings that differ", comparison)
    for key, values in comparison.settings.items():
        settings.add_row(key, *("-" if value is None else printable(value) for value in values))
    if comparison.settings:
        console.print(settings)
    else:
        console.print("The settings are the same.")
    timed = sorted({measured_or_simulated(hardware) for hardware in comparison.hardware if hardware})
    sharders = _grid(" ".join(("mean", *timed[:1], *(f"or {one}" for one in timed[1:]), "ms per step")), comparison)
    for row in comparison.sharders:
        sharders.add_row(printable(row.sharder), *_cells(row))
    if comparison.sharders:
        console.print()
        console.print(sharders)
    metrics = _grid("other metrics", comparison)
    for key, numbers in comparison.metrics.items():
        metrics.add_row(printable(key), *("-" if number is None else f"{number:.4g}" for number in numbers))
    if comparison.metrics:
        console.print()
        console.print(metrics)
    for remark in comparison.remarks:
        console.print(f"No differences: {printable(remark)}.", style="yellow", soft_wrap=True)
    floors = [one.equal_below_pct for row in comparison.sharders for one in row.against_first if one is not None]
    if floors:
        console.print(
            "Differences are to the first loop, paired over the held-out tasks, with 95 % intervals. "
            + _equal_text(floors, comparison.metrics.get(BETWEEN_RUNS, ())),
            style="dim",
            soft_wrap=True,
        )


def _cells(row: SharderRow) -> Sequence[str]:
    columns = zip(row.mean_ms, row.num_infeasible, row.against_first, strict=True)
    return [_cell(mean_ms, missed, against) for mean_ms, missed, against in columns]


def _cell(mean_ms: float | None, missed: int | None, against: SharderDifference | None) -> str:
    if missed is None:
        return "-"
    text = "no task placed" if mean_ms is None else ms_text(mean_ms)
    if missed and mean_ms is not None:
        text += f" ({missed} infeasible)"
    if against is None:
        return text
    found = against.difference_pct
    return f"{text}  {found.mean:+.1f} % [{found.low:+.1f}, {found.high:+.1f}]\n{against.verdict}"


def _equal_text(floors: Sequence[float], between_runs: Sequence[float | None]) -> str:
    """From where on loops differ, and the noise of each that this follows from."""
    if all(math.isnan(one) for one in floors):
        return "The noise is unknown here: a machine may have been slower as a whole."
    spread = ", ".join("unknown" if one is None else f"{one:.1f} %" for one in between_runs)
    return (
        f"Below {_range(floors)} they are called equal: two loops may lie so far apart by noise alone (95 %), where "
        f"the time of a placement varies from run to run by {spread} (standard deviation, loop by loop)."
    )


def _range(values: Sequence[float]) -> str:
    known = sorted({f"{value:.1f}" for value in values if value == value}, key=float)
    return f"{known[0]} %" if len(known) == 1 else f"{known[0]} to {known[-1]} %"


def _grid(head: str, comparison: Comparison) -> Grid:
    grid = plain_grid()
    grid.add_column(head, no_wrap=True)
    for name, run_id in comparison.runs:
        grid.add_column(f"{printable(name)}\n{run_id[:8]}", justify="right", overflow="fold")
    return grid
