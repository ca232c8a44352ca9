"""AutoShard's policy (KDD 2022, section 3.3), and the sharder that uses it.

Legend: U steps, B slots, D devices, H = 32 representation size, S = 64 state size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.search.infeasibility import find_reason, no_device_error, require_feasible
from evenshard.sharders.autoshard.env import AutoShardCostNet, BalanceEnv, Observation
from evenshard.sharders.dreamshard.env import Choose, EpisodeBatch, choose_best, choose_sampled
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import REPRESENTATION_SIZE, ScaledNetwork, mlp

STATE_SIZE = 2 * REPRESENTATION_SIZE
LSTM_LAYERS = 2

Memory = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class PolicyOutput:
    """Output of the policy network: device logits and state values."""

    logits_UBD: torch.Tensor  # logits of the devices; -inf where not legal
    value_UB: torch.Tensor  # the expected reward
    memory: Memory  # state of the LSTM after the last step


class AutoShardPolicy(ScaledNetwork):
    """Policy network with one logit per device, for any number of tables and devices.

    A state s is the output of an LSTM (2 layers of 64) over the steps, given the table's representation and the
    share of tables already placed. A device is represented by a vector a: the sum of its tables' representations, from
    the frozen cost network, and an embedding (MLP 2-64-32) of its predicted cost and used memory. The policy head
    (192-128-128-64-1) computes a device's logit from (s, a, s * a). The value head reads s, mean a and maximum a.
    """

    kind = "autoshard_policy"

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(REPRESENTATION_SIZE + 1, STATE_SIZE, num_layers=LSTM_LAYERS)
        self.load_mlp = nn.Sequential(mlp(2, 64, REPRESENTATION_SIZE), nn.ReLU())
        # The head's first layer in two parts: the part for the state is the same for all devices of a step.
        self.head_of_state = nn.Linear(STATE_SIZE, 128)
        self.head_of_device = nn.Linear(2 * STATE_SIZE, 128, bias=False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), mlp(128, 64, 1))
        self.value_head = mlp(3 * STATE_SIZE, 64, 1)

    @staticmethod
    def initial_memory(num_slots: int) -> Memory:
        """Return the initial LSTM state."""
        return torch.zeros(LSTM_LAYERS, num_slots, STATE_SIZE), torch.zeros(LSTM_LAYERS, num_slots, STATE_SIZE)

    def forward(self, seen: Observation, memory: Memory) -> PolicyOutput:
        """Compute logits and values of U successive steps of B parallel episodes.

        Args:
            seen: stacked observations, [U, B, ...].
            memory: state of the LSTM after the previous step; it is reset wherever an episode begins.
        """
        state_UBS, memory = self._states(seen, memory)
        load_UBD2 = torch.stack([seen.costs_BD / self.cost_scale_ms, seen.used_gb_BD], dim=-1)
        device_UBDS = torch.cat([seen.sums_BDH, self.load_mlp(load_UBD2)], dim=-1)
        device_part = self.head_of_device(torch.cat([device_UBDS, state_UBS[..., None, :] * device_UBDS], dim=-1))
        logits_UBD = self.head(self.head_of_state(state_UBS)[..., None, :] + device_part).squeeze(-1)

        outside_UBD1 = ~seen.device_mask_BD[..., None]
        mean_UBS = device_UBDS.masked_fill(outside_UBD1, 0.0).sum(dim=-2) / (~outside_UBD1).sum(dim=-2)
        most_UBS = device_UBDS.masked_fill(outside_UBD1, -torch.inf).amax(dim=-2)
        value_UB = self.value_head(torch.cat([state_UBS, mean_UBS, most_UBS], dim=-1)).squeeze(-1)
        return PolicyOutput(logits_UBD.masked_fill(~seen.legal_BD, -torch.inf), value_UB, memory)

    def _states(self, seen: Observation, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """Return the states, [U, B, S]; the LSTM is called once per segment between starts of episodes."""
        inputs_UBF = torch.cat([seen.table_BH, seen.step_ratio_B[..., None]], dim=-1)
        begins = seen.fresh_B.any(dim=1).nonzero().flatten().tolist()
        cuts = [0, *(step for step in begins if step > 0), len(inputs_UBF)]
        states = []
        for first, last in pairwise(cuts):
            keeps_1B1 = (~seen.fresh_B[first]).float()[None, :, None]
            output, memory = self.lstm(inputs_UBF[first:last], (memory[0] * keeps_1B1, memory[1] * keeps_1B1))
            states.append(output)
        return torch.cat(states), memory


class AutoShardSharder:
    """Sharder that takes the policy's most probable device at every step, without measurements."""

    name = "autoshard"

    def __init__(self, cost_net: AutoShardCostNet, policy: AutoShardPolicy, normalizer: FeatureNormalizer) -> None:
        self.cost_net = cost_net
        self.policy = policy
        self.normalizer = normalizer

    def place(self, task: ShardingTask) -> Placement:
        """Place a task by the policy.

        Raises:
            InfeasibleTask: if no device has enough memory for a table.
        """
        require_feasible(task)
        (answer,) = self._play([task], choose_best)
        if isinstance(answer, InfeasibleTask):
            raise answer
        return answer

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        """Sample one placement per task, for exploration; None if no device has enough memory for a table."""
        return self._play_feasible(tasks, choose_sampled(generator))

    def predict_ms(self, task: ShardingTask, placement: Placement) -> float:
        """Predict the compute time of the slowest device, ms, without communication."""
        with torch.no_grad():
            of_tables = self.cost_net.encode(self.normalizer(task.tables, task.batch_size))
            sums = [of_tables[list(positions)].sum(dim=0) for positions in placement.shards() if positions]
            return float(self.cost_net.shard_cost(torch.stack(sums)).max())

    def _play_feasible(self, tasks: Sequence[ShardingTask], choose: Choose) -> list[Placement | None]:
        distinct = {id(task): task for task in tasks}  # encode a task once even if it is sampled many times
        possible = {number for number, task in distinct.items() if is_feasible(task)}
        feasible = [number for number, task in enumerate(tasks) if id(task) in possible]
        placements: list[Placement | None] = [None] * len(tasks)
        for number, answer in zip(feasible, self._play([tasks[number] for number in feasible], choose), strict=True):
            placements[number] = answer if isinstance(answer, Placement) else None
        return placements

    @torch.no_grad()
    def _play(self, tasks: Sequence[ShardingTask], choose: Choose) -> list[Placement | InfeasibleTask]:
        if not tasks:
            return []
        env = BalanceEnv(EpisodeBatch.of(tasks, self.normalizer), self.cost_net, num_slots=len(tasks))
        memory = self.policy.initial_memory(len(tasks))
        chosen = []
        while env.active_B.any():
            judgement = self.policy(Observation.stack([env.observe()]), memory)
            memory = judgement.memory
            chosen.append(choose(judgement.logits_UBD[0]))
            env.step(chosen[-1])
        device_BT = torch.stack(chosen, dim=1)
        return [_answer(env, device_BT[slot], slot, task) for slot, task in enumerate(tasks)]


def is_feasible(task: ShardingTask) -> bool:
    """Return True if each table fits on some device, and all tables together fit. A legal placement may not exist."""
    return find_reason(task) is None


def _answer(env: BalanceEnv, device_T: torch.Tensor, slot: int, task: ShardingTask) -> Placement | InfeasibleTask:
    placed, position_T = int(env.step_B[slot]), env.position_KT[slot]
    if placed < len(task.tables):
        return no_device_error(task, [int(position_T[placed])], env.used_BD[slot, : task.num_devices].tolist())
    device_of_table = torch.empty(placed, dtype=torch.int64)
    device_of_table[position_T[:placed]] = device_T[:placed]
    placement = Placement(tuple(device_of_table.tolist()), task.num_devices)
    check_placement(task, placement)
    return placement
