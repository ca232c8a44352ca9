"""The lower bound: no placement of a tiny task is below it, whatever its types, machine and training pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations, product

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.cluster import simulated_kind
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.step_time import LARGEST_SUM
from evenshard.placement.machine import Machine
from evenshard.placement.pipeline import PIPELINES
from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES, TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.bounds import lower_bound_ms
from evenshard.sharders.search.sharding_option import TableGroup
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Choice, State
from evenshard.tables.table import Table

MACHINES = (Machine.one_node(2), Machine.one_node(3), Machine(4, 2, inter="infiniband_ndr"))
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
            int(rng.choice([4, 8, 64, 256])),
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
    kind = simulated_kind(gpu_profile(str(rng.choice(PROFILES))), Machine(1, 1))
    inter = LINKS["infiniband_ndr"] if machine.num_domains > 1 else None
    links = Links(LINKS["nvlink_h200"], inter)
    rule = LARGEST_SUM if rng.random() < 0.2 else None
    return PartCosts(task, [kind], [0] * machine.num_devices, links, rule)


def choices_of_group(group: TableGroup, devices: int) -> Iterator[Choice]:
    """Every option of a group on all of its places."""
    for number, option in enumerate(group.options):
        for places in permutations(range(devices // option.span), len(option.pieces)):
            yield Choice(number, places)


def least_cost(space: SearchSpace, rng: np.random.Generator) -> float:
    """The least cost of all placements, or of many where they are more."""
    devices = space.task.num_devices
    per_group = [list(choices_of_group(group, devices)) for group in space.groups]
    if np.prod([len(choices) for choices in per_group]) <= MOST_PLACEMENTS:
        tried = [list(one) for one in product(*per_group)]
    else:
        tried = [[own[int(rng.integers(len(own)))] for own in per_group] for _ in range(MOST_PLACEMENTS)]
    return min(State(space, choices).cost_ms for choices in tried)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 80))])
def test_no_placement_of_a_tiny_task_is_below_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        space = SearchSpace(tiny_costs(rng))
        bound_ms, least_ms = lower_bound_ms(space), least_cost(space, rng)
        assert 0 < bound_ms <= least_ms


def test_a_set_of_types_pays_for_its_kernel_calls_and_collectives() -> None:
    """Tables of next to nothing: what is left is one call's floors and launches, and one collective's latencies."""
    machine = Machine.one_node(2)
    tables = tuple(Table(f"t{number}", 100, 4, 0.01) for number in range(2))
    kind = simulated_kind(gpu_profile("h100"), Machine(1, 1))
    costs = PartCosts(ShardingTask(tables, machine, (2**30,) * 2, 8), [kind], [0, 0], Links(LINKS["nvlink_h100"]))
    space = SearchSpace(costs)
    best_ms = least_cost(space, np.random.default_rng(0))
    assert 0.95 * best_ms < lower_bound_ms(space) <= best_ms


def test_more_types_never_raise_the_bound() -> None:
    rng = np.random.default_rng(3)
    for costs in islice(iter(lambda: tiny_costs(rng), None), 40):
        limits = tuple(TableLimits(own.types | {TABLE_WISE}) for own in costs.task.limits)
        fewer = tuple(TableLimits(frozenset({TABLE_WISE})) for _ in limits)
        of_all, of_whole = (
            lower_bound_ms(SearchSpace(costs.of_task(replace(costs.task, limits=one)))) for one in (limits, fewer)
        )
        assert of_all <= of_whole * (1 + 1e-4)
