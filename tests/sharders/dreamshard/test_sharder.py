"""DreamShard's networks in the form that rollouts ask: the same answers with fewer calls."""

from __future__ import annotations

import pytest
import torch

from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_sampled, rollout
from evenshard.sharders.dreamshard.sharder import lean_cost_net, lean_policy
from evenshard.sharders.features import FeatureNormalizer
from support.builders import cost_net, policy, some_tables, task

TABLES = some_tables(10)


def test_lean_networks_play_the_same_episodes() -> None:
    batch = EpisodeBatch.of([task(TABLES, devices=3), task(TABLES[:4], devices=5)], FeatureNormalizer.fit(TABLES, 64))
    plain, lean = (
        rollout(batch.repeat(8), net, chooser, choose_sampled(torch.Generator().manual_seed(0)))
        for net, chooser in ((cost_net(), policy()), (lean_cost_net(cost_net()), lean_policy(policy())))
    )
    assert lean.device_BT.equal(plain.device_BT)
    torch.testing.assert_close(lean.predicted_ms_B, plain.predicted_ms_B)


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_lean_networks_answer_as_the_networks_do(shape: tuple[int, ...]) -> None:
    net, chooser = cost_net(scale_ms=30.0), policy(scale_ms=30.0)
    lean_net, lean_chooser = lean_cost_net(net), lean_policy(chooser)
    generator = torch.Generator().manual_seed(0)
    sums, costs = torch.rand(*shape, 32, generator=generator), 30 * torch.rand(*shape, 3, generator=generator)
    torch.testing.assert_close(lean_net.device_costs(sums), net.device_costs(sums).detach(), atol=1e-5, rtol=1e-5)
    expected = chooser.device_logits(sums, costs).detach()
    torch.testing.assert_close(lean_chooser.device_logits(sums, costs).detach(), expected, atol=1e-5, rtol=1e-5)
    assert lean_policy(lean_chooser) is lean_chooser
