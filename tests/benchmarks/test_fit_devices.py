"""The profiles of simulated devices against what real GPUs took, and the fits that they come from."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.references import others_measurements
from benchmarks.scripts import fit_devices
from benchmarks.scripts.fit_devices import (
    FITS,
    JUDGED,
    Point,
    fit_points,
    fit_shards,
    published_points,
    shards_of_2080_ti,
)
from evenshard.measure.calibrate.device import SHARD_TIMES, Errors, MeasuredShards, predict_times
from evenshard.price.device_model import BACKWARD_KERNELS, FORWARD_KERNELS
from evenshard.price.gpu_profile import FREE_CONSTANTS, gpu_profile, is_data_sheet
from evenshard.price.hardware import profile_names, profile_path
from evenshard.tables.reuse import FloatArray
from support.truth import truth_file

pytestmark = pytest.mark.nightly

BOTH = SHARD_TIMES.index("both")
FITTED = tuple(name for name, fit in FITS.items() if fit.free)
RTX = gpu_profile("rtx_2080_ti")


@cache
def folder() -> Path:
    for name in (others_measurements.TABLES, others_measurements.SHARDS, others_measurements.EXCHANGES):
        truth_file(name)
    return truth_file(fit_devices.POINTS).parent


@cache
def points_of(name: str) -> tuple[Point, ...]:
    return tuple(point for point in published_points(folder()) if point.gpu in (JUDGED.get(name) or FITS[name].gpus))


def test_shards_of_the_rtx_2080_ti_take_as_long_as_they_really_did() -> None:
    measured: MeasuredShards = shards_of_2080_ti(folder(), RTX)
    predicted_ms_N, real_ms_N = predict_times(RTX, measured.work)[:, BOTH], measured.times_ms_NM[:, BOTH]
    errors = Errors.of(predicted_ms_N, real_ms_N)
    assert len(measured) == 8000 and errors.median_percent <= 5 and errors.p90_percent <= 14
    ranks = [np.argsort(np.argsort(ms_N)) for ms_N in (predicted_ms_N, real_ms_N)]
    assert np.corrcoef(*ranks)[0, 1] >= 0.994
    for first, last in ((1, 15), (4, 7), (8, 11), (12, 15)):  # errors do not grow with the tables of a shard
        some_N = (measured.work.num_tables >= first) & (measured.work.num_tables <= last)
        assert np.median(predicted_ms_N[some_N] / real_ms_N[some_N]) == pytest.approx(1, abs=0.03)
    # The fit left out half of the tables alone; another one, all shards with a fifth of the tables.
    held_out_N = np.random.default_rng(0).permutation(len(measured)) % 2 == 1
    own_N = (measured.work.num_tables == 1) & held_out_N
    errors = Errors.of(predicted_ms_N[own_N], real_ms_N[own_N])
    assert errors.median_percent <= 8 and errors.p90_percent <= 25


def ratios(name: str, points: list[Point]) -> FloatArray:
    """Predicted times of a profile, in parts of the published ones."""
    return np.array([fit_devices._predicted_ms(gpu_profile(name), point) / point.ms for point in points])


def off(name: str, points: list[Point]) -> float:
    """Median error."""
    return float(np.median(np.abs(ratios(name, points) - 1)))


@pytest.mark.parametrize(("name", "count"), [("v100", 38), ("a100_80gb", 25), ("a100_40gb", 25), ("h100", 12)])
def test_kernels_and_calls_take_as_long_as_published_forward_and_backward_apart(name: str, count: int) -> None:
    points = points_of(name)
    assert len(points) == count
    for kernels in ((*FORWARD_KERNELS, "forward"), (*BACKWARD_KERNELS, "backward")):
        own = [point for point in points if point.time in kernels]
        assert len(own) >= 6 and off(name, own) <= 0.15
        assert np.median(ratios(name, own)) == pytest.approx(1, abs=0.15)


def test_sequences_take_as_long_as_published_whatever_rows_they_look_up() -> None:
    """26.3 million rows on one of 8 B200, by its data sheet."""
    truth_file(fit_devices.LATER_POINTS)
    times = fit_devices.sequence_times(folder(), gpu_profile("b200"))
    for ms in times.by_alpha_ms.values():
        assert ms == pytest.approx(times.measured_ms, rel=0.25)
    assert times.pooled_ms > 1.3 * times.measured_ms, "were each lookup a bag"


# Fits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_finds_the_constants_of_the_profile_and_its_errors(name: str) -> None:
    """Within 8 %: what its measurements hardly tell depends on what else was fitted with it."""
    fit, start, shipped = FITS[name], fit_devices._start(name), gpu_profile(name)
    found = fit_points(start, points_of(name), fit) if fit.gpus else fit_shards(start, folder(), fit)
    for constant in FREE_CONSTANTS:
        expected = pytest.approx(getattr(shipped, constant), rel=0.08, abs=1e-3)
        assert getattr(found.profile, constant) == expected, constant
    (stated,) = shipped.evidence
    assert found.evidence is not None
    assert (found.evidence.fitted, found.evidence.held_out) == (stated.fitted, stated.held_out)
    assert found.evidence.median_error_percent is not None and found.evidence.p90_error_percent is not None
    assert stated.median_error_percent is not None and stated.p90_error_percent is not None
    # The errors that a profile states are not smaller than those of its fit.
    assert found.evidence.median_error_percent - 1 < stated.median_error_percent <= 15
    assert found.evidence.p90_error_percent - 1 < stated.p90_error_percent


def test_every_profile_has_a_fit_and_the_others_constants_that_it_takes() -> None:
    assert {*FITS, *JUDGED} == {name for name in profile_names() if not is_data_sheet(profile_path(name))}
    for name, fit in FITS.items():
        if fit.takes_from:
            found, other = gpu_profile(name), gpu_profile(fit.takes_from)
            differ = {one for one in FREE_CONSTANTS if getattr(found, one) != getattr(other, one)}
            assert differ <= set(fit.free), name
        assert gpu_profile(name).extrapolated_from == fit.extrapolated_from
