"""The fit of a simulated device's free constants to measured costs, and how well it predicts before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenshard.measure.calibrate.constants import CALLS
from evenshard.measure.calibrate.device import DeviceCalibration, fit_profile, save_profile
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, gpu_profile
from evenshard.tables.files import load_tables
from evenshard.utils.text_table import text_table


@dataclass(frozen=True)
class CalibrateDeviceInputs:
    """``costs``: measured on one hardware with ``tables``; ``profile``: name or file of the profile to start from."""

    tables: Path
    costs: tuple[Path, ...]
    profile: str


@dataclass(frozen=True)
class CalibrateDeviceOutputs:
    """``profile``: the fitted profile."""

    profile: Path


def run(inputs: CalibrateDeviceInputs, outputs: CalibrateDeviceOutputs) -> str:
    """Fits, saves the profile, and returns the table of errors and constants to print.

    Raises:
        BadInput: if an input cannot be read, or too few shards were measured.
    """
    start = gpu_profile(inputs.profile)
    pool = load_tables(inputs.tables)
    calibration = fit_profile(start, [one for path in inputs.costs for one in load_costs(path, pool)])
    save_profile(calibration, inputs.profile, outputs.profile)
    errors = [["absolute error, %", "median", "p90", "fitted: median", "p90"]]
    for name in CALLS:
        before, after = calibration.before[name], calibration.after[name]
        percents = (before.median_percent, before.p90_percent, after.median_percent, after.p90_percent)
        errors.append([name, *(f"{percent:.1f}" for percent in percents)])
    constants = [["constant", inputs.profile, "fitted", ""]]
    for name in FREE_CONSTANTS:
        remark = "at its bound: the model misses something" if name in calibration.at_bound else ""
        values = (getattr(start, name), getattr(calibration.profile, name))
        constants.append([name, *(f"{value:.5g}" for value in values), remark])
    return "\n".join([_title(calibration), text_table(errors, "<>", "  "), text_table(constants, "<>><", "  ")])


def _title(calibration: DeviceCalibration) -> str:
    return (
        f"{calibration.num_fitted} shards of {calibration.hardware} fitted, {calibration.num_held_out} others "
        f"held out; errors on those:"
    )
