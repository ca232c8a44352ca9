"""Calibration of a device model: least-squares fit of its constants to measured times of calls and kernels.

One half of the shards is used for the fit, the other half for the prediction error. All measurements of a shard belong
to the same half.

Letters in array names: N shards, M = 8 measurable times, P fitted constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadInput
from evenshard.placement.memory import SGD
from evenshard.price.costs import OK, MeasuredPlacement, optimizer_of
from evenshard.price.device_model import KERNELS, NS_PER_MS, backward_ms, forward_ms, kernel_times
from evenshard.price.evidence import Evidence
from evenshard.price.gpu_profile import BOUNDS, FREE_CONSTANTS, GpuProfile, write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.shard_work import ShardWork, WorkCounter
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

# Times that a measurement may have: of each kernel, of the forward call, of the backward call, and of both calls.
CALLS = ("forward", "backward")
SHARD_TIMES = (*KERNELS, *CALLS, "both")

# A constant that moves by a factor of e from its start costs as much as a 5 % error of one measured time.
PRIOR_WEIGHT = 0.05
MIN_SHARDS = 20  # half of them are fitted, half are held out
OUTLIER = 0.1  # relative errors above this count linearly instead of squared


@dataclass(frozen=True)
class Errors:
    """Absolute errors of the logarithm of predicted times, %: median and 90th percentile, as evidence states them."""

    median_percent: float
    p90_percent: float

    @staticmethod
    def of(predicted: FloatArray, measured: FloatArray) -> Errors:
        """Compute the errors from predicted and measured times; measured times must be positive and not empty."""
        return Errors(*np.percentile(100 * np.abs(np.log(predicted / measured)), [50, 90]).tolist())


@dataclass(frozen=True)
class Calibration:
    """A fitted profile and its prediction errors."""

    profile: GpuProfile
    constants: tuple[str, ...]  # names of the fitted constants; all other constants keep their starting values
    num_fitted: int  # shards
    num_held_out: int  # shards
    before: Mapping[str, Errors]  # errors of the starting profile on the held-out shards, by name of the time
    after: Mapping[str, Errors]  # the same errors of the fitted profile
    at_bound: tuple[str, ...]  # fitted constants that hit one of their ``BOUNDS``
    hardware: str
    source: str  # hardware, library versions and date of the measurements
    optimizer: str
    lookups: tuple[float, float]  # least and most of a shard

    @property
    def evidence(self) -> Evidence:
        """Return the errors of the time (of a kernel or a call) that the fitted profile predicts worst."""
        worst = max(self.after.values(), key=lambda errors: errors.p90_percent)
        return Evidence(
            points="nonempty shards, forward and backward compute",
            source=self.source,
            fitted=self.num_fitted,
            held_out=self.num_held_out,
            median_error_percent=round(worst.median_percent, 2),
            p90_error_percent=round(worst.p90_percent, 2),
            optimizers=(self.optimizer,),
            lookups=self.lookups,
        )

    def save(self, template: str, path: Path) -> None:
        """Write the fitted profile as YAML, atomically.

        ``template`` is the starting profile: a name or a YAML file. Constants that were not fitted keep their sources.

        Raises:
            BadInput: if the template cannot be read.
        """
        source = f"calibrated on {self.num_fitted} shards of {self.source}"
        values = {name: float(getattr(self.profile, name)) for name in self.constants}
        write_profile(profile_path(template), values, source, (self.evidence,), path)


@dataclass(frozen=True)
class MeasuredShards:
    """Work and measured times of N shards, and the optimizer of their backward calls."""

    work: ShardWork
    times_ms_NM: FloatArray  # [N, M] the measured ``SHARD_TIMES``; NaN if not measured
    group_N: npt.NDArray[np.int64]  # [N] id of the shard's tables; repeated measurements share it
    optimizer: str = SGD

    def __len__(self) -> int:
        return len(self.group_N)

    def select(self, mask_N: npt.NDArray[np.bool_]) -> MeasuredShards:
        """Return the shards selected by a mask."""
        return replace(
            self, work=self.work.select(mask_N), times_ms_NM=self.times_ms_NM[mask_N], group_N=self.group_N[mask_N]
        )


def stack_times(num_shards: int, **times_ms: FloatArray) -> FloatArray:
    """Stack arrays of named times, ms for each shard, to [shards, times]; times that are not given are NaN."""
    result_NM = np.full((num_shards, len(SHARD_TIMES)), np.nan)
    for name, times_N in times_ms.items():
        result_NM[:, SHARD_TIMES.index(name)] = times_N
    return result_NM


def predict_times(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> FloatArray:
    """Predict the times ``SHARD_TIMES`` of each shard by the device model: [shards, times]."""
    kernels = kernel_times(profile, work, optimizer)
    forward_N, backward_N = forward_ms(profile, work), backward_ms(profile, work, optimizer)
    by_kernel = [getattr(kernels, name) / NS_PER_MS for name in KERNELS]
    return np.stack([*by_kernel, forward_N, backward_N, forward_N + backward_N], axis=1)


def fit_constants(
    profile: GpuProfile,
    measured: Sequence[MeasuredShards],
    free: Sequence[str] = FREE_CONSTANTS,
    prior_weight: float = PRIOR_WEIGHT,
) -> tuple[GpuProfile, tuple[str, ...]]:
    """Return the profile with the best-fitting constants, and the names of constants at one of their ``BOUNDS``.

    The fit starts from ``profile``. A larger ``prior_weight`` keeps the constants closer to their starting values.
    """
    from scipy.optimize import least_squares

    known = [np.isfinite(shards.times_ms_NM) for shards in measured]
    targets = [np.log(shards.times_ms_NM[mask]) for shards, mask in zip(measured, known, strict=True)]
    low_P, high_P = np.log([BOUNDS[name] for name in free]).T
    # least_squares needs a start strictly inside the bounds.
    start_P = np.log(np.clip([getattr(profile, name) for name in free], *np.exp([low_P + 1e-6, high_P - 1e-6])))

    def with_constants(logs_P: FloatArray) -> GpuProfile:
        return replace(profile, **dict(zip(free, np.exp(logs_P).tolist(), strict=True)))

    def residuals(logs_P: FloatArray) -> FloatArray:
        candidate = with_constants(logs_P)
        errors = [
            np.log(predict_times(candidate, shards.work, shards.optimizer)[mask]) - target
            for shards, mask, target in zip(measured, known, targets, strict=True)
        ]
        # Both the errors and the constants are logarithms, so the prior is relative as well.
        return np.concatenate([*errors, prior_weight * (logs_P - start_P)])

    found = least_squares(
        residuals, start_P, bounds=(low_P, high_P), diff_step=1e-4, loss="soft_l1", f_scale=OUTLIER, max_nfev=300
    )
    moved_P = np.abs(found.x - start_P) > 1e-2  # by more than 1 %
    at_bound_P = moved_P & (np.minimum(found.x - low_P, high_P - found.x) < 1e-3)  # within 0.1 %
    return with_constants(found.x), tuple(np.array(free)[at_bound_P].tolist())


def compute_errors(profile: GpuProfile, measured: MeasuredShards) -> dict[str, Errors]:
    """Return the errors of a profile on measured shards, by name of the time (see ``SHARD_TIMES``)."""
    predicted_NM = predict_times(profile, measured.work, measured.optimizer)
    errors = {}
    for name in SHARD_TIMES:
        times_N = measured.times_ms_NM[:, SHARD_TIMES.index(name)]
        known_N = np.isfinite(times_N)
        if known_N.any():
            errors[name] = Errors.of(predicted_NM[known_N, SHARD_TIMES.index(name)], times_N[known_N])
    return errors


def fit_profile(profile: GpuProfile, measured: Sequence[MeasuredPlacement]) -> Calibration:
    """Fit the free constants of ``profile`` to the measured compute times of all nonempty shards within memory.

    Raises:
        BadInput: if there are fewer than ``MIN_SHARDS`` different shards, or several kinds of hardware or optimizers.
    """
    origins = sorted({(placement.provenance.hardware, placement.provenance.versions) for placement in measured})
    if len(origins) > 1:
        names = "; ".join(f"{hardware}, {versions}" for hardware, versions in origins)
        raise BadInput(f"The costs come from different hardware or libraries ({names}). Use the costs of one of them.")
    shards = extract_shards(profile, measured)
    num_different = len(np.unique(shards.group_N))
    if num_different < MIN_SHARDS:
        raise BadInput(
            f"Calibration needs at least {MIN_SHARDS} different nonempty shards with measured times, but there are "
            f"{num_different}. Measure more placements."
        )
    # Repeated measurements of a shard are in the same half: a fitted shard must not judge the fit.
    fitted_N = np.random.default_rng(0).permutation(shards.group_N.max() + 1)[shards.group_N] % 2 == 0
    fitted, held_out = shards.select(fitted_N), shards.select(~fitted_N)

    result, at_bound = fit_constants(profile, [fitted])
    latest = max(placement.measured_at for placement in measured)
    measured_on = datetime.fromtimestamp(latest, UTC) if latest > 0 else datetime.now(UTC)
    (hardware, versions), *_ = origins
    return Calibration(
        profile=result,
        constants=FREE_CONSTANTS,
        num_fitted=len(fitted),
        num_held_out=len(held_out),
        before=compute_errors(profile, held_out),
        after=compute_errors(result, held_out),
        at_bound=at_bound,
        hardware=hardware,
        source=f"{hardware}, {versions}, {measured_on.date().isoformat()}",
        optimizer=shards.optimizer,
        lookups=(max(float(shards.work.lookups.min()), 1.0), float(shards.work.lookups.max())),
    )


def extract_shards(profile: GpuProfile, measured: Sequence[MeasuredPlacement]) -> MeasuredShards:
    """Return the work and the times of every nonempty shard that has finite times."""
    groups: dict[tuple[frozenset[Table], int], int] = {}
    shards, times, group_of = [], [], []
    for placement in measured:
        for tables, device in zip(placement.shards, placement.cost.devices, strict=True):
            has_times = device.status == OK and device.compute_ms > 0 and not min(device.split_ms) <= 0
            if not tables or not has_times:
                continue
            shards.append((tables, placement.task.batch_size))
            times.append((*device.split_ms, device.compute_ms))
            group_of.append(groups.setdefault((frozenset(tables), placement.task.batch_size), len(groups)))
    if not shards:
        raise BadInput("No nonempty shard has measured times. Measure more placements.")
    forward_N, backward_N, both_N = np.array(times).T
    both_N[np.isfinite(forward_N)] = np.nan  # the sum adds no information if both times are known
    times_NM = stack_times(len(shards), forward=forward_N, backward=backward_N, both=both_N)
    return MeasuredShards(WorkCounter(profile).work_of(shards), times_NM, np.array(group_of), optimizer_of(measured))
