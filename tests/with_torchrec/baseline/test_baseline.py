"""TorchRec's planner in its full space: what it is given, what it answers, and its own rating of any placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import check_sharding, parts_by_table
from evenshard.placement.sharding import DATA_PARALLEL, GRID_SHARD, IN_ROWS, TABLE_WISE, sharding_type
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import link
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import (
    DEFAULT_SETTING,
    SETTINGS,
    Bandwidths,
    PlannerSetting,
    machine_bandwidths,
    merge_parts,
)
from support.builders import table

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "min_partition", "rating_ms"),
    [(8, None, 1.335), (8, 64, 1.310), (16, None, 2.370), (16, 16, 1.949)],
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


def test_whole_tables_are_rated_as_ever(mlperf: tuple[Table, ...]) -> None:
    limits = (TableLimits(types=frozenset({TABLE_WISE})),) * 26
    task = replace(sharding(mlperf, 8, room=64 * 2**30 * 85 // 100), limits=limits)
    assert TorchRecPlanner(task, GB_S).plan(PlannerSetting()).rating_ms == pytest.approx(2.30, abs=5e-3)


# What it may use -----------------------------------------------------------------------------------------------------


def test_a_grid_is_used_only_where_it_is_allowed() -> None:
    task = sharding((table(rows=200_000, dim=128, pooling=100.0),), 16)
    plain, grid = (
        TorchRecPlanner(task, GB_S).plan(PlannerSetting(64, grid_shard=allowed)) for allowed in (False, True)
    )
    assert GRID_SHARD not in ways(task, plain.parts) and ways(task, grid.parts)[GRID_SHARD] == 1
    assert grid.rating_ms < plain.rating_ms
    check_sharding(task, grid.parts)


def test_rooms_are_kept_to_the_last_byte_of_weights() -> None:
    tables = tuple(table(f"t{number}", rows=6, dim=4) for number in range(3))
    task = replace(sharding(tables, 3, batch_size=6), room_bytes=(96, 96, 96))
    check_sharding(task, TorchRecPlanner(task, GB_S).plan(PlannerSetting()).parts)
    with pytest.raises(InfeasibleTask, match=r"TorchRec's planner found no plan \(default min_partition, by storage\)"):
        TorchRecPlanner(replace(task, room_bytes=(95, 95, 95)), GB_S).plan(PlannerSetting())


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


def test_the_settings_of_a_report_are_its_defaults_and_three_changes() -> None:
    assert SETTINGS[0] == DEFAULT_SETTING == PlannerSetting(told=False)
    assert [(one.min_partition, one.replicas) for one in SETTINGS] == [*product((None, 32), (True, False))]
    assert all(one.told for one in SETTINGS[1:])
    assert len({str(one) for one in SETTINGS}) == 4


def test_types_that_a_setting_leaves_out_are_not_used(mlperf: tuple[Table, ...]) -> None:
    task = sharding(mlperf, 8)
    free, bound = (
        ways(task, TorchRecPlanner(task, GB_S).plan(setting).parts)
        for setting in (PlannerSetting(), PlannerSetting(replicas=False, rows=False))
    )
    assert {DATA_PARALLEL} & {*free} and not {*bound} & {DATA_PARALLEL, *IN_ROWS}


def test_dynamic_programming_finds_a_plan(mlperf: tuple[Table, ...]) -> None:
    task = sharding(mlperf[:4], 4)
    plan = TorchRecPlanner(task, GB_S).plan(PlannerSetting(dynamic=True))
    check_sharding(task, plan.parts)
    assert str(plan.setting) == "default min_partition, by storage, dynamic programming proposers"


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


def test_columns_of_unlike_widths_are_rated_each_by_its_own() -> None:
    """The rating of a table cut 96 + 32 is that of the wider part."""
    one = table("a", rows=1000, dim=128, pooling=5.0)
    task = sharding((one,), 2, batch_size=1024)
    rows = Span(0, 1000)
    uneven = [TablePart("a", rows, Span(0, 96), (0,)), TablePart("a", rows, Span(96, 128), (1,))]
    even = [TablePart("a", rows, Span(0, 64), (0,)), TablePart("a", rows, Span(64, 128), (1,))]
    wide, half = rating_ms(task, uneven), rating_ms(task, even)
    assert half < wide < rating_ms(task, [whole(one, 0)])


def test_replicas_are_rated_on_every_device() -> None:
    one = table("a", rows=10, dim=16, pooling=50.0)
    task = sharding((one,), 4, batch_size=65_536)
    assert ways(task, (whole(one, 0, 1, 2, 3),)) == {DATA_PARALLEL: 1}
    assert rating_ms(task, [whole(one, 0, 1, 2, 3)]) < rating_ms(task, [whole(one, 0)])


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


def test_bandwidths_of_a_machine_are_those_of_its_links_and_devices() -> None:
    links = Links(link("nvlink_h200"), link("infiniband_ndr"))
    found = machine_bandwidths("simulated:h200", machine(16), links)
    assert found.hbm_gb_s == gpu_profile("h200").hbm_bytes_per_ns
    assert found.intra_node_gb_s == pytest.approx(links.intra.even_gb_s(8)) == pytest.approx(309, abs=1)
    assert found.inter_node_gb_s == pytest.approx(links.widest.even_gb_s(16))
    assert machine_bandwidths("cpu", machine(16), links) == replace(found, hbm_gb_s=None)
