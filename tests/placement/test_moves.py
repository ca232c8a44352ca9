"""Which devices may trade names."""

from __future__ import annotations

from evenshard.placement.moves import device_kinds
from evenshard.placement.nodes import Nodes
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table


def test_devices_of_hosts_with_other_memory_are_of_another_kind() -> None:
    tables = (Table("a", 1000, 64, 1.0),)
    alike = Nodes(4, 2, inter="ib_400g", host_bytes=(8, 8))
    other = Nodes(4, 2, inter="ib_400g", host_bytes=(8, 4))
    assert device_kinds(ShardingTask(tables, alike, (1 << 30,) * 4, 1024)) == [0, 0, 0, 0]
    assert device_kinds(ShardingTask(tables, other, (1 << 30,) * 4, 1024)) == [0, 0, 1, 1]
