"""The lower bound against all placements of tasks that are small enough to try them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.cluster import simulated_kind
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.step_time import LARGEST_SUM
from evenshard.placement.machine import Machine
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.bounds import lower_bound_ms
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Choice, State
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table


def some_tables(seed: int) -> tuple[Table, ...]:
    """Three of unlike rows, dims and lookups."""
    rng = np.random.default_rng(seed)
    return tuple(
        Table(f"t{at}", int(10 ** rng.uniform(3, 6.5)), int(rng.choice((16, 64, 128))), float(rng.uniform(1, 40)))
        for at in range(3)
    )


def costs_of(tables: tuple[Table, ...], link: str, pipeline: str, limits: tuple[TableLimits, ...] = ()) -> PartCosts:
    """On two devices."""
    machine = Machine.one_node(2)
    task = ShardingTask(tables, machine, (64 * 2**30,) * 2, 16_384, limits=limits)
    kind = simulated_kind(gpu_profile("h100"), machine)
    return PartCosts(task, [kind], [0, 0], Links(LINKS[link]), pipeline)


def all_costs_ms(space: SearchSpace) -> FloatArray:
    """The cost of every option of every table in every place."""
    devices = space.task.num_devices
    per_group = [
        [
            Choice(number, places)
            for number, option in enumerate(group.options)
            for places in permutations(range(devices // option.span), len(option.pieces))
        ]
        for group in space.groups
    ]
    state = State(space, [choices[0] for choices in per_group])
    changes = [list(enumerate(choices)) for choices in product(*per_group)]
    windows_WND, _ = state.after(state.piece_changes(changes), len(changes))
    return np.asarray(windows_WND.max(axis=2).sum(axis=0))


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist", LARGEST_SUM])
@pytest.mark.parametrize("link", ["nvlink_h100", "ethernet_25g", "pcie3_host"])
def test_no_placement_of_a_small_task_is_below_the_bound(link: str, pipeline: str) -> None:
    """All types: exchanges that take next to nothing, and some that take more than kernels."""
    for seed in range(2):
        space = SearchSpace(costs_of(some_tables(seed), link, pipeline))
        bound_ms, costs_ms = lower_bound_ms(space), all_costs_ms(space)
        assert 0 < bound_ms <= costs_ms.min() < costs_ms.max()


def test_a_table_that_decides_waits_for_the_forward_exchange_of_all() -> None:
    """One of three whole tables takes nearly all the time: the bound is its kernels and the mean forward exchange."""
    whole = (TableLimits(frozenset({TABLE_WISE})),) * 3
    tables = (Table("large", 10**6, 64, 200.0), *some_tables(1)[1:])
    sums, space = (SearchSpace(costs_of(tables, "nvlink_h100", one, whole)) for one in (LARGEST_SUM, "base"))
    assert lower_bound_ms(sums) * 1.001 < lower_bound_ms(space) <= all_costs_ms(space).min()


def test_hidden_indices_take_no_time_of_the_bound() -> None:
    ways = ("prefetch", "none")
    hidden, counted = (lower_bound_ms(SearchSpace(costs_of(some_tables(0), "ethernet_25g", one))) for one in ways)
    assert hidden < counted
