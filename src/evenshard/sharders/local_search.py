"""Can a placement be improved? Moves and swaps that relieve the slowest device, many placements side by side.

A step looks at every table of the slowest device: every other device it could move to, and every table elsewhere it
could change places with. Only the two devices concerned are scored again, and the step after which the slower of the
two is fastest is taken, as long as that is faster than the slowest device was. Where no step helps, the device is
settled and the slowest of the others is looked at: one huge table may decide the cost of the whole as far as the model
knows, and the model may be wrong. Where all are settled, a kick moves a few tables at random and the descent begins
anew; a chain goes back to where it was if that ended worse.

Legend: S chains (placements side by side), T tables, D devices, H columns of a table, L tables of the slowest device,
N candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from evenshard.placement import Placement, legal_mask
from evenshard.tasks import PlacementTask

CHUNK_NUMBERS = 2**18  # columns of the candidates scored at a time: 1 MB, which a core keeps close
LEAST_GAIN = 1e-6  # relative; below it lies what float32 rounds


class ShardScorer(Protocol):
    """What a device costs, as a function of the sum of its tables' columns.

    Attributes:
        columns_TH: of the task's tables.
        empty_H: of a device without tables.
    """

    @property
    def columns_TH(self) -> torch.Tensor: ...

    @property
    def empty_H(self) -> torch.Tensor: ...

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        """Cost of devices, [...] ms from ``empty_H`` plus their tables' columns [..., H]."""
        ...


@dataclass(frozen=True)
class SearchEffort:
    """How long to look.

    Attributes:
        num_chains: placements that are improved side by side.
        scores_per_table: the search ends when it has scored so many devices for each table of the task.
        kicked_tables: tables that a kick moves.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit. Where the limit is
            reached, the answer depends on how fast the machine is.
    """

    num_chains: int = 8
    scores_per_table: int = 6_000
    kicked_tables: int = 5
    time_limit_s: float | None = None


class LocalSearch:
    """The search on one task.

    Args:
        task: whose tables are placed.
        scorer: of its devices.
        effort: how long to look.
        generator: of the kicks.
    """

    def __init__(
        self, task: PlacementTask, scorer: ShardScorer, effort: SearchEffort, generator: torch.Generator
    ) -> None:
        self._task, self._scorer, self._effort, self._generator = task, scorer, effort, generator
        self._size_T = torch.tensor([table.size_bytes for table in task.tables])
        self._scores_left = effort.scores_per_table * len(task.tables)
        limit_s = effort.time_limit_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s

    @torch.no_grad()
    def improve(self, starts: Sequence[Placement]) -> list[Placement]:
        """The starts, improved: of each no worse than it was, in the same order."""
        chains = _Chains.of(self._task, self._scorer, torch.tensor([one.device_of_table for one in starts]))
        self._descend(chains)
        best = chains
        while not self._over() and self._task.num_devices > 1:
            chains = best.clone()
            self._kick(chains)
            self._descend(chains)
            best = best.replaced(chains.better_S(best), chains)
        return [Placement(tuple(row), self._task.num_devices) for row in best.device_ST.tolist()]

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
        chunk = max(1, CHUNK_NUMBERS // (width * self._scorer.columns_TH.shape[1]))
        starts = range(0, max(count, 1), chunk)
        return torch.cat([self._scorer.device_ms(sums_of(slice(first, first + chunk))) for first in starts])

    def _descend(self, chains: _Chains) -> None:
        """Takes the best step of every chain until none has one."""
        settled_SD = torch.zeros(chains.ms_SD.shape, dtype=torch.bool)
        while not self._over():
            row_S = (~settled_SD).any(dim=1).nonzero().squeeze(1)
            if not len(row_S):
                return
            device_S = chains.ms_SD.masked_fill(settled_SD, -torch.inf).argmax(dim=1)[row_S]
            steps = _best_of_each(self._candidates(chains, row_S, device_S), len(settled_SD))
            settled_SD[row_S, device_S] = True
            settled_SD[steps.chain_N] = False
            chains.apply(self._scorer, self._size_T, steps)

    def _candidates(self, chains: _Chains, row_S: torch.Tensor, device_S: torch.Tensor) -> _Steps:
        """The moves and swaps of one device's tables that leave both devices faster than that one was.

        Args:
            row_S: the chains.
            device_S: the device of each.
        """
        columns_TH, cap = self._scorer.columns_TH, self._task.memory_cap_bytes
        goal_S = chains.ms_SD[row_S, device_S] * (1 - LEAST_GAIN)
        own_N, table_N = (chains.device_ST[row_S] == device_S[:, None]).nonzero().unbind(1)  # own: index into row_S
        chain_N, home_N = row_S[own_N], device_S[own_N]
        without_NH = chains.sums_SDH[chain_N, home_N] - columns_TH[table_N]
        without_ms_N = self._score(len(table_N), 1, lambda part: without_NH[part])
        goal_N1 = goal_S[own_N, None]

        # Moves: to every other device.
        num_devices, num_tables = chains.ms_SD.shape[1], len(columns_TH)
        arrived_ND = self._score(
            len(table_N),
            num_devices,
            lambda part: chains.sums_SDH[chain_N[part]] + columns_TH[table_N[part], None],
        )
        slower_ND = torch.maximum(arrived_ND, without_ms_N[:, None])
        legal_ND = legal_mask(chains.used_SD[chain_N], self._size_T[table_N, None], cap)
        n, to = ((slower_ND < goal_N1) & legal_ND & (torch.arange(num_devices) != home_N[:, None])).nonzero().unbind(1)
        moves = _Steps(chain_N[n], table_N[n], to, torch.full_like(n, -1), slower_ND[n, to])

        # Swaps: with every table elsewhere; first the device itself, and only where that helps the other one.
        home_NT = self._score(len(table_N), num_tables, lambda part: without_NH[part, None] + columns_TH)
        device_NT = chains.device_ST[chain_N]
        used_home_N1 = chains.used_SD[chain_N, home_N, None] - self._size_T[table_N, None]
        used_away_NT = chains.used_SD[chain_N].gather(1, device_NT) - self._size_T
        legal_NT = legal_mask(used_home_N1, self._size_T, cap) & legal_mask(
            used_away_NT, self._size_T[table_N, None], cap
        )
        n, other = ((home_NT < goal_N1) & legal_NT & (device_NT != home_N[:, None])).nonzero().unbind(1)
        away = device_NT[n, other]

        def away_sums(part: slice) -> torch.Tensor:
            without_other_NH = chains.sums_SDH[chain_N[n[part]], away[part]] - columns_TH[other[part]]
            return without_other_NH + columns_TH[table_N[n[part]]]

        slower = torch.maximum(home_NT[n, other], self._score(len(n), 1, away_sums))
        good = slower < goal_N1[n, 0]
        n = n[good]
        swaps = _Steps(chain_N[n], table_N[n], away[good], other[good], slower[good])
        return moves.and_also(swaps)

    def _kick(self, chains: _Chains) -> None:
        """Moves tables at random, the first of them from the slowest device, to legal devices each."""
        devices = torch.arange(self._task.num_devices)
        for number in range(self._effort.kicked_tables):
            odds_ST = torch.ones(chains.device_ST.shape)
            if number == 0:
                odds_ST = (chains.device_ST == chains.ms_SD.argmax(dim=1, keepdim=True)).float()
            table_S1 = torch.multinomial(odds_ST, 1, generator=self._generator)
            legal_SD = legal_mask(chains.used_SD, self._size_T[table_S1], self._task.memory_cap_bytes)
            legal_SD &= devices != chains.device_ST.gather(1, table_S1)
            chain_N = legal_SD.any(dim=1).nonzero().squeeze(1)
            if len(chain_N):
                to_N = torch.multinomial(legal_SD[chain_N].float(), 1, generator=self._generator).squeeze(1)
                nothing_N = torch.full_like(chain_N, -1)
                steps = _Steps(chain_N, table_S1[chain_N, 0], to_N, nothing_N, torch.zeros(len(chain_N)))
                chains.apply(self._scorer, self._size_T, steps)


@dataclass(frozen=True)
class _Steps:
    """Changes of placements.

    Attributes:
        chain_N: which placement.
        table_N: the table that leaves its device.
        to_N: where it goes.
        other_N: the table that comes back from there; -1 for a move.
        slower_N: cost of the slower of the two devices afterwards, ms.
    """

    chain_N: torch.Tensor
    table_N: torch.Tensor
    to_N: torch.Tensor
    other_N: torch.Tensor
    slower_N: torch.Tensor

    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.chain_N, self.table_N, self.to_N, self.other_N, self.slower_N

    def select(self, which: torch.Tensor) -> _Steps:
        return _Steps(*(column[which] for column in self._columns()))

    def and_also(self, more: _Steps) -> _Steps:
        return _Steps(*(torch.cat(pair) for pair in zip(self._columns(), more._columns(), strict=True)))


def _best_of_each(steps: _Steps, num_chains: int) -> _Steps:
    """The best step of every chain that has one; the first of equals."""
    count = len(steps.chain_N)
    lowest_S = torch.full((num_chains,), torch.inf).scatter_reduce(0, steps.chain_N, steps.slower_N, "amin")
    number_N = torch.arange(count).masked_fill(steps.slower_N > lowest_S[steps.chain_N], count)
    first_S = torch.full((num_chains,), count).scatter_reduce(0, steps.chain_N, number_N, "amin")
    return steps.select(first_S[first_S < count])


@dataclass(frozen=True)
class _Chains:
    """Placements side by side, with what their devices hold and cost."""

    device_ST: torch.Tensor
    sums_SDH: torch.Tensor
    used_SD: torch.Tensor
    ms_SD: torch.Tensor

    @staticmethod
    def of(task: PlacementTask, scorer: ShardScorer, device_ST: torch.Tensor) -> _Chains:
        size_T = torch.tensor([table.size_bytes for table in task.tables])
        num_chains, devices = len(device_ST), task.num_devices
        sums_SDH = scorer.empty_H.expand(num_chains, devices, -1).clone()
        used_SD = torch.zeros(num_chains, devices, dtype=torch.int64)
        row_S = torch.arange(num_chains)
        for table, column_H in enumerate(scorer.columns_TH):
            sums_SDH[row_S, device_ST[:, table]] += column_H
            used_SD[row_S, device_ST[:, table]] += size_T[table]
        return _Chains(device_ST.clone(), sums_SDH, used_SD, scorer.device_ms(sums_SDH))

    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.device_ST, self.sums_SDH, self.used_SD, self.ms_SD

    def clone(self) -> _Chains:
        return _Chains(*(column.clone() for column in self._columns()))

    def better_S(self, others: _Chains) -> torch.Tensor:
        """[S] whether the slowest device is faster than in ``others``, or as fast and the devices closer together."""
        own_S, other_S = self.ms_SD.amax(dim=1), others.ms_SD.amax(dim=1)
        closer_S = self.ms_SD.square().sum(dim=1) < others.ms_SD.square().sum(dim=1) * (1 - LEAST_GAIN)
        return (own_S < other_S * (1 - LEAST_GAIN)) | ((own_S <= other_S) & closer_S)

    def replaced(self, mask_S: torch.Tensor, by: _Chains) -> _Chains:
        """The chains, those of the mask taken from ``by``."""

        def choose(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return torch.where(mask_S.reshape(-1, *[1] * (own.dim() - 1)), other, own)

        return _Chains(*(choose(*pair) for pair in zip(self._columns(), by._columns(), strict=True)))

    def apply(self, scorer: ShardScorer, size_T: torch.Tensor, steps: _Steps) -> None:
        """Makes one step in each of different chains."""
        chain, table, to, other = steps.chain_N, steps.table_N, steps.to_N, steps.other_N
        home = self.device_ST[chain, table]
        swap = other >= 0
        come_H = torch.where(swap[:, None], scorer.columns_TH[other], 0.0)
        come_size = torch.where(swap, size_T[other], 0)
        self.device_ST[chain, table] = to
        self.device_ST[chain[swap], other[swap]] = home[swap]
        change_H, change_size = come_H - scorer.columns_TH[table], come_size - size_T[table]
        self.sums_SDH[chain, home] += change_H
        self.sums_SDH[chain, to] -= change_H
        self.used_SD[chain, home] += change_size
        self.used_SD[chain, to] -= change_size
        for device in (home, to):
            self.ms_SD[chain, device] = scorer.device_ms(self.sums_SDH[chain, device])
