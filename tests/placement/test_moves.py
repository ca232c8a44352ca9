"""Bytes that move between two placements, which devices may trade names, and which do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evenshard.placement.moves import EarlierPlacement, device_kinds, match_devices, shape_changes
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.placement.parts import FUSED_UVM, Storage, TablePart, cut_rows, whole_part
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table
from support.builders import column_parts, sized, task
from support.constraint_builders import limited, only

A, B = Table("a", 1000, 8, 1.0), Table("b", 10, 8, 1.0)
TWO, TWO_NODES = Nodes.one_node(2), Nodes(4, 2, inter="ib_400g")
HALF_BYTES = 500 * 4 * 4


def by_table(*parts: TablePart) -> dict[str, tuple[TablePart, ...]]:
    return {part.table: tuple(one for one in parts if one.table == part.table) for part in parts}


def test_halves_by_columns_become_halves_by_rows() -> None:
    """Half of each half stays; Adam keeps two numbers for each weight."""
    columns = [replace(part, devices=(at,)) for at, part in enumerate(column_parts(A, (4,)))]
    was = EarlierPlacement(by_table(*columns), TWO, {"a": "adam"})
    found = list(was.list_overlaps([A, B], by_table(*cut_rows(A, range(2))), TWO))
    assert [(one.columns, one.rows, one.moved_bytes, one.num_kept) for one in found] == [
        ((0, 4), (0, 500), 0, 1),
        ((0, 4), (500, 1000), 3 * HALF_BYTES, 0),
        ((4, 8), (0, 500), 3 * HALF_BYTES, 0),
        ((4, 8), (500, 1000), 0, 1),
    ]
    assert (found[0].weight_bytes, found[0].state_bytes) == (HALF_BYTES, 2 * HALF_BYTES)


def test_copies_are_moved_to_devices_without_one() -> None:
    for before, after, moved, kept in (((0,), (0, 1, 2, 3), 3, 1), ((0, 1, 2, 3), (2,), 0, 1), ((0,), (3,), 1, 0)):
        was = EarlierPlacement(by_table(whole_part(A, before)), TWO_NODES)
        (found,) = was.list_overlaps([A], by_table(whole_part(A, after)), TWO_NODES)
        assert (found.moved_bytes, found.num_kept) == (moved * A.size_bytes, kept)


def test_what_a_host_keeps_all_of_its_devices_have() -> None:
    inside, outside = whole_part(A, (0,)), replace(whole_part(A, (0,)), storage=Storage(FUSED_UVM))
    for was, now, device, moved, kept in (
        (outside, outside, 1, 0, 1),
        (outside, outside, 2, A.size_bytes, 0),
        (outside, inside, 1, 0, 0),
    ):
        before = EarlierPlacement(by_table(was), TWO_NODES)
        (found,) = before.list_overlaps([A], by_table(replace(now, devices=(device,))), TWO_NODES)
        assert (found.moved_bytes, found.num_kept) == (moved, kept)


def old_of_new(
    before: Sequence[TablePart], after: Sequence[TablePart], kinds: tuple[int, ...] = (0,), machine: Nodes = TWO_NODES
) -> list[int]:
    found = EarlierPlacement(by_table(*before), machine).list_overlaps([A, B], by_table(*after), machine)
    return match_devices(found, kinds * (machine.num_devices // len(kinds)), machine).tolist()


def test_names_of_devices_are_traded_within_a_kind_and_with_their_neighbours() -> None:
    apart = [whole_part(A, (3,)), whole_part(B, (0,))]
    assert old_of_new(apart, [whole_part(A, (0,)), whole_part(B, (2,))]) == [3, 2, 0, 1]
    assert old_of_new(apart, [whole_part(A, (0,)), whole_part(B, (2,))], (0, 0, 1, 1)) == [0, 1, 2, 3]
    together = [whole_part(A, (0,)), whole_part(B, (1,))]
    assert old_of_new(apart, together) == [3, 2, 0, 1]  # the larger one
    pods = Nodes(8, 2, nodes_per_domain=2, inter="ib_400g")
    assert old_of_new([whole_part(A, (2,)), whole_part(B, (0,))], together, (0,), pods) == [2, 3, 0, 1, 4, 5, 6, 7]


def test_devices_are_of_one_kind_where_hardware_room_hosts_and_allowed_tables_are_the_same() -> None:
    of_task = task(sized(1, 1), devices=4)
    assert device_kinds(limited(of_task, room_bytes=(8, 9, 8, 8))) == [0, 1, 0, 0]
    assert device_kinds(limited(of_task, allowed=(None, only(0, 3)))) == [0, 1, 1, 0]
    machines = [replace(TWO_NODES, host_bytes=sizes) for sizes in ((8, 8), (8, 4))]
    groups = DeviceGroup("simulated:h100", 2), DeviceGroup("simulated:h200", 2)
    machines.append(replace(TWO_NODES, groups=groups))
    kinds = [device_kinds(ShardingTask((A,), machine, (1 << 30,) * 4, 1024)) for machine in machines]
    assert kinds == [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_weights_are_reused_only_where_the_shape_is_the_same() -> None:
    assert shape_changes(A, replace(A, pooling_factor=9.0)) == ""
    assert shape_changes(A, replace(A, num_rows=10, weight_bits=16)) == "num_rows 1000 -> 10, weight_bits 32 -> 16"
