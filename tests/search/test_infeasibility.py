"""Why a task is impossible: the plain reasons, one after the other, with numbers and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import BYTES_PER_GB as GB
from evenshard.base.units import missing_text
from evenshard.placement.sharding import ROW_WISE
from evenshard.placement.task import ShardingTask
from evenshard.search.infeasibility import find_reason, require_feasible
from support.builders import capped
from support.constraint_builders import gb_task, legal_placements, limited, limited_tasks, only


def reason_of(of_task: ShardingTask, cut: Sequence[int] = ()) -> InfeasibleTask | None:
    """The reason where some tables may be cut by rows too."""
    whole = of_task.as_whole
    limits = tuple(
        replace(own, types=own.types | {ROW_WISE}) if at in cut else own for at, own in enumerate(whole.limits)
    )
    return find_reason(replace(whole, limits=limits))


def why(of_task: ShardingTask) -> str:
    found = reason_of(of_task)
    assert found is not None and found.problem.endswith(".") and found.remedy.endswith(".")
    return f"{found.problem} {found.remedy}"


def test_a_possible_task_has_no_reason() -> None:
    assert reason_of(gb_task([4, 4])) is None
    limits = {
        "together": ((0, 1),),
        "apart": ((0, 2),),
        "allowed": (None, only(0), None),
        "table_optimizers": {"t0": "adagrad"},
    }
    assert reason_of(limited(gb_task([1, 2, 3]), **limits)) is None


@settings(max_examples=100, deadline=None)
@given(of_task=limited_tasks())
def test_a_task_with_a_reason_has_no_placement(of_task: ShardingTask) -> None:
    if reason_of(of_task) is not None:
        assert not legal_placements(of_task)
        with pytest.raises(InfeasibleTask, match=r"^task: "):
            require_feasible(of_task)
    else:
        require_feasible(of_task)


# Rules that contradict each other ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nowhere", [only(), only(7)])
def test_a_table_that_may_live_nowhere(nowhere: frozenset[int]) -> None:
    of_task = limited(gb_task([1, 2]), allowed=(None, nowhere))
    assert why(of_task) == "table t1 has no allowed device. Allow at least one of devices 0 to 1."


def test_tables_together_that_share_no_device() -> None:
    of_task = limited(gb_task([1, 1, 1]), allowed=(only(0), only(1), None), together=((0, 1, 2),))
    assert why(of_task).startswith("tables t0, t1, t2 must stay together, but no device is allowed for all of them.")


def test_tables_together_and_apart() -> None:
    """t0 and t2 are together by way of t1."""
    of_task = limited(gb_task([1, 1, 1, 1]), together=((0, 1), (1, 2)), apart=((2, 3), (3, 2, 0)))
    assert why(of_task) == "tables t0, t2 must stay both together and apart. Drop one of the two rules."


def test_more_tables_apart_than_devices() -> None:
    of_task = limited(gb_task([0.1] * 6, devices=4), apart=((0, 1, 2, 3),))
    assert reason_of(of_task) is None
    assert why(limited(of_task, apart=((0, 1, 2, 3, 5),))) == (
        "tables t0, t1, t2 and 2 more must stay apart, but there are only 4 devices. "
        "Raise num_devices to at least 5, or keep fewer tables apart."
    )


def test_more_tables_apart_than_devices_they_may_live_on() -> None:
    of_task = limited(gb_task([0.1] * 3, devices=3), apart=((0, 1, 2),), allowed=(only(2), None, only(2)))
    assert why(of_task).startswith("tables t0, t2 must stay apart, but are only allowed on device 2.")


# Too large -----------------------------------------------------------------------------------------------------------


def test_a_table_larger_than_a_device_with_its_optimizer_state_apart() -> None:
    of_task = limited(gb_task([3, 1]), table_optimizers={"t0": "adagrad"})
    assert why(of_task) == (
        "table t0 needs 6.00 GB (3.00 GB of weights, 3.00 GB of state, inputs and outputs), more than a whole device "
        "(cap 4.00 GB each): 2.00 GB is missing. Raise memory_cap_gb."
    )
    assert reason_of(capped(of_task, 6 * GB)) is None


def test_the_largest_of_several() -> None:
    text = why(gb_task([4.5, 6.5, 5]))
    assert "t1 needs 6.50 GB" in text and "2.50 GB is missing; 2 more are too large" in text


def test_tables_together_are_one_large_one_and_cannot_be_split() -> None:
    text = why(limited(gb_task([3, 2]), together=((0, 1),)))
    assert "tables t0, t1, which must stay together, need 5.00 GB" in text
    assert text.endswith("Raise memory_cap_gb, or do not keep them together.")


def test_a_table_larger_than_the_largest_of_unlike_devices() -> None:
    text = why(limited(gb_task([5, 1]), room_bytes=(3 * GB, 4 * GB)))
    assert "(caps 3.00 GB to 4.00 GB): 1.00 GB is missing." in text


def test_a_table_larger_than_the_devices_it_may_live_on() -> None:
    of_task = limited(gb_task([3, 1, 1], 3), room_bytes=(GB, 2 * GB, 9 * GB), allowed=(only(0, 1), None, None))
    assert why(of_task).startswith(
        "table t0 needs 3.00 GB, more than devices 0, 1 can hold (2.00 GB), and no other device is allowed: 1.00 GB is "
        "missing. Raise memory_cap_gb, or allow a larger device."
    )


def test_a_table_that_may_be_cut_is_not_too_large() -> None:
    of_task = gb_task([5, 1], devices=2, cap_gb=4)
    assert reason_of(of_task, cut=(0,)) is None
    assert str(reason_of(of_task, cut=(1,))) == why(of_task)


# Overfull ------------------------------------------------------------------------------------------------------------


def test_what_is_pinned_to_one_device_and_overfills_it() -> None:
    of_task = limited(gb_task([2, 1, 1.5, 1]), allowed=(only(1), only(1), only(1), None))
    assert why(of_task).startswith(
        "tables t0, t1, t2 need 4.50 GB, but may only use device 1 with 4.00 GB: 0.50 GB is missing."
    )
    assert reason_of(limited(gb_task([2, 1, 1, 1]), allowed=(only(1), only(1), only(1), None))) is None


def test_what_may_only_live_on_some_devices_and_overfills_them() -> None:
    """Neither device is overfull by what is pinned to it alone; the third device does not help."""
    of_task = limited(gb_task([3, 3, 3, 1], devices=3), allowed=(only(0), only(1), only(0, 1), None))
    assert "tables t0, t1, t2 need 9.00 GB, but may only use devices 0, 1 with 8.00 GB: 1.00 GB" in why(of_task)


def test_the_fewest_devices_that_are_overfull_are_named() -> None:
    """5 on device 0 alone, which is what makes 9 on the first two too much as well."""
    of_task = limited(gb_task([3, 2, 4, 1], devices=3), allowed=(only(0), only(0), only(0, 1), None))
    assert "tables t0, t1 need 5.00 GB, but may only use device 0 with 4.00 GB" in why(of_task)


def test_all_tables_together() -> None:
    assert why(gb_task([3, 3, 3, 1])) == (
        "the tables need 10.00 GB, the 2 devices have 8.00 GB (cap 4.00 GB each): 2.00 GB is missing. "
        "Raise memory_cap_gb or num_devices."
    )
    assert "the tables need at least 10.00 GB, the 2 devices have" in str(reason_of(gb_task([3, 3, 3, 1]), cut=(2,)))


def test_rules_come_before_memory_and_one_table_before_all() -> None:
    too_much = gb_task([9, 9])
    assert "has no allowed device" in why(limited(too_much, allowed=(only(), None)))
    assert "more than a whole device" in why(too_much)
    assert "t0 needs 9.00 GB, more than device 0 can hold" in why(limited(too_much, allowed=(only(0), only(0))))


def test_what_is_missing_is_rounded_up() -> None:
    assert [missing_text(size) for size in (3, 2**20, GB // 2, GB, GB + 1)] == [
        "3 bytes are missing",
        *(f"{size} is missing" for size in ("1.00 MB", "0.50 GB", "1.00 GB", "1.01 GB")),
    ]


def test_names_are_cut_and_steer_no_terminal() -> None:
    of_task = gb_task([9, 9])
    tables = tuple(replace(one, name=f"\x1b[31m{one.name}\n\u202e" + "x" * 5000) for one in of_task.tables)
    with pytest.raises(InfeasibleTask) as caught:
        require_feasible(replace(of_task, tables=tables))
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500 and "Raise memory_cap_gb" in message
