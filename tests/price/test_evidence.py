"""The evidence for a simulated device, and the error that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evenshard.price.evidence import (
    EXTRAPOLATED_PERCENT,
    UNCONFIRMED_PERCENT,
    DeviceError,
    Evidence,
    error_factors,
    widen_interval,
)

SHARDS = Evidence("shards of real tables", "a paper", 6000, 2000, 5.1, 14.2)
KERNELS = Evidence("kernels of traces", "a repository", 30, 12, 8.0, 40.0)
FEW = replace(SHARDS, held_out=9)
FITTED = Evidence("kernels of traces", "a repository", 30, 0)


def test_what_is_impossible_is_named() -> None:
    assert SHARDS.problem() is None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"points": " "}, "points is empty"),
        ({"fitted": -1}, "fitted is -1, not a whole number from 0"),
        ({"fitted": 0, "held_out": 0}, "fitted and held_out are both 0"),
        ({"held_out": 0}, "median_error_percent is given, but held_out is 0"),
        ({"p90_error_percent": None}, "p90_error_percent is missing, but held_out is 2000"),
        ({"p90_error_percent": -3.0}, "p90_error_percent is -3.0, not a number from 0"),
        ({"median_error_percent": 15}, "median_error_percent is above p90_error_percent"),
        ({"optimizers": ("sgd", "adm")}, "optimizer is 'adm', not one of sgd, "),
        ({"lookups": (5.0, 3.0)}, "lookups are not two ascending numbers"),
    ]
    for change, words in wrong:
        assert str(replace(SHARDS, **change).problem()).startswith(words)


def test_the_first_evidence_with_enough_held_out_points_gives_the_error() -> None:
    assert DeviceError.of([SHARDS, KERNELS]) == DeviceError(14.2, 2000)
    assert DeviceError.of([KERNELS, SHARDS]) == DeviceError(40.0, 12)
    assert DeviceError.of([FITTED, FEW, KERNELS]) == DeviceError(40.0, 12)


def test_the_first_evidence_for_the_optimizer_and_the_lookups_gives_the_error() -> None:
    small = replace(SHARDS, optimizers=("sgd", "adam"), lookups=(100, 1e5), p90_error_percent=60.0)
    large = replace(SHARDS, optimizers=("adam",), lookups=(2e5, 1e7), held_out=300)
    of_adam, of_large = "with sgd or adam and 100 to 100,000 lookups", "with adam and 200,000 to 10,000,000 lookups"
    rows = [replace(small, held_out=9), small, large]
    for optimizer, lookups, expected in (
        ("adam", 5e4, DeviceError(60.0, 2000, of_adam)),
        ("adam", 1.3e5, DeviceError(60.0, 2000, of_adam)),  # in a gap, nearer to the small calls
        ("adam", 1.8e5, DeviceError(14.2, 300, of_large)),
        ("adam", 2e7, DeviceError(14.2, 300, of_large)),  # up to twice as many as were measured
        ("adam", 2.1e7, DeviceError(60.0, 0, "with adam and 21,000,000 lookups")),
        ("adam", 0.0, DeviceError(60.0, 0, "with adam and 0 lookups")),
        ("lamb", 5e4, DeviceError(60.0, 0, "with lamb")),
        ("adam", None, DeviceError(60.0, 2000, of_adam)),  # of any size: the largest
        (None, None, DeviceError(60.0, 2000, of_adam)),
    ):
        assert DeviceError.of(rows, optimizer=optimizer, lookups=lookups) == expected, (optimizer, lookups)
        assert DeviceError.of([KERNELS, *rows], optimizer=optimizer, lookups=lookups) == DeviceError(40.0, 12)
    assert DeviceError.of([*rows, KERNELS], optimizer="lamb", lookups=5e4) == DeviceError(40.0, 12)
    assert DeviceError.of([large], optimizer="lamb", lookups=1e6) == DeviceError(EXTRAPOLATED_PERCENT, 0, "with lamb")
    of_lamb = str(DeviceError.of([large], optimizer="lamb"))
    assert of_lamb == "assumed accurate to a factor of 1.57 (no held-out measurements with lamb)"
    assert str(DeviceError(14.2, 300, of_large)).startswith(f"90 % of times {of_large} within a factor of 1.15 (300")


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


def test_it_says_what_confirms_the_profile_and_what_is_taken_from_other_devices_is_not_measured() -> None:
    assert str(DeviceError(14.2, 2000)) == "90 % of times within a factor of 1.15 (2,000 held-out measurements)"
    assumed = "assumed accurate to a factor of 3.49 (unverified"
    assert str(DeviceError.of([])) == f"{assumed})"
    assert str(DeviceError.of([FEW])) == f"{assumed}: only 9 held-out measurements)"
    few_of_it = replace(SHARDS, held_out=12, median_error_percent=4.7, p90_error_percent=17.0)
    error = DeviceError.of([few_of_it], is_extrapolated=True)
    assert error.is_confirmed and not error.is_measured and DeviceError.of([few_of_it]).is_measured
    assert str(error) == (
        "assumed accurate to a factor of 1.57 (12 held-out measurements, constants partly from another profile)"
    )
    assert widen_interval(error, 2.0, 2.0, 2.0) == pytest.approx((2 / error.factor, 2 * error.factor))


def test_kernels_and_exchanges_are_off_independently() -> None:
    kernels, links = DeviceError(100 * math.log(2), 20), DeviceError(100 * math.log(4), 20)
    assert error_factors(kernels, None, 0.5) == pytest.approx((2, 2))  # nothing is known of links
    assert error_factors(kernels, links, 0.0) == pytest.approx((2, 2))
    assert error_factors(kernels, links, 1.0) == pytest.approx((4, 4))
    assert error_factors(None, links, 0.0) == (1, 1)
    assert error_factors(None, links, 0.5) == pytest.approx((1 / (1 - 0.5 * 0.75), 1 + 0.5 * 3))
    assert error_factors(kernels, links, 0.5) == pytest.approx(
        (1 / (1 - math.hypot(0.5 * 0.5, 0.5 * 0.75)), 1 + math.hypot(0.5 * 1, 0.5 * 3))
    )
