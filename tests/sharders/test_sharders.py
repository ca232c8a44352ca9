"""Sharders: random, the rules of thumb, single cost and DreamShard. All stay within memory or say that they cannot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span
from evenshard.placement.placement import check_placement, check_sharding, parts_by_table
from evenshard.placement.sharding import SHARDING_TYPES, sharding_type
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.planner.baselines import BASELINES, TORCHREC
from evenshard.sharders.catalog import HEURISTICS, LEARNED, SHARDERS, Resources, Sharder, entry, label_of, sharder
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.simple import (
    GreedySharder,
    RandomSharder,
    expert_sharder,
    expert_sharders,
    possible_types,
    random_placement,
    random_sharding,
    single_cost_sharder,
)
from evenshard.tables.table import Table
from support import convex_builders
from support.builders import BATCH_SIZE, cost_net, policy, sized, some_tables, split_by, table, task

TABLES = some_tables(10)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


ALL: list[Sharder] = [
    RandomSharder(0),
    *expert_sharders(),
    single_cost_sharder({f"s{number}": float(number % 3) for number in range(12)}),
    DreamShardSharder(cost_net(), policy(), NORMALIZER),
]
every_sharder = pytest.mark.parametrize("sharder", ALL, ids=[sharder.name for sharder in ALL])


@every_sharder
@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), devices=st.integers(1, 4), cap=st.integers(1, 24))
def test_a_placement_fits_the_memory_or_is_refused(sharder: Sharder, sizes: list[int], devices: int, cap: int) -> None:
    of_task = task(sized(*sizes), devices=devices, cap=4 * cap)
    try:
        placement = sharder.place(of_task)
    except InfeasibleTask:
        assert sum(sizes) > cap * devices - max(sizes) * (devices - 1) or max(sizes) > cap  # never with room to spare
    else:
        check_placement(of_task, placement)


@every_sharder
def test_edges_of_memory_and_devices(sharder: Sharder) -> None:
    last_byte = task(sized(6, 6, 6), devices=3, cap=4 * 6)
    assert sorted(sharder.place(last_byte).device_of_table) == [0, 1, 2]
    assert sharder.place(last_byte) == sharder.place(last_byte)
    assert sharder.place(task(sized(3, 1, 2), devices=1)).device_of_table == (0, 0, 0)


@every_sharder
@pytest.mark.parametrize(
    ("gigabytes", "devices", "cap_gb", "problem"),
    [
        ((1e-6, 6), 4, 5, r"s1 needs 6\.00 GB.*cap 5\.00 GB.*Raise memory_cap_gb"),
        ((1,) * 5, 2, 2, r"5\.00 GB.*2 devices have 4\.00 GB"),
        ((3,) * 3, 2, 5, r"s\d.*3\.00 GB.*Raise memory_cap_gb or num_devices"),  # 9 of 10 GB, but in pieces
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(
    sharder: Sharder, gigabytes: tuple[float, ...], devices: int, cap_gb: int, problem: str
) -> None:
    tables = sized(*(int(size * BYTES_PER_GB / 4) for size in gigabytes))
    with pytest.raises(InfeasibleTask, match=problem):
        sharder.place(task(tables, devices, cap_gb * BYTES_PER_GB))


def test_random_is_uniform_with_a_stream_per_seed_and_task() -> None:
    of_task, rng = task(sized(1, 1), devices=3), np.random.default_rng(0)
    counts = Counter(random_placement(of_task, rng).device_of_table for _ in range(900))
    assert len(counts) == 9 and all(abs(count - 100) < 50 for count in counts.values())
    first, second = task(TABLES, devices=4, task_id="a"), task(TABLES, devices=4, task_id="b")
    assert RandomSharder(0).place(first) == RandomSharder(0).place(first)
    assert RandomSharder(0).place(first) != RandomSharder(0).place(second)
    assert RandomSharder(0).place(first) != RandomSharder(1).place(first)


def test_greedy_by_hand_passes_over_a_full_device_however_light_it_is() -> None:
    """5 | 4 | then 3 and 3 to the lighter one each time: 5 + 3 | 4 + 3."""
    weights = {"s0": 3.0, "s1": 5.0, "s2": 4.0, "s3": 3.0}
    greedy = GreedySharder("by_hand", lambda one: weights[one.name])
    # Of the two 3s, the table with more bytes goes first.
    assert greedy.place(task(sized(2, 1, 1, 1), devices=2)).device_of_table == (1, 0, 1, 0)
    assert greedy.place(task(sized(1, 1, 1, 2), devices=2)).device_of_table == (0, 0, 1, 1)
    # Between equally loaded devices, the emptier takes the table.
    weightless = GreedySharder("weightless", lambda one: 0.0)
    assert split_by(weightless.place(task(sized(6, 3, 2, 1), devices=2))) == {(0,), (1, 2, 3)}
    weights.update(s0=1.0, s1=9.0, s2=8.0)
    assert greedy.place(task(sized(1, 1, 9), devices=2, cap=4 * 10)).device_of_table == (1, 0, 1)
    assert greedy.place(task(sized(2, 1, 9), devices=2, cap=4 * 10)).device_of_table == (0, 0, 1)


@pytest.mark.parametrize(
    ("name", "heavy"),
    [
        ("size_greedy", table("heavy", rows=1000, dim=4, pooling=1.0)),
        ("dim_greedy", table("heavy", rows=10, dim=32, pooling=0.1)),
        ("lookup_greedy", table("heavy", rows=10, dim=8, pooling=8.0)),
        ("size_lookup_greedy", table("heavy", rows=10**6, dim=4, pooling=3.0)),
    ],
)
def test_each_expert_sees_what_its_name_says(name: str, heavy: Table) -> None:
    """The table that is heaviest to this expert stands alone; three others share the second device.

    The others have 400 values, dim 4, 16 looked-up values and 16 * log10(100) = 32; the heavy one has more than two of
    them together in this respect: 4000 values, dim 32, 64 looked-up values, or 12 * log10(10**6) = 72.
    """
    others = [table(f"o{number}", rows=100, dim=4, pooling=4.0) for number in range(3)]
    assert split_by(expert_sharder(name).place(task([*others, heavy], devices=2))) == {(3,), (0, 1, 2)}
    assert split_by(expert_sharder(name).place(task([heavy, *others], devices=2))) == {(0,), (1, 2, 3)}


def test_single_cost_greedy_follows_the_measurements() -> None:
    of_task = task(sized(9, 1, 1), devices=2)
    assert split_by(single_cost_sharder({"s0": 1.0, "s1": 5.0, "s2": 1.0}).place(of_task)) == {(1,), (0, 2)}


MIXED = (
    table("a", 100, 16),
    table("b", 3, 8),
    table("c", 100, 6),
    replace(table("d", 50, 8), pooling="none"),
    replace(table("e", 50, 8), pooling="mean"),
)
TWO_NODES = Nodes(4, 2, intra="gloo", inter="gloo")


def task_on(machine: Nodes, room: int = 10**9) -> ShardingTask:
    return ShardingTask(MIXED, machine, (room,) * machine.num_devices, 64)


def test_what_a_table_can_be() -> None:
    of_task = task_on(TWO_NODES)
    wide, few_rows, odd, sequence, mean = (set(possible_types(of_task, position)) for position in range(5))
    assert wide == set(SHARDING_TYPES)
    assert few_rows == wide - {"row_wise"}
    assert odd == {"table_wise", "row_wise", "table_row_wise", "data_parallel"}
    assert sequence == {"table_wise", "row_wise", "data_parallel"}
    assert mean == {"table_wise", "column_wise", "table_column_wise", "data_parallel"}
    assert set(possible_types(task_on(Nodes.one_node(2)), 0)) == sequence | {"column_wise"}


def test_every_type_is_drawn_and_every_placement_is_legal_within_the_limits_of_tables() -> None:
    of_task, rng, seen = task_on(TWO_NODES), np.random.default_rng(0), set()
    for _ in range(60):
        parts = random_sharding(of_task, SHARDING_TYPES, rng)
        check_sharding(of_task, parts)
        by_table = parts_by_table(of_task, parts)
        seen |= {sharding_type(by_table[one.name], one, TWO_NODES) for one in MIXED}
    assert seen >= set(SHARDING_TYPES) - {"table_column_wise"}  # its parts are read as column_wise
    limits = (TableLimits(types=frozenset({"row_wise"})), *(TableLimits(),) * 4)
    of_task, rng = replace(task_on(TWO_NODES), limits=limits), np.random.default_rng(0)
    assert possible_types(of_task, 0) == ("row_wise",)
    for _ in range(10):
        parts = random_sharding(of_task, ("row_wise", "table_wise", "column_wise"), rng)
        check_sharding(of_task, parts)


def test_rows_and_columns_are_cut_as_torchrec_does() -> None:
    """Blocks of rows of ceil(10 / 4); 5 times 4 columns in 2, 3 or 4 parts, the wider ones first."""
    of_task = ShardingTask((table("t", 10, 20),), TWO_NODES, (10**9,) * 4, 64)
    rng, cuts = np.random.default_rng(0), set()
    for _ in range(30):
        parts = random_sharding(of_task, ("row_wise",), rng)
        assert [part.rows for part in parts] == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]
        cuts.add(tuple(part.columns.size for part in random_sharding(of_task, ("column_wise",), rng)))
    assert cuts == {(12, 8), (8, 8, 4), (8, 4, 4, 4)}
    with pytest.raises(InfeasibleTask, match="needs"):
        random_sharding(task_on(TWO_NODES, room=10), SHARDING_TYPES, np.random.default_rng(0))


# The table of sharders ----------------------------------------------------------------------------------------------

OF_FOUR = task(some_tables(4))
DREAMSHARD = DreamShardSharder(cost_net(), policy(), convex_builders.NORMALIZER)
RESOURCES = Resources(
    single_cost_ms=dict.fromkeys((table.name for table in OF_FOUR.tables), 1.0),
    policy=DREAMSHARD,
    cost_model=convex_builders.random_model(),
)


@pytest.mark.parametrize("name", [one.name for one in SHARDERS if one.can_use(RESOURCES) and not one.package])
def test_every_entry_builds_the_sharder_of_its_name_which_places(name: str) -> None:
    built = sharder(name, RESOURCES)
    assert built.name == name
    assert len(built.place(OF_FOUR).device_of_table) == 4


def test_what_a_sharder_needs_decides_who_asks_it() -> None:
    assert HEURISTICS == ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
    assert TORCHREC == ("torchrec_planner", "torchrec_planner_perf")
    assert (*HEURISTICS, *TORCHREC, "torchrec_planner_full", "best_rule_of_thumb") == BASELINES
    in_loop = [one.name for one in SHARDERS if one.in_loop]
    assert in_loop == [*HEURISTICS, "single_cost_greedy", *LEARNED, "evenshard"]
    assert [one.name for one in SHARDERS if one.is_privileged] == ["single_cost_greedy"]
    assert [one.name for one in SHARDERS if one.is_learned] == [*LEARNED, "evenshard"]
    assert [one.name for one in SHARDERS if one.in_loop and one.can_use(Resources())] == list(HEURISTICS)
    assert not entry("autoshard").can_use(RESOURCES), "the policy is another one's"
    assert entry("dreamshard").can_use(RESOURCES) and sharder("dreamshard", RESOURCES) is DREAMSHARD
    assert isinstance(sharder("evenshard", RESOURCES), EvenshardSharder)
    assert (label_of("size_greedy"), label_of("a_former_sharder")) == ("greedy by size", "a former sharder")
