"""The profiles of simulated devices against what real GPUs took, and the fits that they come from."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
)
from evenshard.price.gpu_profile import FREE_CONSTANTS, gpu_profile, is_data_sheet
from evenshard.price.hardware import profile_names, profile_path
from support.truth import truth_file

pytestmark = pytest.mark.nightly

FITTED = tuple(name for name, fit in FITS.items() if fit.free)


@cache
def folder() -> Path:
    for name in (others_measurements.TABLES, others_measurements.SHARDS, others_measurements.EXCHANGES):
        truth_file(name)
    return truth_file(fit_devices.POINTS).parent


@cache
def points_of(name: str) -> tuple[Point, ...]:
    return tuple(point for point in published_points(folder()) if point.gpu in (JUDGED.get(name) or FITS[name].gpus))


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_finds_the_constants_of_the_profile_and_its_errors(name: str) -> None:
    """Within 8 %: what its measurements hardly tell depends on what else was fitted with it."""
    fit, start, shipped = FITS[name], fit_devices._start(name), gpu_profile(name)
    found = fit_points(start, points_of(name), fit) if fit.gpus else fit_shards(start, folder(), fit)
    for constant in FREE_CONSTANTS:
        expected = pytest.approx(getattr(shipped, constant), rel=0.08, abs=1e-3)
        assert getattr(found.profile, constant) == expected, constant
    for own, stated in zip(found.evidence, shipped.evidence, strict=True):
        assert (own.fitted, own.held_out, own.calls) == (stated.fitted, stated.held_out, stated.calls)
        assert own.median_error_percent is not None and own.p90_error_percent is not None
        assert stated.median_error_percent is not None and stated.p90_error_percent is not None
        # The errors that a profile states are not smaller than those of its fit.
        assert own.median_error_percent - 1 < stated.median_error_percent <= 15
        assert own.p90_error_percent - 1 < stated.p90_error_percent


def test_every_profile_has_a_fit_and_the_others_constants_that_it_takes() -> None:
    assert {*FITS, *JUDGED} == {name for name in profile_names() if not is_data_sheet(profile_path(name))}
    for name, fit in FITS.items():
        if fit.takes_from:
            found, other = gpu_profile(name), gpu_profile(fit.takes_from)
            differ = {one for one in FREE_CONSTANTS if getattr(found, one) != getattr(other, one)}
            assert differ <= set(fit.free), name
        assert gpu_profile(name).extrapolated_from == fit.extrapolated_from
