"""Annealing of a population of placements: many chains at once, and in each chain all pairs of devices at once.

The energy of a placement adds up over its devices: (device time / the chain's slowest at the time) ** power, next to
the maximum but smooth. A step pairs a chain's devices at random and proposes for each pair to move a table or to swap
two. Pairs share no device, so each proposal is accepted or not on its own (Metropolis). Some chains begin hotter than
others. In the later stages the population is culled: the worst chains become copies of the best.

A chain can keep to limits on the rows of its devices. The sort of a device's indices takes another pass beyond such a
limit, a step that single moves do not find their way down: all large tables would have to leave a device first.

Legend: M chains, D devices, Q = M * D shards, S places for tables in a shard, T tables, C columns, N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.references.shard_times import IntArray, ShardTimes
from evenshard.tables.reuse import FloatArray
from evenshard.utils.errors import BadConfig


@dataclass(frozen=True)
class AnnealConfig:
    """How long and how hot. A temperature is the relative slowdown of the slowest device accepted one time in e.

    Attributes:
        evaluations: proposals altogether, one changed pair of devices each; the default is 2 s of one core.
        pairs_at_once: proposals that are evaluated in one batch, which makes the number of chains.
        min_chains: placements in the population, where a batch holds too few.
        stages: temperatures, one after the other.
        hot: first temperature of the hottest chain; small tasks of unlike tables need it.
        warm: likewise, of the coolest; large tasks begin with good placements that heat would destroy.
        cold: last temperature of all chains.
        cull_from: share of the stages after which the population is culled at the end of each.
        culled_share: chains that become copies of the best then.
        move_share: proposals that move one table; the others swap two.
        power: exponent of a device's time in the energy.
        seed: seed of everything drawn.
    """

    evaluations: int = 2_000_000
    pairs_at_once: int = 256
    min_chains: int = 16
    stages: int = 40
    hot: float = 0.05
    warm: float = 0.003
    cold: float = 0.0002
    cull_from: float = 0.5
    culled_share: float = 0.1
    move_share: float = 0.4
    power: float = 32.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("evaluations", "pairs_at_once", "min_chains", "stages"):
            if getattr(self, name) < 1:
                raise BadConfig(f"anneal.{name} is {getattr(self, name)}. Make it at least 1.")
        if not 0 < self.cold <= self.warm <= self.hot:
            raise BadConfig(
                f"anneal.cold, warm and hot are {self.cold}, {self.warm} and {self.hot}. Make them positive and rising."
            )
        if not 0 <= self.culled_share <= 0.5:
            raise BadConfig(f"anneal.culled_share is {self.culled_share}. Make it 0 to 0.5.")


@dataclass(frozen=True)
class Start:
    """Where a chain begins, and what it keeps to.

    Attributes:
        device_of_T: a legal placement.
        row_limit_D: rows that each device may hold; infinite for none.
    """

    device_of_T: IntArray
    row_limit_D: FloatArray


class Population:
    """Chains of placements of one task. The state of all chains is one array each: shard by shard, chain by chain."""

    def __init__(self, times: ShardTimes, num_devices: int, starts: Sequence[Start], config: AnnealConfig) -> None:
        """Chains begin at the starts in turn.

        Args:
            times: times of shards of the task.
            num_devices: D, at least 2.
            starts: starting placements, at least one; the first ones if there are more than chains.
        """
        self._times, self._config = times, config
        self._rng = np.random.default_rng(config.seed)
        self._pairs = num_devices // 2
        self._chains = max(config.min_chains, config.pairs_at_once // self._pairs)
        self._num_devices = num_devices
        self._num_tables = len(starts[0].device_of_T)
        self._load([starts[chain % len(starts)] for chain in range(self._chains)])
        self._best_MT = self._devices_of(np.arange(self._chains))
        self._best_ms_M = self._slowest_ms()

    def run(self) -> None:
        """Anneals; ``best`` then knows what each chain has found."""
        config = self._config
        steps = max(1, config.evaluations // (self._chains * self._pairs * config.stages))
        hot_M = np.geomspace(config.hot, config.warm, self._chains)
        for stage in range(config.stages):
            done = stage / (config.stages - 1) if config.stages > 1 else 1.0
            temperature_M = hot_M ** (1 - done) * config.cold**done
            # (1 + t) ** power is 1 + t * power for small t.
            energy_N = np.repeat(temperature_M, self._pairs) * config.power
            self._measure_energy()
            for _ in range(steps):
                self._step(energy_N)
            if done >= config.cull_from:
                self._cull()

    def best(self) -> list[tuple[float, IntArray]]:
        """The slowest device's ms and the placement [T] that each chain has found, best first, each placement once."""
        found: dict[bytes, tuple[float, IntArray]] = {}
        for chain in np.argsort(self._best_ms_M, kind="stable").tolist():
            found.setdefault(self._best_MT[chain].tobytes(), (float(self._best_ms_M[chain]), self._best_MT[chain]))
        return list(found.values())

    def _devices_of(self, chains: IntArray) -> IntArray:
        """[len(chains), T] the placements of some chains as they are now."""
        members_MDS = self._members_QS.reshape(self._chains, self._num_devices, -1)[chains]
        chain, device, _ = np.nonzero(members_MDS < self._num_tables)
        device_of_MT = np.zeros((len(chains), self._num_tables), dtype=np.int64)
        device_of_MT[chain, members_MDS[members_MDS < self._num_tables]] = device
        return device_of_MT

    def _load(self, starts: Sequence[Start]) -> None:
        """Members come first in their row of ``_members_QS``; T fills the rest, and always the last place."""
        tables, devices = self._num_tables, self._num_devices
        self._members_QS = np.full((self._chains * devices, tables + 1), tables)
        self._count_Q = np.zeros(self._chains * devices, dtype=np.int64)
        for chain, start in enumerate(starts):
            for device in range(devices):
                found = np.flatnonzero(start.device_of_T == device)
                self._members_QS[chain * devices + device, : len(found)] = found
                self._count_Q[chain * devices + device] = len(found)
        self._sums_QC = np.concatenate([self._times.sums(start.device_of_T) for start in starts])
        self._ms_Q, self._wait_Q = self._times.device_ms(self._sums_QC), self._times.wait_ms(self._sums_QC)
        self._row_limit_Q = np.concatenate([start.row_limit_D for start in starts])

    def _slowest_ms(self) -> FloatArray:
        shape = (self._chains, self._num_devices)
        return np.asarray(self._ms_Q.reshape(shape).max(axis=1) + self._wait_Q.reshape(shape).max(axis=1))

    def _measure_energy(self) -> None:
        """The energy relative to each chain's slowest device now, the wait that its devices share included."""
        self._scale_Q = np.repeat(1 / self._slowest_ms(), self._num_devices)
        longest_M = self._wait_Q.reshape(self._chains, -1).max(axis=1)
        total_Q = self._ms_Q + np.repeat(longest_M, self._num_devices)
        self._energy_Q = (total_Q * self._scale_Q) ** self._config.power

    def _step(self, temperature_N: FloatArray) -> None:
        """One proposal for each pair of devices: table ``i`` of device ``a`` and ``j`` of ``b`` change places.

        Table number T stands for none: a move, or a device that holds no table.

        Args:
            temperature_N: [N] in units of the energy.
        """
        rng, times, none = self._rng, self._times, self._num_tables
        order_MD = rng.random((self._chains, self._num_devices)).argsort(axis=1)
        order_MD += np.arange(0, len(self._count_Q), self._num_devices)[:, None]
        a, b = order_MD[:, : self._pairs].ravel(), order_MD[:, self._pairs : 2 * self._pairs].ravel()
        drawn = rng.random((4, len(a)))
        at_a, at_b = (drawn[0] * self._count_Q[a]).astype(np.int64), (drawn[1] * self._count_Q[b]).astype(np.int64)
        i = self._members_QS[a, at_a]
        j = np.where(drawn[2] < self._config.move_share, none, self._members_QS[b, at_b])

        both = np.concatenate([a, b])
        width = int(self._count_Q.max())
        sums = times.after_exchange(
            self._sums_QC[both], np.concatenate([i, j]), np.concatenate([j, i]), self._members_QS[both, :width]
        )
        ms = times.device_ms(sums)
        wait = times.wait_ms(sums)
        longest_N, change_N = self._longest_wait(a, b, np.maximum(wait[: len(a)], wait[len(a) :]))
        energy = ((ms + np.tile(longest_N, 2)) * self._scale_Q[both]) ** self._config.power
        rise = energy - self._energy_Q[both]
        pair_rise = rise[: len(a)] + rise[len(a) :]
        if change_N.any():  # the other devices wait as much longer; those that count are about as slow as the slowest
            of_chain_N = self._energy_Q.reshape(self._chains, -1).sum(axis=1)[a // self._num_devices]
            of_others_N = of_chain_N - self._energy_Q[a] - self._energy_Q[b]
            pair_rise += of_others_N * ((1 + change_N * self._scale_Q[a]) ** self._config.power - 1)
        fits = times.fits(sums) & (times.rows(sums) <= self._row_limit_Q[both])
        accepted = fits[: len(a)] & fits[len(a) :] & (pair_rise <= -temperature_N * np.log1p(-drawn[3]))

        taken = np.flatnonzero(accepted)
        twice = np.concatenate([taken, taken + len(a)])
        changed = both[twice]
        self._sums_QC[changed], self._ms_Q[changed], self._wait_Q[changed] = sums[twice], ms[twice], wait[twice]
        self._energy_Q[changed] = energy[twice]
        self._exchange(a[taken], at_a[taken], i[taken], b[taken], at_b[taken], j[taken])
        self._remember()

    def _longest_wait(self, a: IntArray, b: IntArray, wait_N: FloatArray) -> tuple[FloatArray, FloatArray]:
        """[N] the longest wait in the chains of pairs whose own is ``wait_N`` then, and how much longer that is."""
        wait_MD = self._wait_Q.reshape(self._chains, self._num_devices)
        chain_N, rows = a // self._num_devices, np.arange(len(a))
        others_ND = wait_MD[chain_N]
        now_N = others_ND.max(axis=1)
        others_ND[rows, a % self._num_devices] = others_ND[rows, b % self._num_devices] = 0.0
        longest_N = np.maximum(wait_N, others_ND.max(axis=1))
        return longest_N, longest_N - now_N

    def _exchange(self, a: IntArray, at_a: IntArray, i: IntArray, b: IntArray, at_b: IntArray, j: IntArray) -> None:
        """Writes accepted proposals down."""
        none = self._num_tables
        swaps = (i < none) & (j < none)
        self._members_QS[a[swaps], at_a[swaps]] = j[swaps]
        self._members_QS[b[swaps], at_b[swaps]] = i[swaps]
        to_b, to_a = (i < none) & (j == none), (i == none) & (j < none)
        source, place = np.concatenate([a[to_b], b[to_a]]), np.concatenate([at_a[to_b], at_b[to_a]])
        target, table = np.concatenate([b[to_b], a[to_a]]), np.concatenate([i[to_b], j[to_a]])
        last = self._count_Q[source] - 1
        self._members_QS[source, place] = self._members_QS[source, last]
        self._members_QS[source, last] = none
        self._members_QS[target, self._count_Q[target]] = table
        self._count_Q[source] -= 1
        self._count_Q[target] += 1

    def _remember(self) -> None:
        now_M = self._slowest_ms()
        better = np.flatnonzero(now_M < self._best_ms_M)
        if better.size:
            self._best_ms_M[better] = now_M[better]
            self._best_MT[better] = self._devices_of(better)

    def _cull(self) -> None:
        """The worst chains go on as copies of the best."""
        order = np.argsort(self._slowest_ms(), kind="stable")
        culled = int(self._chains * self._config.culled_share)
        if not culled:
            return
        devices = np.arange(self._num_devices)
        source = (order[:culled, None] * self._num_devices + devices).ravel()
        target = (order[-culled:, None] * self._num_devices + devices).ravel()
        for state in (self._members_QS, self._count_Q, self._sums_QC, self._ms_Q, self._wait_Q, self._row_limit_Q):
            state[target] = state[source]
