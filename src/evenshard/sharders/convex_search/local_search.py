"""Local search: moves and swaps that relieve the slowest device, for many placements side by side.

What moves is an item: a table, or tables that stay together. A step looks at every item of the slowest device: every
other device it could move to, and every item elsewhere it could change places with. Only the two devices concerned are
scored again, and the step after which the slower of the two is fastest is taken, as long as that is faster than the
slowest device was. Where no step helps, the device is settled and the slowest of the others is looked at: one huge
table may decide the cost of the whole as far as the model knows, and the model may be wrong. Where all are settled, a
kick moves a few items at random and the descent starts over; a chain returns to where it was if that ended worse.

Legend: S chains (placements side by side), I items, D devices, H columns of an item, R kinds of room, N candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evenshard.placement.placement import Placement, legal_mask
from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.chains import LEAST_GAIN, Chains, OtherDevices, Steps
from evenshard.sharders.convex_search.item_tensors import ItemTensors, TaskCostModel, has_room

CHUNK_NUMBERS = 2**18  # columns of the candidates scored at a time: 1 MB, which a core keeps close


@dataclass(frozen=True)
class SearchEffort:
    """How long to look.

    Attributes:
        num_chains: placements that are improved side by side.
        scores_per_table: the search ends when it has scored so many devices for each table of the task.
        kicked_tables: tables that a kick moves.
        idle_kicks_per_table: the search also ends after so many kicks for each table of the task, one after the other,
            that made nothing better: a few tables have few placements.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit. Where the limit is
            reached, the answer depends on how fast the machine is.
    """

    num_chains: int = 8
    scores_per_table: int = 6_000
    kicked_tables: int = 5
    idle_kicks_per_table: int = 10
    time_limit_s: float | None = None


class LocalSearch:
    """The search on one task.

    Args:
        task: the task whose tables are placed.
        cost_model: of the task's devices.
        effort: length of the search.
        generator: random generator of the kicks.
    """

    def __init__(
        self, task: ShardingTask, cost_model: TaskCostModel, effort: SearchEffort, generator: torch.Generator
    ) -> None:
        self._items, self._num_devices = ItemTensors.of(task, cost_model), task.num_devices
        self._cost_model, self._effort, self._generator = cost_model, effort, generator
        self._scores_left = effort.scores_per_table * len(task.tables)
        limit_s = effort.time_limit_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s

    @torch.no_grad()
    def improve(self, starts: Sequence[Placement]) -> list[Placement]:
        """The starts, improved: of each no worse than it was, in the same order.

        Args:
            starts: legal placements.
        """
        items = self._items.items
        chains = Chains.of(self._items, self._cost_model, torch.tensor([items.devices(start) for start in starts]))
        self._descend(chains)
        best, idle_kicks = chains, 0
        most_idle = self._effort.idle_kicks_per_table * len(items.item_of_T)
        while not self._over() and self._num_devices > 1 and idle_kicks < most_idle:
            chains = best.clone()
            self._kick(chains)
            self._descend(chains)
            better_S = chains.better_S(best)
            idle_kicks = 0 if better_S.any() else idle_kicks + 1
            best = best.merge(better_S, chains)
        return [items.placement(row) for row in best.device_SI.tolist()]

    def _over(self) -> bool:
        return self._scores_left <= 0 or time.monotonic() >= self._deadline

    def _score(self, count: int, width: int, sums_of: Callable[[slice], torch.Tensor]) -> torch.Tensor:
        """Costs of devices whose sums are built chunk by chunk.

        Args:
            count: rows of candidates.
            width: devices in a row.
            sums_of: [rows, width, H] of a slice of the rows; [rows, H] where the width is 1.
        """
        self._scores_left -= count * width
        chunk = max(1, CHUNK_NUMBERS // (width * self._cost_model.columns_TH.shape[1]))
        starts = range(0, max(count, 1), chunk)
        return torch.cat([self._cost_model.device_ms(sums_of(slice(first, first + chunk))) for first in starts])

    def _descend(self, chains: Chains) -> None:
        """Takes the best step of every chain until none has one."""
        settled_SD = torch.zeros(chains.ms_SD.shape, dtype=torch.bool)
        while not self._over():
            row_S = (~settled_SD).any(dim=1).nonzero().squeeze(1)
            if not len(row_S):
                return
            device_S = chains.ms_SD.masked_fill(settled_SD, -torch.inf).argmax(dim=1)[row_S]
            steps = self._candidates(chains, row_S, device_S).best_of_each(len(settled_SD))
            settled_SD[row_S, device_S] = True
            settled_SD[steps.chain_N] = False
            chains.apply(self._items, self._cost_model, steps)

    def _candidates(self, chains: Chains, row_S: torch.Tensor, device_S: torch.Tensor) -> Steps:
        """The moves and swaps of one device's items that leave both devices faster than that one was.

        Args:
            row_S: the chains.
            device_S: the device of each.
        """
        columns_IH, needs_RI, allowed_ID = self._items.columns_IH, self._items.needs_RI, self._items.allowed_ID
        wait_I, wait_SD = self._items.wait_I, chains.wait_SD
        goal_S = chains.total_SD[row_S, device_S] * (1 - LEAST_GAIN)
        own_N, item_N = (chains.device_SI[row_S] == device_S[:, None]).nonzero().unbind(1)  # own: index into row_S
        chain_N, home_N = row_S[own_N], device_S[own_N]
        without_NH = chains.sums_SDH[chain_N, home_N] - columns_IH[item_N]
        without_ms_N = self._score(len(item_N), 1, lambda part: without_NH[part])
        without_wait_N = wait_SD[chain_N, home_N] - wait_I[item_N]
        others, goal_N1 = OtherDevices.of(chains, row_S, device_S).select(own_N), goal_S[own_N, None]

        # Moves: to every other device.
        num_devices, num_items = chains.ms_SD.shape[1], len(columns_IH)
        arrived_ND = self._score(
            len(item_N),
            num_devices,
            lambda part: chains.sums_SDH[chain_N[part]] + columns_IH[item_N[part], None],
        )
        wait_ND = torch.maximum(wait_SD[chain_N] + wait_I[item_N, None], without_wait_N[:, None])
        slower_ND, _ = others.after_step(torch.maximum(arrived_ND, without_ms_N[:, None]), wait_ND)
        legal_ND = has_room(chains.over_RSD[:, chain_N], needs_RI[:, item_N, None])
        if allowed_ID is not None:
            legal_ND &= allowed_ID[item_N]
        n, to = ((slower_ND < goal_N1) & legal_ND & (torch.arange(num_devices) != home_N[:, None])).nonzero().unbind(1)
        moves = Steps(chain_N[n], item_N[n], to, torch.full_like(n, -1), slower_ND[n, to])

        # Swaps: with every item elsewhere; first the device itself, and only where that helps the other one.
        home_NI = self._score(len(item_N), num_items, lambda part: without_NH[part, None] + columns_IH)
        device_NI = chains.device_SI[chain_N]
        away_wait_NI = wait_SD[chain_N].gather(1, device_NI) - wait_I + wait_I[item_N, None]
        wait_NI = torch.maximum(without_wait_N[:, None] + wait_I, away_wait_NI)
        home_NI, wait_NI = others.towards(device_NI).after_step(home_NI, wait_NI)
        # Memory is looked at for all pairs at once; the other limits, which few pairs break, for those that remain.
        over_home_N1 = chains.over_RSD[0, chain_N, home_N, None] - needs_RI[0, item_N, None]
        over_away_NI = chains.over_RSD[0, chain_N].gather(1, device_NI) - needs_RI[0]
        legal_NI = has_room(over_home_N1[None], needs_RI[:1]) & has_room(over_away_NI[None], needs_RI[:1, item_N, None])
        n, other = ((home_NI < goal_N1) & legal_NI & (device_NI != home_N[:, None])).nonzero().unbind(1)
        away = device_NI[n, other]
        if allowed_ID is not None or len(needs_RI) > 1:
            kept = self._keeps_limits(chains, chain_N[n], item_N[n], home_N[n], other, away)
            n, other, away = n[kept], other[kept], away[kept]

        def away_sums(part: slice) -> torch.Tensor:
            without_other_NH = chains.sums_SDH[chain_N[n[part]], away[part]] - columns_IH[other[part]]
            return without_other_NH + columns_IH[item_N[n[part]]]

        slower = torch.maximum(home_NI[n, other], self._score(len(n), 1, away_sums) + wait_NI[n, other])
        good = slower < goal_N1[n, 0]
        n = n[good]
        swaps = Steps(chain_N[n], item_N[n], away[good], other[good], slower[good])
        return moves.and_also(swaps)

    def _keeps_limits(
        self,
        chains: Chains,
        chain_N: torch.Tensor,
        item_N: torch.Tensor,
        home_N: torch.Tensor,
        other_N: torch.Tensor,
        away_N: torch.Tensor,
    ) -> torch.Tensor:
        """[N] whether an item and another one may change places, as far as limits beside memory go."""
        needs_RI, allowed_ID = self._items.needs_RI[1:], self._items.allowed_ID
        goes_RN, comes_RN = needs_RI[:, item_N], needs_RI[:, other_N]
        home_RN, away_RN = chains.over_RSD[1:, chain_N, home_N], chains.over_RSD[1:, chain_N, away_N]
        kept_RN = legal_mask(home_RN - goes_RN, comes_RN, 0) & legal_mask(away_RN - comes_RN, goes_RN, 0)
        kept_N: torch.Tensor = kept_RN.all(dim=0)
        if allowed_ID is not None:
            kept_N &= allowed_ID[item_N, away_N] & allowed_ID[other_N, home_N]
        return kept_N

    def _kick(self, chains: Chains) -> None:
        """Moves items at random, the first of them from the slowest device, to legal devices each."""
        needs_RI, allowed_ID = self._items.needs_RI, self._items.allowed_ID
        devices = torch.arange(self._num_devices)
        for number in range(self._effort.kicked_tables):
            odds_SI = torch.ones(chains.device_SI.shape)
            if number == 0:
                odds_SI = (chains.device_SI == chains.ms_SD.argmax(dim=1, keepdim=True)).float()
            item_S1 = torch.multinomial(odds_SI, 1, generator=self._generator)
            legal_SD = has_room(chains.over_RSD, needs_RI[:, item_S1])
            if allowed_ID is not None:
                legal_SD &= allowed_ID[item_S1[:, 0]]
            legal_SD &= devices != chains.device_SI.gather(1, item_S1)
            chain_N = legal_SD.any(dim=1).nonzero().squeeze(1)
            if len(chain_N):
                to_N = torch.multinomial(legal_SD[chain_N].float(), 1, generator=self._generator).squeeze(1)
                nothing_N = torch.full_like(chain_N, -1)
                steps = Steps(chain_N, item_S1[chain_N, 0], to_N, nothing_N, torch.zeros(len(chain_N)))
                chains.apply(self._items, self._cost_model, steps)
