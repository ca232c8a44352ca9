"""Any placement at all: found where there is one, and what would help where there is none."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from builders import sized, split_by, table, task
from constraint_builders import gb_task, is_legal, legal_placements, limited, limited_tasks, only
from evenshard.errors import InfeasibleTask
from evenshard.placement import Items, check_placement
from evenshard.sharders import packing
from evenshard.sharders.packing import any_placement
from evenshard.tasks import PlacementTask


def refusal(of_task: PlacementTask, **more: float) -> str:
    with pytest.raises(InfeasibleTask) as raised:
        any_placement(of_task, **more)  # type: ignore[arg-type]
    return str(raised.value)


def test_a_full_memory_is_packed() -> None:
    """3 + 3 and 2 + 2 + 2 on two devices of 6: the largest first, evenly, would not do."""
    assert split_by(any_placement(task(sized(3, 2, 3, 2, 2), 2, cap=24))) == {(0, 2), (1, 3, 4)}


def test_the_solver_finds_what_no_order_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve tables of three sizes that fill three unlike devices to the last byte."""
    of_task = limited(task(sized(*[7] * 4, *[5] * 4, *[3] * 4), 3), device_caps_bytes=(4 * 25, 4 * 20, 4 * 15))
    monkeypatch.setattr(packing, "_packed", lambda items, seed=None: None)
    check_placement(of_task, any_placement(of_task))


def test_the_solver_may_begin_with_any_of_unlike_devices() -> None:
    items = Items.of(limited(task(sized(5, 1), 2), device_caps_bytes=(4, 20)))
    assert packing._solved(items, 0, 1.0) == ([1, 0], False)


@settings(max_examples=60, deadline=None)
@given(of_task=limited_tasks())
def test_the_solver_alone_knows_exactly_what_is_possible(of_task: PlacementTask) -> None:
    items = Items.of(of_task)
    assume(items.allowed_ID.any(axis=1).all())
    device_of_item, impossible = packing._solved(items, 0, 10.0)
    if legal := legal_placements(of_task):
        assert device_of_item is not None and items.placement(device_of_item) in legal
    else:
        assert impossible and device_of_item is None


def test_the_message_names_a_memory_and_a_number_of_devices_that_do() -> None:
    of_task = gb_task([3, 3, 3], devices=2, cap_gb=5)
    text = refusal(of_task)
    assert text == (
        "task: no placement fits: the tables need 9.00 GB of the 2 devices' 10.00 GB (cap 5.00 GB each), the largest "
        "(t0) 3.00 GB. One was found with room for 6.00 GB on each device and one with 3 devices. "
        "Raise memory_cap_gb or num_devices."
    )
    any_placement(gb_task([3, 3, 3], devices=2, cap_gb=6))
    any_placement(gb_task([3, 3, 3], devices=3, cap_gb=5))


@settings(max_examples=60, deadline=None)
@given(of_task=limited_tasks())
def test_what_the_message_promises_holds(of_task: PlacementTask) -> None:
    try:
        any_placement(of_task)
    except InfeasibleTask as error:
        promised = re.search(r"with (\d+) devices", str(error))
        assume(promised is not None)
        assert promised is not None
        number = int(promised[1])
        assert number > of_task.num_devices
        caps = (*of_task.caps_bytes, *[max(of_task.caps_bytes)] * (number - of_task.num_devices))
        limits = replace(of_task.constraints, device_caps_bytes=caps)
        larger = replace(of_task, num_devices=number, constraints=limits)
        assert is_legal(larger, any_placement(larger))


def test_the_memory_that_would_do_is_found_within_a_hundredth() -> None:
    """17 tables of 1 GB and one of 0.3 on 4 devices of 4.4: one device must hold 5 of them."""
    text = refusal(gb_task([1.0] * 17 + [0.3], devices=4, cap_gb=4.4))
    assert "room for 5.00 GB on each device and one with 5 devices" in text


def test_where_memory_does_not_help_it_is_not_named() -> None:
    pairs = ((0, 1), (1, 2), (0, 2))
    assert refusal(limited(gb_task([1, 1, 1]), apart=pairs)).endswith(
        "One was found with 3 devices. Raise num_devices."
    )
    stuck = limited(gb_task([1, 1, 1]), apart=pairs, allowed=(only(0, 1),) * 3)
    assert refusal(stuck).endswith("relax the rules on where tables may live.")


def test_pinned_tables_leave_memory_as_the_only_remedy() -> None:
    """2 + 2 + 2 may only live on two devices of 3; more devices do not help them."""
    text = refusal(limited(gb_task([2, 2, 2], devices=3, cap_gb=3), allowed=(only(0, 1),) * 3))
    assert text.endswith("One was found with room for 4.00 GB on each device. Raise memory_cap_gb.")


def test_giving_up_is_not_called_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    hard = task(sized(*rng.integers(10**5, 2 * 10**5, 60).tolist()), 20)
    hard = replace(hard, memory_cap_bytes=-(-sum(one.size_bytes for one in hard.tables) // 20) + 40)
    assert "task: no placement was found in 0.01 s of the solver: " in refusal(hard, time_limit_s=0.01)
    monkeypatch.setattr(packing, "MAX_PAIRS", 60 * 20 - 1)
    assert "task: no placement was found by packing (the task is too large to solve exactly): " in refusal(hard)


def test_the_same_task_gets_the_same_placement() -> None:
    rng = np.random.default_rng(1)
    of_task = task(sized(*rng.integers(1, 100, 40).tolist()), 8)
    of_task = replace(of_task, memory_cap_bytes=sum(one.size_bytes for one in of_task.tables) // 8 + 40)
    assert any_placement(of_task) == any_placement(of_task)


def test_two_thousand_tables_on_128_devices_are_packed_in_a_moment() -> None:
    rng = np.random.default_rng(0)
    tables = [table(f"t{n}", int(rows), 16) for n, rows in enumerate(rng.lognormal(8, 2, 2000))]
    cap = max(max(one.size_bytes for one in tables), int(sum(one.size_bytes for one in tables) / 128 * 1.02))
    of_task = limited(task(tables, 128, cap), apart=(tuple(range(100)),), together=((200, 201),))
    start = time.process_time()
    check_placement(of_task, any_placement(of_task))
    assert time.process_time() - start < 5
