"""Many placements side by side: the load and cost of their devices, updated step by step.

Legend: S chains (placements side by side), I items (mostly tables), D devices, H columns of an item, R kinds of room,
N steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenshard.sharders.convex_search.item_tensors import ItemTensors, TaskCostModel

LEAST_GAIN = 1e-6  # relative; below it lies what float32 rounds


@dataclass(frozen=True)
class Steps:
    """Changes of placements.

    Attributes:
        chain_N: the chain, that is, the placement.
        item_N: the item that leaves its device.
        to_N: the device that the item goes to.
        other_N: the item that comes back from there; -1 for a move.
        slower_N: cost of the slower of the two devices afterwards, ms.
    """

    chain_N: torch.Tensor
    item_N: torch.Tensor
    to_N: torch.Tensor
    other_N: torch.Tensor
    slower_N: torch.Tensor

    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.chain_N, self.item_N, self.to_N, self.other_N, self.slower_N

    def _select(self, which: torch.Tensor) -> Steps:
        return Steps(*(column[which] for column in self._columns()))

    def and_also(self, more: Steps) -> Steps:
        """These and more."""
        return Steps(*(torch.cat(pair) for pair in zip(self._columns(), more._columns(), strict=True)))

    def best_of_each(self, num_chains: int) -> Steps:
        """The best step of every chain that has one; the first of equals."""
        count = len(self.chain_N)
        lowest_S = torch.full((num_chains,), torch.inf).scatter_reduce(0, self.chain_N, self.slower_N, "amin")
        number_N = torch.arange(count).masked_fill(self.slower_N > lowest_S[self.chain_N], count)
        first_S = torch.full((num_chains,), count).scatter_reduce(0, self.chain_N, number_N, "amin")
        return self._select(first_S[first_S < count])


@dataclass(frozen=True)
class Chains:
    """Placements side by side, with what their devices hold and cost.

    Attributes:
        device_SI: devices of the items.
        sums_SDH: sums of the columns of a device's items.
        over_RSD: load of a device beyond its room; free room is below 0.
        ms_SD: cost of the devices.
    """

    device_SI: torch.Tensor
    sums_SDH: torch.Tensor
    over_RSD: torch.Tensor
    ms_SD: torch.Tensor

    @staticmethod
    def of(items: ItemTensors, cost_model: TaskCostModel, device_SI: torch.Tensor) -> Chains:
        """Placements of the items."""
        num_chains, devices = len(device_SI), items.room_RD.shape[1]
        sums_SDH = cost_model.empty_H.expand(num_chains, devices, -1).clone()
        over_RSD = -items.room_RD[:, None].repeat(1, num_chains, 1)
        row_S = torch.arange(num_chains)
        for item, column_H in enumerate(items.columns_IH):
            sums_SDH[row_S, device_SI[:, item]] += column_H
            over_RSD[:, row_S, device_SI[:, item]] += items.needs_RI[:, item, None]
        return Chains(device_SI.clone(), sums_SDH, over_RSD, cost_model.device_ms(sums_SDH))

    def clone(self) -> Chains:
        """A copy that may change by itself."""
        return Chains(self.device_SI.clone(), self.sums_SDH.clone(), self.over_RSD.clone(), self.ms_SD.clone())

    def better_S(self, others: Chains) -> torch.Tensor:
        """[S] whether the slowest device is faster than in ``others``, or as fast and the devices closer together."""
        own_S, other_S = self.ms_SD.amax(dim=1), others.ms_SD.amax(dim=1)
        closer_S = self.ms_SD.square().sum(dim=1) < others.ms_SD.square().sum(dim=1) * (1 - LEAST_GAIN)
        return (own_S < other_S * (1 - LEAST_GAIN)) | ((own_S <= other_S) & closer_S)

    def merge(self, mask_S: torch.Tensor, by: Chains) -> Chains:
        """The chains, those of the mask taken from ``by``."""
        mask_S1 = mask_S[:, None]
        return Chains(
            torch.where(mask_S1, by.device_SI, self.device_SI),
            torch.where(mask_S1[..., None], by.sums_SDH, self.sums_SDH),
            torch.where(mask_S1, by.over_RSD, self.over_RSD),
            torch.where(mask_S1, by.ms_SD, self.ms_SD),
        )

    def apply(self, items: ItemTensors, cost_model: TaskCostModel, steps: Steps) -> None:
        """Makes one step in each of different chains."""
        chain, item, to, other = steps.chain_N, steps.item_N, steps.to_N, steps.other_N
        home = self.device_SI[chain, item]
        swap = other >= 0
        come_H = torch.where(swap[:, None], items.columns_IH[other], 0.0)
        come_R = torch.where(swap, items.needs_RI[:, other], 0)
        self.device_SI[chain, item] = to
        self.device_SI[chain[swap], other[swap]] = home[swap]
        change_H, change_R = come_H - items.columns_IH[item], come_R - items.needs_RI[:, item]
        self.sums_SDH[chain, home] += change_H
        self.sums_SDH[chain, to] -= change_H
        self.over_RSD[:, chain, home] += change_R
        self.over_RSD[:, chain, to] -= change_R
        for device in (home, to):
            self.ms_SD[chain, device] = cost_model.device_ms(self.sums_SDH[chain, device])
