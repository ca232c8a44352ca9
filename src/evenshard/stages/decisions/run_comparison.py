"""A comparison of loops: their settings, and the costs of their placements of the same held-out tasks.

Loops are measured at different times, so a machine that is slower as a whole that day matters here: the noise is that
between runs (docs/decisions/0011), which more tasks do not average away. Loops with other tasks or on other hardware
stand side by side without a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TextIO

from rich.table import Table as Grid

from evenshard.measure.hardware import measured_or_simulated
from evenshard.stages.sharder_comparison import Interval, verdict_on
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable
from evenshard.utils.units import ms_text

TASKS_DEPEND_ON = "generate_tables."
# Settings that change what the same placement costs on the same hardware.
COSTS_DEPEND_ON = ("measure.link", "measure.recorded_batch")
# Metrics of a loop: standard deviations of one placement's time, per cent.
WITHIN_RUN, BETWEEN_RUNS = "noise.within_run_pct", "noise.between_run_pct"
MEAN_MEASURED = ".mean_measured_ms"
_WIDTH_OF_RUN = 34


@dataclass(frozen=True)
class LoopRun:
    """One loop.

    Attributes:
        name: name of the run.
        run_id: MLflow's id of the run.
        settings: settings by section and key, such as ``train_policy.entropy_weight``.
        metrics: headline metrics by name, such as ``evenshard.mean_measured_ms``.
        hardware: hardware of its evaluation; empty if unknown.
        tables: hash of the tables that its tasks are made of; empty if unknown.
        costs_ms: measured cost by task id, for each sharder; infinite where there was no placement or no memory. Empty
            where the loop was not evaluated.
    """

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    hardware: str
    costs_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tables: str = ""


@dataclass(frozen=True)
class SharderDifference:
    """A sharder of one loop against the same of the first loop.

    Attributes:
        difference_pct: paired over the tasks that it could place in both, per cent of the first loop's mean; below 0 is
            faster.
        equal_below_pct: two loops may lie so far apart by noise alone (95 %); NaN where the noise is unknown. It is
            larger than the noise of either loop, which is a standard deviation.
        verdict: the verdict, in words.
    """

    difference_pct: Interval
    equal_below_pct: float
    verdict: str


@dataclass(frozen=True)
class SharderRow:
    """One sharder in all loops; None where a loop has not measured it.

    Attributes:
        mean_ms: mean over the tasks that it could place in that loop.
        num_infeasible: tasks that it could not place.
        against_first: None for the first loop, and where nothing can be compared.
    """

    sharder: str
    mean_ms: tuple[float | None, ...]
    num_infeasible: tuple[int | None, ...]
    against_first: tuple[SharderDifference | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Several loops.

    Attributes:
        runs: their names and ids.
        hardware: hardware of each evaluation; empty if unknown.
        settings: those that differ: a value for each loop, None where a loop does not have it.
        metrics: all but the means of the sharders: a value for each loop.
        sharders: fastest of the first loop first.
        remarks: why loops cannot be compared.
    """

    runs: tuple[tuple[str, str], ...]
    hardware: tuple[str, ...]
    settings: Mapping[str, tuple[str | None, ...]]
    metrics: Mapping[str, tuple[float | None, ...]]
    sharders: tuple[SharderRow, ...]
    remarks: tuple[str, ...]


def compare(runs: Sequence[LoopRun]) -> Comparison:
    """Compares loops with the first of them."""
    first = runs[0]
    obstacles = [None if run is first else _obstacle(first, run) for run in runs]
    names = dict.fromkeys(name for run in runs for name in run.costs_ms)
    rows = [_row(name, runs, obstacles) for name in names]
    keys = sorted({key for run in runs for key in run.settings})
    metrics = dict.fromkeys(key for run in runs for key in run.metrics if not key.endswith(MEAN_MEASURED))
    return Comparison(
        runs=tuple((run.name, run.run_id) for run in runs),
        hardware=tuple(run.hardware for run in runs),
        settings={key: values for key in keys if len(set(values := tuple(run.settings.get(key) for run in runs))) > 1},
        metrics={key: tuple(run.metrics.get(key) for run in runs) for key in metrics},
        sharders=tuple(sorted(rows, key=lambda row: math.inf if row.mean_ms[0] is None else row.mean_ms[0])),
        remarks=tuple(f"{run.name}: {why}" for run, why in zip(runs, obstacles, strict=True) if why),
    )


def _obstacle(first: LoopRun, other: LoopRun) -> str | None:
    """Why the costs of two loops say nothing about each other."""
    for run, who in ((first, "the first loop"), (other, "it")):
        if not run.costs_ms:
            return f"{who} was not evaluated"
    if first.hardware != other.hardware:
        return f"evaluated on {other.hardware or 'unknown hardware'}, the first loop on {first.hardware or 'unknown'}"
    for key in COSTS_DEPEND_ON:
        if first.settings.get(key) != other.settings.get(key):
            return f"evaluated with {key} {other.settings.get(key)}, the first loop with {first.settings.get(key)}"
    keys = {key for run in (first, other) for key in run.settings if key.startswith(TASKS_DEPEND_ON)}
    changed = sorted(key for key in keys if first.settings.get(key) != other.settings.get(key))
    if changed:
        return f"its tasks are others than the first loop's ({', '.join(changed)})"
    if first.tables and other.tables and first.tables != other.tables:
        return "the file of its tables is another than the first loop's"
    if _tasks(first) != _tasks(other):
        return "its tasks are others than the first loop's"
    return None


def _tasks(run: LoopRun) -> set[str]:
    return {task_id for costs in run.costs_ms.values() for task_id in costs}


def _row(sharder: str, runs: Sequence[LoopRun], obstacles: Sequence[str | None]) -> SharderRow:
    means, missed, against = [], [], []
    for run, obstacle in zip(runs, obstacles, strict=True):
        costs = run.costs_ms.get(sharder)
        placed = [cost for cost in costs.values() if math.isfinite(cost)] if costs else []
        means.append(fmean(placed) if placed else None)
        missed.append(None if costs is None else len(costs) - len(placed))
        comparable = run is not runs[0] and obstacle is None
        against.append(_difference(runs[0], run, sharder) if comparable else None)
    return SharderRow(sharder, tuple(means), tuple(missed), tuple(against))


def _difference(first: LoopRun, other: LoopRun, sharder: str) -> SharderDifference | None:
    before, after = first.costs_ms.get(sharder, {}), other.costs_ms.get(sharder, {})
    common = [t for t in before if math.isfinite(before[t]) and math.isfinite(after.get(t, math.inf))]
    if not common:
        return None
    difference = Interval.of_difference_pct([after[task] for task in common], [before[task] for task in common])
    threshold_pct = equal_below_pct(first, other, len(common))
    return SharderDifference(difference, threshold_pct, _verdict(difference, threshold_pct))


def equal_below_pct(first: LoopRun, other: LoopRun, num_tasks: int) -> float:
    """Below this, a mean difference between two loops is no more than noise (95 %); NaN where that is unknown.

    What shifts a whole run stays; what scatters within a run is averaged over the tasks. Of both loops the variances
    add up, and 1.96 standard deviations of that hold 95 %: two loops with 16 and 18 % are equal below 47 %.
    """
    variance = 0.0
    for run in (first, other):
        within, between = run.metrics.get(WITHIN_RUN), run.metrics.get(BETWEEN_RUNS)
        if within is None or between is None:
            return math.nan
        variance += between**2 + within**2 / num_tasks
    return 1.96 * math.sqrt(variance)


def _verdict(difference_pct: Interval, threshold_pct: float) -> str:
    if difference_pct.mean == 0:
        return "equal"
    verdict = verdict_on(difference_pct, threshold_pct)
    unsure = math.isnan(threshold_pct) and verdict != "not separable"
    return f"{verdict}, if not by noise, which is unknown" if unsure else verdict


def print_comparison(comparison: Comparison, file: TextIO | None = None) -> None:
    """Prints it.

    Args:
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, 40 + _WIDTH_OF_RUN * len(comparison.runs))
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
        sharders.add_row(printable(row.sharder), *map(_cell, row.mean_ms, row.num_infeasible, row.against_first))
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
    """The difference below which loops are called equal, and the noise of each loop that it follows from."""
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
