"""Placement: its shards, and the one rule of what is legal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.placement import Placement, check_placement, legal_mask
from evenshard.search.infeasibility import no_device_error, require_feasible
from support.builders import capped, sized, table, task


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


def test_room_is_required_for_each_table_and_for_all_together_and_the_message_has_the_numbers() -> None:
    tables = [table("ads", 1000), table("users", 4 * BYTES_PER_GB // 16, 4)]
    needs_4_gb = task(tables, devices=8, cap=3 * BYTES_PER_GB, task_id="test-007")
    with pytest.raises(InfeasibleTask, match=r"test-007: table users needs 4\.00 GB.*cap 3\.00 GB.*memory_cap_gb"):
        require_feasible(needs_4_gb)
    require_feasible(capped(needs_4_gb, 4 * BYTES_PER_GB))
    tables = [replace(table(), name=f"t{number}", num_rows=BYTES_PER_GB // 16) for number in range(5)]
    needs_5_gb = task(tables, devices=2, cap=2 * BYTES_PER_GB)
    with pytest.raises(InfeasibleTask, match=r"tables need 5\.00 GB, the 2 devices have 4\.00 GB.*num_devices"):
        require_feasible(needs_5_gb)
    require_feasible(task(tables, devices=3, cap=2 * BYTES_PER_GB))


def test_no_room_names_the_table_and_the_freest_device() -> None:
    tables = [table("ads"), table("users", 2 * BYTES_PER_GB // 16)]
    error = no_device_error(task(tables, cap=5 * BYTES_PER_GB), [1], [4 * BYTES_PER_GB, 7 * BYTES_PER_GB // 2])
    assert "table users needs 2.00 GB, but no device has more than 1.50 GB left (cap 5.00 GB each)" in str(error)


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
