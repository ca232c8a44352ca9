"""Random changes that annealing proposes: moves, swaps, option changes and ejections, as arrays.

Most changes begin on the slowest device of a window of the step. A shard moves to a device with a low load, or swaps
places with another shard. A group takes another option, often the type and width of another random group, on the least
loaded devices. In some changes, another shard also leaves the busiest of the receiving devices (ejection).

Legend: N chains, M changes that are drawn, E edits of groups, F shards, G groups, K options of a group (padded), D
devices, X devices of all chains, P shards of all options, R rules of tables that stay apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenshard.price.loads import Indices, Mask
from evenshard.search.chains import Chains, round_last_digits
from evenshard.search.placer import FORBIDDEN, GreedyPlacer
from evenshard.search.sharding_option import Edits

if TYPE_CHECKING:  # only the search near a placement needs it
    from evenshard.search.moves import Moves

# Shares of moves and of swaps; all other changes give a group another option.
MOVES, SWAPS = 0.35, 0.25
# Share of swaps in which two groups with equally many shards swap all places.
TRADES = 0.5
# Share of changes that begin on a slowest device.
FROM_SLOWEST = 0.7
# Share of changes that choose the lightest of all devices, not of three random ones.
LIGHTEST_OF_ALL = 0.1
# Shares of option changes for a group of the chosen device, and for a row-wise or replicated group, instead of any.
OF_DEVICE, OF_MANY_DEVICES = 0.6, 0.2
# Share of option changes that copy type and width of another group.
COPIES = 0.5
# Share of option changes that change only the storage of a group, if groups may be offloaded.
OTHER_MEMORY = 0.5
# Share of moves and option changes with an ejection.
EJECTIONS = 0.3
# Near an earlier placement: share of changes that return a group, and of option changes of ``costless_groups``.
HOMEWARD, COSTLESS = 0.15, 0.25
# Largest random addition to device loads when an option is placed, relative to the busiest device.
JITTER = 0.3
# Share of large changes that replicate the small groups; the others change the type of all equal groups.
REPLICATIONS = 0.3
# Share of large changes that cut a collection with MEAN tables by rows, or undo it.
TO_ROWS = 0.3
# Load of devices without enough memory, relative to the busiest device.
NO_MEMORY = 10.0


class Proposals:
    """Generator of random proposals for the annealing chains.

    Args:
        placer: placer of the space's groups.
        rng: random numbers of all draws.
    """

    def __init__(self, placer: GreedyPlacer, rng: np.random.Generator) -> None:
        self.placer, self._rng = placer, rng
        self._space, self._table, self._ms_P = placer.space, placer.table, placer.times.ms_P
        self._devices = self._space.task.num_devices
        table = self._table
        most = int(table.num_options_G.max())
        option_GK = np.minimum(table.first_option_G[:, None] + np.arange(most), len(table.group_O) - 1)
        exists_GK = np.arange(most) < table.num_options_G[:, None]
        self._shape_GK = np.where(exists_GK, table.shape_O[option_GK], -1)
        replica_GK = table.is_replica_O[option_GK] & exists_GK
        self._replica_G = np.where(replica_GK.any(axis=1), table.first_option_G + replica_GK.argmax(axis=1), -1)
        self._bytes_G = (table.bytes_O * table.count_O)[table.first_option_G]
        self._is_single_P = self._space.shard_arrays.span_P == 1

    # Shards of devices ------------------------------------------------------------------------------------------------

    def _index(self, chains: Chains) -> None:
        """Index the single-device shards by device."""
        shards = chains.all_shards
        is_single_F = self._is_single_P[shards.shard_F]
        at = np.flatnonzero(is_single_F)
        x_F = shards.change_F[at] * self._devices + shards.device_F[at]
        self._order = at[np.argsort(x_F, kind="stable")]
        self._count_X = np.bincount(x_F, minlength=chains.num * self._devices)
        self._start_X = np.cumsum(self._count_X) - self._count_X
        self._spread = np.flatnonzero(~is_single_F)
        self._spread_N = np.bincount(shards.change_F[self._spread], minlength=chains.num)
        self._start_N = np.cumsum(self._spread_N) - self._spread_N

    def _shard_on(self, x_M: Indices) -> tuple[Indices, Mask]:
        """Draw a random shard on each given device, and return a mask of the devices that have one."""
        if not len(self._order):
            return np.zeros(len(x_M), dtype=np.int64), np.zeros(len(x_M), dtype=bool)
        count_M = self._count_X[x_M]
        number_M = (self._rng.random(len(x_M)) * count_M).astype(np.int64)
        return self._order[np.minimum(self._start_X[x_M] + number_M, len(self._order) - 1)], count_M > 0

    def _light_device(self, chain_M: Indices) -> Indices:
        """Draw three random devices (or, rarely, all) for each change, and return the least loaded."""
        count = len(chain_M)
        three_M3 = self._rng.integers(self._devices, size=(count, 3))
        lightest_M1 = self._load_ND[chain_M[:, None], three_M3].argmin(axis=1)[:, None]
        found_M = np.take_along_axis(three_M3, lightest_M1, axis=1)[:, 0]
        return np.where(self._rng.random(count) < LIGHTEST_OF_ALL, self._load_ND.argmin(axis=1)[chain_M], found_M)

    # Small changes ----------------------------------------------------------------------------------------------------

    def draw(self, chains: Chains, batch: int) -> tuple[Indices, Edits]:
        """Draw ``batch`` changes of each chain; return the chain of each change, and the edits of all legal changes."""
        rng, devices = self._rng, self._devices
        self._index(chains)
        self._load_ND = round_last_digits(chains.windows_BND.sum(axis=0))
        chain_M = np.arange(chains.num).repeat(batch)
        count = len(chain_M)
        slow_BN = round_last_digits(chains.windows_BND).argmax(axis=-1)
        slow_M = slow_BN[rng.integers(len(slow_BN), size=count), chain_M]
        source_M = np.where(rng.random(count) < FROM_SLOWEST, slow_M, rng.integers(devices, size=count))
        at_M, has_M = self._shard_on(chain_M * devices + source_M)
        draw_M, may_move_M = rng.random(count), has_M & (devices > 1)
        moves = np.flatnonzero(may_move_M & (draw_M < MOVES))
        swaps = np.flatnonzero(may_move_M & (draw_M >= MOVES) & (draw_M < MOVES + SWAPS))
        options = np.flatnonzero(~may_move_M | (draw_M >= MOVES + SWAPS))
        edits = Edits.join(
            [
                self._move(chains, moves, at_M[moves], self._light_device(chain_M[moves]), chain_M[moves]),
                self._swap(chains, swaps, at_M[swaps], chain_M[swaps]),
                self._change_options(chains, options, at_M[options], has_M[options], chain_M[options]),
            ]
        )
        if chains.moves is not None:
            edits = self._return_home(chains, chains.moves, edits, chain_M)
        return chain_M, self._keep_legal(chains, self._add_ejections(chains, edits, chain_M), chain_M)

    def _move(self, chains: Chains, change_E: Indices, at_E: Indices, to_E: Indices, chain_E: Indices) -> Edits:
        group_E, slot_E = chains.all_group_F[at_E], chains.all_slot_F[at_E]
        place_ES = chains.place_NGS[chain_E, group_E]
        place_ES[np.arange(len(at_E)), slot_E] = to_E
        return Edits(change_E, group_E, chains.option_NG[chain_E, group_E], place_ES)

    def _swap(self, chains: Chains, change_M: Indices, at_M: Indices, chain_M: Indices) -> Edits:
        count = len(change_M)
        random_M = self._rng.integers(self._devices, size=count)
        to_M = np.where(self._rng.random(count) < 0.5, self._light_device(chain_M), random_M)
        other_M, has_M = self._shard_on(chain_M * self._devices + to_M)
        source_M = chains.all_shards.device_F[at_M]
        own = np.flatnonzero(has_M & (to_M != source_M))
        change, chain = change_M[own], chain_M[own]
        shards = (
            self._move(chains, change, at_M[own], to_M[own], chain),
            self._move(chains, change, other_M[own], source_M[own], chain),
        )
        one, other = shards
        # Options with equally many shards on equally many devices can swap them.
        count_E, home_E = self._table.count_O[one.option_E], self._table.home_O[one.option_E]
        is_alike_E = (count_E == self._table.count_O[other.option_E]) & (home_E == self._table.home_O[other.option_E])
        trades_E = (self._rng.random(len(own)) < TRADES) & is_alike_E & (count_E > 1)
        there_ES, here_ES = (chains.place_NGS[chain, edits.group_E] for edits in (other, one))
        one.place_ES[trades_E], other.place_ES[trades_E] = there_ES[trades_E], here_ES[trades_E]
        return Edits.join(shards)

    def _change_options(self, chains: Chains, change_M: Indices, at_M: Indices, has_M: Mask, chain_M: Indices) -> Edits:
        rng, table = self._rng, self._table
        count, groups = len(change_M), chains.option_NG.shape[1]
        draw_M, group_M = rng.random(count), rng.integers(groups, size=count)
        of_device = np.flatnonzero(has_M & (draw_M < OF_DEVICE))
        group_M[of_device] = chains.all_group_F[at_M[of_device]]
        number_M = (rng.random(count) * self._spread_N[chain_M]).astype(np.int64)
        is_spread_M = (draw_M >= OF_DEVICE) & (draw_M < OF_DEVICE + OF_MANY_DEVICES) & (self._spread_N[chain_M] > 0)
        group_M[is_spread_M] = chains.all_group_F[self._spread[(self._start_N[chain_M] + number_M)[is_spread_M]]]
        if chains.moves is not None and len(chains.moves.costless_groups):
            is_costless_M = rng.random(count) < COSTLESS
            group_M[is_costless_M] = rng.choice(chains.moves.costless_groups, int(is_costless_M.sum()))
        option_M = table.first_option_G[group_M] + (rng.random(count) * table.num_options_G[group_M]).astype(np.int64)
        shape_M = table.shape_O[chains.option_NG[chain_M, rng.integers(groups, size=count)]]
        matches_MK = self._shape_GK[group_M] == shape_M[:, None]
        copies = np.flatnonzero((rng.random(count) < COPIES) & matches_MK.any(axis=1))
        option_M[copies] = table.first_option_G[group_M[copies]] + matches_MK[copies].argmax(axis=1)
        place_MS = self._place(chains, chain_M, group_M, option_M)
        edits = Edits(change_M, group_M, option_M, place_MS)
        return self._change_storage(chains, edits, at_M, has_M, chain_M) if self._space.offloads else edits

    def _change_storage(self, chains: Chains, edits: Edits, at_M: Indices, has_M: Mask, chain_M: Indices) -> Edits:
        """Replace some of the edits: change only the storage of a group, or of two groups on one device."""
        rng, count = self._rng, len(chain_M)
        x_M = chain_M * self._devices + chains.all_shards.device_F[at_M]
        other_M, _ = self._shard_on(x_M)
        group_M, other_group_M = edits.group_E, chains.all_group_F[other_M]
        num_twins_M = self._table.num_twins_O[chains.option_NG[chain_M, group_M]]
        is_kept_M = (rng.random(count) < OTHER_MEMORY) & (num_twins_M > 1)
        is_pair_M = is_kept_M & has_M & (rng.random(count) < 0.5) & (group_M != other_group_M)
        first = self._draw_storages(chains, edits.change_E, group_M, chain_M)
        second = self._draw_storages(chains, edits.change_E, other_group_M, chain_M)
        return Edits.join([edits.select(~is_kept_M), first.select(is_kept_M), second.select(is_pair_M)])

    def _draw_storages(self, chains: Chains, change_M: Indices, group_M: Indices, chain_M: Indices) -> Edits:
        """Draw a storage (such as device memory) for each group; its sharding type and devices stay the same."""
        table, now_M = self._table, chains.option_NG[chain_M, group_M]
        number_M = (self._rng.random(len(now_M)) * table.num_twins_O[now_M]).astype(np.int64)
        option_M = table.twin_O[table.first_twin_O[now_M] + number_M]
        return Edits(change_M, group_M, option_M, chains.place_NGS[chain_M, group_M])

    def _place(self, chains: Chains, chain_M: Indices, group_M: Indices, option_M: Indices) -> Indices:
        """Choose the devices with the least load, without the group's old shards and with random noise, [M, S]."""
        count, table = len(chain_M), self._table
        key_MD = self._load_ND[chain_M]
        old_MS = chains.place_NGS[chain_M, group_M]
        gone, _, _ = chains.list_shards(np.arange(count), chains.option_NG[chain_M, group_M], old_MS, 1)
        gone = gone.select(self._is_single_P[gone.shard_F])
        np.subtract.at(key_MD, (gone.change_F, gone.device_F), self._ms_P[gone.shard_F])
        scale_M1 = self._load_ND.max(axis=1)[chain_M][:, None]
        key_MD += scale_M1 * (JITTER * self._rng.random((count, 1)) ** 2) * self._rng.random(key_MD.shape)
        free_MD = self._space.memory_D - chains.used_3ND[0][chain_M]
        key_MD += NO_MEMORY * scale_M1 * (free_MD < table.bytes_O[option_M][:, None])
        if self.placer.allowed_GD is not None:
            key_MD = np.where(self.placer.allowed_GD[group_M], key_MD, FORBIDDEN)
        return self.placer.places(option_M, key_MD)

    def _return_home(self, chains: Chains, moves: Moves, edits: Edits, chain_M: Indices) -> Edits:
        """Replace some of the edits: move a group back to its option and devices in the earlier placement."""
        is_away_NG = (chains.option_NG != moves.home_G) | (chains.place_NGS != moves.home_GS).any(axis=2)
        is_away_NG &= moves.home_G >= 0
        count_N, (_, group_A) = is_away_NG.sum(axis=1), np.nonzero(is_away_NG)
        is_chosen_M = (self._rng.random(len(chain_M)) < HOMEWARD) & (count_N[chain_M] > 0)
        own = np.flatnonzero(is_chosen_M)
        number = (self._rng.random(len(own)) * count_N[chain_M[own]]).astype(np.int64)
        group = group_A[(np.cumsum(count_N) - count_N)[chain_M[own]] + number]
        home = Edits(own, group, moves.home_G[group], moves.home_GS[group])
        return Edits.join([edits.select(~is_chosen_M[edits.change_E]), home])

    def _add_ejections(self, chains: Chains, edits: Edits, chain_M: Indices) -> Edits:
        """Let some changes of one group also move another shard away from the busiest device that receives a shard."""
        rng, devices = self._rng, self._devices
        is_chosen_M = rng.random(len(chain_M)) < EJECTIONS
        is_alone_M = np.bincount(edits.change_E, minlength=len(chain_M)) == 1
        own = np.flatnonzero((is_chosen_M & is_alone_M)[edits.change_E])
        if not len(own) or devices == 1:
            return edits
        change, group = edits.change_E[own], edits.group_E[own]
        chain = chain_M[change]
        come, from_F, _ = chains.list_shards(np.arange(len(own)), edits.option_E[own], edits.place_ES[own], 1)
        load_F = self._load_ND[chain[from_F], come.device_F] + self._ms_P[come.shard_F]
        order = np.lexsort((-load_F, from_F))
        _, first = np.unique(from_F[order], return_index=True)
        device = come.device_F[order[first]]
        at, has = self._shard_on(chain * devices + device)
        to = self._light_device(chain)
        has &= (chains.all_group_F[at] != group) & (to != device)
        return Edits.join([edits, self._move(chains, change[has], at[has], to[has], chain[has])])

    # Rules ------------------------------------------------------------------------------------------------------------

    def _keep_legal(self, chains: Chains, edits: Edits, chain_M: Indices) -> Edits:
        """Drop changes that put two shards of a group on one device or too far apart, or break rules."""
        table = self._table
        is_bad_M = np.zeros(len(chain_M), dtype=bool)
        count_E = table.count_O[edits.option_E]
        many = np.flatnonzero(count_E > 1)
        if len(many):
            slots, place_ES, count_E1 = np.arange(table.most_shards), edits.place_ES[many], count_E[many, None]
            sorted_ES = np.sort(np.where(slots < count_E1, place_ES, -1 - slots), axis=1)
            home_E = table.home_O[edits.option_E[many]] // table.span_O[edits.option_E[many]]
            home_ES = np.where(slots < count_E1, place_ES, place_ES[:, :1]) // home_E[:, None]
            is_bad_E = (sorted_ES[:, 1:] == sorted_ES[:, :-1]).any(axis=1) | (home_ES != home_ES[:, :1]).any(axis=1)
            is_bad_M[edits.change_E[many[is_bad_E]]] = True
        if self.placer.allowed_GD is not None:
            come, _, _ = chains.list_shards(np.arange(len(count_E)), edits.option_E, edits.place_ES, 1)
            come = chains.expand_to_devices(come)
            is_forbidden_F = ~self.placer.allowed_GD[edits.group_E[come.change_F], come.device_F]
            is_bad_M[edits.change_E[come.change_F[is_forbidden_F]]] = True
        if len(self.placer.apart_RP):
            shards = chains.list_changed_shards(chain_M, edits)
            for has_rule_P, held_ND in zip(self.placer.apart_RP, self.placer.count_apart(chains), strict=True):
                more_MD = chains.sum_by_device(shards, has_rule_P, len(chain_M))
                is_bad_M |= ((more_MD > 0) & (held_ND[chain_M] + more_MD > 1)).any(axis=1)
        return edits.select(~is_bad_M[edits.change_E])

    # Large changes ----------------------------------------------------------------------------------------------------

    def change_many(self, chains: Chains, number_M: Indices) -> tuple[Indices, Indices, Indices]:
        """Propose large changes of the chains ``number_M``: new options for many groups, on new devices.

        Returns:
            The changed chains [L], their options [L, G] and devices or blocks [L, G, S]; unchanged chains are left out.
        """
        option_MG = np.stack([self._options_of_many(chains.option_NG[number]) for number in number_M])
        is_changed_MG = option_MG != chains.option_NG[number_M]
        number_M, option_MG, is_changed_MG = (
            one[is_changed_MG.any(axis=1)] for one in (number_M, option_MG, is_changed_MG)
        )
        place_MGS = chains.place_NGS[number_M].copy()
        load_MD = self._load_ND[number_M].copy()
        free_MD = self._space.memory_D - chains.used_3ND[0][number_M]
        row_E, group_E = np.nonzero(is_changed_MG)
        gone, _, _ = chains.list_shards(row_E, chains.option_NG[number_M[row_E], group_E], place_MGS[row_E, group_E], 1)
        gone = chains.expand_to_devices(gone)
        np.subtract.at(load_MD, (gone.change_F, gone.device_F), self._ms_P[gone.shard_F])
        np.add.at(free_MD, (gone.change_F, gone.device_F), self._space.shard_arrays.size_P[gone.shard_F])
        order_MG = np.argsort(
            np.where(is_changed_MG, -self.placer.times.longest_O[option_MG], np.inf), axis=1, kind="stable"
        )
        count_M = is_changed_MG.sum(axis=1)
        for step in range(int(count_M.max(initial=0))):
            rows = np.flatnonzero(step < count_M)
            group_R = order_MG[rows, step]
            load_RD, free_RD = load_MD[rows], free_MD[rows]
            place_MGS[rows, group_R] = self.placer.put(group_R, option_MG[rows, group_R], load_RD, load_RD, free_RD, {})
            load_MD[rows], free_MD[rows] = load_RD, free_RD
        return number_M, option_MG, place_MGS

    def _options_of_many(self, now_G: Indices) -> Indices:
        """Draw new options for many groups: another type and width, or replication up to a random size, [G].

        May also cut a collection with MEAN tables by rows, or undo it.
        """
        rng, table, means = self._rng, self._table, self._space.means
        if means.names and rng.random() < TO_ROWS:
            is_own_G = means.number_G == rng.integers(len(means.names))
            fault_O = means.is_mean_O if means.is_mean_O[now_G[is_own_G]].any() else ~means.is_row_O
            return np.where(is_own_G, self.placer.cheapest(fault_O), now_G)
        group = int(rng.integers(len(now_G)))
        target = int(table.first_option_G[group] + rng.integers(table.num_options_G[group]))
        if rng.random() < REPLICATIONS:
            is_small_G = (self._bytes_G <= self._bytes_G[group]) & (self._replica_G >= 0)
            is_large_G = ~is_small_G & table.is_replica_O[now_G]
            return np.where(is_small_G, self._replica_G, np.where(is_large_G, table.first_option_G, now_G))
        matches_GK = self._shape_GK == table.shape_O[target]
        can_G = (table.shape_O[now_G] == table.shape_O[now_G[group]]) & matches_GK.any(axis=1)
        return np.where(can_G, table.first_option_G + matches_GK.argmax(axis=1), now_G)
