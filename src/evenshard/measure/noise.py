"""Noise of measured costs, within one run and between runs, estimated from repeated control placements.

All numbers are in per cent of a placement's measured ``max_device_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression, variance
from typing import Any

from evenshard.measure.cost_dataset import rows_of
from evenshard.price.costs import CONTROL, OK, MeasuredPlacement


@dataclass(frozen=True)
class ControlCost:
    """One measurement of a control: a placement that is measured repeatedly to estimate the noise."""

    placement: Hashable  # equal in all runs for the same placement, hardware and optimizer
    cost_ms: float  # ``max_device_ms``, above 0
    measured_at: float  # seconds since 1970 UTC


def find_controls(measured: Iterable[MeasuredPlacement]) -> list[ControlCost]:
    """Return the measurements of those control placements of a run that fit in memory."""
    return [found for placement in measured if placement.is_control for found in group_controls(rows_of(placement))]


def group_controls(rows: Iterable[Mapping[str, Any]]) -> list[ControlCost]:
    """Return the measurements of control placements that fit in memory, from rows of a cost dataset."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["proposed_by"] == CONTROL:
            groups.setdefault(row["measurement_id"], []).append(row)
    return [
        ControlCost(
            (
                *(group[0][name] for name in ("hardware", "optimizer", "task_id", "batch_size")),
                frozenset((name, row["device_id"]) for row in group for name in row["tables"]),
            ),
            group[0]["max_device_ms"],
            group[0]["measured_at"],
        )
        for group in groups.values()
        if all(row["status"] == OK for row in group)
    ]


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the costs of control placements, %; None if there are too few repeats."""

    within_run_pct: float | None  # of repeated measurements of a placement in a run
    between_run_pct: float | None  # of a placement's mean from run to run, in addition to that within the runs
    relative_between_run_pct: float | None  # the same, after removing the mean speed of each run
    num_controls: int  # distinct control placements
    num_runs: int  # runs with a control

    @property
    def relative_pct(self) -> float:
        """Return the standard deviation of a cost relative to the other costs of its run; 0 if unknown.

        Only placements of one run are compared, so the speed of the machine on that day cancels.
        """
        between = self.relative_between_run_pct
        return math.hypot(self.within_run_pct or 0.0, (self.between_run_pct if between is None else between) or 0.0)

    def difference_pct(self, num_tasks: int) -> float:
        """Return the largest mean difference of two sharders over ``num_tasks`` tasks that may be noise alone (95 %).

        The noise of each measurement is assumed to be independent.
        """
        # 1.96: two-sided 95 % of a normal distribution; 2: variances of both measurements add up.
        return 1.96 * math.sqrt(2 / max(num_tasks, 1)) * self.relative_pct


def estimate_noise(runs: Sequence[Sequence[ControlCost]]) -> Noise:
    """Estimate the noise from the control placements of one or several runs."""
    by_run = [_group_log_costs(run) for run in runs]
    repeated = [costs for run in by_run for costs in run.values() if len(costs) > 1]
    # Variances of the groups are weighted by their degrees of freedom.
    degrees = sum(len(costs) - 1 for costs in repeated)
    within = sum(variance(costs) * (len(costs) - 1) for costs in repeated) / degrees if repeated else None
    placements = {placement for run in by_run for placement in run}
    between = []
    for placement in placements:
        groups = [run[placement] for run in by_run if placement in run]
        if len(groups) > 1:
            # A mean of n measurements has 1 / n of the variance within a run.
            explained = (within or 0.0) * fmean(1 / len(group) for group in groups)
            between.append(variance([fmean(group) for group in groups]) - explained)
    return Noise(
        within_run_pct=None if within is None else 100 * math.sqrt(within),
        between_run_pct=100 * math.sqrt(max(0.0, fmean(between))) if between else None,
        relative_between_run_pct=_relative_between_run_pct([run for run in by_run if run], within or 0.0),
        num_controls=len(placements),
        num_runs=sum(1 for run in by_run if run),
    )


def _relative_between_run_pct(runs: Sequence[dict[Hashable, list[float]]], within: float) -> float | None:
    """Compute the variation between runs that remains after removing each run's and each placement's mean, %."""
    shared = [placement for placement in runs[0] if all(placement in run for run in runs)] if runs else []
    if len(runs) < 2 or len(shared) < 2:
        return None
    means = [[fmean(run[placement]) for placement in shared] for run in runs]
    of_run, of_placement = [fmean(row) for row in means], [fmean(column) for column in zip(*means, strict=True)]
    overall = fmean(of_run)
    # Two-way analysis of variance: residuals after the effects of run and placement.
    squares = [
        (mean - of_run[r] - of_placement[p] + overall) ** 2 for r, row in enumerate(means) for p, mean in enumerate(row)
    ]
    explained = within * fmean(1 / len(run[placement]) for run in runs for placement in shared)
    found = sum(squares) / ((len(runs) - 1) * (len(shared) - 1)) - explained
    return 100 * math.sqrt(max(0.0, found))


def fit_drift(run: Sequence[ControlCost]) -> float | None:
    """Fit the linear drift of the controls' times over a run, %; above 0 if they become slower.

    Return None if there are fewer than three different times of measurement.
    """
    times, deviations = [], []
    for placement, costs in _group_log_costs(run).items():
        times += [control.measured_at for control in run if control.placement == placement]
        deviations += [cost - fmean(costs) for cost in costs]
    if len(set(times)) < 3:  # a line fits two points exactly
        return None
    return 100 * linear_regression(times, deviations).slope * (max(times) - min(times))


def _group_log_costs(run: Sequence[ControlCost]) -> dict[Hashable, list[float]]:
    """Group the logarithms of the costs by placement; differences of logarithms are relative differences."""
    costs: dict[Hashable, list[float]] = {}
    for control in run:
        costs.setdefault(control.placement, []).append(math.log(control.cost_ms))
    return costs
