"""``evenshard.what_if``: small tables on simulated machines, and what is asked wrongly."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.planner.what_if.answer import WhatIfAnswer
from evenshard.planner.what_if.option import HardwarePrice, PredictedInterval, Prices, WhatIfOption
from evenshard.report.what_if import interval_text, print_what_if
from support.builders import table

TABLES = [table("clicks", 2**20, 64, 20.0), table("item", 2**18, 64, 1.0)]
PRICES = Prices({"h100": HardwarePrice(3.0, 1.0)}, "EUR", "By hand.")


def option_of(**asked: Any) -> WhatIfOption:
    (one,) = evenshard.what_if(TABLES, **{"batch_size": 8192, **asked}).options
    return one


@cache
def two_machines() -> WhatIfAnswer:
    dense_ms = {"h100": 5.0, "a100": 9.0}
    return evenshard.what_if(TABLES, ["h100", "a100"], [2, 4], price=PRICES, batch_per_device=4096, dense_ms=dense_ms)


def test_an_option_is_the_answer_of_place() -> None:
    placed = evenshard.place(TABLES, 4, hardware="simulated:h100", batch_size=16_384)
    one = two_machines().options[1]
    assert (one.hardware, one.num_devices, one.batch_size) == ("simulated:h100", 4, 16_384)
    assert one.answer is not None and one.answer.parts == placed.parts
    assert one.embeddings_ms.value == placed.predicted_ms and one.embeddings_ms.high == placed.high_ms
    assert one.step_ms.value == placed.predicted_ms + 5
    assert one.cost is not None
    assert one.cost.value == pytest.approx((4 * 3 + 1) * one.step_ms.value / 3.6e6 / 16_384 * 1e9)


def test_the_batch_is_of_all_devices_or_of_each() -> None:
    assert [one.batch_size for one in two_machines().options] == [8192, 16_384] * 2
    assert option_of().batch_size == 8192
    with pytest.raises(BadConfig, match="Give one of the two"):
        option_of(batch_per_device=1)


def test_dense_time_is_scaled_where_its_batch_is_known() -> None:
    assert option_of(dense_ms=8.0).dense_ms == 8.0
    assert option_of(dense_ms=8.0, dense_batch=2048).dense_ms == 8.0 * (8192 / 8) / 2048


def test_tables_that_do_not_fit_say_what_is_missing() -> None:
    large = [table("large", 2**26, 64)]
    found = evenshard.what_if(large, ["h100"], [1, 4], memory_cap_gb=8, batch_size=8192)
    small, enough = found.options
    assert not small.fits and "Raise memory_cap_gb to" in small.problem and enough.fits
    assert found.fastest is not None and found.fastest.option is enough and found.cheapest is None
    said = text_of(found)
    assert "does not fit" in said and f"1 x h100 with 8 GB: {small.problem}"[:40] in said.replace("\n", " ")


def test_groups_are_placed_with_their_share_of_the_batch_and_averaged() -> None:
    one = option_of(devices=[4], group_sizes=[2], sync_every=5, optimizer="sgd")
    assert one.answer is not None and one.sync is not None
    assert (one.num_groups, one.answer.num_devices, one.answer.request.batch_size) == (2, 2, 4096)
    assert one.sync.bytes_of_all <= 2 * sum(each.size_bytes for each in TABLES)
    assert one.step_ms.value == pytest.approx(one.embeddings_ms.value + one.sync.once_ms / 5)


def test_the_text_says_what_the_times_are_of() -> None:
    said = text_of(two_machines())
    for phrase in (
        "4,096 on each device",
        "Device models, not GPUs: simulated:h100, simulated:a100_80gb.",
        "do not overlap, so their times add up",
        "No price for a100_80gb",
        "EUR per 10^9 samples",
    ):
        assert phrase in said, phrase


def test_numbers_have_three_digits() -> None:
    assert interval_text(PredictedInterval(1.234, 0.5, 2.0)) == "1.23 (0.50-2.00)"
    assert interval_text(PredictedInterval(9_881_000, 9_372_000, 10_236_000)) == "9.88 M (9.37-10.24)"
    assert interval_text(PredictedInterval(46_000_000, 29_300_000, 72_000_000)) == "46.0 M (29.3-72.0)"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"devices": []}, "devices is empty"),
        ({"hardware": ["h1"]}, "hardware is 'h1'"),
        ({"devices": [12]}, "12 devices cannot be split into nodes of 8"),
        ({"dense_ms": {"a100": 1.0}}, "dense_ms is given for"),
        ({"dense_batch": 8}, "Give dense_ms"),
        ({"max_step_ms": 0.0}, "max_step_ms"),
        ({"max_step_ms": 2.0}, "the cheapest machine is unknown without prices"),
        ({"group_sizes": [3]}, "do not fill groups of 3"),
        ({"group_sizes": "some"}, "group_sizes is 'some'"),
        ({"group_sizes": [4], "host_memory_gb": 10}, "is not supported with group_sizes"),
        ({"pinned": {"item": 0}}, "pinned is neither an argument of what_if"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as raised:
        option_of(**asked)
    assert "\n" not in str(raised.value)


def text_of(found: WhatIfAnswer) -> str:
    said = io.StringIO()
    print_what_if(found, said)
    return " ".join(said.getvalue().split())
