"""The lower bound: no placement of a tiny task is below it, whatever its types, machine and training pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from evenshard.placement.memory import PIPELINES
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, ON_DEVICE, USUAL_KERNELS
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, SHARDING_TYPES, TABLE_WISE, TYPES
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import LINKS
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import DeviceKind, PartCosts
from evenshard.price.step_time import LARGEST_SUM
from evenshard.search.bound_lines import price_bounds
from evenshard.search.chains import chains_of
from evenshard.search.device_times import CutBounds, least_sums
from evenshard.search.lower_bound import _least_offload, lower_bound_ms
from evenshard.search.sharding_option import Choice
from evenshard.search.space import SearchSpace
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from support.convex_builders import random_model
from support.search_builders import all_choices, costs_of, some_tables

MACHINES = (Nodes.one_node(2), Nodes.one_node(3), Nodes(4, 2, inter="infiniband_ndr"))
COLUMNS_ONLY = (TableLimits(frozenset({COLUMN_WISE})),)
# Of a tiny task, placements that are tried.
MOST_PLACEMENTS = 400
PROFILES = ("h200", "h100", "v100", "rtx_2080_ti", "b200")


def tiny_costs(rng: np.random.Generator) -> PartCosts:
    """One to three tables of any size on a machine of any kind, with any pipeline and set of types."""
    machine = MACHINES[int(rng.integers(len(MACHINES)))]
    tables = tuple(
        Table(
            f"t{number}",
            int(10 ** rng.uniform(1, 6.5)),
            int(rng.choice([4, 8, 64, 80, 160, 256])),
            float(rng.choice([0.02, 1, 3.5, 40])),
            pooling=str(rng.choice(["sum", "sum", "none"])),
        )
        for number in range(int(rng.integers(1, 4)))
    )
    allowed = [one for one in SHARDING_TYPES if rng.random() < 0.6 or one == TABLE_WISE]
    limits = tuple(
        TableLimits(frozenset(allowed) - ({DATA_PARALLEL} if table.is_sequence else set())) for table in tables
    )
    pipeline = str(rng.choice([*PIPELINES, ""]))
    batch = int(rng.choice([64, 4_096, 65_536])) * machine.num_devices
    task = ShardingTask(tables, machine, (2**36,) * machine.num_devices, batch, limits=limits, pipeline=pipeline)
    kind = build_device_kind(gpu_profile(str(rng.choice(PROFILES))), Nodes(1, 1))
    inter = LINKS["infiniband_ndr"] if machine.num_domains > 1 else None
    links = Links(LINKS[str(rng.choice(["nvlink_h200", "ethernet_25g", "pcie3_host", "pcie4_host"]))], inter)
    rule = LARGEST_SUM if rng.random() < 0.2 else None
    return PartCosts(task, [kind], [0] * machine.num_devices, links, rule)


def with_learned_price(costs: PartCosts, seed: int) -> PartCosts:
    """The same tables on devices that a cost model prices, whose passes of the sort take most of the time."""
    model = random_model(seed)
    with torch.no_grad():
        model.net.pass_weight.fill_(1.0)
    kind = DeviceKind(LearnedPrice(model), 100.0)
    return PartCosts(costs.task, [kind], [0] * costs.task.num_devices, costs.links, costs.pipeline)


def cut_unevenly(space: SearchSpace, rng: np.random.Generator) -> None:
    """Gives tables that may be cut by columns some more cuts, into parts of any widths."""
    for number, group in enumerate(space.groups):
        by_columns = [one for one in space.options(number) if TYPES[one.sharding_type].cuts_columns]
        blocks = space.task.tables[group.tables[0]].embedding_dim // COLUMN_STEP
        for option in by_columns[:2]:
            for _ in range(3):
                parts = len(option.shards)
                ends = np.sort(rng.choice(np.arange(1, blocks), parts - 1, replace=False))
                widths = (np.diff([0, *ends, blocks]) * COLUMN_STEP).tolist()
                space.add_options(number, [(option.sharding_type, widths, ON_DEVICE)])


def costs_ms(space: SearchSpace, rng: np.random.Generator) -> FloatArray:
    """The costs of all placements, or of many where they are more."""
    per_group = [list(all_choices(space, group)) for group in range(len(space.groups))]
    if np.prod([len(choices) for choices in per_group]) <= MOST_PLACEMENTS:
        tried = list(product(*per_group))
    else:
        tried = [tuple(own[int(rng.integers(len(own)))] for own in per_group) for _ in range(MOST_PLACEMENTS)]
    return chains_of(space, tried).cost_N


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_no_placement_of_a_tiny_task_is_below_the_bound(seed: int, is_learned: bool) -> None:
    rng = np.random.default_rng(seed)
    for number in range(8):
        costs = tiny_costs(rng)
        if is_learned:
            costs = with_learned_price(costs, number)
        if is_learned and number % 2:
            small = tuple(replace(one, num_rows=min(one.num_rows, 200)) for one in costs.task.tables)
            costs = costs.of_task(replace(costs.task, tables=small))
        space = SearchSpace(costs)
        bound_ms = lower_bound_ms(space)
        cut_unevenly(space, rng)
        assert 0 < bound_ms <= float(costs_ms(space, rng).min())


def test_a_set_of_types_pays_for_its_kernel_calls_and_collectives() -> None:
    """Tables of next to nothing: what is left is one call's floors and launches, and one collective's latencies."""
    tables = tuple(Table(f"t{number}", 100, 4, 0.01) for number in range(2))
    space = SearchSpace(costs_of(tables, Nodes.one_node(2), profile="h100", batch_size=8))
    best_ms = float(costs_ms(space, np.random.default_rng(0)).min())
    assert 0.95 * best_ms < lower_bound_ms(space) <= best_ms


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ([[1, 2, 3], [1, 2, 3]], [[3, 3, 3], [3, 3, 3]]),  # in proportion: all cuts are alike
        ([[5, 6, 7, 8, 20], [1, 9, 9, 9, 9]], [[20, 13, 17, 21, 25], [9, 10, 11, 12, 5]]),
        ([[np.inf, 2, 3, 4, 9]] * 2, [[9, 5, np.inf, np.inf, np.inf]] * 2),  # two blocks at least
    ],
)
def test_the_least_sum_of_widths_by_their_number(values: list[list[float]], least: list[list[float]]) -> None:
    """One table of as many blocks as there are values; both passes."""
    found = least_sums(np.array(values, dtype=np.float64)[:, None], np.array([len(values[0])]), len(values[0]))
    np.testing.assert_array_equal(found[:, 0], least)


def test_a_table_that_decides_has_a_part_of_its_even_share() -> None:
    """One table of 128 columns, on three devices: some part has 44 of them at least."""
    table = Table("t", 4_000_000, 128, 60.0)
    space = SearchSpace(costs_of((table,), Nodes.one_node(3), profile="h100", limits=COLUMNS_ONLY, batch_size=65_536))
    bound_ms, widths = lower_bound_ms(space), ((44, 44, 40), (64, 32, 32))
    numbers = space.add_options(0, [(space.column_type(0), one, ON_DEVICE) for one in widths])
    even_ms, uneven_ms = chains_of(space, [[Choice(number, (0, 1, 2))] for number in numbers]).cost_N
    assert 0.9 * even_ms < bound_ms < even_ms < uneven_ms


@pytest.mark.parametrize("types", [{COLUMN_WISE}, {GRID_SHARD}])
def test_even_cuts_of_whole_lanes_are_the_least_on_all_devices_together(types: set[str]) -> None:
    """128 columns in two or four parts: none of fewer lanes is possible. A part of a grid is on two devices."""
    machine = Nodes(8, 2, inter="infiniband_ndr")
    limits, only = (TableLimits(frozenset(types)),), (Table("t", 4_000_000, 128, 60.0),)
    space = SearchSpace(costs_of(only, machine, profile="h100", limits=limits, batch_size=65_536))
    bounds, (columns_PH,) = price_bounds(space.costs.prices[0]), space.lookups.columns_KPH
    cuts, table = CutBounds(space), space.table
    line = bounds.line_at(columns_PH.sum(axis=0))
    works_2P = line.compute_work(columns_PH) + bounds.own_steps_ms(columns_PH)
    shard_C, cell_C = space.shard_arrays.cells_of(table.shard_A)
    works_2C = works_2P[:, space.shard_arrays.row_C[cell_C]]
    even_2W = np.array([np.bincount(table.option_A[shard_C], works_C) * table.span_O for works_C in works_2C])
    least_2W = cuts.least_work_2(cuts.part_work_2FU(0, [line], np.zeros(len(table.group_O), dtype=np.int64)))
    parts = space.table.count_O[cuts.options]
    lanes = [number for number, count in enumerate(parts) if count in (2, 4)]
    assert len(lanes) == 2
    np.testing.assert_allclose(least_2W[:, lanes], even_2W[:, cuts.options[lanes]], rtol=2e-3)
    assert (least_2W <= even_2W[:, cuts.options] * (1 + 1e-9)).all()


def test_a_table_that_decides_waits_for_the_exchanges_of_all() -> None:
    """One of three whole tables takes nearly all the time: the bound is its kernels and the mean exchanges."""
    tables = (Table("large", 10**6, 64, 200.0), *some_tables(2))
    whole = (TableLimits(frozenset({TABLE_WISE})),) * 3
    space = SearchSpace(costs_of(tables, Nodes.one_node(2), profile="h100", limits=whole, pipeline="base"))
    best_ms = float(costs_ms(space, np.random.default_rng(0)).min())
    assert 0.94 * best_ms < lower_bound_ms(space) <= best_ms


def test_a_cache_of_any_size_takes_no_less_than_is_counted_for_the_next_smaller_one() -> None:
    machine = Nodes(1, 1, host_bytes=(2**36,))
    space = SearchSpace(costs_of([Table("t", 2**21, 128, 40.0)], machine, 2**29, kernels=USUAL_KERNELS))
    storages = [option.storage for option in space.options(0)]
    order = [at for _, at in sorted((one.load_factor, at) for at, one in enumerate(storages) if one.is_cached)]
    bytes_W, *times_W = _least_offload(space, np.ones(len(storages)))
    assert bytes_W[order].tolist() == [0.0] + [1.0] * (len(order) - 1)
    assert all(took_W[order[-1]] == 0 < took_W[order[0]] for took_W in times_W)
