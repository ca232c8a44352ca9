"""AutoShard's cost network (KDD 2022, section 3.2) and its placement MDP (section 3.3).

The network encodes each table, sums the representations of a shard, and reads the sum with one head. It predicts the
fused forward and backward compute time of the shard, but no communication.

An environment runs many episodes in parallel, one per slot. An episode places the tables of one task, one per step, in
descending predicted single-table cost.

- State: the table to place and the share of the task's tables already placed.
- Action: a device, of which the policy sees the sum of its tables' representations, predicted cost and used memory.
- Devices with enough available memory for the table are legal (``placement.legal_mask``). A table without a legal
  device ends the episode (a dead end). With ``mask_illegal=False``, as published, every device may be chosen.
- Reward: 0 until the last step, then the degree of balance (lowest cost of a device / highest) minus the overflow ratio
  (``training.overflow_ratio_B``). The reward of a dead end is minus the overflow that the table would cause on the
  emptiest device, as a share of the largest device's memory.

Legend: K tasks, T tables of the longest task, P distinct tables, B slots, D devices, H representation size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.placement import legal_mask
from evenshard.sharders.dreamshard.env import EpisodeBatch, placing_order
from evenshard.sharders.training import REPRESENTATION_SIZE, TableNetwork, balance_reward_B, mlp, overflow_ratio_B


class AutoShardCostNet(TableNetwork):
    """Network that predicts the compute cost of a shard in ms from normalised table features.

    Sizes: table MLP 21-128-32, head 32-64-1. The head predicts in units of ``cost_scale_ms``, the mean cost of a shard.
    The policy reads the same representations of tables.
    """

    kind = "autoshard_cost_net"

    def __init__(self) -> None:
        super().__init__()
        self.cost_head = mlp(REPRESENTATION_SIZE, 64, 1)

    def shard_cost(self, sums: torch.Tensor) -> torch.Tensor:
        """Predict forward plus backward compute time of shards, [...] ms, from summed representations [..., H].

        Callers use 0 for a device without tables, because the training data has no empty shard.
        """
        costs: torch.Tensor = self.cost_head(sums).squeeze(-1) * self.cost_scale_ms
        return costs


@dataclass(frozen=True)
class Observation:
    """Input of the policy for B parallel episodes, [B, ...]; ``stack`` adds an axis of U steps, [U, B, ...]."""

    table_BH: torch.Tensor  # representation of the table to place
    step_ratio_B: torch.Tensor  # share of the task's tables already placed, 0 to 1
    sums_BDH: torch.Tensor  # summed representations of each device's tables
    costs_BD: torch.Tensor  # predicted compute of each device, ms; 0 without tables
    used_gb_BD: torch.Tensor  # weights on each device
    device_mask_BD: torch.Tensor  # False for devices that the task does not have
    legal_BD: torch.Tensor  # devices that may be chosen; all of the task's devices in a slot without a table to place
    fresh_B: torch.Tensor  # True at the first step of an episode, where the LSTM's state is reset

    @staticmethod
    def stack(observations: Sequence[Observation]) -> Observation:
        """Stack observations along a new first axis."""
        return Observation(*map(torch.stack, zip(*(vars(one).values() for one in observations), strict=True)))


@dataclass(frozen=True)
class Transition:
    """Result of one step of each parallel episode, [B]: the reward (0 until the end), and whether it ended."""

    reward_B: torch.Tensor
    done_B: torch.Tensor


class BalanceEnv:
    """Batched placement environment: each slot runs an episode for one task.

    Attributes:
        position_KT: positions of each task's tables in ``task.tables``, in placing order; padding last.
        step_B: tables placed so far.
        active_B: False in a slot whose episode has ended.
        used_BD: bytes on each device.
    """

    def __init__(
        self, batch: EpisodeBatch, cost_net: AutoShardCostNet, num_slots: int, mask_illegal: bool = True
    ) -> None:
        self._cost_net = cost_net
        self._mask_illegal = mask_illegal
        with torch.no_grad():
            self._repr_PH = cost_net.encode(batch.features_PF)
            single_ms_P = cost_net.shard_cost(self._repr_PH)
        self.position_KT = placing_order(batch, single_ms_P)
        self._table_KT = batch.table_BT.gather(1, self.position_KT)
        self._size_KT = batch.size_BT.gather(1, self.position_KT)
        self._length_K = batch.present_BT.sum(dim=1)
        self._device_mask_KD = batch.device_mask_BD
        self._cap_KD, self._memory_cap_K = batch.cap_BD, batch.memory_cap_B
        shape = (num_slots, batch.device_mask_BD.shape[1])
        self._slot_B = torch.arange(num_slots)
        self.task_B = torch.zeros(num_slots, dtype=torch.int64)
        self.step_B = torch.zeros(num_slots, dtype=torch.int64)
        self.active_B = torch.zeros(num_slots, dtype=torch.bool)
        self.used_BD = torch.zeros(shape, dtype=torch.int64)
        self._sums_BDH = torch.zeros(*shape, self._repr_PH.shape[1])
        self._costs_BD = torch.zeros(shape)
        self.restart(torch.ones(num_slots, dtype=torch.bool), self._slot_B % len(batch.table_BT))

    def restart(self, slots_B: torch.Tensor, task_B: torch.Tensor) -> None:
        """Begin a new episode of task ``task_B`` in each slot where ``slots_B`` is True."""
        self.task_B = torch.where(slots_B, task_B, self.task_B)
        self.active_B = self.active_B | slots_B
        self.step_B = self.step_B.masked_fill(slots_B, 0)
        for per_device in (self.used_BD, self._sums_BDH, self._costs_BD):
            per_device[slots_B] = 0

    def observe(self) -> Observation:
        """Return the observations of all parallel episodes, as copies that later steps do not change."""
        length_B = self._length_K[self.task_B]
        table_B = self._table_KT[self.task_B, self._row_B()]
        return Observation(
            table_BH=self._repr_PH[table_B],
            step_ratio_B=self.step_B / length_B,
            sums_BDH=self._sums_BDH.clone(),
            costs_BD=self._costs_BD.clone(),
            used_gb_BD=self.used_BD / BYTES_PER_GB,
            device_mask_BD=self._device_mask_KD[self.task_B],
            legal_BD=self._legal_BD(),
            fresh_B=self.step_B == 0,
        )

    @torch.no_grad()
    def step(self, device_B: torch.Tensor) -> Transition:
        """Put the current table of each unfinished episode on its device in ``device_B``."""
        table_B, size_B = (column[self.task_B, self._row_B()] for column in (self._table_KT, self._size_KT))
        chosen = (self._slot_B, device_B)
        self.used_BD[chosen] += size_B * self.active_B
        self._sums_BDH[chosen] += self._repr_PH[table_B] * self.active_B[:, None]
        changed_B = self._cost_net.shard_cost(self._sums_BDH[chosen])
        self._costs_BD[chosen] = torch.where(self.active_B, changed_B, self._costs_BD[chosen])
        self.step_B = self.step_B + self.active_B.long()

        cap_B, mask_BD = self._memory_cap_K[self.task_B], self._device_mask_KD[self.task_B]
        finished_B = self.active_B & (self.step_B == self._length_K[self.task_B])
        dead_B = self.active_B & ~finished_B & ~self._legal_BD().any(dim=1)
        reward_B = finished_B * balance_reward_B(self._costs_BD, self.used_BD, cap_B, mask_BD)
        if dead_B.any():
            freest_B = self.used_BD.masked_fill(~mask_BD, torch.iinfo(torch.int64).max).amin(dim=1)
            needed_B = freest_B + self._size_KT[self.task_B, self._row_B()]
            reward_B = torch.where(dead_B, -overflow_ratio_B(needed_B[:, None], cap_B), reward_B)
        done_B = finished_B | dead_B
        self.active_B = self.active_B & ~done_B
        return Transition(reward_B, done_B)

    def _row_B(self) -> torch.Tensor:
        """Return the position of each episode's current table, or of the last table after the end."""
        return self.step_B.clamp(max=self._table_KT.shape[1] - 1)

    def _legal_BD(self) -> torch.Tensor:
        mask_BD = self._device_mask_KD[self.task_B]
        if not self._mask_illegal:
            return mask_BD
        size_B = self._size_KT[self.task_B, self._row_B()]
        room_BD = legal_mask(self.used_BD, size_B[:, None], self._cap_KD[self.task_B])
        legal_BD: torch.Tensor = mask_BD & (room_BD | ~self.active_B[:, None])
        return legal_BD
