"""Simulated annealing of several placements at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.sharders.search.chains import Chains, Edits, Indices, Mask, OptionTable, arrays_of
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Choice
from evenshard.tables.reuse import FloatArray


@dataclass
class Settings:
    changes: int = 200_000
    batch: int = 64
    p_move: float = 0.35
    p_swap: float = 0.25
    p_slow: float = 0.7
    p_copy: float = 0.5
    p_eject: float = 0.3
    p_all: float = 0.1
    heat: float = 1e-5
    t_low: float = 3e-4
    t_high: float = 0.05
    t_end: float = 1e-4
    mean: float = 3.0
    means: tuple = (3.0, 1.0, 0.3)
    tops: tuple = (0.05, 0.01, 0.003)
    kept: tuple = (0, 4, 1)
    shares: tuple = (0.5, 0.25, 0.25)
    jitter: float = 0.3
    small_batch_chains: int = 512
    large: int = 4


class Proposals:
    """Draws changes of chains as arrays."""

    def __init__(self, space: SearchSpace, table: OptionTable, piece_ms_P: FloatArray, rng: np.random.Generator, s: Settings) -> None:
        self.space, self.table, self.rng, self.s = space, table, rng, s
        self.piece_ms_P = piece_ms_P
        self.devices = space.task.num_devices
        groups = space.groups
        limited = any(group.allowed_D is not None for group in groups)
        self.allowed_GD: Mask | None = None
        if limited:
            self.allowed_GD = np.array(
                [np.ones(self.devices, dtype=bool) if g.allowed_D is None else g.allowed_D for g in groups]
            )
        most = int(table.num_options_G.max())
        self.shape_GO = np.full((len(groups), most), -1)
        for group in range(len(groups)):
            first, count = table.first_option_G[group], table.num_options_G[group]
            self.shape_GO[group, :count] = table.shape_O[first : first + count]
        self.alone_P = space.piece_arrays.span_P == 1

    def index(self, chains: Chains) -> None:
        """Sort the pieces on single devices by device."""
        pieces = chains.all_pieces
        alone = self.alone_P[pieces.piece_F]
        at = np.flatnonzero(alone)
        x_F = pieces.change_F[at] * self.devices + pieces.device_F[at]
        self.order = at[np.argsort(x_F, kind="stable")]
        self.count_X = np.bincount(x_F, minlength=chains.num * self.devices)
        self.start_X = np.cumsum(self.count_X) - self.count_X
        self.spread = np.flatnonzero(~alone)
        self.count_N = np.bincount(pieces.change_F[self.spread], minlength=chains.num)
        self.start_N = np.cumsum(self.count_N) - self.count_N

    def piece_on(self, x_M: Indices) -> tuple[Indices, Mask]:
        """A random piece on each device, and whether there is one."""
        count_M = self.count_X[x_M]
        has_M = count_M > 0
        if not len(self.order):
            return np.zeros(len(x_M), dtype=np.int64), np.zeros(len(x_M), dtype=bool)
        number_M = (self.rng.random(len(x_M)) * count_M).astype(np.int64)
        at_M = np.minimum(self.start_X[x_M] + number_M, len(self.order) - 1)
        return self.order[at_M], has_M

    def light(self, load_ND: FloatArray, chain_M: Indices) -> Indices:
        """The lightest of three random devices, or of all."""
        count = len(chain_M)
        three_M3 = self.rng.integers(self.devices, size=(count, 3))
        load_M3 = load_ND[chain_M[:, None], three_M3]
        found = three_M3[np.arange(count), load_M3.argmin(axis=1)]
        lightest_N = load_ND.argmin(axis=1)
        return np.where(self.rng.random(count) < self.s.p_all, lightest_N[chain_M], found)

    def draw(self, chains: Chains, batch: int) -> tuple[Indices, Edits]:
        rng, s, devices, table = self.rng, self.s, self.devices, self.table
        self.index(chains)
        count = chains.num * batch
        chain_M = np.arange(chains.num).repeat(batch)
        load_ND = chains.windows_BND.sum(axis=0)
        slow_BN = chains.windows_BND.argmax(axis=-1)
        slow_M = slow_BN[rng.integers(len(slow_BN), size=count), chain_M]
        source_M = np.where(rng.random(count) < s.p_slow, slow_M, rng.integers(devices, size=count))
        at_M, has_M = self.piece_on(chain_M * devices + source_M)
        kind_M = rng.random(count)
        is_move = has_M & (kind_M < s.p_move) & (devices > 1)
        is_swap = has_M & (kind_M >= s.p_move) & (kind_M < s.p_move + s.p_swap) & (devices > 1)
        is_option = ~is_move & ~is_swap
        edits = [self._moves(chains, np.flatnonzero(is_move), at_M, chain_M, load_ND)]
        edits.append(self._swaps(chains, np.flatnonzero(is_swap), at_M, chain_M, load_ND))
        edits.append(self._options(chains, np.flatnonzero(is_option), at_M, has_M, chain_M, load_ND))
        found = Edits.join(edits)
        found = self._with_ejections(chains, found, chain_M, load_ND)
        return chain_M, self._legal(chains, found, chain_M)

    def _moves(self, chains: Chains, which: Indices, at_M: Indices, chain_M: Indices, load_ND: FloatArray) -> Edits:
        at, chain = at_M[which], chain_M[which]
        to = self.light(load_ND, chain)
        return self._moved(chains, which, at, to, chain)

    def _moved(self, chains: Chains, change_E: Indices, at_E: Indices, to_E: Indices, chain_E: Indices) -> Edits:
        group_E, slot_E = chains.all_group_F[at_E], chains.all_slot_F[at_E]
        place_ES = chains.place_NGS[chain_E, group_E]
        place_ES[np.arange(len(at_E)), slot_E] = to_E
        return Edits(change_E, group_E, chains.option_NG[chain_E, group_E], place_ES)

    def _swaps(self, chains: Chains, which: Indices, at_M: Indices, chain_M: Indices, load_ND: FloatArray) -> Edits:
        at, chain = at_M[which], chain_M[which]
        source = chains.all_pieces.device_F[at]
        to = np.where(self.rng.random(len(which)) < 0.5, self.light(load_ND, chain), self.rng.integers(self.devices, size=len(which)))
        other, has = self.piece_on(chain * self.devices + to)
        has &= to != source
        which, at, other, chain, to, source = (one[has] for one in (which, at, other, chain, to, source))
        return Edits.join([self._moved(chains, which, at, to, chain), self._moved(chains, which, other, source, chain)])

    def _options(
        self, chains: Chains, which: Indices, at_M: Indices, has_M: Mask, chain_M: Indices, load_ND: FloatArray
    ) -> Edits:
        rng, s, table, devices = self.rng, self.s, self.table, self.devices
        chain, count, groups = chain_M[which], len(which), chains.option_NG.shape[1]
        u = rng.random(count)
        group = rng.integers(groups, size=count)
        near = has_M[which] & (u < 0.6)
        group[near] = chains.all_group_F[at_M[which][near]]
        if len(self.spread):
            wide = (u >= 0.6) & (u < 0.8) & (self.count_N[chain] > 0)
            number = (rng.random(count) * self.count_N[chain]).astype(np.int64)
            group[wide] = chains.all_group_F[self.spread[(self.start_N[chain] + number)[wide]]]
        now = chains.option_NG[chain, group]
        option = table.first_option_G[group] + (rng.random(count) * table.num_options_G[group]).astype(np.int64)
        copied = rng.random(count) < s.p_copy
        shape = table.shape_O[chains.option_NG[chain, rng.integers(groups, size=count)]]
        matches = self.shape_GO[group] == shape[:, None]
        can = copied & matches.any(axis=1)
        option[can] = (table.first_option_G[group] + matches.argmax(axis=1))[can]
        place = self._places(chains, chain, group, option, now, load_ND)
        return Edits(which, group, option, place)

    def _places(
        self, chains: Chains, chain: Indices, group: Indices, option: Indices, now: Indices, load_ND: FloatArray
    ) -> Indices:
        """Places of options where least is to do."""
        rng, s, table, devices = self.rng, self.s, self.table, self.devices
        count = len(chain)
        load = load_ND[chain]
        gone, _, _ = chains.pieces(np.arange(count), now, chains.place_NGS[chain, group], 1)
        alone = self.alone_P[gone.piece_F]
        np.subtract.at(load, (gone.change_F[alone], gone.device_F[alone]), self.piece_ms_P[gone.piece_F[alone]])
        scale = load_ND.max(axis=1)[chain][:, None]
        load += scale * (s.jitter * rng.random((count, 1)) ** 2) * rng.random(load.shape)
        free = self.space.room_D - chains.used_3ND[0][chain]
        load += 10 * scale * (free < table.bytes_O[option][:, None])
        if self.allowed_GD is not None:
            load[~self.allowed_GD[group]] = np.inf
        place = np.zeros((count, table.most_pieces), dtype=np.int64)
        span, home, pieces = table.span_O[option], table.home_O[option], table.count_O[option]
        for one_span in np.unique(span).tolist():
            for one_home in np.unique(home[span == one_span]).tolist():
                own = np.flatnonzero((span == one_span) & (home == one_home))
                most = int(pieces[own].max())
                of_places = load[own].reshape(len(own), -1, one_span).max(axis=-1)
                num_homes = devices // max(one_home, one_span)
                if num_homes > 1 and one_home > one_span:
                    by_home = of_places.reshape(len(own), num_homes, -1)
                    busy = np.where(np.isfinite(by_home), by_home, 10 * scale[own][:, :, None]).mean(axis=-1)
                    three = rng.integers(num_homes, size=(len(own), 2))
                    pick = np.take_along_axis(three, np.take_along_axis(busy, three, axis=1).argmin(axis=1)[:, None], axis=1)[:, 0]
                    inside = by_home[np.arange(len(own)), pick]
                    width = inside.shape[1]
                    k = min(most, width)
                    order = np.argsort(inside, axis=1)[:, :k] if k > 1 else inside.argmin(axis=1)[:, None]
                    place[own, :k] = order + (pick * width)[:, None]
                else:
                    k = min(most, of_places.shape[1])
                    order = np.argsort(of_places, axis=1)[:, :k] if k > 1 else of_places.argmin(axis=1)[:, None]
                    place[own, :k] = order
        return place

    def _with_ejections(self, chains: Chains, edits: Edits, chain_M: Indices, load_ND: FloatArray) -> Edits:
        """With some changes, a piece leaves the busiest device that gets one."""
        rng, devices = self.rng, self.devices
        chosen = rng.random(len(chain_M)) < self.s.p_eject
        counts = np.bincount(edits.change_E, minlength=len(chain_M))
        own = np.flatnonzero(chosen[edits.change_E] & (counts[edits.change_E] == 1))
        if not len(own) or devices == 1:
            return edits
        change, chain, group = edits.change_E[own], chain_M[edits.change_E[own]], edits.group_E[own]
        come, from_F, _ = chains.pieces(np.arange(len(own)), edits.option_E[own], edits.place_ES[own], 1)
        load_F = load_ND[chain[from_F], come.device_F] + self.piece_ms_P[come.piece_F]
        load_F += rng.random(len(load_F)) * 1e-9
        best = np.full(len(own), -np.inf)
        np.maximum.at(best, from_F, load_F)
        is_best = np.flatnonzero(load_F == best[from_F])
        device = np.zeros(len(own), dtype=np.int64)
        device[from_F[is_best]] = come.device_F[is_best]
        at, has = self.piece_on(chain * devices + device)
        to = self.light(load_ND, chain)
        has &= (chains.all_group_F[at] != group) & (to != device)
        more = self._moved(chains, change[has], at[has], to[has], chain[has])
        return Edits.join([edits, more])

    def _legal(self, chains: Chains, edits: Edits, chain_M: Indices) -> Edits:
        """Drop changes that put two pieces of a table on one device, or break rules."""
        table, devices = self.table, self.devices
        change, group, option, place = edits.change_E, edits.group_E, edits.option_E, edits.place_ES
        count = table.count_O[option]
        bad = np.zeros(len(change), dtype=bool)
        many = np.flatnonzero(count > 1)
        if len(many):
            slots = np.arange(place.shape[1])
            padded = np.where(slots < count[many, None], place[many], -1 - slots)
            ordered = np.sort(padded, axis=1)
            bad[many] = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
            homes = table.home_O[option[many]] // table.span_O[option[many]]
            inside = np.where(slots < count[many, None], place[many] // homes[:, None], (place[many, :1] // homes[:, None]))
            bad[many] |= (inside != inside[:, :1]).any(axis=1)
        if self.allowed_GD is not None:
            come, from_F, _ = chains.pieces(np.arange(len(change)), option, place, 1)
            each = chains._on_each(come)
            np.logical_or.at(bad, each.change_F, ~self.allowed_GD[group[each.change_F], each.device_F])
        is_bad = np.zeros(len(chain_M), dtype=bool)
        is_bad[change[bad]] = True
        return edits.select(~is_bad[change])


@dataclass
class Best:
    cost_N: FloatArray
    option_NG: Indices
    place_NGS: Indices


class Annealing:
    def __init__(self, space: SearchSpace, piece_ms_P: FloatArray, seed: int = 0, settings: Settings | None = None) -> None:
        self.space, self.table, self.s = space, OptionTable(space), settings or Settings()
        self.rng = np.random.default_rng(seed)
        self.proposals = Proposals(space, self.table, piece_ms_P, self.rng, self.s)
        self.tried = 0
        groups = range(len(space.groups))
        replica = [[k for k, o in enumerate(space.groups[g].options) if o.pieces[0].values > 0] for g in groups]
        self.replica_G = np.array([self.table.first_option_G[g] + one[0] if one else -1 for g, one in zip(groups, replica)])
        self.sizes_G = np.array([sum(p.size_bytes for p in space.groups[g].options[0].pieces) for g in groups])

    def energies(self, chains: Chains, windows_BMD: FloatArray, used_3MD: Indices, mean: float, weight: float) -> FloatArray:
        slowest = windows_BMD.max(axis=-1)
        ratios = windows_BMD / np.maximum(slowest, 1e-12)[..., None]
        for _ in range(4):
            ratios *= ratios
        found = (slowest * (1 + 0.02 * ratios.mean(axis=-1))).sum(axis=0)
        if mean:
            found = found + mean * windows_BMD.mean(axis=-1).sum(axis=0)
        over = chains.overflow(used_3MD)
        return np.asarray(found + weight * over * slowest.sum(axis=0))

    def run(self, option_NG: Indices, place_NGS: Indices) -> tuple[float, Indices, Indices]:
        s = self.s
        best_ms, best = np.inf, (option_NG[0], place_NGS[0])
        groups = option_NG.shape[1]
        for phase, share in enumerate(s.shares):
            chains = Chains(self.space, self.table, option_NG.copy(), place_NGS.copy())
            changes = int(s.changes * share)
            each = changes / chains.num
            top = min(max(s.heat * each / groups, s.t_low), s.t_high, s.tops[phase])
            found = self.anneal(chains, changes, top, s.means[phase], s.means[phase + 1] * 0 if phase + 1 < len(s.means) else 0.0)
            order = np.argsort(found.cost_N, kind="stable")
            if found.cost_N[order[0]] < best_ms:
                best_ms = float(found.cost_N[order[0]])
                best = found.option_NG[order[0]].copy(), found.place_NGS[order[0]].copy()
            if phase + 1 < len(s.shares):
                keep = order[: s.kept[phase + 1]]
                option_NG, place_NGS = found.option_NG[keep], found.place_NGS[keep]
        return best_ms, *best

    def anneal(self, chains: Chains, changes: int, top: float, mean: float, mean_end: float) -> Best:
        s = self.s
        batch = s.batch if chains.num <= 8 else max(16, s.small_batch_chains // chains.num)
        steps = max(1, changes // (batch * chains.num))
        best = Best(np.full(chains.num, np.inf), chains.option_NG.copy(), chains.place_NGS.copy())
        self._note(chains, best)
        devices = chains.task.num_devices
        for step in range(steps):
            done = step / steps
            temperature = top * (s.t_end / top) ** done
            own_mean = mean * (1 - done)
            weight = 3 * 10**done
            chain_M, edits = self.proposals.draw(chains, batch)
            self.tried += len(chain_M)
            pieces = chains.changed_pieces(chain_M, edits)
            outcome = chains.try_out(chain_M, pieces)
            energy_M = self.energies(chains, outcome.windows_BMD, outcome.used_3MD, own_mean, weight)
            energy_N = self.energies(chains, chains.windows_BND, chains.used_3ND, own_mean, weight)
            now_M = energy_N[chain_M]
            changed = np.bincount(pieces.change_F, minlength=len(chain_M)) > 0
            draw = self.rng.exponential(size=len(chain_M))
            passing = changed & (energy_M <= now_M * (1 + temperature * draw))
            if not passing.any():
                continue
            chosen = self._apart(chains, chain_M, edits, pieces, passing)
            chains.make(chain_M, edits, pieces, outcome, chosen)
            self._note(chains, best)
            if s.large and step % s.large == s.large - 1:
                self._large_changes(chains, temperature, own_mean, weight)
                self._note(chains, best)
        return best

    def _large_changes(self, chains: Chains, temperature: float, mean: float, weight: float) -> None:
        """Give all groups of one type and width another; or replicate the groups below a size, or none of them."""
        rng, table = self.rng, self.table
        load_ND = chains.windows_BND.sum(axis=0)
        num = min(chains.num, 4)
        numbers = rng.permutation(chains.num)[:num]
        option_NG, place_NGS = chains.option_NG[numbers].copy(), chains.place_NGS[numbers].copy()
        is_changed = np.zeros(num, dtype=bool)
        for at, number in enumerate(numbers.tolist()):
            now_G = chains.option_NG[number]
            new_G = self._large_options(now_G)
            groups = np.flatnonzero(new_G != now_G)
            if not len(groups):
                continue
            is_changed[at] = self._place_again(chains, number, groups, new_G, load_ND[number].copy(), option_NG[at], place_NGS[at])
        self.tried += num
        if not is_changed.any():
            return
        numbers, option_NG, place_NGS = numbers[is_changed], option_NG[is_changed], place_NGS[is_changed]
        tried = Chains(self.space, table, option_NG, place_NGS)
        energy = self.energies(tried, tried.windows_BND, tried.used_3ND, mean, weight)
        now = self.energies(chains, chains.windows_BND[:, numbers], chains.used_3ND[:, numbers], mean, weight)
        ok = energy <= now * (1 + temperature * rng.exponential(size=len(numbers)))
        self.large_tried = getattr(self, "large_tried", 0) + len(numbers); self.large_made = getattr(self, "large_made", 0) + int(ok.sum())
        if ok.any():
            chains.option_NG[numbers[ok]], chains.place_NGS[numbers[ok]] = option_NG[ok], place_NGS[ok]
            chains.fill()

    def _large_options(self, now_G: Indices) -> Indices:
        rng, table, groups = self.rng, self.table, len(now_G)
        new_G = now_G.copy()
        group = int(rng.integers(groups))
        first, count = int(table.first_option_G[group]), int(table.num_options_G[group])
        target = first + int(rng.integers(count))
        if rng.random() < 0.3:  # replicas by size
            sizes_G = self.sizes_G
            replica_G = self.replica_G
            below = (sizes_G <= sizes_G[group]) & (replica_G >= 0)
            new_G[below] = replica_G[below]
            others = ~below & table.is_replica_O[now_G]
            new_G[others] = table.first_option_G[others]
            return new_G
        shape = table.shape_O[now_G[group]]
        same = table.shape_O[now_G] == shape
        matches = self.proposals.shape_GO == table.shape_O[target]
        can = same & matches.any(axis=1)
        new_G[can] = (table.first_option_G + matches.argmax(axis=1))[can]
        return new_G

    def _place_again(self, chains, number, groups, new_G, load_D, option_G, place_GS) -> bool:
        table, ms_P = self.table, self.proposals.piece_ms_P
        own = chains.all_pieces.change_F == number
        own &= np.isin(chains.all_group_F, groups)
        pieces = chains.all_pieces.select(own)
        alone = self.proposals.alone_P[pieces.piece_F]
        np.subtract.at(load_D, pieces.device_F[alone], ms_P[pieces.piece_F[alone]])
        work = ms_P[table.piece_A[table.first_O[new_G[groups]]]]
        for group in groups[np.argsort(-work, kind="stable")].tolist():
            option = int(new_G[group])
            span, count, home = int(table.span_O[option]), int(table.count_O[option]), int(table.home_O[option])
            ms = ms_P[table.piece_A[table.first_O[option]]]
            if span == 1 and home == len(load_D):
                where = [int(load_D.argmin())] if count == 1 else np.argsort(load_D, kind="stable")[:count].tolist()
                load_D[where] += ms
            elif span == len(load_D):
                where = [0]
            else:
                by_home = load_D.reshape(-1, max(home, span)).mean(axis=1)
                base = int(by_home.argmin()) * max(home, span)
                inside = load_D[base : base + max(home, span)].reshape(-1, span).max(axis=1)
                if span > 1 and home <= span:
                    order = np.argsort(load_D.reshape(-1, span).max(axis=1), kind="stable")[:count]
                    where = order.tolist()
                else:
                    where = (np.argsort(inside, kind="stable")[:count] + base // span).tolist()
                for one in where:
                    load_D[one * span : (one + 1) * span] += ms
            if len(where) < count:
                return False
            option_G[group] = option
            place_GS[group] = 0
            place_GS[group, :count] = where
        return True

    def _apart(self, chains: Chains, chain_M: Indices, edits: Edits, pieces, passing: Mask) -> Indices:
        """The passing changes that share no device and no group with one before them."""
        devices, groups, count = chains.task.num_devices, chains.option_NG.shape[1], len(chain_M)
        each = chains._on_each(pieces.select(passing[pieces.change_F]))
        x_F = chain_M[each.change_F] * devices + each.device_F
        claim_X = np.full(chains.num * devices, count)
        np.minimum.at(claim_X, x_F, each.change_F)
        loses = np.zeros(count, dtype=bool)
        loses[each.change_F[claim_X[x_F] < each.change_F]] = True
        own = passing[edits.change_E]
        g_E, change_E = (chain_M[edits.change_E] * groups + edits.group_E)[own], edits.change_E[own]
        claim_G = np.full(chains.num * groups, count)
        np.minimum.at(claim_G, g_E, change_E)
        loses[change_E[claim_G[g_E] < change_E]] = True
        return np.flatnonzero(passing & ~loses)

    def _note(self, chains: Chains, best: Best) -> None:
        cost_N = chains.cost_N
        better = cost_N < best.cost_N * (1 - 1e-12)
        if better.any():
            better &= chains.overflow(chains.used_3ND) == 0
            best.cost_N[better] = cost_N[better]
            best.option_NG[better] = chains.option_NG[better]
            best.place_NGS[better] = chains.place_NGS[better]
