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
        slower_N: cost of the slower of the two devices afterwards, ms; see ``OtherDevices``.
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
        ms_SD: cost of the devices, without the wait for the one that exchanges most.
        wait_SD: what all wait for a device if it is the one.
    """

    device_SI: torch.Tensor
    sums_SDH: torch.Tensor
    over_RSD: torch.Tensor
    ms_SD: torch.Tensor
    wait_SD: torch.Tensor

    @staticmethod
    def of(items: ItemTensors, cost_model: TaskCostModel, device_SI: torch.Tensor) -> Chains:
        """Placements of the items."""
        num_chains, devices = len(device_SI), items.room_RD.shape[1]
        sums_SDH = cost_model.empty_H.expand(num_chains, devices, -1).clone()
        over_RSD = -items.room_RD[:, None].repeat(1, num_chains, 1)
        wait_SD = torch.zeros(num_chains, devices).scatter_add_(1, device_SI, items.wait_I.expand(num_chains, -1))
        row_S = torch.arange(num_chains)
        for item, column_H in enumerate(items.columns_IH):
            sums_SDH[row_S, device_SI[:, item]] += column_H
            over_RSD[:, row_S, device_SI[:, item]] += items.needs_RI[:, item, None]
        return Chains(device_SI.clone(), sums_SDH, over_RSD, cost_model.device_ms(sums_SDH), wait_SD)

    def clone(self) -> Chains:
        """A copy that may change by itself."""
        return Chains(*(state.clone() for state in self._states()))

    def _states(self) -> tuple[torch.Tensor, ...]:
        return self.device_SI, self.sums_SDH, self.over_RSD, self.ms_SD, self.wait_SD

    @property
    def total_SD(self) -> torch.Tensor:
        """Cost of the devices with the wait."""
        return self.ms_SD + self.wait_SD.amax(dim=1, keepdim=True)

    def better_S(self, others: Chains) -> torch.Tensor:
        """[S] whether the slowest device is faster than in ``others``, or as fast and the devices closer together."""
        own_SD, other_SD = self.total_SD, others.total_SD
        own_S, other_S = own_SD.amax(dim=1), other_SD.amax(dim=1)
        closer_S = own_SD.square().sum(dim=1) < other_SD.square().sum(dim=1) * (1 - LEAST_GAIN)
        return (own_S < other_S * (1 - LEAST_GAIN)) | ((own_S <= other_S) & closer_S)

    def merge(self, mask_S: torch.Tensor, by: Chains) -> Chains:
        """The chains, those of the mask taken from ``by``."""
        mask_S1 = mask_S[:, None]
        return Chains(
            torch.where(mask_S1, by.device_SI, self.device_SI),
            torch.where(mask_S1[..., None], by.sums_SDH, self.sums_SDH),
            torch.where(mask_S1, by.over_RSD, self.over_RSD),
            torch.where(mask_S1, by.ms_SD, self.ms_SD),
            torch.where(mask_S1, by.wait_SD, self.wait_SD),
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
        change = torch.where(swap, items.wait_I[other], 0.0) - items.wait_I[item]
        self.wait_SD[chain, home] += change
        self.wait_SD[chain, to] -= change
        self.over_RSD[:, chain, home] += change_R
        self.over_RSD[:, chain, to] -= change_R
        for device in (home, to):
            self.ms_SD[chain, device] = cost_model.device_ms(self.sums_SDH[chain, device])


@dataclass(frozen=True)
class OtherDevices:
    """The devices that a step between one device of a chain and another leaves as they are.

    Attributes:
        ms_ND: the slowest of them, for each other device.
        wait_ND: the longest wait that one of them causes.
        wait_N1: the longest wait of all devices before the step.
    """

    ms_ND: torch.Tensor
    wait_ND: torch.Tensor
    wait_N1: torch.Tensor

    @staticmethod
    def of(chains: Chains, chain_N: torch.Tensor, device_N: torch.Tensor) -> OtherDevices:
        """Of steps that one device of each chain takes part in."""
        ms_ND, wait_ND = chains.ms_SD[chain_N], chains.wait_SD[chain_N]
        longest_N1 = wait_ND.amax(dim=1, keepdim=True)
        return OtherDevices(_highest_of_others(ms_ND, device_N), _highest_of_others(wait_ND, device_N), longest_N1)

    def select(self, which: torch.Tensor) -> OtherDevices:
        """Those of some steps."""
        return OtherDevices(self.ms_ND[which], self.wait_ND[which], self.wait_N1[which])

    def towards(self, device_NI: torch.Tensor) -> OtherDevices:
        """Of steps with the device of each item."""
        return OtherDevices(self.ms_ND.gather(1, device_NI), self.wait_ND.gather(1, device_NI), self.wait_N1)

    def after_step(self, ms: torch.Tensor, wait: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the two devices cost after the step, and the longest wait.

        Where that wait is longer than before, all devices count: a step may not relieve two at the expense of others.

        Args:
            ms: the slower of the two, without the wait.
            wait: the longer of the waits that the two cause.
        """
        longest = torch.maximum(wait, self.wait_ND)
        slowest = torch.where(longest > self.wait_N1, torch.maximum(ms, self.ms_ND), ms)
        return slowest + longest, longest


def _highest_of_others(values_ND: torch.Tensor, device_N: torch.Tensor) -> torch.Tensor:
    """[N, D] the highest value of all devices but one and each; -inf where there is no other."""
    others_ND = values_ND.scatter(1, device_N[:, None], -torch.inf)
    highest_N2, at_N2 = others_ND.topk(min(2, others_ND.shape[1]), dim=1)
    is_highest_ND = torch.arange(others_ND.shape[1]) == at_N2[:, :1]
    return torch.where(is_highest_ND, highest_N2[:, -1:], highest_N2[:, :1])
