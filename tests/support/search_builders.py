"""Small tasks for tests of the search, and every placement of the smallest ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.sharding import sharding_type
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import LINKS
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import PartCosts
from evenshard.search.chains import chains_of
from evenshard.search.greedy import GreedyStarts, Placed
from evenshard.search.placer import GreedyPlacer
from evenshard.search.sharding_option import Choice, choices_from
from evenshard.search.space import SearchSpace, parts_of
from evenshard.tables.table import Table

GB = 2**30
FOUR, TWO_NODES = Nodes.one_node(4), Nodes(4, 2, inter="infiniband_ndr")
_kind = cache(lambda profile: build_device_kind(gpu_profile(profile), Nodes(1, 1)))


def some_tables(count: int, seed: int = 5) -> tuple[Table, ...]:
    """Tables of unlike sizes, widths and pooling factors."""
    rng = np.random.default_rng(seed)
    return tuple(
        Table(f"t{n}", int(10 ** rng.uniform(2, 6.5)), int(rng.choice([16, 64, 128])), float(rng.choice([1, 5, 40])))
        for n in range(count)
    )


def costs_of(
    tables: Sequence[Table], machine: Nodes = FOUR, room_bytes: int = 64 * GB, profile: str = "h200", **changes: object
) -> PartCosts:
    """Costs on simulated GPUs with so much memory each, and with other fields of the task."""
    task = ShardingTask(tuple(tables), machine, (room_bytes,) * machine.num_devices, 16_384)
    links = Links(LINKS[f"nvlink_{profile}"], LINKS["infiniband_ndr"] if machine.num_domains > 1 else None)
    task = replace(task, **changes)  # type: ignore[arg-type]
    return PartCosts(task, [_kind(profile)], [0] * machine.num_devices, links)


def of_types(tables: Sequence[Table], *types: str) -> tuple[TableLimits, ...]:
    """The same sharding types for all tables."""
    return (TableLimits(frozenset(types)),) * len(tables)


def starts_of(costs: PartCosts) -> GreedyStarts:
    return GreedyStarts(GreedyPlacer(SearchSpace(costs)))


def parts_of_start(starts: GreedyStarts, placed: Placed) -> tuple[TablePart, ...]:
    return parts_of(starts.space, choices_from(starts.table, placed.start.option_G, placed.place_GS))


def types_of(task: ShardingTask, parts: Sequence[TablePart]) -> dict[str, str]:
    """The sharding type of each table."""
    by_table = parts_by_table(task, parts)
    return {one.name: sharding_type(by_table[one.name], one, task.machine) for one in task.tables}


def all_choices(space: SearchSpace, group: int) -> Iterator[Choice]:
    """Yield every option of a group, everywhere."""
    for number, option in enumerate(space.options(group)):
        in_home = option.home_span // option.span
        for first in range(0, space.task.num_devices // option.span, in_home):
            for places in permutations(range(first, first + in_home), len(option.shards)):
                yield Choice(number, places)


def least_ms(space: SearchSpace) -> float:
    """The time of the best of all placements with enough memory; rules of tables are not checked."""
    per_group = [list(all_choices(space, group)) for group in range(len(space.groups))]
    chains = chains_of(space, list(product(*per_group)))
    return float(chains.cost_N[chains.overflow_N == 0].min())


def random_choice(space: SearchSpace, group: int, rng: np.random.Generator) -> Choice:
    """Any option, anywhere."""
    number = int(rng.integers(space.table.num_options_G[group]))
    option = space.option(group, number)
    return Choice(number, tuple(rng.permutation(space.task.num_devices // option.span)[: len(option.shards)].tolist()))
