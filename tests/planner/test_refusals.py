"""No request is refused that has an answer: hard ones by hand, and tables too wide for one kernel call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, MAX_GPU_COLUMNS, whole_part
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, ROW_WISE, TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.search.legal_parts import legal_parts
from evenshard.search.search import PlanSearchEffort
from evenshard.tables.table import Table
from support.effort import LITTLE
from support.request_builders import request, untrained

LINK = "infiniband_ndr"


def answer(asked: PlacementRequest, effort: PlanSearchEffort = LITTLE) -> PlacementAnswer:
    return place_request(asked, untrained(), PlaceConfig(effort))


def test_hosts_are_packed_too() -> None:
    """Devices hold none of the tables, and each host one: all of them would go to the first by devices alone."""
    rules = Rules(table_kernels={name: ("fused_uvm",) for name in "abc"})
    machine = Nodes(3, 1, inter=LINK, host_bytes=(330, 320, 330))
    asked = request(8, 8, 8, rows=10, caps=(0,) * 3, machine=machine, sharding_types=(TABLE_WISE,), rules=rules)
    for parts in (answer(asked).parts, legal_parts(asked.task())):
        assert sorted(part.device for part in parts) == [0, 1, 2]


def test_a_solver_chooses_what_leaves_device_memory() -> None:
    """Of 320 + 320 + 640 bytes the largest has to leave, though it is looked up most for its size."""
    tables = (Table("a", 10, 8, 1.0), Table("b", 10, 8, 1.0), Table("c", 20, 8, 20.0))
    machine = Nodes(2, 1, inter=LINK, host_bytes=(640, 0))
    asked = request(tables=tables, caps=(320, 320), machine=machine, sharding_types=(TABLE_WISE,))
    storages = {part.table: part.storage.kernel for part in answer(asked).parts}
    assert storages["a"] == storages["b"] == FUSED != storages["c"]


def test_replicas_count_where_a_whole_table_has_too_many_outputs() -> None:
    """Two rows are next to nothing, outputs of all samples are not: each device has room for those of its own."""
    table = Table("tiny", 2, 128, 1.0)
    asked = request(tables=(table,), caps=(0,) * 4, batch_size=4096, training_pipeline="sparse_dist")
    room = asked.sample_memory.total + 2**20
    rules = Rules(min_columns={"tiny": 8})  # what rules leave is looked at before anything is searched
    asked = replace(asked, caps_bytes=(room,) * 4, sharding_types=(TABLE_WISE, DATA_PARALLEL), rules=rules)
    check_sharding(asked.task(), legal_parts(asked.task()))
    assert answer(asked).type_of_table == {"tiny": DATA_PARALLEL}
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        answer(replace(asked, sharding_types=(TABLE_WISE,)))


def test_rows_are_where_their_counted_lookups_have_room() -> None:
    """Even rows fit each device only with the inputs of their own lookups; the first rows have most of them."""
    shares = (0.7, 0.1, 0.1, 0.1)
    table = Table("t", 400, 4, 20.0, row_shares=shares)
    asked = request(tables=(table,), caps=(0,) * 4, batch_size=1000, training_pipeline="sparse_dist")
    inputs = [2 * (1000 * 20 * share * 8 + 1000 * 12) for share in shares]
    room = [asked.sample_memory.total + 100 * 16 + 1000 * 16 + int(one) for one in inputs]
    asked = replace(asked, caps_bytes=tuple(room), sharding_types=(ROW_WISE,))
    assert [part.rows.size for part in answer(asked).parts] == [100] * 4


def test_rules_that_leave_nothing_are_named() -> None:
    machine = replace(Nodes.one_node(2), host_bytes=(10**6,))
    for rules, problem in (
        (
            Rules(together=(("a", "b"),), table_kernels={"a": (FUSED,), "b": ("fused_uvm",)}),
            "tables 'a, b' must stay together, but no kernel is allowed for all of them",
        ),
        (
            Rules(table_types={"a": (DATA_PARALLEL,)}, table_kernels={"a": ("fused_uvm",)}),
            "'a' allows only data_parallel sharding, but replicas need device memory",
        ),
        (
            Rules(pinned={"a": (0,)}, table_types={"a": (ROW_WISE,)}),
            "'a' allows only row_wise sharding, but a rule allows only the devices",
        ),
    ):
        with pytest.raises(InfeasibleTask, match=problem):
            answer(request(8, 8, machine=machine, rules=rules))
    both = Rules(together=(("a", "b"),), apart=(("a", "b"),))
    with pytest.raises(InfeasibleTask, match=r"tables a, b must stay both together and apart\. Drop one of the two"):
        answer(request(8, 8, rules=both))


# Tables that are too wide for one call --------------------------------------------------------------------------------

WIDE, NARROW = Table("wide", 1000, 4096, 2.0), Table("narrow", 1000, 64, 2.0)
LIMIT = r"its 4,096 columns are more than the 2,048 that FBGEMM trains in one call on a GPU"


def asked_for(*tables: Table, devices: int = 4, room: int = 2**34, **more: Any) -> PlacementRequest:
    return PlacementRequest(tables or (WIDE, NARROW), (room,) * devices, 512, **more)


def widths(parts: Any, name: str = "wide") -> list[int]:
    return sorted({part.columns.size for part in parts if part.table == name})


def test_wide_tables_are_cut_by_columns() -> None:
    nodes = {"devices_per_node": 2, "inter": "infiniband_ndr"}
    found = evenshard.place([WIDE, NARROW], num_devices=4, hardware="h100", effort="quick", **nodes)
    assert max(widths(found.parts)) <= MAX_GPU_COLUMNS


@pytest.mark.parametrize(
    ("table", "asked"),
    [
        (WIDE, {"devices": 1}),
        (Table("wide", 1000, 18_000, 2.0), {"devices": 8}),
        (Table("wide", 1000, 4096, 2.0, pooling="none"), {}),
        (WIDE, {"sharding_types": (TABLE_WISE, ROW_WISE)}),
        (Table("wide", 1000, 8192, 2.0), {"sharding_types": (GRID_SHARD,), "machine": Nodes(4, 2, inter=LINK)}),
    ],
)
def test_tables_that_no_sharding_type_makes_narrow_enough_are_refused(table: Table, asked: dict[str, Any]) -> None:
    task = asked_for(table, NARROW, **asked).task()
    assert not task.types[0] and task.types[1]
    with pytest.raises(InfeasibleTask, match=r"more than the 2,048 .* Shard it column_wise over \d+ devices"):
        legal_parts(task)


def test_parts_that_are_given_are_checked_but_cpus_train_tables_of_any_width() -> None:
    task = asked_for().task()
    wholes = [whole_part(table, (0,)) for table in task.tables]
    with pytest.raises(InfeasibleTask, match=f"table 'wide' cannot be trained: {LIMIT}"):
        check_sharding(task, wholes)
    of_cpu = asked_for(hardware="cpu").task()
    check_sharding(of_cpu, wholes)
    assert of_cpu.types[0] == of_cpu.types[1] and TABLE_WISE not in task.types[0]


def test_packing_in_scarce_memory_keeps_parts_narrow() -> None:
    """Uneven memory: the first device alone has memory for more than 2,048 columns."""
    types, machine = (COLUMN_WISE,), Nodes(4, 1, inter=LINK)
    caps = (WIDE.size_bytes, *(WIDE.size_bytes // 2,) * (machine.num_devices - 1))
    asked = PlacementRequest((WIDE,), caps, 512, sharding_types=types, machine=machine)
    parts = legal_parts(asked.task())
    check_sharding(asked.task(), parts)
    assert max(widths(parts)) <= MAX_GPU_COLUMNS
