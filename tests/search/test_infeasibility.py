"""Why a task is impossible: the plain reasons, one after the other, with numbers and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import BYTES_PER_GB as GB
from evenshard.placement.sharding import ROW_WISE
from evenshard.placement.task import ShardingTask
from evenshard.search.infeasibility import find_reason, no_device_error, require_feasible
from support.builders import sized, task
from support.constraint_builders import gb_task, legal_placements, limited, limited_tasks, only


def why(of_task: ShardingTask, cut: int | None = None) -> str:
    """The reason where one table may be cut by rows too; empty where there is none."""
    whole = of_task.as_whole
    limits = [replace(own, types=own.types | {ROW_WISE}) if at == cut else own for at, own in enumerate(whole.limits)]
    found = find_reason(replace(whole, limits=tuple(limits)))
    return "" if found is None else f"{found.problem} {found.remedy}"


@settings(max_examples=60, deadline=None)
@given(of_task=limited_tasks())
def test_a_task_with_a_reason_has_no_placement(of_task: ShardingTask) -> None:
    if why(of_task):
        assert not legal_placements(of_task)
        with pytest.raises(InfeasibleTask, match=r"^task: "):
            require_feasible(of_task)
    else:
        require_feasible(of_task)


SIX_APART: dict[str, Any] = {"apart": ((0, 1, 2, 3, 5),)}
PINNED: dict[str, Any] = {"allowed": (only(1), only(1), only(1), None)}
REASONS: list[tuple[ShardingTask, str]] = [
    # Rules that contradict each other
    (limited(gb_task([1, 2]), allowed=(None, only(7))), "table t1 has no allowed device. Allow at least one of"),
    (
        limited(gb_task([1, 1, 1]), allowed=(only(0), only(1), None), together=((0, 1, 2),)),
        "tables t0, t1, t2 must stay together, but no device is allowed for all of them.",
    ),
    (
        limited(gb_task([1, 1, 1, 1]), together=((0, 1), (1, 2)), apart=((2, 3), (3, 2, 0))),
        "tables t0, t2 must stay both together and apart. Drop one of the two rules.",
    ),
    (
        limited(gb_task([0.1] * 6, devices=4), **SIX_APART),
        "tables t0, t1, t2 and 2 more must stay apart, but there are only 4 devices. "
        "Raise num_devices to at least 5, or keep fewer tables apart.",
    ),
    (
        limited(gb_task([0.1] * 3, devices=3), apart=((0, 1, 2),), allowed=(only(2), None, only(2))),
        "tables t0, t2 must stay apart, but are only allowed on device 2.",
    ),
    # Too large for a device
    (
        limited(gb_task([3, 1]), table_optimizers={"t0": "adagrad"}),
        "table t0 needs 6.00 GB (3.00 GB of weights, 3.00 GB of state, inputs and outputs), more than a whole device "
        "(cap 4.00 GB each): 2.00 GB is missing. Raise memory_cap_gb.",
    ),
    (gb_task([4.5, 6.5, 5]), "table t1 needs 6.50 GB, more than a whole device (cap 4.00 GB each): 2.50 GB is"),
    (limited(gb_task([3, 2]), together=((0, 1),)), "tables t0, t1, which must stay together, need 5.00 GB"),
    (
        limited(gb_task([5, 1]), room_bytes=(3 * GB, 4 * GB)),
        "table t0 needs 5.00 GB, more than a whole device (caps 3.00 GB to 4.00 GB): 1.00 GB is missing.",
    ),
    (
        limited(gb_task([3, 1, 1], 3), room_bytes=(GB, 2 * GB, 9 * GB), allowed=(only(0, 1), None, None)),
        "table t0 needs 3.00 GB, more than devices 0, 1 can hold (2.00 GB), and no other device is allowed: 1.00 GB is "
        "missing. Raise memory_cap_gb, or allow a larger device.",
    ),
    # Devices that are overfull, the fewest of them
    (limited(gb_task([2, 1, 1.5, 1]), **PINNED), "tables t0, t1, t2 need 4.50 GB, but may only use device 1 with 4.00"),
    (
        limited(gb_task([3, 3, 3, 1], devices=3), allowed=(only(0), only(1), only(0, 1), None)),
        "tables t0, t1, t2 need 9.00 GB, but may only use devices 0, 1 with 8.00 GB: 1.00 GB",
    ),
    (
        limited(gb_task([3, 2, 4, 1], devices=3), allowed=(only(0), only(0), only(0, 1), None)),
        "tables t0, t1 need 5.00 GB, but may only use device 0 with 4.00 GB",
    ),
    (
        gb_task([3, 3, 3, 1]),
        "the tables need 10.00 GB, the 2 devices have 8.00 GB (cap 4.00 GB each): 2.00 GB is missing. "
        "Raise memory_cap_gb or num_devices.",
    ),
    # Rules come before memory, and one table before all
    (limited(gb_task([9, 9]), allowed=(only(), None)), "table t0 has no allowed device."),
    (gb_task([9, 9]), "table t0 needs 9.00 GB, more than a whole device"),
    (limited(gb_task([9, 9]), allowed=(only(0), only(0))), "table t0 needs 9.00 GB, more than device 0 can hold"),
]  # fmt: skip


@pytest.mark.parametrize(("of_task", "reason"), REASONS)
def test_the_first_reason_is_told(of_task: ShardingTask, reason: str) -> None:
    assert why(of_task).startswith(reason)


def test_a_possible_task_and_a_table_that_may_be_cut_have_no_reason() -> None:
    assert not why(gb_task([4, 4]))
    assert not why(limited(gb_task([2, 1, 1, 1]), **PINNED))
    assert not why(limited(gb_task([0.1] * 6, devices=4), apart=((0, 1, 2, 3),)))
    assert not why(limited(gb_task([1, 2, 3]), together=((0, 1),), apart=((0, 2),), table_optimizers={"t0": "adagrad"}))
    assert not why(gb_task([5, 1]), cut=0)
    assert why(gb_task([5, 1]), cut=1) == why(gb_task([5, 1]))
    assert "the tables need at least 10.00 GB" in why(gb_task([3, 3, 3, 1]), cut=2)


def test_names_are_cut_and_steer_no_terminal() -> None:
    of_task = gb_task([9, 9])
    tables = tuple(replace(one, name=f"\x1b[31m{one.name}\n\u202e" + "x" * 5000) for one in of_task.tables)
    with pytest.raises(InfeasibleTask) as caught:
        require_feasible(replace(of_task, tables=tables))
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500 and "Raise memory_cap_gb" in message


def test_no_room_names_the_devices_allowed_and_what_must_stay_apart() -> None:
    of_task = limited(task(sized(1, 1, 1), 3, cap=20), allowed=(only(0, 2), None, None), apart=((0, 1, 2),))
    allowed, apart = (str(no_device_error(of_task, *one)) for one in (([0], [20, 0, 18]), ([1], [4, 4, 20])))
    assert "no device of those allowed (devices 0, 2) has more than" in allowed
    free = no_device_error(gb_task([1, 2]), [1], [3 * GB, 5 * GB // 2])
    assert "table t1 needs 2.00 GB, but no device has more than 1.50 GB left (cap 4.00 GB each)" in str(free)
    assert "all devices with enough memory hold tables to keep apart from it" in apart
