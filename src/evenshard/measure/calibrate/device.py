"""The free constants of a device model, fitted to measured costs by least squares on half of the shards.

The other half is held out: it says how well the fitted profile predicts shards it has not seen. A shard that was
measured several times is on one side only.

Legend: N shards, P fitted constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenshard.measure.costs import OK, DeviceCost, MeasuredPlacement
from evenshard.measure.evidence import Evidence
from evenshard.measure.profiles import profile_path, write_profile
from evenshard.measure.simulated.device_model import backward_ms, forward_ms
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, GpuProfile
from evenshard.measure.simulated.shard_work import ShardWork, WorkCounter
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from evenshard.utils.errors import BadInput

MIN_SHARDS = 20
KERNEL_TIMES = ("forward compute", "backward compute")
# What is physically conceivable; a constant that ends at such a bound shows that the model lacks something.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "fwd_overhead_us": (0.1, 5000.0),
    "bwd_overhead_us": (0.1, 5000.0),
    "hbm_efficiency": (0.05, 1.0),
    "l2_gb_s": (100.0, 50_000.0),
    "fwd_loads_per_warp": (0.05, 32.0),
    "bwd_loads_per_warp": (0.05, 32.0),
    "sort_pairs_per_sm_clock": (0.005, 2.0),
    "hot_row_ns": (1.0, 1e6),
}
# Weight of staying at the start: e-fold off it counts like 5 % off one measured time. Where the measurements say
# nothing about a constant, it stays; where some dozen shards do, this does not matter.
PRIOR_WEIGHT = 0.05
OUTLIER = 0.1  # relative errors above this count linearly, no longer by their square


@dataclass(frozen=True)
class Errors:
    """Absolute errors of predicted against measured times, percent of the measured: median and 90th percentile."""

    median_percent: float
    p90_percent: float


@dataclass(frozen=True)
class MeasuredShards:
    """Shards that were measured, [N].

    Attributes:
        work: their work, as the device model counts it.
        times_ms_N2: [N, 2] measured forward and backward compute times.
        group_N: [N] the same number where the same tables were measured again.
    """

    work: ShardWork
    times_ms_N2: FloatArray
    group_N: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.group_N)

    def select(self, mask_N: npt.NDArray[np.bool_]) -> MeasuredShards:
        """Some of the shards."""
        return MeasuredShards(self.work.select(mask_N), self.times_ms_N2[mask_N], self.group_N[mask_N])


@dataclass(frozen=True)
class DeviceCalibration:
    """A fitted profile and what it is worth.

    Attributes:
        profile: the profile with the fitted constants.
        num_fitted: shards that were fitted.
        num_held_out: shards that were not.
        before: errors of the original profile on the held-out shards, by component (``KERNEL_TIMES``).
        after: likewise, of the fitted profile.
        at_bound: fitted constants that ended at one of their ``BOUNDS``.
        hardware: the hardware that was measured.
        versions: versions of its libraries.
        measured_on: the day of the last measurement; today where that is not known.
    """

    profile: GpuProfile
    num_fitted: int
    num_held_out: int
    before: Mapping[str, Errors]
    after: Mapping[str, Errors]
    at_bound: tuple[str, ...]
    hardware: str
    versions: str
    measured_on: date

    @property
    def evidence(self) -> Evidence:
        """What the fitted profile says about itself: the errors of the component that it predicts worst."""
        worst = max(self.after.values(), key=lambda errors: errors.p90_percent)
        return Evidence(
            points="nonempty shards, forward and backward compute",
            source=f"{self.hardware}, {self.versions}, {self.measured_on.isoformat()}",
            fitted=self.num_fitted,
            held_out=self.num_held_out,
            median_error_percent=round(worst.median_percent, 2),
            p90_error_percent=round(worst.p90_percent, 2),
        )


def fit_profile(profile: GpuProfile, measured: Sequence[MeasuredPlacement], seed: int = 0) -> DeviceCalibration:
    """Fits the free constants of ``profile`` to the measured compute times of every nonempty shard that fitted.

    Args:
        profile: the profile that the fit starts from; constants that are not free stay.
        measured: placements measured on one kind of hardware.
        seed: seed of the split into fitted and held-out shards.

    Raises:
        BadInput: fewer than ``MIN_SHARDS`` different shards, or several kinds of hardware.
    """
    from scipy.optimize import least_squares

    origins = sorted({(one.provenance.hardware, one.provenance.versions) for one in measured})
    if len(origins) > 1:
        names = "; ".join(f"{hardware}, {versions}" for hardware, versions in origins)
        raise BadInput(f"The costs come from several kinds of hardware ({names}). Calibrate on the costs of one.")
    shards = measured_shards(profile, measured)
    num_different = len(np.unique(shards.group_N))
    if num_different < MIN_SHARDS:
        raise BadInput(
            f"Calibrating needs at least {MIN_SHARDS} different shards, but {num_different} nonempty ones with finite "
            f"times were measured. Measure more placements."
        )
    fitted_N = np.random.default_rng(seed).permutation(shards.group_N.max() + 1)[shards.group_N] % 2 == 0
    fitted, held_out = shards.select(fitted_N), shards.select(~fitted_N)

    low_P, high_P = np.log([BOUNDS[name] for name in FREE_CONSTANTS]).T
    start_P = np.clip(np.log([getattr(profile, name) for name in FREE_CONSTANTS]), low_P + 1e-6, high_P - 1e-6)

    def residuals(logs_P: FloatArray) -> FloatArray:
        errors_N2 = np.log(predicted_ms(_with_constants(profile, logs_P), fitted.work) / fitted.times_ms_N2)
        return np.concatenate([errors_N2.ravel(), PRIOR_WEIGHT * (logs_P - start_P)])

    found = least_squares(
        residuals, start_P, bounds=(low_P, high_P), diff_step=1e-4, loss="soft_l1", f_scale=OUTLIER, max_nfev=500
    )
    result = _with_constants(profile, found.x)
    latest = max(one.measured_at for one in measured)
    return DeviceCalibration(
        profile=result,
        num_fitted=len(fitted),
        num_held_out=len(held_out),
        before=prediction_errors(profile, held_out),
        after=prediction_errors(result, held_out),
        at_bound=tuple(
            name
            for name, value, low, high in zip(FREE_CONSTANTS, found.x, low_P, high_P, strict=True)
            if min(value - low, high - value) < 1e-3
        ),
        hardware=origins[0][0],
        versions=origins[0][1],
        measured_on=datetime.fromtimestamp(latest, UTC).date() if latest > 0 else datetime.now(UTC).date(),
    )


def save_profile(calibration: DeviceCalibration, template: str, path: Path) -> None:
    """Writes the fitted profile as YAML.

    Args:
        template: the profile that the fit began from: a name, or a YAML file. Its fixed constants keep their sources.
        path: the file to write; it appears whole or not at all.

    Raises:
        BadInput: if the template cannot be read.
    """
    source = (
        f"calibrated on {calibration.num_fitted} shards of {calibration.hardware}, {calibration.versions}, "
        f"{calibration.measured_on.isoformat()}"
    )
    values = {name: float(getattr(calibration.profile, name)) for name in FREE_CONSTANTS}
    write_profile(profile_path(template), values, source, (calibration.evidence,), path)


def measured_shards(profile: GpuProfile, measured: Sequence[MeasuredPlacement]) -> MeasuredShards:
    """Every nonempty shard with finite times, as the device model of ``profile`` sees its work."""
    counter = WorkCounter(profile)
    groups: dict[tuple[frozenset[Table], int], int] = {}
    columns, times, group_of = [], [], []
    for one in measured:
        for positions, device in zip(one.placement.shards(), one.cost.devices, strict=True):
            if not positions or not _has_times(device):
                continue
            tables = [one.task.tables[position] for position in positions]
            columns.append(counter.columns(tables, one.task.batch_size))
            times.append((device.fwd_compute_ms, device.bwd_compute_ms))
            group_of.append(groups.setdefault((frozenset(tables), one.task.batch_size), len(groups)))
    if not columns:
        raise BadInput("No nonempty shard with finite times was measured. Measure more placements.")
    shard_of_T = np.repeat(np.arange(len(columns)), [len(tables) for tables in columns])
    work = counter.shard_work(np.concatenate(columns), shard_of_T, len(columns))
    return MeasuredShards(work, np.array(times), np.array(group_of))


def predicted_ms(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N, 2] forward and backward compute times by the device model."""
    return np.stack([forward_ms(profile, work), backward_ms(profile, work)], axis=1)


def prediction_errors(profile: GpuProfile, shards: MeasuredShards) -> dict[str, Errors]:
    """Errors of a profile on measured shards, by component."""
    errors_N2 = 100 * np.abs(predicted_ms(profile, shards.work) / shards.times_ms_N2 - 1)
    medians, p90s = np.percentile(errors_N2, [50, 90], axis=0).tolist()
    return {name: Errors(*pair) for name, *pair in zip(KERNEL_TIMES, medians, p90s, strict=True)}


def errors_markdown(rows: Mapping[str, Mapping[str, Errors]]) -> str:
    """A table of errors: one line per profile (or whatever the rows are), median and 90th percentile by component."""
    head = "".join(f" {name}, median | 90 % below |" for name in KERNEL_TIMES)
    lines = [f"| absolute error, % |{head}", "|---|" + "---:|" * 2 * len(KERNEL_TIMES)]
    for label, errors in rows.items():
        cells = [f" {errors[name].median_percent:.1f} | {errors[name].p90_percent:.1f} |" for name in KERNEL_TIMES]
        lines.append(f"| {label} |" + "".join(cells))
    return "\n".join(lines)


def _has_times(device: DeviceCost) -> bool:
    return device.status == OK and device.fwd_compute_ms > 0 and device.bwd_compute_ms > 0


def _with_constants(profile: GpuProfile, logs_P: FloatArray) -> GpuProfile:
    return replace(profile, **dict(zip(FREE_CONSTANTS, np.exp(logs_P).tolist(), strict=True)))
