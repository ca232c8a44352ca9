"""REINFORCE: its loss and gradients against one slow episode at a time, its edges, and tasks whose optimum is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

import pytest
import torch

from evenshard.placement.task import ShardingTask
from evenshard.sharders.dreamshard.env import EpisodeBatch, Episodes, choose_sampled, legal_mask_BTD, rollout
from evenshard.sharders.dreamshard.fit import ReinforceConfig, reinforce_loss, train_policy
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


def played(tasks: Sequence[ShardingTask], episodes: int, seed: int = 0) -> tuple[EpisodeBatch, Episodes]:
    """As many episodes of each task, side by side."""
    batch = EpisodeBatch.of(tasks, NORMALIZER).repeat(episodes)
    return batch, rollout(batch, cost_net(), policy(), choose_sampled(torch.Generator().manual_seed(seed)))


def slow_loss(
    tasks: Sequence[ShardingTask], episodes: Episodes, net: DreamShardPolicy, entropy_weight: float
) -> torch.Tensor:
    """The loss as the paper describes it: episode by episode, step by step, every state encoded again."""
    finished = [row for row in range(len(episodes.device_BT)) if episodes.finished_B[row]]
    returns = [-float(episodes.predicted_ms_B[row]) for row in finished]
    mean, deviation = fmean(returns), pstdev(returns)
    gain, steps = torch.zeros(()), 0
    for row, value in zip(finished, returns, strict=True):
        of_task = tasks[row * len(tasks) // len(episodes.device_BT)]
        episode = SlowEpisode(of_task, NORMALIZER, cost_net(), net)
        for device in episodes.device_BT[row, : len(of_task.tables)].tolist():
            step = episode.next()
            legal = [d for d in range(of_task.num_devices) if step.legal[d]]
            probabilities = {d: (step.logits[d] - step.logits[legal].logsumexp(dim=0)).exp() for d in legal}
            entropy = -sum((p * p.log() for p in probabilities.values()), start=torch.zeros(()))
            gain = gain + (value - mean) / deviation * probabilities[device].log() + entropy_weight * entropy
            steps += 1
            episode.put(step.position, device)
    return -gain / steps


def gradients(loss: torch.Tensor, net: DreamShardPolicy) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize(
    ("tasks", "entropy_weight"),
    [([ROOMY], 0.0), ([TIGHT], 0.3), ([task(TABLES[:3], devices=2), TIGHT], 0.1)],
    ids=["roomy", "tight", "padded"],
)
def test_loss_and_gradients_are_those_of_the_slow_reference(tasks: list[ShardingTask], entropy_weight: float) -> None:
    """Log-probabilities are over legal devices, unfinished episodes do not count, and padding changes nothing."""
    batch, episodes = played(tasks, 12)
    masked = ~legal_mask_BTD(batch, episodes) & episodes.taken_BT[..., None]
    assert TIGHT not in tasks or (masked.sum() > 10 and 1 <= episodes.finished_B[-12:].sum() < 12)
    net = policy()
    fast, slow = reinforce_loss(batch, episodes, net, entropy_weight), slow_loss(tasks, episodes, net, entropy_weight)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    for mine, reference in zip(gradients(fast, net), gradients(slow, net), strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-3)


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


def test_a_task_without_any_legal_placement_leaves_the_policy_as_it_was_despite_momentum() -> None:
    net, dead = policy(), task(sized(3, 3, 3), cap=4 * 4)
    history = trained([dead], ReinforceConfig(3, 4, 0.1, 0.1), net)
    assert all(math.isnan(value) for value in history) and len(history) == 3
    assert all(weight.equal(before) for weight, before in zip(net.parameters(), policy().parameters(), strict=True))
    history = trained([TIGHT, dead], ReinforceConfig(6, 6, 0.01, 0.1), net)
    assert any(math.isnan(value) for value in history) and any(math.isfinite(value) for value in history)
    assert all(weight.isfinite().all() for weight in net.parameters())
    assert any(not weight.equal(before) for weight, before in zip(net.parameters(), policy().parameters(), strict=True))
    net, generator = policy(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters())
    well, dead = (EpisodeBatch.of([one], NORMALIZER) for one in (ROOMY, task(sized(3, 3, 3), cap=4 * 4)))
    train_policy(net, optimizer, cost_net(), [well], ReinforceConfig(2, 6, 0.01, 0.1), generator)
    before = [weight.detach().clone() for weight in net.parameters()]
    train_policy(net, optimizer, cost_net(), [dead], ReinforceConfig(2, 6, 0.01, 0.1), generator)
    assert all(weight.equal(old) for weight, old in zip(net.parameters(), before, strict=True))


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
