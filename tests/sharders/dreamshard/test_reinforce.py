"""REINFORCE: its loss and gradients against one slow episode at a time, its edges, and tasks whose optimum is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from evenshard.placement.task import ShardingTask
from evenshard.sharders.dreamshard.env import EpisodeBatch, Episodes, choose_sampled, legal_mask_BTD, rollout
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, reinforce_loss, train_policy
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.features import FeatureNormalizer
from support.builders import (
    BATCH_SIZE,
    PLAIN_FEATURES,
    AdditiveCostNet,
    FakeHardware,
    SlowEpisode,
    capped,
    cost_net,
    every_placement,
    policy,
    sized,
    some_tables,
    split_by,
    task,
    working,
)

TABLES = some_tables(8)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
ROOMY = task(TABLES, devices=3)
CAP = int(1.15 * sum(table.size_bytes for table in TABLES) / 3)
TIGHT = capped(ROOMY, max(CAP, max(table.size_bytes for table in TABLES)))


def played(of_task: ShardingTask, episodes: int, seed: int = 0) -> tuple[EpisodeBatch, Episodes]:
    batch = EpisodeBatch.of([of_task], NORMALIZER).repeat(episodes)
    return batch, rollout(batch, cost_net(), policy(), choose_sampled(torch.Generator().manual_seed(seed)))


def slow_loss(of_task: ShardingTask, episodes: Episodes, net: DreamShardPolicy, entropy_weight: float) -> torch.Tensor:
    """The loss as the paper describes it: episode by episode, step by step, every state encoded again."""
    finished = [row for row in range(len(episodes.device_BT)) if episodes.finished_B[row]]
    returns = [-float(episodes.predicted_ms_B[row]) for row in finished]
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / len(returns))
    gain, steps = torch.zeros(()), 0
    for row, value in zip(finished, returns, strict=True):
        advantage = (value - mean) / deviation if deviation else 0.0
        episode = SlowEpisode(of_task, NORMALIZER, cost_net(), net)
        for device in episodes.device_BT[row].tolist():
            step = episode.next()
            legal = [d for d in range(of_task.num_devices) if step.legal[d]]
            probabilities = {d: (step.logits[d] - step.logits[legal].logsumexp(dim=0)).exp() for d in legal}
            entropy = -sum((p * p.log() for p in probabilities.values()), start=torch.zeros(()))
            gain = gain + advantage * probabilities[device].log() + entropy_weight * entropy
            steps += 1
            episode.put(step.position, device)
    return -gain / steps


def gradients(loss: torch.Tensor, net: DreamShardPolicy) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


# The loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_task", "entropy_weight"), [(ROOMY, 0.0), (TIGHT, 0.3)], ids=["roomy", "tight"])
def test_loss_and_gradients_are_those_of_the_slow_reference(of_task: ShardingTask, entropy_weight: float) -> None:
    batch, episodes = played(of_task, 12)
    masked = ~legal_mask_BTD(batch, episodes) & episodes.taken_BT[..., None]
    assert of_task is ROOMY or (masked.sum() > 10 and 2 <= episodes.finished_B.sum() < 12)
    net = policy()
    fast, slow = reinforce_loss(batch, episodes, net, entropy_weight), slow_loss(of_task, episodes, net, entropy_weight)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    for mine, reference in zip(gradients(fast, net), gradients(slow, net), strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-3)


def test_padding_and_company_change_nothing() -> None:
    """Short episodes on few devices give the same loss in a wider batch; their weight is their number of steps."""
    small, large = task(TABLES[:3], devices=2), task(TABLES, devices=4)
    batch = EpisodeBatch.of([small, large], NORMALIZER).repeat(4)
    episodes = rollout(batch, cost_net(), policy(), choose_sampled(torch.Generator().manual_seed(1)))
    alone_batch = EpisodeBatch.of([small], NORMALIZER).repeat(4)
    alone = replace(
        episodes,
        position_BT=episodes.position_BT[:4, :3],
        table_BT=episodes.table_BT[:4, :3],
        device_BT=episodes.device_BT[:4, :3],
        taken_BT=episodes.taken_BT[:4, :3],
        new_costs_BTC=episodes.new_costs_BTC[:4, :3],
        empty_costs_BC=episodes.empty_costs_BC[:4],
        finished_B=episodes.finished_B[:4],
        predicted_ms_B=episodes.predicted_ms_B[:4],
    )
    without_large = replace(episodes, finished_B=torch.tensor([True] * 4 + [False] * 4))
    net = policy()
    torch.testing.assert_close(
        reinforce_loss(batch, without_large, net, 0.1),
        reinforce_loss(alone_batch, alone, net, 0.1),
        atol=1e-5,
        rtol=1e-4,
    )


def test_a_better_than_average_choice_becomes_more_probable() -> None:
    batch, episodes = played(task(TABLES[:1], devices=2), 2)
    one_each = replace(
        episodes,
        device_BT=torch.tensor([[0], [1]]),
        predicted_ms_B=torch.tensor([5.0, 9.0]),
        finished_B=torch.ones(2) > 0,
    )
    logits = torch.zeros(2, requires_grad=True)
    reinforce_loss(batch, one_each, FixedLogits(logits), 0.0).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([-0.5, 0.5])  # descending it raises the cheaper device 0


def test_the_entropy_bonus_pulls_towards_even_choices() -> None:
    batch, episodes = played(task(TABLES[:1], devices=2), 3)
    alike = replace(episodes, predicted_ms_B=torch.full((3,), 4.0))
    logits = torch.tensor([1.0, -1.0], requires_grad=True)
    loss = reinforce_loss(batch, alike, FixedLogits(logits), 0.5)
    p = 1 / (1 + math.exp(-2))
    assert float(loss.detach()) == pytest.approx(0.5 * (p * math.log(p) + (1 - p) * math.log(1 - p)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad[0] > 0 > logits.grad[1]


class FixedLogits:
    """A policy whose logits are its only weights, one per device."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(features), 1)

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        return self._logits.expand(sums.shape[:-1])


# Dead ends -----------------------------------------------------------------------------------------------------------


def test_episodes_that_met_a_dead_end_do_not_count_and_nothing_becomes_nan() -> None:
    batch, episodes = played(TIGHT, 12)
    assert not episodes.finished_B.all()
    net = policy()
    loss = reinforce_loss(batch, episodes, net, 0.1)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(loss, net))
    keep = episodes.finished_B.nonzero().squeeze(1)
    only_finished = Episodes(**{name: getattr(episodes, name)[keep] for name in Episodes.__dataclass_fields__})
    few = EpisodeBatch.of([TIGHT], NORMALIZER).repeat(len(keep))
    torch.testing.assert_close(reinforce_loss(few, only_finished, net, 0.1), loss)


def trained(
    tasks: list[ShardingTask],
    config: ReinforceConfig,
    net: DreamShardPolicy,
    normalizer: FeatureNormalizer = NORMALIZER,
) -> list[float]:
    batches = [EpisodeBatch.of([one], normalizer) for one in tasks]
    optimizer = torch.optim.Adam(net.parameters(), lr=123.0)
    model = AdditiveCostNet() if normalizer is PLAIN_FEATURES else cost_net()
    return train_policy(net, optimizer, model, batches, config, torch.Generator().manual_seed(0))


def test_a_task_without_any_legal_placement_leaves_the_policy_as_it_was() -> None:
    net, dead = policy(), task(sized(3, 3, 3), cap=4 * 4)
    history = trained([dead], ReinforceConfig(3, 4, 0.1, 0.1), net)
    assert all(math.isnan(value) for value in history) and len(history) == 3
    assert all(weight.equal(before) for weight, before in zip(net.parameters(), policy().parameters(), strict=True))
    history = trained([TIGHT, dead], ReinforceConfig(6, 6, 0.01, 0.1), net)
    assert any(math.isnan(value) for value in history) and any(math.isfinite(value) for value in history)
    assert all(weight.isfinite().all() for weight in net.parameters())
    assert any(not weight.equal(before) for weight, before in zip(net.parameters(), policy().parameters(), strict=True))


def test_the_momentum_of_earlier_updates_does_not_move_the_policy_at_a_dead_end() -> None:
    net, generator = policy(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters())
    well, dead = (EpisodeBatch.of([one], NORMALIZER) for one in (ROOMY, task(sized(3, 3, 3), cap=4 * 4)))
    train_policy(net, optimizer, cost_net(), [well], ReinforceConfig(2, 6, 0.01, 0.1), generator)
    before = [weight.detach().clone() for weight in net.parameters()]
    train_policy(net, optimizer, cost_net(), [dead], ReinforceConfig(2, 6, 0.01, 0.1), generator)
    assert all(weight.equal(old) for weight, old in zip(net.parameters(), before, strict=True))


# Training ------------------------------------------------------------------------------------------------------------


def test_the_learning_rate_and_the_history_of_the_first_update() -> None:
    net = policy()
    (first,) = trained([ROOMY], ReinforceConfig(1, 8, 1e-3, 0.0), net)
    steps = [(new - old).abs().max() for new, old in zip(net.parameters(), policy().parameters(), strict=True)]
    assert 0 < float(max(steps).detach()) <= 1.001e-3  # Adam's first step is the learning rate
    generator = torch.Generator().manual_seed(0)
    torch.randint(1, (), generator=generator)  # the draw of the task
    batch = EpisodeBatch.of([ROOMY], NORMALIZER).repeat(8)
    episodes = rollout(batch, cost_net(), policy(), choose_sampled(generator))
    assert first == pytest.approx(float(episodes.predicted_ms_B.mean()))


@pytest.mark.slow
def test_training_finds_the_known_optimum() -> None:
    """Heaviest-first greedy ends at 3 + 2 + 2; the policy has to learn to put the two 3s together."""
    works, optimum = (3.0, 3.0, 2.0, 2.0, 2.0), {(0, 1), (2, 3, 4)}
    of_task = task(working(*works), devices=2)
    best_ms = min(FakeHardware().measure(of_task, one).max_device_ms for one in every_placement(of_task))
    net = policy(seed=3, scale_ms=10.0)
    sharder = DreamShardSharder(AdditiveCostNet(), net, PLAIN_FEATURES)
    assert split_by(sharder.place(of_task)) != optimum
    history = trained([of_task], ReinforceConfig(200, 10, 3e-3, 1e-3), net, PLAIN_FEATURES)
    assert split_by(sharder.place(of_task)) == optimum
    assert min(history) >= best_ms * (1 - 1e-5)
    assert sum(history[-20:]) / 20 < 1.03 * best_ms < sum(history[:20]) / 20
