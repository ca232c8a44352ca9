"""DreamShard's placement MDP, batched over episodes and tasks.

One episode places the tables of one task, one table per step, in descending predicted single-table cost.

- State of a device: the sum of its tables' representations under the policy, and its three predicted costs
  (forward compute, backward all-to-all, backward compute). A device without tables has the zero representation.
- Action: a device. Devices of the task with enough memory for the table are legal (``placement.legal_mask``).
  Other rules of a task are ignored, so an episode may break them.
- Reward: none until the end, then minus the predicted overall cost.

Each table is encoded once per rollout. Because a step changes only one device of each episode, only that device's sum,
costs and logit are computed again. The only loop is over steps. For training, the policy's inputs at all steps are
computed afterwards at once.

Legend: P distinct tables, B episodes, T steps = tables of the longest task, D devices, H representation size,
C = 3 predicted costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from evenshard.placement.placement import Placement, legal_mask
from evenshard.placement.task import ShardingTask
from evenshard.sharders.features import FeatureNormalizer

NUM_COSTS = 3  # forward compute, backward all-to-all, backward compute


class CostNet(Protocol):
    """Interface of cost networks that the MDP uses for states and rewards."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Compute table representations, [P, H], from normalised features [P, F]."""

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        """Predict costs of devices in ms, [..., C], from summed representations [..., H]."""

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        """Predict the overall cost in ms, [B]."""


class Policy(Protocol):
    """Interface of policies, which score devices for the next table."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Compute table representations, [P, H], from normalised features [P, F]."""

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Compute one logit per device, [...], from summed representations [..., H] and predicted costs [..., C]."""


@dataclass(frozen=True)
class EpisodeBatch:
    """Tables and devices of B episodes; shorter tasks are padded."""

    features_PF: torch.Tensor  # normalised features of the distinct tables
    table_BT: torch.Tensor  # number of the table among the P, at each position of each task; 0 in the padding
    present_BT: torch.Tensor  # False in the padding
    size_BT: torch.Tensor  # bytes
    device_mask_BD: torch.Tensor  # False for devices that a task does not have
    cap_BD: torch.Tensor  # memory of the devices, bytes; negative for a missing device

    @property
    def memory_cap_B(self) -> torch.Tensor:
        """Return the memory of the largest device of each task, bytes."""
        return self.cap_BD.amax(dim=1)

    @staticmethod
    def of(tasks: Sequence[ShardingTask], normalizer: FeatureNormalizer) -> EpisodeBatch:
        """Build one episode per task, without the tasks' rules; all tasks must share one batch size."""
        distinct, features_PF = normalizer.of_tasks(tasks)
        longest = max(len(task.tables) for task in tasks)
        shape = (len(tasks), longest)
        table_BT = torch.zeros(shape, dtype=torch.int64)
        present_BT = torch.zeros(shape, dtype=torch.bool)
        size_BT = torch.zeros(shape, dtype=torch.int64)
        for row, task in enumerate(tasks):
            length = len(task.tables)
            table_BT[row, :length] = torch.tensor([distinct[table] for table in task.tables])
            present_BT[row, :length] = True
            size_BT[row, :length] = torch.tensor(task.table_bytes)
        num_devices_B = torch.tensor([task.num_devices for task in tasks])
        device_mask_BD = torch.arange(int(num_devices_B.max())) < num_devices_B[:, None]
        cap_BD = torch.full(device_mask_BD.shape, -1)
        for row, task in enumerate(tasks):
            cap_BD[row, : task.num_devices] = torch.tensor(task.room_bytes)
        return EpisodeBatch(features_PF, table_BT, present_BT, size_BT, device_mask_BD, cap_BD)

    def repeat(self, episodes: int) -> EpisodeBatch:
        """Return a batch with this number of consecutive copies of each episode."""
        features_PF, *columns = vars(self).values()
        return EpisodeBatch(features_PF, *(column.repeat_interleave(episodes, dim=0) for column in columns))


@dataclass(frozen=True)
class Episodes:
    """Device choices and predicted costs of B episodes, with steps in placing order."""

    position_BT: torch.Tensor  # position in ``task.tables`` that was placed at each step
    table_BT: torch.Tensor  # number of that table among the P distinct tables
    device_BT: torch.Tensor  # the chosen device; 0 in the padding and after a dead end
    taken_BT: torch.Tensor  # True where a table was placed
    new_costs_BTC: torch.Tensor  # predicted costs of that device with the table; meaningless without a table
    empty_costs_BC: torch.Tensor  # predicted costs of a device without tables
    finished_B: torch.Tensor  # False where some table had no legal device
    predicted_ms_B: torch.Tensor  # predicted overall cost; infinite if the episode did not finish

    def placement(self, episode: int, task: ShardingTask) -> Placement:
        """Return the placement of a finished episode."""
        assert bool(self.finished_B[episode]), "the episode did not finish"
        num_tables = len(task.tables)
        device_of_table = torch.empty(num_tables, dtype=torch.int64)
        device_of_table[self.position_BT[episode, :num_tables]] = self.device_BT[episode, :num_tables]
        return Placement(tuple(device_of_table.tolist()), task.num_devices)


Choose = Callable[[torch.Tensor], torch.Tensor]


def choose_best(logits_BD: torch.Tensor) -> torch.Tensor:
    """Choose the most probable device of each episode, [B]."""
    return logits_BD.argmax(dim=1)


def choose_sampled(generator: torch.Generator) -> Choose:
    """Return a function that draws devices with the probabilities of the logits (Gumbel-max trick)."""

    def choose(logits_BD: torch.Tensor) -> torch.Tensor:
        uniform_BD = torch.rand(logits_BD.shape, generator=generator).clamp_(min=1e-20)
        return (logits_BD - uniform_BD.log_().neg_().log_()).argmax(dim=1)

    return choose


@torch.no_grad()
def rollout(batch: EpisodeBatch, cost_net: CostNet, policy: Policy, choose: Choose) -> Episodes:
    """Run B episodes to their ends, all in parallel."""
    cost_repr_PH, policy_repr_PH = cost_net.encode(batch.features_PF), policy.encode(batch.features_PF)
    repr_PH = torch.cat([cost_repr_PH, policy_repr_PH], dim=1)
    num_tables, own = cost_repr_PH.shape  # the first columns are the cost network's, the rest the policy's
    nothing_1H = repr_PH.new_zeros(1, repr_PH.shape[1])
    repr_PH = torch.cat([repr_PH, nothing_1H])  # the padding has the last row
    position_BT = placing_order(batch, cost_net.device_costs(cost_repr_PH).sum(dim=-1))
    table_BT, size_BT = batch.table_BT.gather(1, position_BT), batch.size_BT.gather(1, position_BT)
    present_BT = batch.present_BT.gather(1, position_BT)

    num_episodes, num_devices = batch.device_mask_BD.shape
    first_slot_B = torch.arange(num_episodes) * num_devices
    cap_BD, barred = batch.cap_BD, torch.tensor(-torch.inf)
    used_BD = torch.zeros_like(cap_BD)
    sums_SH = nothing_1H.repeat(num_episodes * num_devices, 1)
    costs_SC = cost_net.device_costs(sums_SH[:, :own])
    logits_S = policy.device_logits(sums_SH[:, own:], costs_SC)
    used_S1, logits_BD = used_BD.view(-1, 1), logits_S.view(num_episodes, num_devices)

    repr_TBH = repr_PH[table_BT.where(present_BT, num_tables).t()]
    chosen, had_room, new_costs = [], [], []
    with torch.inference_mode():  # a step is a dozen tiny operations: recording gradients would slow it down
        for repr_BH, size_B1 in zip(repr_TBH.unbind(0), size_BT.t()[..., None].unbind(0), strict=True):
            legal_BD = legal_mask(used_BD, size_B1, cap_BD)
            device_B = choose(torch.where(legal_BD, logits_BD, barred))
            slot_B = first_slot_B + device_B
            used_S1.index_add_(0, slot_B, size_B1)
            sums_SH.index_add_(0, slot_B, repr_BH)
            sums_BH = sums_SH.index_select(0, slot_B)
            costs_BC = cost_net.device_costs(sums_BH[:, :own])
            logits_S.index_copy_(0, slot_B, policy.device_logits(sums_BH[:, own:], costs_BC))
            chosen.append(device_B)
            had_room.append(legal_BD.take(slot_B))
            new_costs.append(costs_BC)

    # An episode ends at the first table without a legal device; later steps are ignored.
    alive_BT = torch.stack(had_room, dim=1).cummin(dim=1).values
    taken_BT, finished_B = alive_BT & present_BT, alive_BT[:, -1]
    predicted_ms_B = cost_net.overall_cost(sums_SH[:, :own].view(num_episodes, num_devices, own), batch.device_mask_BD)
    return Episodes(
        position_BT=position_BT,
        table_BT=table_BT,
        device_BT=torch.stack(chosen, dim=1) * taken_BT,
        taken_BT=taken_BT,
        new_costs_BTC=torch.stack(new_costs, dim=1),
        empty_costs_BC=costs_SC[first_slot_B],
        finished_B=finished_B,
        predicted_ms_B=predicted_ms_B.masked_fill(~finished_B, torch.inf),
    )


def placing_order(batch: EpisodeBatch, single_cost_P: torch.Tensor) -> torch.Tensor:
    """Order the tables of each task by descending predicted single-table cost, padding last, [B, T]."""
    cost_BT = single_cost_P[batch.table_BT].masked_fill(~batch.present_BT, -torch.inf)
    return cost_BT.argsort(dim=1, descending=True, stable=True)


def chosen_mask_BTD(batch: EpisodeBatch, episodes: Episodes) -> torch.Tensor:
    """Return a one-hot mask of the device chosen at each step, [B, T, D]; all False if no table was placed."""
    device_D = torch.arange(batch.device_mask_BD.shape[1])
    return (episodes.device_BT[..., None] == device_D) & episodes.taken_BT[..., None]


def legal_mask_BTD(batch: EpisodeBatch, episodes: Episodes) -> torch.Tensor:
    """Return the mask of devices that were legal at each step, [B, T, D]."""
    size_BT1 = batch.size_BT.gather(1, episodes.position_BT)[..., None]
    placed_BTD = chosen_mask_BTD(batch, episodes) * size_BT1
    used_before_BTD = placed_BTD.cumsum(dim=1) - placed_BTD
    has_room_BTD: torch.Tensor = legal_mask(used_before_BTD, size_BT1, batch.cap_BD[:, None])
    return has_room_BTD & batch.device_mask_BD[:, None]


def seen_costs_BTDC(batch: EpisodeBatch, episodes: Episodes) -> torch.Tensor:
    """Return the device costs that the policy observed at each step, [B, T, D, C]."""
    known_BUC = torch.cat([episodes.empty_costs_BC[:, None], episodes.new_costs_BTC], dim=1)  # U = 1 + T
    went_BTD = chosen_mask_BTD(batch, episodes)
    step_T1 = torch.arange(1, went_BTD.shape[1] + 1)[:, None]
    since_BTD = (went_BTD * step_T1).cummax(dim=1).values.roll(1, dims=1)
    since_BTD[:, 0] = 0
    episode_B11 = torch.arange(len(known_BUC))[:, None, None]
    return known_BUC[episode_B11, since_BTD]


def replay_logits_BTD(batch: EpisodeBatch, episodes: Episodes, policy: Policy) -> torch.Tensor:
    """Recompute the logits of every step with gradients, [B, T, D], using the masks of the rollout.

    All steps are computed at once: cumulative sums over steps give each device's representations before each step.
    Steps that placed no table are not masked, because gradients of logits that are all -inf would be NaN.
    """
    repr_BTH = policy.encode(batch.features_PF)[episodes.table_BT]
    placed_BTDH = chosen_mask_BTD(batch, episodes)[..., None] * repr_BTH[:, :, None, :]
    before_BTDH = placed_BTDH.cumsum(dim=1) - placed_BTDH
    logits_BTD = policy.device_logits(before_BTDH, seen_costs_BTDC(batch, episodes))
    illegal_BTD = ~legal_mask_BTD(batch, episodes) & episodes.taken_BT[..., None]
    return logits_BTD.masked_fill(illegal_BTD, -torch.inf)
