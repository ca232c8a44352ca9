"""Tables wider than FBGEMM trains in one call on a GPU: cut by columns, or refused."""

from __future__ import annotations

from typing import Any

import pytest

import evenshard
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import MAX_GPU_COLUMNS, whole_part
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import COLUMN_WISE, GRID_SHARD, ROW_WISE, TABLE_WISE
from evenshard.planner.request import PlacementRequest
from evenshard.search.legal_parts import legal_parts
from evenshard.tables.table import Table

WIDE, NARROW = Table("wide", 1000, 4096, 2.0), Table("narrow", 1000, 64, 2.0)
LINK = "infiniband_ndr"
LIMIT = r"its 4,096 columns are more than the 2,048 that FBGEMM trains in one call on a GPU"


def request(*tables: Table, devices: int = 4, room: int = 2**34, **more: Any) -> PlacementRequest:
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
    task = request(table, NARROW, **asked).task()
    assert not task.types[0] and task.types[1]
    with pytest.raises(InfeasibleTask, match=r"more than the 2,048 .* Shard it column_wise over \d+ devices"):
        legal_parts(task)


def test_parts_that_are_given_are_checked_but_cpus_train_tables_of_any_width() -> None:
    task = request().task()
    wholes = [whole_part(table, (0,)) for table in task.tables]
    with pytest.raises(InfeasibleTask, match=f"table 'wide' cannot be trained: {LIMIT}"):
        check_sharding(task, wholes)
    of_cpu = request(hardware="cpu").task()
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
