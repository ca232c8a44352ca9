"""The free constants of a device model, fitted to measured costs by least squares on half of the shards.

The other half is held out: it says how well the fitted profile predicts shards it has not seen. A shard that was
measured several times is on one side only.

Legend: N shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from evenshard.measure.calibrate.constants import (
    Calibration,
    MeasuredShards,
    fit_constants,
    measured_times,
    prediction_errors,
)
from evenshard.measure.costs import OK, DeviceCost, MeasuredPlacement, optimizer_of
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, GpuProfile
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.tables.table import Table
from evenshard.utils.errors import BadInput

MIN_SHARDS = 20


def fit_profile(profile: GpuProfile, measured: Sequence[MeasuredPlacement], seed: int = 0) -> Calibration:
    """Fits the free constants of ``profile`` to the measured compute times of every nonempty shard that fitted.

    Args:
        profile: the profile that the fit starts from; constants that are not free stay.
        measured: placements measured on one kind of hardware.
        seed: seed of the split into fitted and held-out shards.

    Raises:
        BadInput: fewer than ``MIN_SHARDS`` different shards, or several kinds of hardware or optimizers.
    """
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

    result, at_bound = fit_constants(profile, [fitted])
    latest = max(one.measured_at for one in measured)
    measured_on = datetime.fromtimestamp(latest, UTC) if latest > 0 else datetime.now(UTC)
    (hardware, versions), *_ = origins
    return Calibration(
        profile=result,
        constants=FREE_CONSTANTS,
        num_fitted=len(fitted),
        num_held_out=len(held_out),
        before=prediction_errors(profile, held_out),
        after=prediction_errors(result, held_out),
        at_bound=at_bound,
        hardware=hardware,
        source=f"{hardware}, {versions}, {measured_on.date().isoformat()}",
    )


def measured_shards(profile: GpuProfile, measured: Sequence[MeasuredPlacement]) -> MeasuredShards:
    """Every nonempty shard with finite times, as the device model of ``profile`` sees its work."""
    groups: dict[tuple[frozenset[Table], int], int] = {}
    shards, times, group_of = [], [], []
    for one in measured:
        for positions, device in zip(one.placement.shards(), one.cost.devices, strict=True):
            if not positions or not _has_times(device):
                continue
            tables = [one.task.tables[position] for position in positions]
            shards.append((tables, one.task.batch_size))
            times.append((*device.split_ms, device.compute_ms))
            group_of.append(groups.setdefault((frozenset(tables), one.task.batch_size), len(groups)))
    if not shards:
        raise BadInput("No nonempty shard with finite times was measured. Measure more placements.")
    forward_N, backward_N, both_N = np.array(times).T
    both_N[np.isfinite(forward_N)] = np.nan  # their sum tells nothing new
    times_NM = measured_times(len(shards), forward=forward_N, backward=backward_N, both=both_N)
    return MeasuredShards(WorkCounter(profile).work_of(shards), times_NM, np.array(group_of), optimizer_of(measured))


def _has_times(device: DeviceCost) -> bool:
    return device.status == OK and device.compute_ms > 0 and not min(device.split_ms) <= 0
