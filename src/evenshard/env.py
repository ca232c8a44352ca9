"""The placement MDP of DreamShard, batched over episodes and tasks.

One episode places the tables of one task, one table per step, in descending predicted single-table cost.

- State of a device: the sum of its tables' representations under the policy, and its three predicted costs
  (forward compute, backward all-to-all, backward compute). A device without tables has the zero representation.
- Action: a device. Legal are the devices of the task whose memory still holds the table (``placement.legal_mask``).
- Reward: none until the end, then minus the predicted overall cost.

Each table is encoded once per rollout. A step changes one device of each episode: only that device's
sum, costs and logit are computed again. There is no loop over episodes or devices, only over steps.

Legend: P distinct tables, B episodes, T steps = tables of the longest task, D devices, H representation size,
C = 3 predicted costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from evenshard.features import FeatureNormalizer
from evenshard.placement import Placement, legal_mask
from evenshard.tasks import PlacementTask

NUM_COSTS = 3


class CostModel(Protocol):
    """The cost function that drives the MDP."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Table representations, [P, H] from normalised features [P, F]."""
        ...

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        """Predicted costs of devices in ms, [..., C] from summed representations [..., H]."""
        ...

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        """Predicted overall cost in ms, [B]."""
        ...


class Policy(Protocol):
    """Scores devices for the next table."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Table representations, [P, H] from normalised features [P, F]."""
        ...

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """One logit per device, [...] from summed representations [..., H] and predicted costs [..., C]."""
        ...


@dataclass(frozen=True)
class EpisodeBatch:
    """What B episodes have to place; shorter tasks are padded.

    Attributes:
        features_PF: normalised features of the distinct tables.
        table_BT: which of the P tables stands at each position of each task; 0 in the padding.
        present_BT: False in the padding.
        size_BT: table sizes, bytes.
        device_mask_BD: False for devices a task does not have.
        memory_cap_B: bytes per device.
    """

    features_PF: torch.Tensor
    table_BT: torch.Tensor
    present_BT: torch.Tensor
    size_BT: torch.Tensor
    device_mask_BD: torch.Tensor
    memory_cap_B: torch.Tensor

    @staticmethod
    def of(tasks: Sequence[PlacementTask], normalizer: FeatureNormalizer) -> EpisodeBatch:
        """One episode per task. All tasks must share the batch size, which the reuse features hold for."""
        assert len({task.batch_size for task in tasks}) == 1, "tasks of one batch share the batch size"
        distinct = {
            table: number for number, table in enumerate(dict.fromkeys(t for task in tasks for t in task.tables))
        }
        longest = max(len(task.tables) for task in tasks)
        shape = (len(tasks), longest)
        table_BT = torch.zeros(shape, dtype=torch.int64)
        present_BT = torch.zeros(shape, dtype=torch.bool)
        size_BT = torch.zeros(shape, dtype=torch.int64)
        for row, task in enumerate(tasks):
            length = len(task.tables)
            table_BT[row, :length] = torch.tensor([distinct[table] for table in task.tables])
            present_BT[row, :length] = True
            size_BT[row, :length] = torch.tensor([table.size_bytes for table in task.tables])
        num_devices_B = torch.tensor([task.num_devices for task in tasks])
        device_mask_BD = torch.arange(int(num_devices_B.max())) < num_devices_B[:, None]
        return EpisodeBatch(
            features_PF=normalizer(list(distinct), tasks[0].batch_size),
            table_BT=table_BT,
            present_BT=present_BT,
            size_BT=size_BT,
            device_mask_BD=device_mask_BD,
            memory_cap_B=torch.tensor([task.memory_cap_bytes for task in tasks]),
        )

    def repeat(self, episodes: int) -> EpisodeBatch:
        """``episodes`` episodes of each task, those of one task side by side."""
        return EpisodeBatch(
            self.features_PF,
            *(
                column.repeat_interleave(episodes, dim=0)
                for column in (self.table_BT, self.present_BT, self.size_BT, self.device_mask_BD, self.memory_cap_B)
            ),
        )


@dataclass(frozen=True)
class Episodes:
    """What happened in B episodes. Steps are in placing order, not in the order of ``task.tables``.

    Attributes:
        position_BT: position in ``task.tables`` that was placed at each step.
        table_BT: which of the P distinct tables that was.
        device_BT: the device it went to; 0 in the padding and from a dead end on.
        acting_mask_BTD: the devices the choice was made among.
        costs_BTDC: predicted device costs the policy saw.
        taken_BT: True where a table was really placed.
        finished_B: False where some table found no legal device.
        predicted_ms_B: predicted overall cost; infinite where the episode did not finish.
    """

    position_BT: torch.Tensor
    table_BT: torch.Tensor
    device_BT: torch.Tensor
    acting_mask_BTD: torch.Tensor
    costs_BTDC: torch.Tensor
    taken_BT: torch.Tensor
    finished_B: torch.Tensor
    predicted_ms_B: torch.Tensor

    def placement(self, episode: int, task: PlacementTask) -> Placement:
        """The placement that a finished episode built."""
        assert bool(self.finished_B[episode]), "the episode met a dead end"
        num_tables = len(task.tables)
        device_of_table = torch.empty(num_tables, dtype=torch.int64)
        device_of_table[self.position_BT[episode, :num_tables]] = self.device_BT[episode, :num_tables]
        return Placement(tuple(device_of_table.tolist()), task.num_devices)


Choose = Callable[[torch.Tensor], torch.Tensor]


def choose_best(logits_BD: torch.Tensor) -> torch.Tensor:
    """The most probable device of each episode, [B]."""
    return logits_BD.argmax(dim=1)


def choose_sampled(generator: torch.Generator) -> Choose:
    """Draws devices with the probabilities that the logits stand for (Gumbel-max, exact)."""

    def choose(logits_BD: torch.Tensor) -> torch.Tensor:
        uniform_BD = torch.rand(logits_BD.shape, generator=generator).clamp_(min=1e-20)
        return (logits_BD - uniform_BD.log_().neg_().log_()).argmax(dim=1)

    return choose


@torch.no_grad()
def rollout(batch: EpisodeBatch, cost_model: CostModel, policy: Policy, choose: Choose) -> Episodes:
    """Plays B episodes to their ends at once."""
    cost_repr_PH = cost_model.encode(batch.features_PF)
    policy_repr_PH = policy.encode(batch.features_PF)
    position_BT = placing_order(batch, cost_model.device_costs(cost_repr_PH).sum(dim=-1))
    table_BT = batch.table_BT.gather(1, position_BT)
    size_BT = batch.size_BT.gather(1, position_BT)
    present_BT = batch.present_BT.gather(1, position_BT)

    num_episodes, num_steps = table_BT.shape
    num_devices = batch.device_mask_BD.shape[1]
    episode_B = torch.arange(num_episodes)
    cost_sums_BDH = cost_repr_PH.new_zeros(num_episodes, num_devices, cost_repr_PH.shape[1])
    policy_sums_BDH = policy_repr_PH.new_zeros(num_episodes, num_devices, policy_repr_PH.shape[1])
    costs_BDC = cost_model.device_costs(cost_sums_BDH)
    logits_BD = policy.device_logits(policy_sums_BDH, costs_BDC)
    used_BD = torch.zeros(num_episodes, num_devices, dtype=torch.int64)
    alive_B = torch.ones(num_episodes, dtype=torch.bool)

    device_BT = torch.zeros(num_episodes, num_steps, dtype=torch.int64)
    taken_BT = torch.zeros(num_episodes, num_steps, dtype=torch.bool)
    acting_mask_BTD = torch.zeros(num_episodes, num_steps, num_devices, dtype=torch.bool)
    costs_BTDC = costs_BDC.new_zeros(num_episodes, num_steps, num_devices, NUM_COSTS)
    for step in range(num_steps):
        legal_BD = legal_mask(used_BD, size_BT[:, step, None], batch.memory_cap_B[:, None]) & batch.device_mask_BD
        alive_B &= legal_BD.any(dim=1) | ~present_BT[:, step]
        taken_B = alive_B & present_BT[:, step]
        device_B = choose(logits_BD.masked_fill(~legal_BD, -torch.inf)) * taken_B
        device_BT[:, step] = device_B
        taken_BT[:, step] = taken_B
        acting_mask_BTD[:, step] = legal_BD
        costs_BTDC[:, step] = costs_BDC

        table_B = table_BT[:, step]
        used_BD[episode_B, device_B] += size_BT[:, step] * taken_B
        cost_sums_BDH[episode_B, device_B] += cost_repr_PH[table_B] * taken_B[:, None]
        policy_sums_BDH[episode_B, device_B] += policy_repr_PH[table_B] * taken_B[:, None]
        changed_costs_BC = cost_model.device_costs(cost_sums_BDH[episode_B, device_B])
        costs_BDC[episode_B, device_B] = changed_costs_BC
        logits_BD[episode_B, device_B] = policy.device_logits(policy_sums_BDH[episode_B, device_B], changed_costs_BC)

    predicted_ms_B = cost_model.overall_cost(cost_sums_BDH, batch.device_mask_BD)
    return Episodes(
        position_BT=position_BT,
        table_BT=table_BT,
        device_BT=device_BT,
        acting_mask_BTD=acting_mask_BTD,
        costs_BTDC=costs_BTDC,
        taken_BT=taken_BT,
        finished_B=alive_B,
        predicted_ms_B=predicted_ms_B.masked_fill(~alive_B, torch.inf),
    )


def placing_order(batch: EpisodeBatch, single_cost_P: torch.Tensor) -> torch.Tensor:
    """Positions of each task by descending predicted single-table cost, padding last, [B, T]."""
    cost_BT = single_cost_P[batch.table_BT].masked_fill(~batch.present_BT, -torch.inf)
    return cost_BT.argsort(dim=1, descending=True, stable=True)


def replayed_logits_BTD(batch: EpisodeBatch, episodes: Episodes, policy: Policy) -> torch.Tensor:
    """The logits of every choice, [B, T, D], with gradients, masked as they were when acting.

    All steps are computed at once: the sums a device had before a step are the running sums of what went to it.
    Steps where nothing was placed stay unmasked, so that no row is all -inf and gradients stay finite.
    """
    num_devices = batch.device_mask_BD.shape[1]
    repr_BTH = policy.encode(batch.features_PF)[episodes.table_BT]
    went_to_BTD = torch.nn.functional.one_hot(episodes.device_BT, num_devices) * episodes.taken_BT[..., None]
    placed_BTDH = went_to_BTD[..., None] * repr_BTH[:, :, None, :]
    before_BTDH = placed_BTDH.cumsum(dim=1) - placed_BTDH
    logits_BTD = policy.device_logits(before_BTDH, episodes.costs_BTDC)
    illegal_BTD = ~episodes.acting_mask_BTD & episodes.taken_BT[..., None]
    return logits_BTD.masked_fill(illegal_BTD, -torch.inf)
