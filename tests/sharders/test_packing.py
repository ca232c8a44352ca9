"""Any placement at all: found where there is one, and what would help where there is none."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenshard.placement.items import Items
from evenshard.placement.placement import check_placement
from evenshard.placement.task import PlacementTask
from evenshard.sharders import packing
from evenshard.sharders.packing import Pieces, any_placement
from evenshard.utils.errors import InfeasibleTask
from support.builders import sized, split_by, table, task
from support.constraint_builders import gb_task, legal_placements, limited, limited_tasks


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
    monkeypatch.setattr(packing, "packed_in_order", lambda pieces, seed=None: None)
    check_placement(of_task, any_placement(of_task))


def test_the_solver_may_begin_with_any_of_unlike_devices() -> None:
    items = Items.of(limited(task(sized(5, 1), 2), device_caps_bytes=(4, 20)))
    blocks_ID = packing._solved(Pieces.whole(items), 0, 1.0).blocks_ID
    assert blocks_ID is not None and blocks_ID.tolist() == [[0, 1], [1, 0]]


@settings(max_examples=60, deadline=None)
@given(of_task=limited_tasks())
def test_the_solver_alone_knows_exactly_what_is_possible(of_task: PlacementTask) -> None:
    items = Items.of(of_task)
    assume(items.allowed_ID.any(axis=1).all())
    packed = packing._solved(Pieces.whole(items), 0, 10.0)
    if legal := legal_placements(of_task):
        assert packed.blocks_ID is not None and not packed.impossible
        assert items.placement(packed.blocks_ID.argmax(axis=1).tolist()) in legal
    else:
        assert packed.impossible and packed.blocks_ID is None


@st.composite
def small_pieces(draw: st.DrawFn) -> Pieces:
    """Up to three items in up to four blocks, on up to three devices; many cannot be packed."""
    blocks_I = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    sizes_I = np.array([draw(st.integers(1, 4)) for _ in blocks_I])
    part_bytes_I = np.array([draw(st.integers(0, 3)) if blocks > 1 else 0 for blocks in blocks_I])
    devices, seats = draw(st.integers(1, 3)), np.array([[draw(st.integers(0, 1))] for _ in blocks_I])
    room_DR = np.array([[draw(st.integers(3, 12)), 1] for _ in range(devices)])
    allowed_ID = np.array([[draw(st.sampled_from([True, True, False])) for _ in range(devices)] for _ in blocks_I])
    needs_IR = np.column_stack([blocks_I * sizes_I + part_bytes_I, seats])
    count = len(blocks_I)
    items = Items(tuple((n,) for n in range(count)), np.arange(count), needs_IR, room_DR, allowed_ID)
    return Pieces(items, blocks_I, part_bytes_I)


def fits(pieces: Pieces, blocks_ID: np.ndarray) -> bool:
    """The rule from its description."""
    items = pieces.items
    sizes_I = (items.needs_IR[:, 0] - pieces.part_bytes_I) / pieces.blocks_I
    for d, (memory, seats) in enumerate(items.room_DR.tolist()):
        here = blocks_ID[:, d] > 0
        if (blocks_ID[:, d] * sizes_I + here * pieces.part_bytes_I).sum() > memory:
            return False
        if items.needs_IR[here, 1].sum() > seats or not items.allowed_ID[here, d].all():
            return False
    return bool((blocks_ID.sum(axis=1) == pieces.blocks_I).all())


@settings(max_examples=100, deadline=None)
@given(pieces=small_pieces())
def test_what_is_cut_is_packed_exactly_where_that_is_possible(pieces: Pieces) -> None:
    devices = len(pieces.items.room_DR)
    ways = [
        [way for way in product(range(blocks + 1), repeat=devices) if sum(way) == blocks]
        for blocks in pieces.blocks_I.tolist()
    ]
    possible = [np.array(way) for way in product(*ways) if fits(pieces, np.array(way))]
    solved, quick = packing._solved(pieces, 0, 10.0), packing.packed_in_order(pieces, 0)
    assert solved.impossible == (not possible)
    for found in (solved.blocks_ID, quick):
        assert found is None or fits(pieces, found)
    assert (solved.blocks_ID is None) == (not possible)
    parts_I = pieces.least_parts_I()
    for blocks_ID in possible:
        assert (((blocks_ID > 0).sum(axis=1) >= parts_I) & (parts_I > 0)).all()


def test_parts_fill_their_devices_or_are_even() -> None:
    nine = Pieces(Items.of(task(sized(9), 3, cap=20)), np.array([9]), np.array([0]))
    nothing_DR = np.zeros_like(nine.items.room_DR)
    full, even = packing._cut(nine, 0, nothing_DR, True), packing._cut(nine, 0, nothing_DR, False)
    assert full is not None and sorted(full.tolist()) == [0, 4, 5]
    assert even is not None and sorted(even.tolist()) == [0, 4, 5]
    less_DR = nothing_DR.copy()
    less_DR[2, 0] = 4
    full, even = packing._cut(nine, 0, less_DR + 4, True), packing._cut(nine, 0, less_DR + 4, False)
    assert full is not None and full.tolist() == [4, 4, 1]
    assert even is not None and even.tolist() == [3, 3, 3]


def test_the_message_says_what_is_needed_and_there() -> None:
    assert refusal(gb_task([3, 3, 3], devices=2, cap_gb=5)) == (
        "task: no placement fits: the tables need 9.00 GB of the 2 devices' 10.00 GB (cap 5.00 GB each), the largest "
        "(t0) 3.00 GB. Raise memory_cap_gb or num_devices."
    )


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
