"""Best known placements on a simulated cluster: the cost that is kept up to date, and what annealing finds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.references.cluster_annealing import Mover, anneal, power_mean
from benchmarks.references.cluster_state import ClusterState
from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import check_sharding, parts_by_table
from evenshard.placement.sharding import GRID_SHARD, sharding_type
from evenshard.placement.task import ShardingTask
from support.builders import some_tables, table

PROFILE = gpu_profile("h200")
MACHINE = Machine(8, 4, intra="nvlink_h200", inter="infiniband_ndr")
CLUSTER = SimulatedCluster(MACHINE, [PROFILE] * 8, Links(link("nvlink_h200"), link("infiniband_ndr")))


def a_task(room: int = 10**12) -> ShardingTask:
    first, second, *rest = some_tables(10)
    tables = (
        replace(first, pooling="none", module="sequences"),
        replace(second, feature_pooling_factors=(second.pooling_factor / 2,) * 2, is_weighted=True),
        *rest,
    )
    return ShardingTask(tables, MACHINE, (room,) * 8, 4096)


def on_first(task: ShardingTask) -> tuple[TablePart, ...]:
    return tuple(TablePart(one.name, Span(0, one.num_rows), Span(0, one.embedding_dim), (0,)) for one in task.tables)


def test_the_kept_cost_is_the_true_one_after_any_changes() -> None:
    task = a_task()
    state = ClusterState(CLUSTER, task, PROFILE)
    state.start(on_first(task))
    mover, ways = Mover(state, random.Random(0)), set()
    for step in range(600):
        if changes := mover.propose():
            state.change(changes)
        if step % 20:
            continue
        parts = tuple(part for of_table in state.parts for part in of_table)
        check_sharding(task, parts)
        cost = CLUSTER.cost(task, parts)
        assert state.totals_D.tolist() == pytest.approx(cost.device_ms(task.pipeline))
        assert state.step_ms == pytest.approx(cost.step_ms(task.pipeline))
        by_table = parts_by_table(task, parts)
        ways |= {sharding_type(by_table[one.name], one, MACHINE) for one in task.tables}
    assert len(ways) == 6 and GRID_SHARD in ways  # table_column_wise is column_wise by its parts


def test_annealing_finds_the_best_of_what_can_be_counted() -> None:
    """Four costly tables of one dim on two devices: two on each, none of them cut."""
    tables = tuple(table(f"t{number}", rows=1000, dim=4, pooling=100.0) for number in range(4))
    machine = Machine.one_node(2)
    cluster = SimulatedCluster(machine, [PROFILE] * 2, Links(link("nvlink_h200")))
    task = ShardingTask(tables, machine, (10**9,) * 2, 65_536)
    found = anneal(cluster, task, PROFILE, on_first(task), moves=500)
    even = tuple(replace(part, devices=(number % 2,)) for number, part in enumerate(on_first(task)))
    assert found.ms <= cluster.cost(task, even).step_ms(task.pipeline) * (1 + 1e-9)
    assert found.ms == cluster.cost(task, found.parts).step_ms(task.pipeline)


def test_annealing_keeps_the_memory() -> None:
    task = a_task()
    sizes = sorted(one.size_bytes for one in task.tables)
    tight = replace(task, room_bytes=(sum(sizes), *[sizes[-1] // 2] * 7))
    check_sharding(tight, anneal(CLUSTER, tight, PROFILE, on_first(task), moves=300).parts)


def test_the_same_seed_finds_the_same() -> None:
    task = a_task()
    first, second = (anneal(CLUSTER, task, PROFILE, on_first(task), moves=100, seed=3) for _ in range(2))
    assert first == second


def test_the_power_mean_counts_how_many_are_slowest() -> None:
    import numpy as np

    one, two = np.array([[2.0, 1.0, 1.0, 1.0]]), np.array([[2.0, 2.0, 1.0, 1.0]])
    assert 0.9 * 2 < power_mean(one) < power_mean(two) < 2
