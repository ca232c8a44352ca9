"""Constraints: the rule against its plain telling, and every sharder against the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement, common_device_mask, separation_groups
from evenshard.placement.task import ShardingTask
from evenshard.search.infeasibility import find_reason
from evenshard.search.items import FreeMemory, PackedItems
from evenshard.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.catalog import Sharder
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from evenshard.sharders.simple import GreedySharder, RandomSharder, expert_sharders
from evenshard.tables.table import Table
from support import builders
from support.additive_price import Additive
from support.builders import every_placement, sized, some_tables, task
from support.constraint_builders import any_placement, is_legal, legal_placements, limited, limited_tasks, only
from support.convex_builders import NORMALIZER, random_model

pytestmark = pytest.mark.full_search

MODEL = random_model()
HASTY = SearchConfig(num_rollouts=2, scores_per_table=60)


def weight(one: Table) -> float:
    return one.num_rows * (1 + ord(one.name[-1]) % 3)


def policy() -> DreamShardSharder:
    return DreamShardSharder(builders.cost_net(), builders.policy(), NORMALIZER)


def test_tables_that_are_placed_as_one_live_where_all_of_them_may_and_stay_apart_from_what_any_must() -> None:
    tables = sized(1, 1, 1, 1)
    of_task = limited(task(tables, 3), allowed=(only(0, 1), None, only(1, 2), None), apart=((1, 3), (0, 3), (2, 3)))
    assert common_device_mask(of_task, (1, 3)) is None
    found = [common_device_mask(of_task, positions) for positions in ((0, 1), (0, 2))]
    assert [None if one is None else one.tolist() for one in found] == [[True, True, False], [False, True, False]]
    assert [separation_groups(of_task, positions) for positions in ((0, 1), (2,), (3,))] == [(0, 1), (2,), (0, 1, 2)]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(of_task=limited_tasks())
def test_the_rule_is_what_its_description_says_for_tables_and_for_items(of_task: ShardingTask) -> None:
    items = PackedItems.of(of_task.as_whole)
    both = any(len({*item.positions} & {*group}) > 1 for item in items.items for group in of_task.apart)
    for placement in every_placement(of_task):
        room, devices = FreeMemory(items), placement.device_of_table
        fits = not both and all(len({devices[at] for at in item.positions}) == 1 for item in items.items)
        for item in items.items:
            device = devices[item.positions[0]]
            fits &= bool(room.of(item)[device] >= item.size_bytes)
            room.take(item, {device: item.size_bytes})
        assert fits == is_legal(of_task, placement)
        try:
            check_placement(of_task, placement)
        except InfeasibleTask:
            assert not is_legal(of_task, placement)
        else:
            assert is_legal(of_task, placement)


def test_items_join_groups_that_share_a_table_and_add_up_what_they_take() -> None:
    limits = {"together": ((4, 1), (3, 1)), "apart": ((0, 1), (2, 3)), "optimizer": "rowwise_adagrad"}
    items = PackedItems.of(limited(task(sized(1, 2, 3, 4, 5), devices=2, cap=100), **limits).as_whole)
    assert [item.positions for item in items.items] == [(0,), (1, 3, 4), (2,)]
    assert [item.size_bytes for item in items.items] == [8, 8 * 11, 24]
    assert [item.apart for item in items.items] == [(0,), (0, 1), (1,)]
    room = FreeMemory(items)
    room.take(items.items[1], {1: 88})
    assert [room.of(item).tolist() for item in items.items] == [[100, -1], [100, -1], [100, -1]]
    assert room.left_D.tolist() == [100, 12]


def test_optimizer_state_and_each_devices_own_cap_count() -> None:
    of_task = limited(task(sized(1, 1)), room_bytes=(4, 8), table_optimizers={"s0": "rowwise_adagrad"})
    check_placement(of_task, Placement((1, 0), 2))
    with pytest.raises(InfeasibleTask, match="device 0 needs 8 bytes, but has 4 bytes"):
        check_placement(of_task, Placement((0, 1), 2))
    with pytest.raises(InfeasibleTask):
        check_placement(replace(of_task, room_bytes=(4, 7)), Placement((1, 0), 2))


SHARDERS: list[Sharder] = [
    RandomSharder(0),
    GreedySharder("greedy", weight),
    expert_sharders()[0],
    EvenshardSharder(MODEL, policy(), HASTY),
    policy(),
]


@pytest.mark.slow
@pytest.mark.parametrize("sharder", SHARDERS, ids=[sharder.name for sharder in SHARDERS])
@settings(max_examples=20, deadline=None)
@given(of_task=limited_tasks())
def test_an_answer_is_legal_or_there_is_none(sharder: Sharder, of_task: ShardingTask) -> None:
    try:
        placement = sharder.place(of_task)
    except InfeasibleTask as error:
        if sharder.name == "evenshard":  # the others may meet dead ends
            assert not legal_placements(of_task), error
    else:
        assert is_legal(of_task, placement)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(of_task=limited_tasks())
def test_a_placement_is_found_exactly_where_there_is_one(of_task: ShardingTask) -> None:
    legal = legal_placements(of_task)
    if legal:
        assert find_reason(of_task.as_whole) is None
        assert any_placement(of_task) in legal
    else:
        with pytest.raises(InfeasibleTask):
            any_placement(of_task)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_legal_placement_of_small_tasks(seed: int) -> None:
    """Seven tables on three devices: one pinned, one kept off a device, two together, three apart, unlike caps."""
    tables = some_tables(7, seed)
    most = max(one.size_bytes for one in tables)
    caps = tuple(int(sum(one.size_bytes for one in tables) * share) + most for share in (0.5, 0.4, 0.3))
    limits = {"together": ((0, 3),), "apart": ((1, 2, 4),), "allowed": (None, only(1), *[None] * 4, only(0, 2))}
    of_task = limited(task(tables, 3), room_bytes=caps, **limits)
    model = Additive.drawn(of_task, seed)
    *_, best = legal = sorted(legal_placements(of_task), key=model.slowest, reverse=True)
    assert model.slowest(legal[2]) > model.slowest(best)
    known = [start.parts(of_task.tables) for start in legal[:3]]
    found = PlanSearch(model.costs, PlanSearchEffort(2_000)).run(known).best.parts
    assert model.slowest(Placement.of(of_task, found)) == pytest.approx(model.slowest(best), rel=1e-5)
