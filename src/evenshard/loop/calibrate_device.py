"""Fit of a simulated device's free constants to measured costs, with its errors before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenshard.base.messages import text_table
from evenshard.measure.calibrate.device import Calibration, fit_profile
from evenshard.measure.cost_dataset import load_costs
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.tables.files import load_tables


def run(tables: Path, costs: Sequence[Path], profile: str, out: Path) -> str:
    """Fit the constants of ``profile`` to cost datasets of one kind of hardware, and save the new profile as ``out``.

    Return a printable table of errors and constants.
    """
    start = gpu_profile(profile)
    pool = load_tables(tables)
    calibration = fit_profile(start, [shard for path in costs for shard in load_costs(path, pool)])
    calibration.save(profile, out)
    title = (
        f"Fitted to {calibration.num_fitted} shards of {calibration.hardware}; errors on {calibration.num_held_out} "
        "held-out shards:"
    )
    return "\n".join([title, *_report(start, profile, calibration)])


def _report(start: GpuProfile, name: str, calibration: Calibration) -> list[str]:
    errors = [["error of log time, %", "median", "p90", "fitted: median", "p90"]]
    for time, after in calibration.after.items():
        before = calibration.before[time]
        percents = (before.median_percent, before.p90_percent, after.median_percent, after.p90_percent)
        errors.append([time, *(f"{percent:.1f}" for percent in percents)])
    constants = [["constant", name, "fitted", ""]]
    for constant in calibration.constants:
        remark = "at its limit; the device model may be incomplete" if constant in calibration.at_bound else ""
        values = (getattr(start, constant), getattr(calibration.profile, constant))
        constants.append([constant, *(f"{value:.5g}" for value in values), remark])
    return [text_table(errors, "<>", "  "), text_table(constants, "<>><", "  ")]
