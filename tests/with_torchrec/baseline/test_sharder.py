"""TorchRec's planner as a baseline: what it is given, what it answers, and its rating of any placement."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, HBM_MEM_BW, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.types import CacheParams

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import ON_DEVICE, USUAL_KERNELS, Span, Storage, TablePart
from evenshard.placement.placement import check_placement, check_sharding, parts_by_table
from evenshard.placement.sharding import GRID_SHARD, sharding_type
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import LINKS
from evenshard.tables.locality import distinct_rows, miss_ratio
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import LOAD_FACTORS, Table
from evenshard.torchrec.baseline.sharder import TableStatistics, TorchRecPlanner, TorchRecSharder
from evenshard.torchrec.baseline.topology import (
    Bandwidths,
    PlannerSetting,
    bandwidths_of,
    machine_bandwidths,
    merge_parts,
)
from support.builders import sized, some_tables, split_by, table, task
from support.constraint_builders import is_legal, limited, only
from support.traffic_builders import bins

GB_S = Bandwidths(4800, 450, 50)


def machine(devices: int) -> Nodes:
    return Nodes(devices, min(devices, 8), inter="infiniband_ndr" if devices > 8 else "")


def sharding(tables: tuple[Table, ...], devices: int, room: int = 2**40, batch_size: int = 65_536) -> ShardingTask:
    return ShardingTask(tables, machine(devices), (room,) * devices, batch_size)


def rating_ms(task: ShardingTask, parts: Sequence[TablePart]) -> float:
    return TorchRecPlanner(task, GB_S).rating_ms(parts)


def ways(task: ShardingTask, parts: tuple[TablePart, ...]) -> Counter[str]:
    by_table = parts_by_table(task, parts)
    return Counter(sharding_type(by_table[one.name], one, task.machine) for one in task.tables)


@pytest.fixture(scope="module")
def mlperf() -> tuple[Table, ...]:
    return tuple(load_catalog("mlperf_dlrm_v2", 65_536))


# TorchRec's own ratings of MLPerf DLRM v2 on devices of 64 GB with 15 % reserved, 450 GB/s inside a node, 50 between:
# its planner, called directly with its own count of memory, says the same.


@pytest.mark.parametrize(
    ("devices", "min_partition", "rating_ms"),
    [(8, None, 1.335), (16, 16, 1.949)],
)
def test_ratings_of_mlperf_are_torchrecs_own(
    mlperf: tuple[Table, ...], devices: int, min_partition: int | None, rating_ms: float
) -> None:
    task = sharding(mlperf, devices, room=64 * 2**30 * 85 // 100)
    planner = TorchRecPlanner(task, GB_S)
    plan = planner.plan(PlannerSetting(min_partition))
    assert plan.rating_ms == pytest.approx(rating_ms, abs=5e-4)
    assert planner.rating_ms(plan.parts) == pytest.approx(plan.rating_ms)
    check_sharding(task, plan.parts)
    if (devices, min_partition) == (16, 16):
        assert ways(task, plan.parts) == {"column_wise": 6, "table_row_wise": 2, "data_parallel": 18}


# What it may use -----------------------------------------------------------------------------------------------------


def test_a_grid_is_used_only_where_it_is_allowed() -> None:
    task = sharding((table(rows=200_000, dim=128, pooling=100.0),), 16)
    plain, grid = (
        TorchRecPlanner(task, GB_S).plan(PlannerSetting(64, grid_shard=allowed)) for allowed in (False, True)
    )
    assert GRID_SHARD not in ways(task, plain.parts) and ways(task, grid.parts)[GRID_SHARD] == 1
    assert grid.rating_ms < plain.rating_ms
    check_sharding(task, grid.parts)


def test_rooms_are_kept_to_the_last_byte_of_weights_and_state() -> None:
    tables = tuple(table(f"t{number}", rows=6, dim=4) for number in range(3))
    task = replace(sharding(tables, 3, batch_size=6), room_bytes=(3 * 96,) * 3, optimizer="adam")
    check_sharding(task, TorchRecPlanner(task, GB_S).plan(PlannerSetting()).parts)
    with pytest.raises(InfeasibleTask, match=r"TorchRec's planner found no plan \(default min_partition, by storage\)"):
        TorchRecPlanner(replace(task, room_bytes=(287,) * 3), GB_S).plan(PlannerSetting())


def test_plans_without_a_plan_are_left_out() -> None:
    tables = (table("wide", rows=6, dim=8),)
    limits = (TableLimits(types=frozenset({"column_wise"})),)
    task = replace(sharding(tables, 2, batch_size=6), room_bytes=(96, 96), limits=limits)
    found = list(TorchRecPlanner(task, GB_S).plans([PlannerSetting(8), PlannerSetting(4)]))
    assert [one.setting.min_partition for one in found] == [4]
    assert sorted(part.columns for part in found[0].parts) == [(0, 4), (4, 8)]


def test_sequences_modules_shared_and_weighted_tables_are_taken() -> None:
    tables = (
        replace(table("history", rows=1000, dim=16), pooling="none", module="sequences"),
        replace(table("shared", rows=1000, dim=16, pooling=7.0), feature_pooling_factors=(3.0, 4.0), module="bags"),
        replace(table("weighted", rows=1000, dim=16), is_weighted=True, module="bags"),
        replace(table("mean", rows=1000, dim=16, bits=16), pooling="mean", module="more.bags"),
    )
    task = sharding(tables, 4, batch_size=256)
    planner = TorchRecPlanner(task, GB_S)
    plan = planner.plan(PlannerSetting())
    check_sharding(task, plan.parts)
    whole = tuple(TablePart(one.name, Span(0, 1000), Span(0, 16), (0,)) for one in tables)

    def rated(*of_tables: Table) -> float:
        return rating_ms(replace(task, tables=of_tables), whole)

    history, shared, weighted, mean = tables
    usual = rated(*tables)
    assert rated(replace(history, pooling="sum", module="bags"), shared, weighted, mean) != usual
    assert rated(history, replace(shared, feature_pooling_factors=()), weighted, mean) < usual
    assert rated(history, shared, replace(weighted, is_weighted=False), mean) < usual


# Ratings -------------------------------------------------------------------------------------------------------------


def test_a_rating_is_the_slowest_devices_sum() -> None:
    tables = (table("a", rows=1000, dim=128, pooling=5.0), table("b", rows=1000, dim=128, pooling=3.0))
    task = sharding(tables, 2, batch_size=1024)

    def rating(*homes: int) -> float:
        parts = [
            TablePart(one.name, Span(0, 1000), Span(0, 128), (home,)) for one, home in zip(tables, homes, strict=True)
        ]
        return rating_ms(task, parts)

    alone = [rating_ms(replace(task, tables=(one,)), [whole(one, 0)]) for one in tables]
    assert rating(0, 0) == pytest.approx(sum(alone))
    assert rating(0, 1) == pytest.approx(max(alone)) == pytest.approx(alone[0])


def whole(one: Table, *devices: int) -> TablePart:
    return TablePart(one.name, Span(0, one.num_rows), Span(0, one.embedding_dim), devices)


# Parts ---------------------------------------------------------------------------------------------------------------


def test_parts_on_one_device_become_one_wider_part() -> None:
    rows, upper, lower = Span(0, 8), Span(0, 4), Span(4, 8)
    of_columns = [TablePart("t", rows, Span(4 * n, 4 * n + 4), (device,)) for n, device in enumerate((0, 1, 0))]
    assert merge_parts(of_columns) == (TablePart("t", rows, Span(0, 8), (0,)), TablePart("t", rows, Span(8, 12), (1,)))
    grid = [
        TablePart("t", half, Span(start, start + 4), (device,))
        for start in (0, 4)
        for half, device in ((upper, 0), (lower, 1))
    ]
    assert merge_parts(grid) == (TablePart("t", upper, Span(0, 8), (0,)), TablePart("t", lower, Span(0, 8), (1,)))


MB, BATCH_SIZE = 2**20, 4096
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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_plans_fit_as_we_count(optimizer: str) -> None:
    task = asked(60 * MB, optimizer=optimizer, pipeline="sparse_dist")
    parts = planner(task).plan(CACHED).parts
    check_sharding(task, parts)
    assert any(part.storage.is_cached for part in parts) or optimizer != "adam"


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
    assert planner(asked()).topology_of(CACHED).devices[1].storage.ddr == 500 * MB, "its share of the host's memory"
    uncached = storages(asked(kernels=("fused", "fused_uvm")), CACHED)
    assert {one.kernel for one in uncached.values()} == {"fused", "fused_uvm"}
    bare = asked()
    with pytest.raises(InfeasibleTask):
        storages(replace(bare, machine=Nodes(2, 2)), CACHED)


def test_one_planner_is_asked_with_caches_and_without() -> None:
    """In either order: what it was asked before leaves no trace."""
    task = asked(200 * MB)
    plain, one = PlannerSetting(), planner(task)
    assert [one.plan(setting) for setting in (plain, CACHED, plain)] == [
        planner(task).plan(setting) for setting in (plain, CACHED, plain)
    ]


SHARDER = TorchRecSharder()


# Memory --------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), devices=st.integers(1, 4), cap=st.integers(1, 24))
def test_a_placement_fits_the_memory_or_is_refused(sizes: list[int], devices: int, cap: int) -> None:
    of_task = task(sized(*sizes), devices=devices, cap=4 * cap)
    try:
        placement = SHARDER.place(of_task)
    except InfeasibleTask:
        assert sum(sizes) > cap * devices - max(sizes) * (devices - 1) or max(sizes) > cap  # never with room to spare
    else:
        check_placement(of_task, placement)


def test_the_last_byte_of_memory_is_used_whatever_torchrec_counts_besides_the_weights() -> None:
    for bits in (8, 32):
        tables = [table(f"t{number}", rows=6, dim=4, bits=bits) for number in range(3)]
        placement = SHARDER.place(task(tables, devices=3, cap=6 * 4 * bits // 8, batch_size=65536))
        assert sorted(placement.device_of_table) == [0, 1, 2]


def test_what_cannot_be_placed_is_infeasible_with_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    tables = [table(f"s{number}", rows=3 * BYTES_PER_GB // 16) for number in range(3)]
    with pytest.raises(InfeasibleTask, match=r"TorchRec's planner found no plan: .* 9\.00 GB .* 10\.00 GB .*Raise"):
        SHARDER.place(task(tables, cap=5 * BYTES_PER_GB))
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        SHARDER.place(task(tables, cap=BYTES_PER_GB))
    assert capfd.readouterr().out == ""  # no report of the planner; stderr is the loggers', which other tests turn up


# What TorchRec is given ---------------------------------------------------------------------------------------------


def test_bandwidths_decide_between_a_wide_and_a_busy_table() -> None:
    """Over a slow link the wide table is the costly one and stands alone; with slow memory a busy one does."""
    wide = table("wide", rows=1000, dim=128, pooling=1.0)
    busy = [table(f"busy{number}", rows=200 - number, dim=4, pooling=20.0) for number in range(2)]
    of_task = task([wide, *busy], batch_size=4096)
    assert split_by(TorchRecSharder(lambda _: Bandwidths(1000.0, 1.0, 1.0)).place(of_task)) == {(0,), (1, 2)}
    assert split_by(TorchRecSharder(lambda _: Bandwidths(1.0, 1000.0, 1000.0)).place(of_task)) == {(0, 2), (1,)}


def test_the_planner_gets_bytes_per_millisecond_and_the_batch_of_one_device() -> None:
    of_task = task(some_tables(3), devices=4, batch_size=1000)
    planner = TorchRecSharder(lambda _: Bandwidths(3888.0, 450.0, 300.0)).planner(of_task)
    topology = planner.topology_of(PlannerSetting())
    assert topology.hbm_mem_bw == pytest.approx(3888e6)
    assert (topology.intra_host_bw, topology.inter_host_bw) == (450e6, 300e6)
    assert planner.batch_per_device == 250
    assert SHARDER.planner(replace(of_task, batch_size=1001)).batch_per_device == 251


def test_what_is_not_told_is_torchrecs_own() -> None:
    told = TorchRecSharder(lambda _: Bandwidths(1.0, 2.0, 3.0)).planner(task(some_tables(3)))
    own = SHARDER.planner(task(some_tables(3))).topology_of(PlannerSetting())
    assert told.topology_of(PlannerSetting(told=False)).hbm_mem_bw == own.hbm_mem_bw == HBM_MEM_BW
    assert (own.intra_host_bw, own.inter_host_bw) == (INTRA_NODE_BANDWIDTH, CROSS_NODE_BANDWIDTH)


def test_the_largest_or_the_slowest_goes_first() -> None:
    """Works of 1, 1 and 2, the last the smallest: by storage 1 2 | 1, by time 2 | 1 1; in any order of tables."""
    tables = [table("a", 9999, 16, 10.0), table("b", 8888, 16, 10.0), table("slow", 5000, 16, 20.0)]
    by_time = TorchRecSharder(sort_by="perf")
    assert split_by(SHARDER.place(task(tables))) == split_by(SHARDER.place(task(tables))) == {(0, 2), (1,)}
    assert split_by(by_time.place(task(tables))) == {(0, 1), (2,)}
    assert split_by(by_time.place(task(tables[::-1]))) == {(0,), (1, 2)}
    assert [SHARDER.name, by_time.name] == ["torchrec_planner", "torchrec_planner_perf"]


def test_bandwidths_of_hardware() -> None:
    """A link counts with what its long exchanges reach: the straight line through all sizes is an eighth below."""
    machine = Nodes.one_node(8)
    h200 = bandwidths_of("simulated:h200", "auto", machine)
    reached = gpu_profile("h200").hbm_efficiency
    assert 0.5 < reached < 1
    link = LINKS["nvlink_h200"]
    long = link.even_gb_s(8)
    assert h200 == Bandwidths(pytest.approx(4800 * reached), long, long) and long > 1.1 * link.bandwidth_gb_s
    assert h200 == machine_bandwidths("simulated:h200", machine, Links(link))
    links = Links(link, LINKS["infiniband_ndr"])
    two_nodes = machine_bandwidths("simulated:h200", Nodes(16, 8, inter="infiniband_ndr"), links)
    assert two_nodes == replace(h200, inter_node_gb_s=pytest.approx(links.widest.even_gb_s(16)))
    slow = bandwidths_of("simulated:a100_80gb", "ethernet_25g", machine)
    assert (slow.intra_node_gb_s, slow.inter_node_gb_s) == (3.125, 3.125)
    assert bandwidths_of("cpu", "ethernet_25g", machine) == Bandwidths()
    with pytest.raises(BadConfig):
        bandwidths_of("simulated:none_such", "auto", machine)


# Its plan ------------------------------------------------------------------------------------------------------------


def test_each_devices_cap_and_optimizer_state_are_kept_and_no_other_constraint_is_known() -> None:
    tables = tuple(table(f"t{n}", 6, 4) for n in range(4))
    tight = limited(task(tables, 2), room_bytes=(2 * 96, 3 * (96 + 24)), optimizer="rowwise_adagrad")
    assert sorted(SHARDER.place(tight).device_of_table) == [0, 1, 1, 1]
    pinned = limited(task(tables, 2), allowed=(only(0),) * 4)
    assert not is_legal(pinned, SHARDER.place(pinned))


# What it asks a table about its misses ------------------------------------------------------------------------------

LINEAR = Table("t", 1000, 16, 2.0, bins(1), miss_ratios=tuple(round(1 - share, 6) for share in LOAD_FACTORS))


def test_it_says_what_the_curve_says() -> None:
    found = TableStatistics(LINEAR, 64)
    assert found.expected_lookups == distinct_rows(LINEAR, 64) == 128
    assert found.expected_miss_rate(0.0) == 1 and found.expected_miss_rate(1.0) == 0
    assert found.expected_miss_rate(0.35) == pytest.approx(0.65) == miss_ratio(LINEAR, 64, 0.35)
    assert found.cacheability == pytest.approx(0.5)
    hot = TableStatistics(replace(LINEAR, miss_ratios=(0.0,) * 15), 64)
    cold = TableStatistics(replace(LINEAR, miss_ratios=(1.0,) * 14 + (0.0,)), 64)
    assert hot.cacheability < 0.001 and cold.cacheability > 0.89


def test_it_says_what_torchrec_makes_of_the_same_curve() -> None:
    """Lookups at even stack distances: a straight curve."""
    theirs = EmbeddingOffloadStats(0.5, 128, torch.ones(1000), 1000)
    ours = TableStatistics(LINEAR, 64)
    for load_factor in (0.0, 0.01, 0.2, 0.5, 0.9, 1.0):
        assert ours.expected_miss_rate(load_factor) == pytest.approx(theirs.expected_miss_rate(load_factor), abs=0.002)


def test_plans_with_it_are_copied_and_travel() -> None:
    params = CacheParams(load_factor=0.1, stats=TableStatistics(LINEAR, 64))
    for one in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert one == params and one.stats.expected_miss_rate(0.1) == pytest.approx(0.9)
