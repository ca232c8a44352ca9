"""Starts of the search: options for every group, placed by one greedy rule, all starts side by side.

A start gives each group the fewest pieces that are no longer than a limit and no wider than a lane limit. Some starts
replicate small tables, cut the costliest ones by rows, or place tables in the order of their widths, so that narrow rows
share devices. The longest piece goes first, to the least busy device with memory for it.

Legend: N starts, G groups, O options of all groups, K options of a group (padded), D devices, S pieces of an option
(padded).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.measure.price.device_price import alone_ms
from evenshard.placement.sharding import COLUMNS_ALONE, REPLICATED, SHARDING_TYPES, TABLE_WISE, TYPES
from evenshard.sharders.search.chains import Chains, Indices, Mask, OptionTable
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

# Limits on the work of a piece, in even shares of a device.
LIMITS = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06)
NUMBERS_IN_ROWS = (1, 2, 4, 8)
MOST_REPLICATED = (0, 10**4, 10**5, 2 * 10**5, 10**6, 10**7, 10**8)
BY_COLUMNS = frozenset({TABLE_WISE, *COLUMNS_ALONE})
# Numbers of all starts and devices that are placed at once.
MOST_PLACED = 2**15


@dataclass(frozen=True)
class Start:
    """Options of all groups, and how they are placed.

    Attributes:
        kind: starts of one kind differ in limits alone; the best of each kind is kept.
        option_G: the option of each group.
        by_width: narrow pieces go to the first devices, wide ones to the last.
    """

    kind: str
    option_G: Indices
    by_width: bool = False


class PieceWorks:
    """The work of pieces, whatever else their device holds.

    Attributes:
        ms_P: time of each piece alone on a device, without what a device with no table takes.
        longest_O, total_O: the longest piece of each option, and all pieces with all their copies.
        even_ms: an even share of a device, with the cheapest option of each group.
    """

    def __init__(self, space: SearchSpace, table: OptionTable) -> None:
        arrays, (slopes_V, replica_ms) = space.piece_arrays, space.costs.exchange_slopes
        found = []
        for price, columns_PH in zip(space.costs.prices, space.lookups.columns_KPH, strict=True):
            own_P = alone_ms(price, columns_PH)
            found.append(np.maximum(own_P - own_P.min(), 0.02 * own_P.min()))
        row_ms = np.max(found, axis=0)
        piece_of_C = np.arange(len(arrays.cells_P)).repeat(arrays.cells_P)
        self.ms_P = np.bincount(piece_of_C, row_ms[arrays.row_C], len(arrays.cells_P))
        self.ms_P += arrays.volume_PV @ slopes_V + arrays.values_P * replica_ms + arrays.offload_PK2.sum(axis=2).max(axis=1)
        of_A = self.ms_P[table.piece_A]
        self.longest_O = np.maximum.reduceat(of_A, table.first_O)
        self.total_O = np.add.reduceat(of_A, table.first_O) * table.span_O
        first_G = table.first_option_G
        self.even_ms = float(np.minimum.reduceat(self.total_O, first_G).sum()) / space.task.num_devices


class GreedyStarts:
    """Makes starts.

    Args:
        space: groups and options.
        table: the same as arrays.
        works: the work of pieces.
    """

    def __init__(self, space: SearchSpace, table: OptionTable, works: PieceWorks) -> None:
        self.space, self.table, self.works = space, table, works
        options = [option for group in space.groups for option in group.options]
        types = [TYPES[option.sharding_type] for option in options]
        self._name_O = np.array([option.sharding_type for option in options])
        self._is_replica_O = np.array([one.is_replicated for one in types])
        self._cuts_rows_O = np.array([one.cuts_rows for one in types])
        self._on_device_O = np.array([option.storage.is_on_device for option in options])
        self._width_O = np.array([max(piece.columns for piece in option.pieces) for option in options])
        self._fits_O = table.bytes_O <= space.room_D.max()
        groups, most = len(space.groups), int(table.num_options_G.max())
        self._option_GK = np.minimum(table.first_option_G[:, None] + np.arange(most), len(options) - 1)
        self._exists_GK = np.arange(most) < table.num_options_G[:, None]
        weights = [sum(space.task.tables[at].num_rows * space.task.tables[at].embedding_dim for at in one.tables) for one in space.groups]
        self._weights_G = np.array(weights, dtype=np.int64)
        self._replica_G = self._first_of(self._is_replica_O & self._on_device_O)
        allowed = [one.allowed_D for one in space.groups]
        self._allowed_GD: Mask | None = None
        if any(one is not None for one in allowed):
            every = np.ones(space.task.num_devices, dtype=bool)
            self._allowed_GD = np.array([every if one is None else one for one in allowed])
        self._apart_G = [one.apart for one in space.groups]
        assert groups == len(self._option_GK)

    def _first_of(self, is_wanted_O: Mask) -> Indices:
        """[G] the first option that is wanted; -1 where there is none."""
        wanted_GK = is_wanted_O[self._option_GK] & self._exists_GK
        first_G = self._option_GK[np.arange(len(wanted_GK)), wanted_GK.argmax(axis=1)]
        return np.where(wanted_GK.any(axis=1), first_G, -1)

    def options(self, types: frozenset[str], limit_ms: float, lane: float = np.inf, cheapest: bool = False) -> Indices:
        """[G] the option of each group with the fewest pieces below both limits, or the cheapest of these.

        Options that no device has memory for, or outside of device memory, only stand in where there are no others.
        """
        key_O = self.works.total_O if cheapest else self.table.count_O + 1e-3 * self.works.total_O / self.works.total_O.max()
        wanted_O = np.isin(self._name_O, list(types))
        ranks = [
            ~(self._fits_O & self._on_device_O),
            ~wanted_O,
            (self._width_O > lane) & ~self._is_replica_O,
            self.works.longest_O > limit_ms,
        ]
        badness_O = sum(rank * 8.0**at for at, rank in enumerate(reversed(ranks)))
        too_long_O = np.where(self.works.longest_O > limit_ms, self.works.longest_O, 0.0)
        order = np.lexsort((key_O, too_long_O, badness_O, self.table.group_O))
        _, first = np.unique(self.table.group_O[order], return_index=True)
        return order[first]

    def candidates(self) -> Iterator[Start]:
        """Yield all starts."""
        even, every = self.works.even_ms, frozenset(SHARDING_TYPES)
        with_replicas = BY_COLUMNS | set(REPLICATED)
        for name, types in (("columns", BY_COLUMNS), ("columns, replicas", with_replicas), ("all", every), ("whole", frozenset({TABLE_WISE}))):
            for limit in LIMITS:
                yield Start(f"{name}, fewest", self.options(types, limit * even))
                yield Start(f"{name}, cheapest", self.options(types, limit * even, cheapest=True))
        for replicas in (False, True):
            types = with_replicas if replicas else BY_COLUMNS
            for lane in (np.inf, *self.space.lane_limits):
                for limit in (1.0, 0.5):
                    option_G = self.options(types, limit * even, lane)
                    yield Start(f"by width, {lane}, {replicas}", option_G, by_width=True)
                    if lane < np.inf:
                        yield Start(f"lanes, {lane}, {replicas}", option_G)
            yield from self._in_rows(types, replicas)
        for most in MOST_REPLICATED:
            for limit in LIMITS[::2]:
                base_G = self.options(BY_COLUMNS, limit * even)
                yield Start("replicas by size", np.where((self._weights_G <= most) & (self._replica_G >= 0), self._replica_G, base_G))

    def _in_rows(self, types: frozenset[str], replicas: bool) -> Iterator[Start]:
        """Yield starts whose costliest tables are cut by rows."""
        whole_G = self.options(frozenset({TABLE_WISE}), np.inf)
        order = np.argsort(-self.works.total_O[whole_G], kind="stable")
        rows_O = self._cuts_rows_O & self._on_device_O & self._fits_O
        shapes = sorted({(str(self._name_O[at]), int(self.table.count_O[at])) for at in np.flatnonzero(rows_O)})
        for name, count in shapes:
            own_G = self._first_of(rows_O & (self._name_O == name) & (self.table.count_O == count))
            able = order[own_G[order] >= 0]
            for number in NUMBERS_IN_ROWS:
                if number > len(able):
                    break
                chosen = able[:number]
                for limit in LIMITS[1:]:
                    option_G = self.options(types, limit * self.works.even_ms).copy()
                    option_G[chosen] = own_G[chosen]
                    yield Start(f"{number} {name} in {count}, {replicas}", option_G)

    # Places ------------------------------------------------------------------------------------------------------------

    def place(self, starts: Sequence[Start]) -> Indices:
        """[N, G, S] places of all starts; memory may not suffice."""
        table, space = self.table, self.space
        devices, count = space.task.num_devices, len(starts)
        option_NG = np.stack([one.option_G for one in starts])
        by_width_N = np.array([one.by_width for one in starts])
        place_NGS = np.zeros((*option_NG.shape, table.most_pieces), dtype=np.int64)
        load_ND = np.zeros((count, devices))
        free_ND = np.repeat(space.room_D[None].astype(np.float64), count, axis=0)
        work_NG = self.works.longest_O[option_NG]
        spans_NG = table.span_O[option_NG]
        width_NG, total_NG = self._width_O[option_NG], self.works.total_O[option_NG]
        few_G = np.zeros(option_NG.shape[1]) if self._allowed_GD is None else -(devices - self._allowed_GD.sum(axis=1))
        order_NG = np.lexsort((np.where(by_width_N[:, None], width_NG, -work_NG), few_G[None].repeat(count, 0), spans_NG == 1))
        share_N1 = np.where(spans_NG == 1, total_NG, 0.0).sum(axis=1)[:, None] / devices
        done_N = np.zeros(count)
        apart: dict[int, Mask] = {}
        rows = np.arange(count)
        for step in range(option_NG.shape[1]):
            group_N = order_NG[:, step]
            option_N = option_NG[rows, group_N]
            key_ND = load_ND.copy()
            if by_width_N.any():
                target_N1 = (done_N[:, None] + 0.5 * total_NG[rows, group_N][:, None]) / share_N1
                distance_ND = np.abs(np.arange(devices) + 0.5 - target_N1)
                key_ND = np.where(by_width_N[:, None] & (spans_NG[rows, group_N] == 1)[:, None], distance_ND, key_ND)
            no_room_ND = free_ND < table.bytes_O[option_N][:, None]
            key_ND += no_room_ND * (1e6 - free_ND / free_ND.max())
            if self._allowed_GD is not None:
                key_ND = np.where(self._allowed_GD[group_N], key_ND, 1e12)
            for number in np.flatnonzero([bool(self._apart_G[group]) for group in group_N]).tolist():
                for rule in self._apart_G[group_N[number]]:
                    taken_ND = apart.setdefault(rule, np.zeros((count, devices), dtype=bool))
                    key_ND[number, taken_ND[number]] = 1e12
            self._put(rows, group_N, option_N, key_ND, place_NGS, load_ND, free_ND)
            for number in np.flatnonzero([bool(self._apart_G[group]) for group in group_N]).tolist():
                places = place_NGS[number, group_N[number], : table.count_O[option_N[number]]]
                for rule in self._apart_G[group_N[number]]:
                    apart[rule][number, places] = True
            done_N += np.where(spans_NG[rows, group_N] == 1, total_NG[rows, group_N], 0.0)
        return place_NGS

    def _put(
        self,
        rows: Indices,
        group_N: Indices,
        option_N: Indices,
        key_ND: FloatArray,
        place_NGS: Indices,
        load_ND: FloatArray,
        free_ND: FloatArray,
    ) -> None:
        """Place one group of each start where the key is least."""
        table, devices = self.table, self.space.task.num_devices
        span_N, home_N, count_N = table.span_O[option_N], table.home_O[option_N], table.count_O[option_N]
        ms_N, bytes_N = self.works.longest_O[option_N], table.bytes_O[option_N]
        for span, home in {*zip(span_N.tolist(), home_N.tolist(), strict=True)}:
            own = rows[(span_N == span) & (home_N == home)]
            place_MQ = _places(key_ND[own], span, max(home, span), int(count_N[own].max()), devices, count_N[own])
            slots = np.arange(place_MQ.shape[1])
            is_used = slots < count_N[own][:, None]
            place_NGS[own[:, None], group_N[own][:, None], slots] = np.where(is_used, place_MQ, 0)
            at, slot = np.nonzero(is_used)
            first = place_MQ[at, slot] * span
            for offset in range(span):
                load_ND[own[at], first + offset] += ms_N[own][at]
                free_ND[own[at], first + offset] -= bytes_N[own][at]


def _places(key_MD: FloatArray, span: int, home: int, most: int, devices: int, count_M: Indices) -> Indices:
    """[M, pieces] the places with the least keys; all pieces of one option among the devices of one home."""
    key_MQ = key_MD if span == 1 else key_MD.reshape(len(key_MD), -1, span).max(axis=-1)
    if home == devices or home == span:
        return _least(key_MQ, most)
    key_MHQ = key_MQ.reshape(len(key_MQ), devices // home, -1)
    least_MH = np.take_along_axis(np.sort(key_MHQ, axis=-1).cumsum(axis=-1), count_M[:, None, None] - 1, axis=-1)[..., 0]
    chosen_M = least_MH.argmin(axis=1)
    inside = _least(key_MHQ[np.arange(len(key_MHQ)), chosen_M], most)
    return inside + (chosen_M * key_MHQ.shape[2])[:, None]


def _least(key_MQ: FloatArray, most: int) -> Indices:
    if most == 1:
        return key_MQ.argmin(axis=1)[:, None]
    return np.argsort(key_MQ, axis=1, kind="stable")[:, :most]


def greedy_starts(space: SearchSpace, table: OptionTable, works: PieceWorks, most: int) -> tuple[Indices, Indices]:
    """[N, G] options and [N, G, S] places of the best start of each kind, and of the best of all, at most so many."""
    maker = GreedyStarts(space, table, works)
    unique: dict[tuple[bytes, bool], Start] = {}
    for one in maker.candidates():
        unique.setdefault((one.option_G.tobytes(), one.by_width), one)
    starts = list(unique.values())
    at_once = max(1, MOST_PLACED // space.task.num_devices)
    cost_N, place_NGS = [], []
    for first in range(0, len(starts), at_once):
        some = starts[first : first + at_once]
        places = maker.place(some)
        chains = Chains(space, table, np.stack([one.option_G for one in some]), places)
        over_N = chains.overflow(chains.used_3ND)
        cost_N += (chains.cost_N * (1 + 3 * over_N)).tolist()
        place_NGS += list(places)
    order = np.argsort(cost_N, kind="stable").tolist()
    best: dict[str, int] = {}
    for at in order:
        best.setdefault(starts[at].kind, at)
    chosen = list(dict.fromkeys((*best.values(), *order)))[:most]
    return np.stack([starts[at].option_G for at in chosen]), np.stack([place_NGS[at] for at in chosen])
