"""The best machine is named, and what predictions do not tell apart from it: by hand, with known errors."""

from __future__ import annotations

import math

import pytest

from evenshard.planner.what_if.answer import are_separable, cheapest_option, fastest_option
from evenshard.planner.what_if.option import PredictedInterval, Sync, WhatIfOption
from support.what_if_builders import MACHINE, option


def test_times_of_a_step_add_up_and_overlap_hides_a_share_of_the_shorter_part() -> None:
    assert option(4.0, dense_ms=10.0).step_ms.value == 14.0
    assert option(4.0, dense_ms=10.0, overlap=1.0).step_ms.value == 10.0
    assert option(4.0, dense_ms=10.0, overlap=0.5).step_ms.value == 12.0
    synced = option(4.0, dense_ms=10.0, overlap=1.0, sync=Sync(4, 0, 0, 0, 2.0), replicas_ms=1.0)
    assert synced.embeddings_ms.value == 5.0 and synced.step_ms.value == 10.5  # an average runs beside nothing


def test_the_interval_is_of_the_embeddings_and_of_the_average() -> None:
    one = option(4.0, error=None, dense_ms=10.0)
    assert one.step_ms == PredictedInterval(14.0, pytest.approx(13.6), pytest.approx(14.4))
    off = math.exp(0.4)
    synced = option(4.0, sync=Sync(1, 0, 0, 0, 2.0))
    wide = math.hypot(math.log(1.1), 0.4)
    assert synced.step_ms.high == pytest.approx(4.0 * math.exp(wide) + 2.0 * off)
    assert synced.step_ms.low < 4.0 / off + 2.0 / off


def test_samples_and_costs_follow_from_the_step() -> None:
    """1,000 samples in 4 ms are 250,000 a second; 3.6 an hour is 10**-6 a ms."""
    one = option(4.0, price_per_hour=3.6)
    assert one.samples_per_s.value == 250_000
    assert one.samples_per_s.low == 1e6 / one.step_ms.high and one.samples_per_s.high == 1e6 / one.step_ms.low
    assert one.cost is not None and one.cost.value == pytest.approx(4.0 * 1e-6 * 1e6)
    assert one.cost.low == pytest.approx(one.step_ms.low) and option().cost is None


def test_other_hardware_is_told_apart_beyond_both_errors() -> None:
    both = math.hypot(*[math.hypot(math.log(1.1), 0.4)] * 2)
    near, far = 4.0 * math.exp(0.98 * both), 4.0 * math.exp(1.05 * both)
    assert not are_separable(option(4.0), option(near, "simulated:h200"))
    assert are_separable(option(4.0), option(far, "simulated:h200")) and are_separable(
        option(far, "simulated:h200"), option()
    )


def test_on_the_same_hardware_the_error_of_the_device_is_common() -> None:
    assert are_separable(option(4.0), option(5.0)) and not are_separable(option(4.0), option(4.5))


def test_what_kernels_are_off_by_may_turn_the_order_of_machines_that_exchange_more() -> None:
    """4 ms of which 3 are kernels, against 3.2 of which 0.8 and 1.6 more of averages are exchanged: 4.8 ms in all."""
    kernels, exchanges = option(4.0), option(3.2, sync=Sync(1, 0, 0, 0, 1.6))
    assert exchanges.scale_step_ms(1.0, 1.0) == pytest.approx(4.8)
    assert not are_separable(kernels, exchanges)  # kernels 1.49 times as long: 5.5 ms against 6.0, too near
    assert are_separable(kernels, option(4.8))


def test_the_best_and_its_equals() -> None:
    a, b = option(4.0, price_per_hour=1.0), option(4.2, "simulated:h200", price_per_hour=5.0)
    slow = option(20.0, price_per_hour=0.9)
    found = fastest_option([slow, b, a])
    assert found is not None and found.option is a and found.equals == (b,)
    cheap = cheapest_option([slow, b, a])
    assert cheap is not None and cheap.option is a and not cheap.equals
    within = cheapest_option([slow, b], max_step_ms=5.0)
    assert within is not None and within.option is b
    assert cheapest_option([slow], max_step_ms=5.0) is None and cheapest_option([option()]) is None
    assert fastest_option([WhatIfOption("simulated:h100", MACHINE, 1000, 2, problem="no room")]) is None
