"""The evidence for a simulated device, and the error that follows from it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from evenshard.measure.evidence import EXTRAPOLATED_PERCENT, UNCONFIRMED_PERCENT, DeviceError, Evidence, evidence_of

SHARDS = Evidence("shards of real tables", "a paper", 6000, 2000, 5.1, 14.2)
KERNELS = Evidence("kernels of traces", "a repository", 30, 12, 8.0, 40.0)
FEW = replace(SHARDS, held_out=9)
FITTED = Evidence("kernels of traces", "a repository", 30, 0)


@pytest.mark.parametrize("evidence", [[], [SHARDS], [FITTED, KERNELS]])
def test_it_comes_back_from_yaml(evidence: list[Evidence]) -> None:
    content = [{name: value for name, value in asdict(one).items() if value is not None} for one in evidence]
    assert evidence_of(content) == tuple(evidence)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"points": " "}, "points is empty"),
        ({"source": ""}, "source is empty"),
        ({"fitted": -1}, "fitted is -1, not a whole number from 0"),
        ({"fitted": 1.5}, "fitted is 1.5, not a whole number"),
        ({"fitted": 0, "held_out": 0}, "fitted and held_out are both 0"),
        ({"held_out": 0}, "median_error_percent is given, but held_out is 0"),
        ({"p90_error_percent": None}, "p90_error_percent is missing, but held_out is 2000"),
        ({"p90_error_percent": -3.0}, "p90_error_percent is -3.0, not a number from 0"),
        ({"p90_error_percent": float("nan")}, "p90_error_percent is nan"),
        ({"median_error_percent": 15}, "median_error_percent is above p90_error_percent"),
        ({"colour": "red"}, "'colour' is unknown"),
    ],
)
def test_what_is_impossible_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"evidence 2: {words}") as caught:
        evidence_of([asdict(KERNELS), {**asdict(SHARDS), **change}])
    assert "\n" not in str(caught.value)


def test_the_first_evidence_with_enough_held_out_points_gives_the_error() -> None:
    assert DeviceError.of([SHARDS, KERNELS]) == DeviceError(14.2, 2000)
    assert DeviceError.of([KERNELS, SHARDS]) == DeviceError(40.0, 12)
    assert DeviceError.of([FITTED, FEW, KERNELS]) == DeviceError(40.0, 12)


def test_without_enough_held_out_points_the_error_is_wide() -> None:
    assert DeviceError.of([]) == DeviceError(UNCONFIRMED_PERCENT, 0)
    assert DeviceError.of([FITTED]) == DeviceError(UNCONFIRMED_PERCENT, 0)
    assert DeviceError.of([FITTED, FEW]) == DeviceError(UNCONFIRMED_PERCENT, 9)
    assert not DeviceError.of([FEW]).is_confirmed


def test_a_profile_that_takes_from_another_is_at_least_as_wrong_as_kernels_that_nothing_else_is_like() -> None:
    assert DeviceError.of([SHARDS], is_extrapolated=True) == DeviceError(EXTRAPOLATED_PERCENT, 2000)
    assert DeviceError.of([replace(SHARDS, p90_error_percent=60.0)], is_extrapolated=True).percent == 60.0
    few = DeviceError.of([FITTED, FEW], is_extrapolated=True)
    assert few == DeviceError(EXTRAPOLATED_PERCENT, 9) and not few.is_confirmed
    assert DeviceError.of([FITTED], is_extrapolated=True) == DeviceError(UNCONFIRMED_PERCENT, 0)


def test_it_says_what_confirms_the_profile() -> None:
    assert str(DeviceError(14.2, 2000)) == "90 % of times within 14 %, by 2,000 held-out measurements"
    assert str(DeviceError.of([])) == "no measurement confirms this profile"
    assert str(DeviceError.of([FEW])) == "9 held-out measurements are too few to confirm this profile"
