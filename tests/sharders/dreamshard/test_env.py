"""The placement MDP: batched rollouts against one slow episode at a time, its masks, its order and its dead ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.dreamshard.env import (
    Choose,
    EpisodeBatch,
    Episodes,
    choose_best,
    choose_sampled,
    legal_mask_BTD,
    replay_logits_BTD,
    rollout,
    seen_costs_BTDC,
)
from evenshard.sharders.features import FeatureNormalizer
from support.builders import (
    BATCH_SIZE,
    PLAIN_FEATURES,
    ROOMY,
    AdditiveCostNet,
    ByPredictedCost,
    SlowEpisode,
    capped,
    cost_net,
    play_slowly,
    policy,
    sized,
    some_tables,
    split_by,
    task,
    working,
)

TABLES = some_tables(14)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def tight(of_task: ShardingTask, slack: float = 1.25) -> ShardingTask:
    """The task with so little memory that the mask decides a good part of the steps."""
    sizes = [table.size_bytes for table in of_task.tables]
    return capped(of_task, max(*sizes, int(slack * sum(sizes) / of_task.num_devices)))


MIXED = [
    tight(task(TABLES[:9], devices=3, task_id="a")),
    task(TABLES[4:10], devices=5, task_id="b"),
    tight(task(TABLES[7:14], devices=2, task_id="c"), slack=1.1),
    task(TABLES[13:], devices=4, task_id="d"),
    task(TABLES[:6], devices=1, task_id="e"),
]


def sampled_episodes(batch: EpisodeBatch, seed: int) -> Episodes:
    return rollout(batch, cost_net(), policy(), choose_sampled(torch.Generator().manual_seed(seed)))


# The batch against the slow reference --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_costs_masks_and_logits_of_every_step_are_those_of_a_state_encoded_again(seed: int) -> None:
    batch = EpisodeBatch.of(MIXED, NORMALIZER).repeat(3)
    episodes = sampled_episodes(batch, seed)
    logits_BTD = replay_logits_BTD(batch, episodes, policy()).detach()
    masks_BTD, costs_BTDC = legal_mask_BTD(batch, episodes), seen_costs_BTDC(batch, episodes)
    assert episodes.finished_B.sum() > 10
    for row, of_task in enumerate(one for one in MIXED for _ in range(3)):
        slow, devices = SlowEpisode(of_task, NORMALIZER, cost_net(), policy()), of_task.num_devices
        for step in range(int(episodes.taken_BT[row].sum())):
            expected = slow.next()
            assert int(episodes.position_BT[row, step]) == expected.position
            assert masks_BTD[row, step].tolist() == [*expected.legal.tolist(), *[False] * (5 - devices)]
            torch.testing.assert_close(costs_BTDC[row, step, :devices], expected.costs, atol=1e-5, rtol=1e-5)
            masked = expected.logits.detach().masked_fill(~expected.legal, -torch.inf)
            torch.testing.assert_close(logits_BTD[row, step, :devices], masked, atol=1e-5, rtol=1e-5)
            assert logits_BTD[row, step, devices:].isneginf().all()
            slow.put(expected.position, int(episodes.device_BT[row, step]))
        if slow.done:
            assert float(episodes.predicted_ms_B[row]) == pytest.approx(slow.overall_ms(), rel=1e-5)
            assert episodes.placement(row, of_task) == slow.placement()
        else:
            assert not slow.next().legal.any() and not episodes.finished_B[row]


@pytest.mark.parametrize("seed", range(4))
def test_the_most_probable_devices_are_those_of_the_slow_episode(seed: int) -> None:
    episodes = rollout(EpisodeBatch.of(MIXED, NORMALIZER), cost_net(seed), policy(seed), choose_best)
    used = set()
    for row, of_task in enumerate(MIXED):
        if not episodes.finished_B[row]:
            with pytest.raises(InfeasibleTask):
                play_slowly(of_task, NORMALIZER, cost_net(seed), policy(seed))
            continue
        placement = episodes.placement(row, of_task)
        assert split_by(placement) == split_by(play_slowly(of_task, NORMALIZER, cost_net(seed), policy(seed)))
        used |= set(placement.device_of_table)
    assert len(used) > 1


def test_tasks_of_different_lengths_and_device_counts_are_played_as_if_alone() -> None:
    batch = EpisodeBatch.of(MIXED, NORMALIZER)
    together = rollout(batch, cost_net(), policy(), choose_best)
    for row, of_task in enumerate(MIXED):
        alone = rollout(EpisodeBatch.of([of_task], NORMALIZER), cost_net(), policy(), choose_best)
        length, devices = len(of_task.tables), of_task.num_devices
        assert together.finished_B[row] == alone.finished_B[0]
        assert together.position_BT[row, :length].tolist() == alone.position_BT[0].tolist()
        assert together.taken_BT[row, :length].tolist() == alone.taken_BT[0].tolist()
        assert not together.taken_BT[row, length:].any() and not together.device_BT[row, length:].any()
        assert not legal_mask_BTD(batch, together)[row, :, devices:].any()
        assert float(together.predicted_ms_B[row]) == pytest.approx(float(alone.predicted_ms_B[0]), rel=1e-5)
        if alone.finished_B[0]:
            assert split_by(together.placement(row, of_task)) == split_by(alone.placement(0, of_task))


# The batch -----------------------------------------------------------------------------------------------------------


def test_a_batch_pads_shorter_tasks_masks_missing_devices_and_repeats_side_by_side() -> None:
    first, second = task(TABLES[:3], devices=1, cap=100), task(TABLES[1:2], devices=3, cap=200)
    batch = EpisodeBatch.of([first, second], NORMALIZER)
    assert batch.table_BT.tolist() == [[0, 1, 2], [1, 0, 0]]
    assert batch.present_BT.tolist() == [[True, True, True], [True, False, False]]
    assert batch.size_BT.tolist() == [[table.size_bytes for table in TABLES[:3]], [TABLES[1].size_bytes, 0, 0]]
    assert batch.device_mask_BD.tolist() == [[True, False, False], [True, True, True]]
    assert batch.memory_cap_B.tolist() == [100, 200]
    torch.testing.assert_close(batch.features_PF, NORMALIZER(TABLES[:3], BATCH_SIZE))
    batch = EpisodeBatch.of([task(TABLES[:2]), task(TABLES[2:4])], NORMALIZER).repeat(2)
    assert batch.table_BT.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert len(batch.features_PF) == 4


def test_tables_of_more_than_four_gigabytes_do_not_overflow() -> None:
    huge = [replace(table, num_rows=10**9, embedding_dim=128) for table in TABLES[:3]]
    episodes = rollout(
        EpisodeBatch.of([task(huge, devices=3, cap=600 * 10**9)], NORMALIZER), cost_net(), policy(), choose_best
    )
    assert sorted(episodes.placement(0, task(huge, devices=3)).device_of_table) == [0, 1, 2]


# What does not matter ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(9)))
def test_the_order_of_a_tasks_tables_changes_nothing(order: list[int]) -> None:
    original = MIXED[0]
    shuffled = replace(original, tables=tuple(original.tables[number] for number in order))
    episodes = rollout(EpisodeBatch.of([original, shuffled], NORMALIZER), cost_net(), policy(), choose_best)
    where, moved = episodes.placement(0, original), episodes.placement(1, shuffled)
    assert {frozenset(order[position] for position in shard) for shard in split_by(moved)} == set(
        map(frozenset, split_by(where))
    )
    assert float(episodes.predicted_ms_B[1]) == pytest.approx(float(episodes.predicted_ms_B[0]), rel=1e-6)


def test_tables_are_placed_in_descending_single_table_cost() -> None:
    of_task = task(working(2.0, 9.0, 4.0, 1.0), devices=2)
    short = task(working(3.0, 5.0), devices=2)
    batch = EpisodeBatch.of([of_task, short], PLAIN_FEATURES)
    episodes = rollout(batch, AdditiveCostNet(), EMPTIEST, choose_best)
    assert episodes.position_BT[0].tolist() == [1, 2, 0, 3]
    assert episodes.position_BT[1, :2].tolist() == [1, 0]
    assert batch.table_BT[0].gather(0, episodes.position_BT[0]).tolist() == episodes.table_BT[0].tolist()


# Masks and choices ---------------------------------------------------------------------------------------------------


EMPTIEST, FULLEST = ByPredictedCost(-1.0), ByPredictedCost(1.0)


def test_the_emptiest_device_is_as_known_and_a_full_one_is_left_alone_however_likely() -> None:
    """9 | 4 | then 2 and 1 to the second device: 9 | 7, so 3 * 9 ms of compute and 1 ms of exchange for one dim."""
    of_task = task(working(2.0, 9.0, 4.0, 1.0), devices=2)
    episodes = rollout(EpisodeBatch.of([of_task], PLAIN_FEATURES), AdditiveCostNet(), EMPTIEST, choose_best)
    assert episodes.placement(0, of_task).device_of_table == (1, 0, 1, 1)
    assert float(episodes.predicted_ms_B[0]) == pytest.approx(28.0)
    of_task = task(sized(5, 4, 3, 2), devices=2, cap=4 * 7)
    episodes = rollout(EpisodeBatch.of([of_task], PLAIN_FEATURES), AdditiveCostNet(), FULLEST, choose_best)
    assert episodes.finished_B.all()
    assert episodes.placement(0, of_task).shards() == ((0, 3), (1, 2))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    devices=st.integers(1, 4),
    cap=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_illegal_devices_are_never_chosen(sizes: list[int], devices: int, cap: int, seed: int) -> None:
    of_task = task(sized(*sizes), devices=devices, cap=4 * cap)
    batch = EpisodeBatch.of([of_task, task(sized(*sizes), devices=4)], NORMALIZER).repeat(8)
    episodes = sampled_episodes(batch, seed)
    chosen_BT = legal_mask_BTD(batch, episodes).gather(2, episodes.device_BT[..., None]).squeeze(-1)
    assert chosen_BT[episodes.taken_BT].all()
    assert episodes.finished_B[8:].all()
    for row in range(8):
        if episodes.finished_B[row]:
            check_placement(of_task, episodes.placement(row, of_task))


def test_sampled_choices_have_the_probabilities_of_the_logits() -> None:
    logits_D = torch.tensor([0.0, 1.0, -torch.inf, 2.5, -1.0])
    draws = choose_sampled(torch.Generator().manual_seed(0))(logits_D.expand(40_000, -1))
    shares_D = torch.bincount(draws, minlength=5) / 40_000
    torch.testing.assert_close(shares_D, logits_D.softmax(dim=0), atol=0.01, rtol=0)
    assert shares_D[2] == 0


@pytest.mark.parametrize("choose", [choose_best, choose_sampled(torch.Generator().manual_seed(0))])
def test_a_single_legal_device_is_chosen_even_with_a_hopeless_logit(choose: Choose) -> None:
    assert choose(torch.tensor([[-torch.inf, -1e30, -torch.inf]])).tolist() == [1]


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others() -> None:
    batch = EpisodeBatch.of(MIXED, NORMALIZER).repeat(4)
    again = [sampled_episodes(batch, seed).device_BT for seed in (0, 0, 1)]
    assert again[0].equal(again[1]) and not again[0].equal(again[2])


# Edges ---------------------------------------------------------------------------------------------------------------


def test_no_legal_device_leaves_the_episode_unfinished_at_infinite_cost_and_the_others_alone() -> None:
    dead, well = task(sized(3, 3, 3, 1), devices=2, cap=4 * 5), task(sized(3, 3, 3, 1), devices=2)
    batch = EpisodeBatch.of([dead, well], NORMALIZER)
    episodes = rollout(batch, cost_net(), policy(), choose_best)
    assert episodes.finished_B.tolist() == [False, True]
    assert math.isinf(float(episodes.predicted_ms_B[0])) and math.isfinite(float(episodes.predicted_ms_B[1]))
    taken = episodes.taken_BT[0].tolist()
    assert sum(taken) < 4 and taken == sorted(taken, reverse=True)  # nothing is placed after a dead end
    assert not episodes.device_BT[0][~episodes.taken_BT[0]].any()
    alone = rollout(EpisodeBatch.of([well], NORMALIZER), cost_net(), policy(), choose_best)
    assert split_by(episodes.placement(1, well)) == split_by(alone.placement(0, well))
    with pytest.raises(AssertionError):
        episodes.placement(0, dead)
    first = rollout(EpisodeBatch.of([task(sized(9), cap=4)], NORMALIZER), cost_net(), policy(), choose_best)
    assert not first.finished_B.any() and not first.taken_BT.any(), "not even the first table fits"


def test_a_device_without_tables_is_seen_as_the_zero_representation() -> None:
    """Not as the representation of a table whose features are all zero."""
    batch = EpisodeBatch.of([task(TABLES[:3])], NORMALIZER)
    episodes = rollout(batch, cost_net(), policy(), choose_best)
    empty = cost_net().device_costs(torch.zeros(32)).detach()
    torch.testing.assert_close(seen_costs_BTDC(batch, episodes)[0, 0], empty.expand(2, -1))
    zero_features = cost_net().device_costs(cost_net().encode(torch.zeros(1, 21)))[0].detach()
    assert (empty - zero_features).abs().max() > 1e-3


class IdlestDevice(AdditiveCostNet):
    """A cost model to which the idlest device of the task matters, so that one it does not have would."""

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        return sums_BDH[..., 0].masked_fill(~device_mask_BD, torch.inf).amin(dim=1)


def test_the_overall_cost_is_asked_for_the_devices_of_the_task_only() -> None:
    batch = EpisodeBatch.of([task(working(5.0, 3.0), devices=2), task(working(5.0), devices=3)], PLAIN_FEATURES)
    episodes = rollout(batch, IdlestDevice(), EMPTIEST, choose_best)
    assert episodes.predicted_ms_B.tolist() == pytest.approx([3.0, 0.0])


def test_replayed_logits_stay_finite_where_nothing_was_placed() -> None:
    """A row that is -inf everywhere would turn gradients into NaN."""
    batch = EpisodeBatch.of([task(sized(3, 3, 3), cap=4 * 3), task(sized(1), cap=ROOMY)], NORMALIZER)
    episodes = rollout(batch, cost_net(), policy(), choose_best)
    logits_BTD = replay_logits_BTD(batch, episodes, policy())
    assert not episodes.finished_B[0]
    assert logits_BTD.isfinite().any(dim=-1).all()
    assert logits_BTD[~episodes.taken_BT].isfinite().all()
