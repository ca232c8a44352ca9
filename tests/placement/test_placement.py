"""Placement: its shards, and the one rule of what is legal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.placement import Placement, check_placement, legal_mask
from support.builders import capped, sized, task


@given(st.integers(1, 5).flatmap(lambda d: st.tuples(st.just(d), st.lists(st.integers(0, d - 1), max_size=8))))
def test_shards_hold_every_table_where_it_was_put_and_parts_and_back_is_the_same(case: tuple[int, list[int]]) -> None:
    assert Placement((2, 0, 2), 4).shards() == ((1,), (), (0, 2), ())
    num_devices, device_of_table = case
    of_task = task(sized(*range(1, 1 + len(device_of_table))), num_devices)
    placement = Placement(tuple(device_of_table), num_devices)
    assert len(placement.shards()) == num_devices
    assert sorted(p for shard in placement.shards() for p in shard) == list(range(len(device_of_table)))
    assert all(device_of_table[p] == device for device, shard in enumerate(placement.shards()) for p in shard)
    parts = placement.parts(of_task.tables)
    assert Placement.of(of_task, parts) == placement
    held = [[part.table for part in parts if part.device == device] for device in range(num_devices)]
    assert [[one.name for one in shard] for shard in placement.shards_of(of_task.tables)] == held


def test_a_table_that_fills_the_device_to_the_last_byte_is_legal_in_numbers_arrays_and_tensors() -> None:
    used, expected = [0, 59, 60, 61, 100], [True, True, True, False, False]
    assert [legal_mask(one, 40, 100) for one in used] == expected
    assert legal_mask(np.array(used), 40, 100).tolist() == expected
    assert legal_mask(torch.tensor(used), 40, 100).tolist() == expected
    by_episode = legal_mask(torch.tensor([used, used]), torch.tensor([[40], [39]]), torch.tensor([[100], [100]]))
    assert by_episode.tolist() == [expected, [True, True, True, True, False]]


def test_a_placement_is_refused_from_the_first_byte_too_many() -> None:
    two_devices = task(sized(3, 2, 2), cap=4 * 4)
    check_placement(two_devices, Placement((0, 1, 1), 2))
    with pytest.raises(InfeasibleTask, match="task: device 1 needs 20 bytes, but has 16 bytes"):
        check_placement(two_devices, Placement((1, 0, 1), 2))
    with pytest.raises(InfeasibleTask):
        check_placement(capped(two_devices, 4 * 4 - 1), Placement((0, 1, 1), 2))


@pytest.mark.parametrize("ill_formed", [Placement((0, 1), 2), Placement((0, 1, 2), 2), Placement((0, -1, 1), 2)])
def test_an_ill_formed_placement_is_no_infeasible_task(ill_formed: Placement) -> None:
    with pytest.raises(BadConfig):
        check_placement(task(sized(1, 1, 1)), ill_formed)
