"""Which tables are split: those that fit nowhere, those that decide a step, and nothing without need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.placement.placement import check_placement
from evenshard.planner import splits
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.planner.splits import Found, split_search, whole_search
from evenshard.utils.errors import InfeasibleTask
from support.builders import cuts_of, parts_of, table
from support.request_builders import request, sharder

KB = 1024


def split(asked: PlacementRequest) -> Found:
    found = split_search(replace(asked, allow_column_split=True), sharder(), sharder())
    check_placement(found.task, found.result.best.placement)
    return found


def test_a_table_too_big_for_a_device_is_halved_until_it_fits() -> None:
    asked = request(64, caps=(80 * KB,) * 4)  # 250 KB: halves of 125 do not fit, quarters of 62.5 do
    with pytest.raises(InfeasibleTask):
        whole_search(asked, sharder())
    found = split(asked)
    assert cuts_of(found.parts) == {"a": (16, 32, 48)}
    assert sorted(found.result.best.placement.device_of_table) == [0, 1, 2, 3]


def test_where_only_one_device_is_large_enough_nothing_needs_to_be_split() -> None:
    assert cuts_of(splits._needed_parts(request(64, caps=(300 * KB, 80 * KB)))) == {}
    pinned = Rules(pinned={"a": (1,)})
    assert cuts_of(splits._needed_parts(request(64, caps=(300 * KB, 130 * KB), rules=pinned))) == {"a": (32,)}


def test_optimizer_state_counts_when_it_is_asked_whether_a_table_fits() -> None:
    assert cuts_of(splits._needed_parts(request(64, caps=(260 * KB,)))) == {}
    assert cuts_of(splits._needed_parts(request(64, caps=(260 * KB,), optimizer="adagrad"))) == {"a": (32,)}


def test_tables_that_fit_one_by_one_but_not_all_are_split_to_be_packed() -> None:
    # Three of 125 KB on two devices of 190: one must go half and half.
    found = split(request(32, 32, 32, caps=(190 * KB, 190 * KB)))
    assert cuts_of(found.parts)


def test_a_table_that_decides_the_step_is_spread() -> None:
    tables = (table("huge", 1000, 128, 50.0), *(table(f"t{number}", 1000, 4, 1.0) for number in range(3)))
    asked = request(tables=tables, caps=(2**30,) * 4)
    whole = whole_search(asked, sharder())
    found = split(asked)
    assert found.predicted_ms < whole.predicted_ms * 0.9
    assert set(cuts_of(found.parts)) == {"huge"}


def test_nothing_is_split_where_that_saves_nothing() -> None:
    assert cuts_of(split(request(8, 8, caps=(2**30, 2**30))).parts) == {}


def test_no_table_has_two_neighbouring_parts_on_one_device() -> None:
    for seed in range(3):
        tables = tuple(table(f"t{n}", 1000, 64, 5.0 + 3 * n + seed) for n in range(4))
        found = split(request(tables=tables, caps=(2**30,) * 3))
        devices = found.result.best.placement.device_of_table
        for number in range(1, len(found.parts)):
            if found.parts[number].columns.start:
                assert devices[number] != devices[number - 1]


def test_neighbours_on_one_device_are_joined_and_the_answer_gets_no_worse() -> None:
    asked = request(16, caps=(2**30,))
    cut = whole_search(asked, sharder(), parts_of(asked.tables, {"a": (4, 8)}))
    joined = splits._joined(asked, sharder(), cut)
    assert cuts_of(joined.parts) == {}
    assert joined.predicted_ms <= cut.predicted_ms


def test_parts_of_a_table_that_meet_on_a_device_are_joined_wherever_they_come_from() -> None:
    """Columns 0:4 and 8:16 both live where table b may not: what a rule keeps apart does not keep them apart."""
    asked = request(16, 8, caps=(2**30,) * 2, optimizer="rowwise_adagrad", rules=Rules(apart=(("a", "b"),)))
    cut = whole_search(asked, sharder(), parts_of(asked.tables, {"a": (4, 8)}))
    devices = cut.result.best.placement.device_of_table
    assert devices[0] == devices[1] == devices[2] != devices[3]
    joined = splits._joined(asked, sharder(), cut)
    assert cuts_of(joined.parts) == {} and len(joined.parts) == 2


def test_a_known_placement_is_the_answer_where_no_other_is_found() -> None:
    """64 columns on devices with room for 24, 24 and 16 of them: halves of halves do not fit."""
    tables = (table("a", 1000, 64),)
    per_column, state = 4 * 1000, 4 * 1000
    caps = tuple(width * per_column + state for width in (24, 24, 16))
    found = split(request(tables=tables, caps=caps, optimizer="rowwise_adagrad"))
    assert cuts_of(found.parts) == {"a": (24, 48)}
    assert found.result.best.placement.device_of_table == (0, 1, 2)


def test_what_a_rule_keeps_together_stays_whole_and_the_refusal_says_so() -> None:
    rules = Rules(together=(("a", "b"),))
    with pytest.raises(InfeasibleTask):
        split(request(64, 64, caps=(300 * KB,) * 4, rules=rules))


def test_a_dim_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(InfeasibleTask):
        split(request(4, rows=10_000, caps=(100 * KB,) * 4))
