"""DreamShard's cost network (NeurIPS 2022, section 3.2), its policy (section 3.3), and the sharder that uses them.

Both networks represent a device by the sum of its tables' representations, or zeros without tables. The overall cost is
predicted from the element-wise maximum over devices.

Legend: H = 32 representation size, D devices, C = 3 costs, B placements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear

from evenshard.base.messages import cut
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.search.infeasibility import no_placement_error, require_feasible
from evenshard.sharders.dreamshard import env
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import REPRESENTATION_SIZE, TableNetwork, linear_layers, mlp

RESCUE_ROLLOUTS = 64  # sampled if the most probable placement does not fit in memory


class DreamShardCostNet(TableNetwork):
    """Network that predicts per-device and overall cost in ms from normalised table features.

    Sizes: table MLP 21-128-32, heads 32-64-1. The heads predict in units of ``cost_scale_ms``, the mean overall cost.
    """

    kind = "dreamshard_cost_net"

    def __init__(self) -> None:
        super().__init__()
        self.fwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_all_to_all_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.overall_head = mlp(REPRESENTATION_SIZE, 64, 1)

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        """Predict forward, backward all-to-all and backward compute of devices, [..., C] ms, from sums [..., H]."""
        heads = (self.fwd_compute_head, self.bwd_all_to_all_head, self.bwd_compute_head)
        return torch.cat([head(sums) for head in heads], dim=-1) * self.cost_scale_ms

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        """Predict the overall cost of placements in ms, [B]; devices outside the mask do not count."""
        outside_BD1 = ~device_mask_BD[..., None]
        worst_BH = sums_BDH.masked_fill(outside_BD1, -torch.inf).amax(dim=1)
        overall_B: torch.Tensor = self.overall_head(worst_BH).squeeze(-1) * self.cost_scale_ms
        return overall_B


class DreamShardPolicy(TableNetwork):
    """Policy network with one logit per device, for any number of tables and devices.

    Sizes: table MLP 21-128-32 (summed per device), cost MLP 3-64-32, one shared Linear(64, 1).
    """

    kind = "dreamshard_policy"

    def __init__(self) -> None:
        super().__init__()
        self.cost_mlp = nn.Sequential(mlp(env.NUM_COSTS, 64, REPRESENTATION_SIZE), nn.ReLU())
        self.device_head = nn.Linear(2 * REPRESENTATION_SIZE, 1)

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Compute logits of devices, [...], from summed representations [..., H] and predicted costs [..., C] in ms."""
        state = torch.cat([sums, self.cost_mlp(costs / self.cost_scale_ms)], dim=-1)
        logits: torch.Tensor = self.device_head(state).squeeze(-1)
        return logits


# Variants of the networks for a rollout, without gradients and with fewer calls, whose overhead dominates the time.


def lean_cost_net(model: env.CostNet) -> env.CostNet:
    """Return a faster equivalent of DreamShard's cost network; any other network unchanged."""
    return _LeanCostNet(model) if isinstance(model, DreamShardCostNet) else model


def lean_policy(policy: env.Policy) -> env.Policy:
    """Return a faster equivalent of DreamShard's policy; any other policy unchanged."""
    return _LeanPolicy(policy) if isinstance(policy, DreamShardPolicy) else policy


class _LeanCostNet:
    """DreamShard's cost network with its three heads in two matrix products."""

    @torch.no_grad()
    def __init__(self, net: DreamShardCostNet) -> None:
        heads = [linear_layers(head) for head in (net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head)]
        self.encode, self.overall_cost = net.encode, net.overall_cost
        self._hidden = torch.cat([hidden.weight for hidden, _ in heads])
        self._hidden_bias = torch.cat([hidden.bias for hidden, _ in heads])
        outputs = torch.block_diag(*(output.weight for _, output in heads))  # type: ignore[no-untyped-call]
        self._output = outputs * net.cost_scale_ms
        self._output_bias = torch.cat([output.bias for _, output in heads]) * net.cost_scale_ms

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        hidden = linear(sums, self._hidden, self._hidden_bias).relu_()
        return linear(hidden, self._output, self._output_bias)


class _LeanPolicy:
    @torch.no_grad()
    def __init__(self, policy: DreamShardPolicy) -> None:
        first, second = linear_layers(policy.cost_mlp)
        self.encode = policy.encode
        self._first, self._first_bias = first.weight / policy.cost_scale_ms, first.bias
        self._second, self._second_bias = second.weight, second.bias
        self._head, self._head_bias = policy.device_head.weight, policy.device_head.bias

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        hidden = linear(costs, self._first, self._first_bias).relu_()
        seen_costs = linear(hidden, self._second, self._second_bias).relu_()
        return linear(torch.cat([sums, seen_costs], dim=-1), self._head, self._head_bias).squeeze(-1)


class DreamShardSharder:
    """Sharder that proposes placements with the policy, and returns the one with the lowest predicted overall cost.

    The candidates are the placement with the most probable device at every step (the published inference) and
    ``num_rollouts`` sampled placements. Nothing is measured.
    """

    name = "dreamshard"

    def __init__(
        self, cost_net: env.CostNet, policy: env.Policy, normalizer: FeatureNormalizer, num_rollouts: int = 0
    ) -> None:
        self._cost_net = cost_net
        self._policy = policy
        self._normalizer = normalizer
        self._num_rollouts = num_rollouts

    def place(self, task: ShardingTask) -> Placement:
        """Place a task by the policy.

        Raises:
            InfeasibleTask: if no rollout fits in memory, or the best one breaks another rule, which the policy ignores.
        """
        require_feasible(task)
        batch = env.EpisodeBatch.of([task], self._normalizer)
        cost_net, policy = lean_cost_net(self._cost_net), lean_policy(self._policy)
        greedy = env.rollout(batch, cost_net, policy, env.choose_best)
        num_rollouts = self._num_rollouts if greedy.finished_B[0] else max(self._num_rollouts, RESCUE_ROLLOUTS)
        best, episode = greedy, 0
        if num_rollouts:
            choose = env.choose_sampled(torch.Generator().manual_seed(0))
            sampled = env.rollout(batch.repeat(num_rollouts), cost_net, policy, choose)
            lowest = int(sampled.predicted_ms_B.argmin())
            if sampled.predicted_ms_B[lowest] < greedy.predicted_ms_B[0]:
                best, episode = sampled, lowest
        if not best.finished_B[episode]:
            raise no_placement_error(task, f"{cut(task.task_id)}: no placement found in {1 + num_rollouts} rollouts")
        placement = best.placement(episode, task)
        check_placement(task, placement)
        return placement

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        """Sample one placement per task, for exploration; None if a table fit on no device."""
        alike = all(task is tasks[0] for task in tasks)  # encode a task once even if it is sampled many times
        batch = env.EpisodeBatch.of(tasks[:1] if alike else tasks, self._normalizer).repeat(len(tasks) if alike else 1)
        cost_net, policy = lean_cost_net(self._cost_net), lean_policy(self._policy)
        episodes = env.rollout(batch, cost_net, policy, env.choose_sampled(generator))
        return [
            episodes.placement(number, task) if episodes.finished_B[number] else None
            for number, task in enumerate(tasks)
        ]

    def predict_ms(self, task: ShardingTask, placement: Placement) -> float:
        """Predict the overall cost of any placement of a task, ms."""
        with torch.no_grad():
            representations = self._cost_net.encode(self._normalizer(task.tables, task.batch_size))
            sums = representations.new_zeros(task.num_devices, representations.shape[1])
            sums.index_add_(0, torch.tensor(placement.device_of_table), representations)
            mask = torch.ones(1, task.num_devices, dtype=torch.bool)
            return float(self._cost_net.overall_cost(sums[None], mask))
