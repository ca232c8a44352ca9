"""The fit of a simulated device's free constants to measured costs, and how well it predicts before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenshard.measure.calibrate.device import COMPONENTS, DeviceCalibration, fit_profile, save_profile
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, gpu_profile
from evenshard.tables.files import load_tables


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
    errors = [
        f"  {name:<20}{before.median_percent:>9.1f}{before.p90_percent:>9.1f}"
        f"{after.median_percent:>17.1f}{after.p90_percent:>9.1f}"
        for name in COMPONENTS
        for before, after in [(calibration.before[name], calibration.after[name])]
    ]
    constants = [
        f"  {name:<26}{getattr(start, name):>14.5g}{getattr(calibration.profile, name):>14.5g}"
        f"{'  at its bound: something is missing in the model' if name in calibration.at_bound else ''}"
        for name in FREE_CONSTANTS
    ]
    return "\n".join(
        [
            f"{_title(calibration)}",
            f"  {'absolute error, %':<20}{'median':>9}{'p90':>9}{'fitted: median':>17}{'p90':>9}",
            *errors,
            f"  {'constant':<26}{inputs.profile:>14}{'fitted':>14}",
            *constants,
        ]
    )


def _title(calibration: DeviceCalibration) -> str:
    return (
        f"{calibration.num_fitted} shards of {calibration.hardware} fitted, {calibration.num_held_out} others "
        f"held out; errors on those:"
    )
