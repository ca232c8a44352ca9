"""What the slowest devices of two placements have in common, and what that makes of the interval of a saving."""

from __future__ import annotations

import pytest

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.intervals import (
    MOST_ALIKE,
    compute_difference_error,
    compute_difference_interval,
    compute_own_error,
    measure_common_work,
)
from evenshard.price.evidence import DeviceError
from support.explain_builders import answered, asked

FOUR = {"a": 6.0, "b": 2.0, "c": 3.0, "d": 1.0}


def placed(*devices: int | tuple[int, ...]) -> PlacementAnswer:
    return answered(asked(FOUR, 2), devices)


@pytest.mark.parametrize(
    ("old", "new", "shared"),
    [
        ((0, 0, 1, 1), (0, 0, 1, 1), 1),
        ((0, 0, 1, 1), (1, 1, 0, 0), 1),  # names of devices are nothing
        ((0, 0, 1, 1), (0, 1, 0, 1), 6 / (8 * 9) ** 0.5),  # a of a, b and of a, c
        ((0, 0, 1, 1), (0, 1, 1, 1), 6 / (8 * 6) ** 0.5),
    ],
)
def test_the_shared_work_is_that_of_tables_on_both_slowest_devices(
    old: tuple[int, ...], new: tuple[int, ...], shared: float
) -> None:
    assert measure_common_work(placed(*old), placed(*new), FOUR) == pytest.approx(shared)
    assert measure_common_work(placed(*new), placed(*old), FOUR) == pytest.approx(shared)


def test_tables_that_are_looked_up_otherwise_have_nothing_in_common() -> None:
    assert measure_common_work(placed(0, 0, 1, 1), placed(0, 0, 1, 1), {"b"}) == pytest.approx(2 / 8)
    assert measure_common_work(placed(0, 0, 1, 1), placed(0, 0, 1, 1), ()) == 0


def test_errors_that_are_alike_go_out_of_a_difference() -> None:
    assert compute_difference_error(3, 4, 0) == 5
    assert compute_difference_error(3, 3, 1) == 0
    assert compute_own_error(DeviceError(100.0, 100), 0) == pytest.approx(0.22**0.5)
    assert compute_own_error(DeviceError(10.0, 100), 0.6) == pytest.approx((0.06**2 * 0.64 + 0.03**2) ** 0.5)
    assert compute_difference_error(3, 3, MOST_ALIKE) == pytest.approx(3 * (2 * (1 - MOST_ALIKE)) ** 0.5)


def test_a_common_error_makes_the_larger_saving_more_uncertain() -> None:
    """If a device is twice as slow as predicted, the saving doubles; if it is twice as fast, it halves."""
    slow, fast, errors = placed(0, 0, 0, 0), placed(0, 0, 1, 1), (DeviceError(100.0, 100), None)
    found = compute_difference_interval(slow, fast, ("none", "none"), FOUR, errors)
    assert found.ms > 0 and found.high_ms - found.ms > found.ms - found.low_ms
    back = compute_difference_interval(fast, slow, ("none", "none"), FOUR, errors)
    assert (back.ms, back.low_ms, back.high_ms) == pytest.approx((-found.ms, -found.high_ms, -found.low_ms))
