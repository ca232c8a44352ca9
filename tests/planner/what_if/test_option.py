"""Times and prices of a machine, the best one, and what predictions do not tell apart from it: by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadFile
from evenshard.base.units import gb_to_bytes
from evenshard.placement.nodes import Nodes
from evenshard.planner.knobs import WhatIf
from evenshard.planner.what_if.answer import (
    WhatIfAnswer,
    are_separable,
    cheapest_option,
    fastest_option,
    keep_faster_placements,
)
from evenshard.planner.what_if.option import HardwarePrice, PredictedInterval, Sync, WhatIfOption, load_prices
from evenshard.price.dense import DenseLayers
from evenshard.price.evidence import DeviceError
from support.answer_builders import answer

MACHINE = Nodes(2, 2, 1, "100gb_s")


def option(ms: float = 4.0, hardware: str = "simulated:h100", is_exact: bool = False, **more: Any) -> WhatIfOption:
    """Of a step of so many ms, of which a quarter is exchanged; the model alone is 10 % sure."""
    placed = answer(totals_ms=(ms, ms / 2), device_error=None if is_exact else DeviceError(40.0, 12))
    return WhatIfOption(hardware, MACHINE, 1000, 2, answer=placed, **more)


def test_times_of_a_step_add_up_and_overlap_hides_a_share_of_the_shorter_part() -> None:
    assert option(4.0, dense_ms=10.0).step_ms.value == 14.0
    assert option(4.0, dense_ms=10.0, overlap=1.0).step_ms.value == 10.0
    assert option(4.0, dense_ms=10.0, overlap=0.5).step_ms.value == 12.0
    synced = option(4.0, dense_ms=10.0, overlap=1.0, sync=Sync(4, 0, 0, 0, 2.0), replicas_ms=1.0)
    assert synced.embeddings_ms.value == 5.0 and synced.step_ms.value == 10.5  # an average runs beside nothing


def test_a_predicted_dense_part_is_reduced_over_all_groups() -> None:
    """Of one group of two devices, whose gradients are averaged with those of the other group."""
    placed = option(4.0).answer
    assert placed is not None
    dense = replace(placed, request=replace(placed.request, dense=DenseLayers(((1.0, 1024, 2**16),)), hardware="h100"))
    one, two = (replace(option(4.0), answer=dense, machine=Nodes(count, count, 1, "100gb_s")) for count in (2, 4))
    assert one.step is not None and two.step is not None and one.step_ms.value == pytest.approx(one.step.total_ms)
    assert two.step == dense.step_on(two.machine) and two.step.hidden_ms + two.step.exposed_ms > one.step.exposed_ms
    assert (one.step_ms.low, one.step_ms.high) == pytest.approx((one.step.low_ms, one.step.high_ms))
    assert two.step.dense_ms == pytest.approx(one.step.dense_ms), "each device has as many samples"
    more = replace(one, replicas_ms=1.0).step_ms
    assert (more.low, more.high) == pytest.approx((one.step.low_ms + 1.0, one.step.high_ms + 1.0))
    hidden = replace(one, overlap=1.0)
    assert hidden.step_ms.value == pytest.approx(one.step_ms.value - min(4.0, one.dense_part_ms))
    assert replace(one, dense_ms=10.0).step is None and replace(one, dense_ms=10.0).step_ms.value == 14.0


def test_more_devices_stop_paying_where_they_do_less_than_half_of_what_the_others_do() -> None:
    def counted(devices: int, ms: float) -> WhatIfOption:
        return replace(option(ms), machine=Nodes(devices, 2, 1, "100gb_s", "100gb_s"), batch_size=1000)

    two, four, eight = counted(2, 4.0), counted(4, 2.6), counted(8, 2.0)  # 1.54 and 1.3 times the samples
    question = WhatIf(("simulated:h100",), (2, 4, 8), dense_ms={"simulated:h100": 0.0})
    assert WhatIfAnswer((eight, two, four), question).stops == ((four, eight),)
    assert WhatIfAnswer((two, four), question).stops == ((four, None),)
    assert WhatIfAnswer((two,), question).stops == ()


def test_the_interval_is_of_the_embeddings_and_of_the_average() -> None:
    one = option(4.0, is_exact=True, dense_ms=10.0)
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


@pytest.mark.parametrize("own", [5.0, None])
def test_a_placement_for_less_memory_is_kept_where_more_memory_gives_a_slower_one(own: float | None) -> None:
    """A search with more memory may find a slower placement, or none: then that of less memory is the answer."""
    less = option(4.0, memory_cap_gb=40)
    slower = option(5.0, memory_cap_gb=80)
    more = slower if own else WhatIfOption(less.hardware, less.machine, 1000, 2, problem="none", memory_cap_gb=80)
    faster = option(3.0, memory_cap_gb=96)
    first, kept, last = keep_faster_placements([less, more, faster])
    assert (first, last) == (less, faster)
    assert kept.step_ms == less.step_ms and kept.memory_cap_gb == 80 and not kept.problem
    assert kept.answer is not None and less.answer is not None and kept.answer.parts == less.answer.parts
    assert kept.answer.request.caps_bytes == (gb_to_bytes(80),) * 2
    elsewhere = replace(slower, machine=Nodes(4, 4, 1, "100gb_s"))
    assert list(keep_faster_placements([less, elsewhere])) == [less, elsewhere]


# Prices by the hour ---------------------------------------------------------------------------------------------------


def test_devices_and_hosts_are_paid() -> None:
    assert HardwarePrice(3.0, 2.0).per_hour(16, 2) == 16 * 3.0 + 2 * 2.0


def test_a_short_name_of_hardware_is_the_full_one(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("currency: EUR\nhardware: {a100: {per_device_hour: 2}}\n")
    prices = load_prices(tmp_path / "prices.yaml")
    assert prices.price_of("simulated:a100_80gb") == HardwarePrice(2) and prices.currency == "EUR"
    assert prices.price_of("simulated:h100") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hardware: {}", "hardware is empty"),
        ("hardware: {h100: 3}", "h100 is 3, not a mapping"),
        ("hardware: {h100: {per_hour: 3}}", "'per_hour' is unknown"),
        ("hardware: {h100: {per_device_hour: .nan}}", "per_device_hour is nan"),
        ("hardware: {h1000: {per_device_hour: 1}}", "Use one of auto, cpu, cuda"),
        ("hardware: {h100: {per_device_hour: 1}, 'simulated:h100': {per_device_hour: 2}}", "are the same"),
    ],
)
def test_what_makes_no_sense_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(BadFile, match=said) as raised:
        load_prices(tmp_path / "prices.yaml")
    assert "\n" not in str(raised.value) and "prices.yaml" in str(raised.value)
