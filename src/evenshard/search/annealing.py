"""Simulated annealing of several placements in parallel.

The energy of a placement is its step time (the slowest device's time in each window between two barriers, summed), a
small term for devices that are almost as slow, and the average device time times a weight that falls to 0. While this
weight is high, less work on any device lowers the energy, so tables find cheaper options; at the end, only the slowest
device matters. The penalty for memory overflow grows. Each batch has changes of all chains, which are scored in one
call. Changes that pass the Metropolis test are applied in order, unless they touch a device or a group of an earlier
change.

Legend: N chains, M changes, E edits, F shards, G groups, S shards of an option (padded), D devices, B windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evenshard.price.loads import Indices, Mask, Rows
from evenshard.search.chains import Chains, round_last_digits
from evenshard.search.proposals import Proposals
from evenshard.search.sharding_option import Edits, Shards
from evenshard.tables.reuse import FloatArray

# Phases: share of the changes, number of chains to keep, initial weight of the average device, highest temperature.
Phases = Sequence[tuple[float, int | None, float, float]]
PHASES: Phases = ((0.25, None, 3.0, 0.05), (0.25, 6, 3.0, 0.05), (0.25, 3, 1.0, 0.01), (0.25, 3, 0.3, 0.003))
# Temperatures relative to the energy: at the start proportional to the changes per group, within limits; at the end.
# The limit at the start is at least FEW_GROUPS / number of groups.
HEAT, COOLEST_START, END, FEW_GROUPS = 1e-5, 3e-4, 1e-4, 0.02
# Least changes per group in each chain; fewer chains are kept in tasks with many groups.
CHANGES_OF_GROUP = 20
# Weight of devices close to the slowest: each counts with its time over the slowest time, to a power of 2 ** POWER.
CLOSENESS, POWER = 0.02, 4
# Weight of memory overflow at the start, and its factor from start to end.
OVERFLOW, OVERFLOW_GROWTH = 3.0, 10.0
# Weight of the share of groups with unusual column cuts.
UNUSUAL = 1e-3
# Most changes of one chain per batch; of all chains together, provided each has at least the last number.
MOST_AT_ONCE, AT_ONCE, LEAST_AT_ONCE = 64, 512, 16
# Large changes are tried on CHAINS_PER_LARGE chains every BATCHES_PER_LARGE batches or CHANGES_PER_LARGE small changes;
# less often from MANY_GROUPS on, because they place groups one by one.
CHAINS_PER_LARGE, BATCHES_PER_LARGE, CHANGES_PER_LARGE, MANY_GROUPS = 4, 1, 1024, 400


@dataclass
class Best(Rows):
    """The best placement that each annealing chain has found within memory; its cost is infinite if there is none."""

    cost_N: FloatArray
    option_NG: Indices
    place_NGS: Indices

    @staticmethod
    def of(chains: Chains) -> Best:
        """Take the current placements of the chains as the best so far."""
        found = Best(np.full(chains.num, np.inf), chains.option_NG.copy(), chains.place_NGS.copy())
        found.update(chains)
        return found

    def update(self, chains: Chains) -> None:
        """Replace each stored placement if its chain now has a cheaper one."""
        more_N = UNUSUAL * chains.unusual_N
        if chains.moves is not None:
            more_N += chains.moves.weigh(chains.moved_N, overflow=0.0)
        cost_N = round_last_digits(chains.cost_N * (1 + more_N))
        better_N = cost_N < self.cost_N
        if better_N.any():
            better_N &= chains.overflow_N == 0
            if chains.moves is not None:
                better_N &= chains.moved_N <= chains.moves.most_bytes
            self.cost_N[better_N] = cost_N[better_N]
            self.option_NG[better_N], self.place_NGS[better_N] = chains.option_NG[better_N], chains.place_NGS[better_N]


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing of placements; ends when ``is_over`` returns True, and reports each batch to ``note``."""

    proposals: Proposals
    rng: np.random.Generator
    is_over: Callable[[], bool]
    note: Callable[[int, Best], None]

    def run(
        self, start: Best, changes: int, make_chains: Callable[[Indices, Indices], Chains], phases: Phases = PHASES
    ) -> list[Best]:
        """Anneal ``start``, continuing in each further phase from the best placements; return the best of each phase.

        Args:
            changes: number of changes over all phases.
            make_chains: function that builds chains from placements, which may exceed memory.
        """
        found = []
        for share, kept, mean, hottest in phases:
            enough = max(int(changes * share / (CHANGES_OF_GROUP * start.option_NG.shape[1])), 1)
            order = np.argsort(start.cost_N, kind="stable")
            chosen = start.select(order[: None if kept is None else min(kept, enough)])
            chains = make_chains(chosen.option_NG.copy(), chosen.place_NGS.copy())
            start = self._anneal(chains, int(changes * share), mean, hottest)
            found.append(start)
        return found

    def _anneal(self, chains: Chains, changes: int, mean: float, hottest: float) -> Best:
        rng, best = self.rng, Best.of(chains)
        batch = min(MOST_AT_ONCE, max(LEAST_AT_ONCE, AT_ONCE // chains.num))
        groups = chains.option_NG.shape[1]
        start = HEAT * changes / (chains.num * groups)
        start = min(max(start, COOLEST_START, FEW_GROUPS / groups), hottest)
        steps = max(1, changes // (batch * chains.num))
        period = max(BATCHES_PER_LARGE, CHANGES_PER_LARGE // (batch * chains.num), (groups // MANY_GROUPS) ** 2)
        for step in range(steps):
            if self.is_over():
                break
            done = step / steps
            temperature, weights = start * (END / start) ** done, (mean * (1 - done), OVERFLOW * OVERFLOW_GROWTH**done)
            chain_M, edits = self.proposals.draw(chains, batch)
            shards = chains.list_changed_shards(chain_M, edits)
            outcome = chains.try_out(chain_M, shards)
            unusual_M, moved_M = chains.unusual_share_after(chain_M, edits), chains.moved_bytes_after(chain_M, edits)
            # Metropolis test: -log of a uniform number is exponential, so it is drawn directly.
            energy_M = _energy(chains, outcome.windows_BMD, outcome.overflow_M, unusual_M, moved_M, weights)
            now_N = _energy_of(chains, weights)
            passes_M = energy_M <= now_N[chain_M] * (1 + temperature * rng.exponential(size=len(chain_M)))
            passes_M &= np.bincount(shards.change_F, minlength=len(chain_M)) > 0
            if passes_M.any():
                chosen_M = _keep_apart(chains, chain_M, edits, shards, passes_M)
                chains.apply(chain_M, edits, shards, chosen_M)
                best.update(chains)
            if step % period == period - 1:
                self._change_many(chains, temperature, weights)
                best.update(chains)
            self.note(len(chain_M), best)
        return best

    def _change_many(self, chains: Chains, temperature: float, weights: tuple[float, float]) -> None:
        number_M = self.rng.permutation(chains.num)[:CHAINS_PER_LARGE]
        number_M, option_MG, place_MGS = self.proposals.change_many(chains, number_M)
        if not len(number_M):
            return
        tried = chains.with_placements(option_MG, place_MGS)
        energy_M, now_N = _energy_of(tried, weights), _energy_of(chains, weights)
        passes_M = energy_M <= now_N[number_M] * (1 + temperature * self.rng.exponential(size=len(number_M)))
        passes_M &= self.proposals.placer.is_legal(tried)
        if passes_M.any():
            chains.replace(number_M[passes_M], option_MG[passes_M], place_MGS[passes_M])


def _energy_of(chains: Chains, weights: tuple[float, float]) -> FloatArray:
    return _energy(chains, chains.windows_BND, chains.overflow_N, chains.unusual_N, chains.moved_N, weights)


def _energy(
    chains: Chains,
    windows_BMD: FloatArray,
    overflow_M: FloatArray,
    unusual_M: FloatArray,
    moved_M: Indices,
    weights: tuple[float, float],
) -> FloatArray:
    mean, overflow = weights
    slowest_BM = windows_BMD.max(axis=-1)
    ratio_BMD = windows_BMD / np.maximum(slowest_BM, 1e-12)[..., None]
    for _ in range(POWER):  # squares: ratio ** (2 ** POWER)
        ratio_BMD *= ratio_BMD
    slowest_M = slowest_BM.sum(axis=0)
    found_M = (slowest_BM * (1 + CLOSENESS * ratio_BMD.mean(axis=-1))).sum(axis=0)
    found_M += mean * windows_BMD.mean(axis=-1).sum(axis=0)
    more_M = overflow * overflow_M + UNUSUAL * unusual_M
    if chains.moves is not None:
        more_M += chains.moves.weigh(moved_M, overflow)
    found_M += more_M * slowest_M
    return round_last_digits(found_M)


def _keep_apart(chains: Chains, chain_M: Indices, edits: Edits, shards: Shards, passes_M: Mask) -> Indices:
    """Return the changes in ``passes_M`` that share no device and no group with an earlier change of their chain."""
    devices, (_, groups), count = chains.task.num_devices, chains.option_NG.shape, len(chain_M)
    each = chains.expand_to_devices(shards.select(passes_M[shards.change_F]))
    own = np.flatnonzero(passes_M[edits.change_E])
    change_E = edits.change_E[own]
    loses_M = np.zeros(count, dtype=bool)
    for size, at, change in (
        (chains.num * devices, chain_M[each.change_F] * devices + each.device_F, each.change_F),
        (chains.num * groups, chain_M[change_E] * groups + edits.group_E[own], change_E),
    ):
        first = np.full(size, count)
        np.minimum.at(first, at, change)
        loses_M[change[first[at] < change]] = True
    return np.flatnonzero(passes_M & ~loses_M)
