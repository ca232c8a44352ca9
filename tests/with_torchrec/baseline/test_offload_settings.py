"""TorchRec's planner where tables do not fit: what it is given, what it answers, and what that takes as we count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import ON_DEVICE, USUAL_KERNELS, Storage
from evenshard.placement.placement import check_sharding
from evenshard.placement.task import ShardingTask, TableLimits, memory_of_part, used_bytes
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import OFFLOAD_SETTINGS, Bandwidths, PlannerSetting
from support.builders import table

MB, BATCH_SIZE = 2**20, 4096
GB_S = Bandwidths(2000, 450, 50)
# 24.4 MB each.
TABLES = tuple(table(f"t{number}", rows=100_000, dim=64, pooling=1.0 + number) for number in range(4))
CACHED = PlannerSetting(load_factor=0.1)


def asked(room: int = 30 * MB, host: int = 1000 * MB, **more: Any) -> ShardingTask:
    """Two devices whose host has memory."""
    known = {"tables": TABLES, "room_bytes": (room,) * 2, "batch_size": BATCH_SIZE, "kernels": USUAL_KERNELS}
    return ShardingTask(machine=Nodes(2, 2, host_bytes=(host,)), **{**known, **more})


def planner(task: ShardingTask) -> TorchRecPlanner:
    return TorchRecPlanner(task, GB_S)


def storages(task: ShardingTask, setting: PlannerSetting) -> dict[str, Storage]:
    return {part.table: part.storage for part in planner(task).plan(setting).parts}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_plans_fit_as_we_count(optimizer: str) -> None:
    task = asked(60 * MB, optimizer=optimizer, pipeline="sparse_dist")
    parts = planner(task).plan(CACHED).parts
    check_sharding(task, parts)
    assert any(part.storage.is_cached for part in parts) or optimizer != "adam"


def test_what_fits_into_device_memory_may_live_there() -> None:
    found = storages(asked(200 * MB), CACHED)
    assert set(found.values()) == {ON_DEVICE}


def test_caches_begin_with_the_load_factor_and_are_scaled_up() -> None:
    """In proportion to the lookups that a table's curve leaves to a cache; whole ones move to device memory."""
    found = storages(asked(), CACHED)
    caches = [one.load_factor for one in found.values() if one.is_cached]
    assert caches and min(caches) >= 0.1 - 1e-6 and max(caches) > 0.1
    small = [one.load_factor for one in storages(asked(8 * MB), CACHED).values()]
    assert all(0.1 - 1e-6 <= one < 0.3 for one in small)


def test_a_table_that_every_cache_serves_gets_none_of_the_budget() -> None:
    """Its curve has next to no area under it."""
    served = replace(TABLES[0], miss_ratios=(0.0,) * 15)
    found = storages(asked(tables=(served, *TABLES[1:])), CACHED)
    assert found["t0"].load_factor == pytest.approx(0.1, rel=0.01) and found["t3"].load_factor > 0.11


def test_kernels_are_those_of_the_task() -> None:
    """A table that must stay in device memory stays there; without host memory all of them must."""
    limits = (TableLimits(kernels=frozenset({"fused"})), *(TableLimits() for _ in TABLES[1:]))
    assert storages(asked(limits=limits), CACHED)["t0"] == ON_DEVICE
    uncached = storages(asked(kernels=("fused", "fused_uvm")), CACHED)
    assert {one.kernel for one in uncached.values()} == {"fused", "fused_uvm"}
    bare = asked()
    with pytest.raises(InfeasibleTask):
        storages(replace(bare, machine=Nodes(2, 2)), CACHED)


def test_host_memory_has_room_for_so_much() -> None:
    with pytest.raises(InfeasibleTask):
        storages(asked(8 * MB, host=20 * MB), CACHED)


def test_what_shards_take_is_what_our_parts_take() -> None:
    """Of the plan that it rates: the sum over a device's parts is below its room, and near it."""
    task = asked(30 * MB, pipeline="prefetch", optimizer="rowwise_adagrad")
    parts = planner(task).plan(CACHED).parts
    by_name: dict[str, Table] = {one.name: one for one in TABLES}
    sums = [0, 0]
    for part in parts:
        for device in part.devices:
            sums[device] += memory_of_part(task, by_name[part.table], part).device_bytes
    assert sums == used_bytes(task, parts)
    assert all(0.5 * 30 * MB < one <= 30 * MB for one in sums)


def test_plans_are_the_same_each_time() -> None:
    assert planner(asked()).plan(CACHED) == planner(asked()).plan(CACHED)


@pytest.mark.slow
def test_one_planner_is_asked_with_caches_and_without() -> None:
    """In either order: what it was asked before leaves no trace."""
    task = asked(200 * MB)
    plain, one = PlannerSetting(), planner(task)
    assert [one.plan(setting) for setting in (plain, CACHED, plain)] == [
        planner(task).plan(setting) for setting in (plain, CACHED, plain)
    ]


def test_settings_with_caches_are_told_apart() -> None:
    names = [str(one) for one in OFFLOAD_SETTINGS]
    assert len(set(names)) == 4 and names[0] == "load factor 0.02, default min_partition, by storage"
