"""The table of sharders: what each needs decides who asks it."""

from __future__ import annotations

import pytest

from evenshard.planner.baselines import BASELINES, TORCHREC
from evenshard.sharders.catalog import HEURISTICS, SHARDERS, Resources, entry, label_of, sharder
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from evenshard.sharders.learned import LEARNED
from support.builders import cost_net, policy, some_tables, task
from support.convex_builders import NORMALIZER, random_model

TASK = task(some_tables(4))
DREAMSHARD = DreamShardSharder(cost_net(), policy(), NORMALIZER)
ALL = Resources(
    single_cost_ms=dict.fromkeys((table.name for table in TASK.tables), 1.0),
    policy=DREAMSHARD,
    cost_model=random_model(),
)


@pytest.mark.parametrize("name", [one.name for one in SHARDERS if one.can_use(ALL) and not one.package])
def test_every_entry_builds_the_sharder_of_its_name_which_places(name: str) -> None:
    built = sharder(name, ALL)
    assert built.name == name
    assert len(built.place(TASK).device_of_table) == 4


def test_what_a_sharder_needs_decides_who_asks_it() -> None:
    assert HEURISTICS == ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
    assert TORCHREC == ("torchrec_planner", "torchrec_planner_perf")
    assert (*HEURISTICS, *TORCHREC, "torchrec_planner_full", "best_rule_of_thumb") == BASELINES
    in_loop = [one.name for one in SHARDERS if one.in_loop]
    assert in_loop == [*HEURISTICS, "single_cost_greedy", *LEARNED, "evenshard"]
    assert [one.name for one in SHARDERS if one.is_privileged] == ["single_cost_greedy"]
    assert [one.name for one in SHARDERS if one.is_learned] == [*LEARNED, "evenshard"]


def test_a_sharder_without_what_it_needs_takes_no_part() -> None:
    assert [one.name for one in SHARDERS if one.in_loop and one.can_use(Resources())] == list(HEURISTICS)
    assert not entry("autoshard").can_use(ALL), "the policy is another one's"
    assert entry("dreamshard").can_use(ALL) and sharder("dreamshard", ALL) is DREAMSHARD
    assert isinstance(sharder("evenshard", ALL), EvenshardSharder)
    assert (label_of("size_greedy"), label_of("a_former_sharder")) == ("greedy by size", "a former sharder")
