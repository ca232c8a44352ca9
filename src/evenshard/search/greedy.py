"""Initial placements for the search (starts): an option for each group, placed greedily by ``placer``.

There are three families of starts. Rules of thumb replicate small tables, shard the costliest tables and leave the
others whole. Other starts limit the work of a shard, some of them with the costliest tables row-wise. The third family
puts wide and narrow shards on separate devices. All starts are placed in parallel, as arrays.

Legend: N starts, G groups, O options of all groups, D devices, S shards of an option (padded), P shards of all options.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import TypeVar

import numpy as np

from evenshard.placement.sharding import COLUMNS_ALONE, REPLICATED, ROWS_ALONE, SHARDING_TYPES, TABLE_WISE, TYPES
from evenshard.price.loads import Indices, Mask
from evenshard.search.chains import Chains, round_last_digits
from evenshard.search.placer import GreedyPlacer, cheapest_options
from evenshard.search.space import SMALL
from evenshard.tables.reuse import FloatArray

# Limits on the work of a shard, relative to an even share of a device.
LIMITS = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06)
# Limits on the weights of replicated tables.
MOST_REPLICATED = (0, 10**4, 10**5, 2 * 10**5, 10**6, 10**7, 10**8)
# Numbers of tables that a rule of thumb cuts, None for all; and that it cuts by rows if it then cuts by columns.
NUMBERS_CUT, NUMBERS_BESIDE_COLUMNS = (1, 2, 4, 8, 16, None), (1, 2, 4, 8)
# Numbers of the next tables that are then cut by columns.
NUMBERS_BESIDE_ROWS = (1, 2, 4)
COLUMN_PARTS = (2, 4, 8, 16)  # shards per table of the column-wise rules of thumb
# Number of best limits on replicas to try with all cuts, and of best rules to try with all limits.
MOST_WITH_CUTS, MOST_WITH_LIMITS = 2, 4
# Number of best rules whose limit on replicas is also set to the sizes of tables, and the number of these sizes.
MOST_WITH_SIZES, NUM_SIZES = 8, 24
# Numbers of the costliest tables to cut by rows, and the number of starts to cut them in.
NUMBERS_IN_ROWS, LIMITS_BESIDE_ROWS = (1, 2, 4, 8), 3
# Eighths of work and memory for the shards of each wider class.
EIGHTHS = (0, 1, 2, 3, 4)
# Shares of the devices' memory to use if memory has a price, and steps to find the price.
SHARES_OF_MEMORY, PRICE_STEPS = (0.97, 0.9, 0.8), 40
BY_COLUMNS = frozenset({TABLE_WISE, *COLUMNS_ALONE})
WITH_REPLICAS = BY_COLUMNS | set(REPLICATED)
NO_COLUMNS = frozenset(SHARDING_TYPES) - {*COLUMNS_ALONE}
TYPES_AT_A_PRICE = (WITH_REPLICAS, frozenset(SHARDING_TYPES), NO_COLUMNS)
# Most starts times devices that are placed at once.
MOST_PLACED = 2**15
# Penalty for relative overflow of memory, relative to the placement's cost, to rank starts.
OVERFLOW = 3.0
# Starts in which to cut MEAN collections by rows, most collections to cut alone, and best results to keep.
BESIDE_MEANS, MOST_ALONE, BEST_IN_ROWS = 8, 3, 4
_Value = TypeVar("_Value")
# A kind of cut, and the number of costliest uncut tables that it applies to, None for all.
_Cut = tuple[str, int | None]


@dataclass(frozen=True)
class Start:
    """Initial sharding option of every table group; starts of one ``family`` differ only in their limits.

    If ``by_width``, wide and narrow shards have separate devices (``SearchSpace.lane_limits``). ``rule`` describes
    the rule of thumb, and ``cuts`` has the cuts that it makes; both are empty for other starts.
    """

    family: str
    option_G: Indices
    by_width: bool = False
    rule: str = ""
    cuts: tuple[_Cut, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A start with the devices of its shards, cost in ms, and memory overflow (infinite if it violates a rule)."""

    start: Start
    place_GS: Indices
    cost_ms: float
    overflow: float

    @property
    def rank(self) -> float:
        """Return the cost with a penalty for memory overflow."""
        return self.cost_ms * (1 + OVERFLOW * self.overflow)


class GreedyStarts:
    """Generator of initial placements for a search space."""

    def __init__(self, placer: GreedyPlacer) -> None:
        self.placer, self.space, self.times = placer, placer.space, placer.times
        self.table, space = placer.table, placer.space
        table = self.table
        self._name_O = np.array(table.types)[table.type_O]
        self._cuts_rows_O = np.array([TYPES[name].cuts_rows for name in table.types])[table.type_O]
        self._is_allowed_O = self._find_allowed()
        self._may_be_O = self._is_allowed_O & ~space.means.is_mean_O
        self._usable_O = self._may_be_O & table.is_on_device_O & (table.bytes_O <= space.memory_D.max())
        tables = space.task.tables
        weights = [sum(tables[at].num_rows * tables[at].embedding_dim for at in one.tables) for one in space.groups]
        self._weights_G = np.array(weights)
        self._replica_G = self._first_of(self.table.is_replica_O)

    def _thin(self, values: Sequence[_Value]) -> Sequence[_Value]:
        """Return an evenly spaced subset of values if there are many groups and devices."""
        count = math.ceil(
            len(values) * min(1.0, math.sqrt(SMALL / (len(self._weights_G) * self.space.task.num_devices)))
        )
        return [values[at * len(values) // count] for at in range(count)]

    def _find_allowed(self) -> Mask:
        """Mark options with enough allowed devices, and with few enough shards for tables that must stay apart, [O]."""
        table, devices, groups = self.table, self.space.task.num_devices, self.space.groups
        found_O = np.ones(len(table.group_O), dtype=bool)
        num_apart = Counter(rule for group in groups for rule in group.apart)
        for group, first, count in zip(groups, table.first_option_G, table.num_options_G, strict=True):
            most = max(devices // max((num_apart[rule] for rule in group.apart), default=1), 1)
            for option in range(first, first + count) if group.apart or group.allowed_D is not None else ():
                shards, span, home = (int(of_O[option]) for of_O in (table.count_O, table.span_O, table.home_O))
                allowed_D = np.ones(devices, dtype=bool) if group.allowed_D is None else group.allowed_D
                allowed_HQ = allowed_D.reshape(-1, span).all(axis=1).reshape(-1, home // span)
                found_O[option] = shards * span <= most and allowed_HQ.sum(axis=1).max() >= shards
        return found_O

    def _first_of(self, is_wanted_O: Mask) -> Indices:
        """Return the first usable option of each group for which ``is_wanted_O`` is true, or -1, [G]."""
        found = np.flatnonzero(is_wanted_O & self._usable_O)
        first_G = np.full(len(self.table.num_options_G), -1)
        first_G[self.table.group_O[found[::-1]]] = found[::-1]
        return first_G

    def choose_options(
        self, types: frozenset[str], limit_ms: float = np.inf, lane: float = np.inf, cheapest: bool = False
    ) -> Indices:
        """Return each group's option with the fewest shards, or the cheapest, within limits of work and width, [G].

        A group takes an option that exceeds memory, is offloaded, or breaks rules only if it has no other option.
        """
        times, table = self.times, self.table
        count_O = table.count_O * np.where(table.is_replica_O & (lane < np.inf), self.space.task.num_devices, 1)
        key_O = times.total_O if cheapest else count_O + 1e-3 * times.total_O / times.total_O.max()
        faults = (
            ~self._usable_O,
            ~np.isin(self._name_O, list(types)),
            (table.width_O > lane) & ~table.is_replica_O,
            times.longest_O > limit_ms,
        )
        fault_O = sum(fault * 2**at for at, fault in enumerate(reversed(faults)))
        too_long_O = np.where(times.longest_O > limit_ms, times.longest_O, 0.0)
        order = np.lexsort((key_O, too_long_O, fault_O, table.group_O))
        _, first = np.unique(table.group_O[order], return_index=True)
        return order[first]

    def make_all(self) -> list[Placed]:
        """Return all starts that break no rule, best first, without duplicates."""
        found = self.make_rules()
        even = self.times.even_ms
        limits = self._thin(LIMITS)
        starts, sorted_starts = list[Start](), list[Start]()
        for name, types in (
            ("columns", BY_COLUMNS),
            ("columns, replicas", WITH_REPLICAS),
            ("all", frozenset(SHARDING_TYPES)),
            ("rows, replicas", NO_COLUMNS),
            ("whole", frozenset({TABLE_WISE})),
        ):
            for limit, cheapest in product(limits, (False, True)):
                option_G = self.choose_options(types, limit * even, cheapest=cheapest)
                starts.append(Start(f"{name}, {'cheapest' if cheapest else 'fewest'}", option_G))
        for types, lane, limit in product((BY_COLUMNS, WITH_REPLICAS), (np.inf, *self.space.lane_limits), (1.0, 0.5)):
            option_G = self.choose_options(types, limit * even, lane)
            sorted_starts.append(Start(f"by width, {lane}, {len(types)}", option_G, by_width=True))
            starts.append(Start(f"lanes, {lane}, {len(types)}", option_G))
        sorted_starts += chain.from_iterable(map(self._widen, (BY_COLUMNS, WITH_REPLICAS)))
        for types, share, limit in product(TYPES_AT_A_PRICE, SHARES_OF_MEMORY, (np.inf, 1.0, 0.5)):
            if (priced_G := self._choose_by_price(types, limit * even, share)) is not None:
                starts.append(Start(f"memory at a price, {share}, {sorted(types)}", priced_G))
        placed = self._place(starts)
        found += placed + self._place(sorted_starts)
        for family in ("columns, fewest", "columns, replicas, fewest"):
            own = [one for one in placed if one.start.family == family]
            best = sorted(own, key=lambda one: one.rank)[:LIMITS_BESIDE_ROWS]
            found += self._place(list(self._cut_by_rows([one.start for one in best])))
        unique: dict[tuple[bytes, bool], Placed] = {}
        for one in sorted(found, key=lambda one: one.rank):
            unique.setdefault((one.start.option_G.tobytes(), one.start.by_width), one)
        return [one for one in unique.values() if np.isfinite(one.overflow)]

    def _choose_by_price(self, types: frozenset[str], limit_ms: float, share: float) -> Indices | None:
        """Return each group's option with the least work plus a price for its memory, offloaded options included, [G].

        The price is the lowest at which all groups take at most ``share`` of the devices' memory; None if it is 0.
        """
        table, times = self.table, self.times
        bytes_O = (table.bytes_O * table.count_O * table.span_O).astype(np.float64)
        fits_O = (table.bytes_O <= self.space.memory_D.max()) & (times.longest_O <= limit_ms)
        fits_O &= self._may_be_O & np.isin(self._name_O, list(types))
        work_O = np.where(fits_O, times.total_O, times.total_O + 1e3 * times.total_O.max())
        most_bytes = share * float(self.space.memory_D.sum())
        low, high = 0.0, 1e3 * times.total_O.max() / max(float(bytes_O.max()), 1.0)
        option_G = cheapest_options(table, work_O)
        if bytes_O[option_G].sum() <= most_bytes:
            return None
        for _ in range(PRICE_STEPS):
            price = 0.5 * (low + high)
            option_G = cheapest_options(table, work_O + price * bytes_O)
            low, high = (price, high) if bytes_O[option_G].sum() > most_bytes else (low, price)
        return cheapest_options(table, work_O + high * bytes_O)

    def _widen(self, types: frozenset[str]) -> Iterator[Start]:
        """Yield starts with wide shards on separate devices, for several limits of the wide shards' work and memory."""
        times, table, lanes = self.times, self.table, [*self.space.lane_limits, np.inf]
        bytes_O = (table.bytes_O * table.count_O).astype(np.float64)
        narrow_G, *wider = (self.choose_options(types, times.even_ms, lane) for lane in lanes)
        for eighths in self._thin(list(product(EIGHTHS, repeat=len(wider)))):
            option_G = narrow_G.copy()
            for wide_G, eighth in zip(reversed(wider), eighths, strict=True):
                can = np.flatnonzero((wide_G != narrow_G) & (option_G == narrow_G))
                saved = (times.total_O[option_G[can]] - times.total_O[wide_G[can]]) / bytes_O[wide_G[can]]
                order = can[np.argsort(-saved, kind="stable")]
                parts = [np.cumsum(of_O[wide_G[order]]) / of_O[narrow_G].sum() for of_O in (times.total_O, bytes_O)]
                chosen = order[np.maximum(*parts) <= eighth / 8]
                option_G[chosen] = wide_G[chosen]
            if 0 < sum(eighths) < 8:
                yield Start(f"by width, {eighths}, {len(types)}", option_G, by_width=True)

    def _cut_by_rows(self, beside: Sequence[Start]) -> Iterator[Start]:
        """Yield variants of these starts with the costliest tables row-wise, for each row-wise type and shard count."""
        whole_G = self.choose_options(frozenset({TABLE_WISE}))
        order = np.argsort(-self.times.total_O[whole_G], kind="stable")
        able_O = self._cuts_rows_O & self._usable_O
        shapes = sorted({(str(self._name_O[at]), int(self.table.count_O[at])) for at in np.flatnonzero(able_O)})
        for (name, count), number in product(shapes, self._thin(NUMBERS_IN_ROWS)):
            own_G = self._first_of(able_O & (self._name_O == name) & (self.table.count_O == count))
            able = order[own_G[order] >= 0]
            if number > len(able):
                continue
            for start in beside:
                option_G = start.option_G.copy()
                option_G[able[:number]] = own_G[able[:number]]
                yield Start(f"{number} {name} in {count} beside {start.family}", option_G)

    def cut_means_by_rows(self, starts: Sequence[Placed]) -> list[Placed]:
        """Return the cheapest variants of these starts where one or all collections with MEAN tables are row-wise."""
        table, means, found = self.table, self.space.means, list[Placed]()
        if not means.names:
            return found
        beside = [one.start.option_G for one in select_starts(starts, BESIDE_MEANS)]
        fits_O = self._is_allowed_O & table.is_on_device_O & (table.bytes_O <= self.space.memory_D.max())
        rows = [self.placer.cheapest(4 * ~means.is_row_O + 2 * ~fits_O + (self._name_O != name)) for name in ROWS_ALONE]
        numbers = list(range(len(means.names)))
        for some in [numbers] if len(numbers) == 1 else [*([one] for one in numbers[:MOST_ALONE]), numbers]:
            is_own_G = np.isin(means.number_G, some)
            family = f"collections {some} in rows"
            tried = [Start(family, np.where(is_own_G, own_G, other_G)) for own_G, other_G in product(rows, beside)]
            distinct = {one.option_G.tobytes(): one for one in tried}
            found += sorted(self._place([*distinct.values()]), key=lambda one: one.rank)[:BEST_IN_ROWS]
        return found

    # Rules of thumb ---------------------------------------------------------------------------------------------------

    def make_rules(self) -> list[Placed]:
        """Return all rule-of-thumb starts, best first."""
        made: dict[tuple[int, tuple[_Cut, ...]], Placed] = {}

        def make(keys: Iterable[tuple[int, tuple[_Cut, ...]]]) -> None:
            new = [key for key in dict.fromkeys(keys) if key not in made]
            made.update(zip(new, self._place([self._rule(*key) for key in new]), strict=True))

        def best(count: int) -> list[tuple[int, tuple[_Cut, ...]]]:
            return sorted(made, key=lambda key: made[key].rank)[:count]

        rows, columns = ([way for way in self._options_of_cut if word in way] for word in ("row-wise", "column-wise"))
        cuts: list[tuple[_Cut, ...]] = [(cut,) for cut in product((*rows, *columns), NUMBERS_CUT)]
        cuts += product(product(rows, NUMBERS_BESIDE_COLUMNS), product(columns, (None, *NUMBERS_BESIDE_ROWS)))
        make((most, ()) for most in self._thin(MOST_REPLICATED))
        make((most, one) for (most, _), one in product(best(MOST_WITH_CUTS), self._thin(cuts)))
        make((most, one) for (_, one), most in product(best(MOST_WITH_LIMITS), self._thin(MOST_REPLICATED)))
        found = sorted(made.values(), key=lambda one: one.rank)
        return sorted([*found, *self._place(list(self._replicate_more(found)))], key=lambda one: one.rank)

    def _replicate_more(self, rules: Sequence[Placed]) -> Iterator[Start]:
        """Yield variants of the best rules of thumb with other size limits of replicated tables."""
        families = list(dict.fromkeys(one.start.family for one in rules))[:MOST_WITH_SIZES]
        cuts = [next(one.start.cuts for one in rules if one.start.family == family) for family in families]
        sizes = np.unique(self._weights_G)
        some = sizes[np.unique(np.linspace(0, len(sizes) - 1, NUM_SIZES).round().astype(np.int64))]
        for own, most in product(cuts, self._thin(some.tolist())):
            yield self._rule(most, own)

    @cached_property
    def _options_of_cut(self) -> dict[str, Indices]:
        """Map each kind of cut to the option of each table group that has this cut, [G]; -1 if there is none."""
        devices, found = self.space.task.num_devices, {}
        single_O = self._cuts_rows_O & (self.table.count_O == 1)
        found["row-wise"] = self._first_of(single_O & (self.table.span_O == devices))
        found["row-wise in a node"] = self._first_of(single_O & (self.table.span_O < devices))
        is_cut_O = ~self._cuts_rows_O & ~self.table.is_replica_O
        for parts in COLUMN_PARTS:
            found[f"column-wise in {parts} shards"] = self._first_of(is_cut_O & (self.table.count_O == parts))
        return {way: option_G for way, option_G in found.items() if (option_G >= 0).any()}

    def _rule(self, most: int, cuts: tuple[_Cut, ...]) -> Start:
        """Replicate tables of at most ``most`` weights, then apply the cuts in order to the costliest other tables."""
        option_G = self.choose_options(frozenset({TABLE_WISE}))
        is_replicated_G = (self._weights_G <= most) & (self._replica_G >= 0)
        option_G = np.where(is_replicated_G, self._replica_G, option_G)
        order, uncut_G = np.argsort(-self.times.total_O[option_G], kind="stable"), ~is_replicated_G
        words = [f"tables of up to {most:,} weights replicated"] if most else []
        words += ["whole"] if not most and all(number is not None for _, number in cuts) else []
        for way, number in cuts:
            chosen = order[uncut_G[order] & (self._options_of_cut[way][order] >= 0)][:number]
            option_G[chosen], uncut_G[chosen] = self._options_of_cut[way][chosen], False
            words.append(f"{number or ('the rest' if words else 'all')} {way}")
        return Start(f"rule of thumb, {cuts}", option_G, rule=", ".join(words), cuts=cuts)

    def _place(self, starts: Sequence[Start]) -> list[Placed]:
        """Place all starts in parallel; identical starts are placed once."""
        unique = {(one.option_G.tobytes(), one.by_width): one for one in starts}
        distinct, found = list(unique.values()), list[tuple[Indices, float, float]]()
        at_once = max(1, MOST_PLACED // self.space.task.num_devices)
        for first in range(0, len(distinct), at_once):
            some = distinct[first : first + at_once]
            option_NG, by_width_N = np.stack([one.option_G for one in some]), np.array([one.by_width for one in some])
            place_NGS = self.placer.place(option_NG, by_width_N)
            chains = Chains(self.space, option_NG, place_NGS)
            if by_width_N.any():  # place again, by the times of devices
                place_NGS = self.placer.place(option_NG, by_width_N, self._scale(chains))
                chains = Chains(self.space, option_NG, place_NGS)
            overflow_N = np.where(self.placer.is_legal(chains), chains.overflow_N, np.inf)
            found += zip(place_NGS, chains.cost_N.tolist(), overflow_N.tolist(), strict=True)
        of_key = dict(zip(unique, found, strict=True))
        return [Placed(one, *of_key[one.option_G.tobytes(), one.by_width]) for one in starts]

    def _scale(self, chains: Chains) -> FloatArray:
        """Return, for each group, its first device's time divided by the sum of that device's single-shard times."""
        ms_P = np.where(self.space.shard_arrays.span_P == 1, self.times.ms_P, 0.0)
        load_ND = chains.sum_by_device(chains.all_shards, ms_P, chains.num)
        ratio_ND = chains.windows_BND.sum(axis=0) / np.maximum(load_ND, max(1e-3 * load_ND.max(), 1e-12))
        return round_last_digits(np.take_along_axis(ratio_ND, chains.place_NGS[:, :, 0].astype(np.int64), axis=1))


def select_starts(starts: Sequence[Placed], most: int) -> list[Placed]:
    """Return the best start of each family, at most ``most``, half of them rules of thumb if there are enough.

    ``starts`` has all starts, best first.
    """
    best: dict[str, Placed] = {}
    for one in starts:
        best.setdefault(one.start.family, one)
    rules = [one for one in best.values() if one.start.cuts and not one.overflow]
    others = [one for one in best.values() if one not in rules]
    count = max(most // 2, most - len(others))
    return sorted([*rules[:count], *others[: most - min(count, len(rules))]], key=lambda one: one.rank)
