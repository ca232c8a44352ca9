"""Lower bounds of the slowest device's time: from the average device, indivisible shards and column cuts.

**Indivisible shards** (``IndivisibleShards``). Every device spends some time in any placement: on kernel calls,
latencies and tables that are on all devices (replicas, row-wise tables, and their collectives). The rest of the step
time is its budget, into which all other shards have to fit. Dual feasible functions can prove that they do not: such a
function maps each shard's share of the budget to a number, so that the numbers of shards that fit on one device sum to
at most 1. If all numbers sum to more than the number of devices, the shards do not fit (Martello and Toth, "Lower
bounds and reduction procedures for the bin packing problem", 1990; Fekete and Schepers, "New classes of fast lower
bounds for bin packing problems", 2001).

The budget depends on the cost of tables on all devices, so ranges of this cost are examined one by one, and halved
until the shards are proved not to fit in any of them. Within a range, each table takes the option that minimizes its
shards' numbers plus a Lagrange price for its cost on all devices.

Some costs occur once in a call, such as its hottest row: they are the maximum over its shards, which is at least the
mean weighted by work. So a shard's cost above the minimum of every call counts in proportion to its work.

**Column cuts** (``CutBounds``) may be uneven: rows of up to 32 columns use a quarter of a warp, rows of up to 64 half
of a warp, so 80 columns are cheaper as 64 and 16 than as 40 and 40. So each width is priced, and for each number of
parts the minimum total over widths that add up to the table is computed. An option represents all numbers of parts
below the next option's: its parts together cost at least the minimum total, and the widest part at least the time of an
even share alone. If there are many tables, only those with the most lookups have this bound.

Legend: G groups, O options of a group (in ``CutBounds``: its options), W options (in ``Options``: those of a group), Q
shards of options, F dual feasible functions (in ``CutBounds``: tables with a type that cuts columns), M prices, U
blocks of ``COLUMN_STEP`` columns, E widths of all tables, P lookups, N parts, S sets of values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, busiest_rows, lookup_share
from evenshard.placement.sharding import TYPES
from evenshard.price.collectives import part_volume
from evenshard.price.kernel_calls import Lookup, part_lookups
from evenshard.search.bound_lines import SharedSteps, TangentLine, price_bounds
from evenshard.search.sharding_option import OptionTable
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]
# Relative difference of times at which a bisection ends.
CLOSE = 1e-5
# Most widths, over all tables that are cut by columns, for which least sums are computed.
MOST_WIDTHS = 1_000


@dataclass(frozen=True)
class Options:
    """Costs of each table group's sharding options, [G, W]: total work, time of the slowest shard alone, and memory."""

    total_GW: FloatArray
    alone_GW: FloatArray
    bytes_GW: FloatArray


def least_time_ms(
    options: Options, offset: float, room: float, devices: int, known: float = 0.0
) -> tuple[float, Numbers | None]:
    """Find by bisection the minimum time in which all groups fit on the devices, and their options.

    Args:
        known: a lower bound that is already known; if all groups fit in this time, return it without options.
        offset: time of each device without tables.
    """
    if known > 0 and _fit_options(options, known, offset, room, devices) is not None:
        return known, None
    alone_G = np.where(np.isfinite(options.alone_GW), options.alone_GW, 0.0).max(axis=1)
    chosen_G = np.asarray(options.total_GW.argmin(axis=1))
    low, high = known, float(options.total_GW.min(axis=1).sum()) / devices + max(offset, 0.0) + float(alone_G.max())
    high = max(high, low)
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        found_G = _fit_options(options, middle, offset, room, devices)
        if found_G is None:
            low = middle
        else:
            high, chosen_G = middle, found_G
    return low, chosen_G


def _fit_options(options: Options, time_ms: float, offset: float, room: float, devices: int) -> Numbers | None:
    """Choose options that fit in ``time_ms``, with memory as a Lagrangian penalty; None if impossible."""
    total = np.where(options.alone_GW <= time_ms, options.total_GW, np.inf)
    rows = np.arange(len(total))
    chosen = np.asarray(total.argmin(axis=1))
    if not np.isfinite(total[rows, chosen]).all():
        return None
    budget = (time_ms - offset) * devices
    if total[rows, chosen].sum() > budget:
        return None
    bytes_GW = np.where(np.isfinite(total), options.bytes_GW, 0.0)
    used = bytes_GW[rows, chosen].sum()
    # The price doubles from a thousandth of the work per available byte until the options fit or the budget is
    # exceeded.
    price = float(total[rows, chosen].sum()) / max(room, 1.0) * 1e-3
    for _ in range(24):
        if used <= room:
            return chosen
        priced = total + price * bytes_GW
        chosen = np.asarray(priced.argmin(axis=1))
        used = bytes_GW[rows, chosen].sum()
        if priced[rows, chosen].sum() - price * room > budget:
            return None
        price *= 2
    return chosen


@dataclass(frozen=True)
class _Cut:
    """Table with a sharding type that divides its columns; each option covers a range of part counts."""

    position: int
    sharding_type: str
    options: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    rows: Span | None
    least_blocks: int
    blocks: int


class CutBounds:
    """Lower bounds of the cost of sharding tables by columns, for any widths of the shards."""

    def __init__(self, space: SearchSpace, shared: SharedSteps | None = None) -> None:
        self._space, self._shared = space, shared or SharedSteps()
        self._cuts, left = list[_Cut](), MOST_WIDTHS
        for cut in sorted(self._all_cuts(), key=lambda one: -space.task.tables[one.position].pooling_factor):
            left -= cut.blocks
            if left < 0:
                break
            self._cuts.append(cut)
        # Indices of the options of these tables among all options.
        self.options = np.array([at for cut in self._cuts for at in cut.options], dtype=np.int64)
        of_options = [(number, *parts) for number, cut in enumerate(self._cuts) for parts in cut.parts]
        self._parts_3O = np.array(of_options, dtype=np.int64).reshape(-1, 3).T
        self._blocks_F = np.array([cut.blocks for cut in self._cuts], dtype=np.int64)
        self._price_widths()

    def _all_cuts(self) -> Iterator[_Cut]:
        task, table = self._space.task, self._space.table
        options_of: dict[tuple[int, str], dict[int, list[int]]] = {}
        for at, parts in enumerate(table.count_O.tolist()):
            tables, name = self._space.groups[table.group_O[at]].tables, table.types[table.type_O[at]]
            if TYPES[name].cuts_columns and len(tables) == 1:
                options_of.setdefault((tables[0], name), {}).setdefault(parts, []).append(at)
        for (position, name), by_parts in options_of.items():
            own, type_, counts = task.tables[position], TYPES[name], sorted(by_parts)
            blocks = own.embedding_dim // COLUMN_STEP
            most = min(type_.most_column_parts(task.machine), blocks)
            # The option with the fewest parts also represents cuts into fewer; each part needs its own device.
            ranges = zip([2, *counts[1:]], [*(one - 1 for one in counts[1:]), most], strict=True)
            yield _Cut(
                position,
                name,
                tuple(at for count in counts for at in by_parts[count]),
                tuple(range_ for count, range_ in zip(counts, ranges, strict=True) for _ in by_parts[count]),
                busiest_rows(own, type_.span(task.machine)) if type_.cuts_rows else None,
                task.limits_of(position).min_column_steps,
                blocks,
            )

    def _price_widths(self) -> None:
        task = self._space.task
        lookups, width_of_P, width_E, volume_EV = list[Lookup](), list[int](), list[tuple[int, int]](), []
        for number, cut in enumerate(self._cuts):
            table = task.tables[cut.position]
            for blocks in range(cut.least_blocks, cut.blocks + 1):
                columns = blocks * COLUMN_STEP
                rows = cut.rows or Span(0, table.num_rows)
                part = TablePart(table.name, rows, Span(0, columns), (0,))
                own = part_lookups(part, table, task)
                width_of_P += [len(width_E)] * len(own)
                lookups += own
                width_E.append((number, blocks))
                share = lookup_share(table, rows)
                volume_EV.append(part_volume(table, cut.sharding_type, columns, share, task.num_devices))
        self._width_P, self._volume_EV = np.array(width_of_P, dtype=np.int64), np.array(volume_EV)
        self._cut_E, self._blocks_E = np.array(width_E, dtype=np.int64).reshape(-1, 2).T
        prices = self._space.costs.prices if lookups else []
        self._kinds = [(price_bounds(price), price.columns(lookups)) for price in prices]

    def alone_ms(self, slopes_V: FloatArray) -> FloatArray:
        """Return a lower bound of the time of each option's widest shard alone on a device; 0 for row cuts."""
        if not self._cuts:
            return np.zeros(0)
        alone_E = np.zeros(len(self._cut_E))
        least_P = np.min([bounds.least_ms(columns_PH) for bounds, columns_PH in self._kinds], axis=0)
        np.maximum.at(alone_E, self._width_P, least_P)
        alone_O = self.widest(self._by_blocks(alone_E + self._volume_EV @ slopes_V))
        has_rows_O = [cut.rows is None for cut in self._cuts for _ in cut.parts]
        return np.where(has_rows_O, alone_O, 0.0)

    def widest(self, values_FU: FloatArray) -> FloatArray:
        """Return, for each option, the minimum of ``values_FU`` over the widths that its widest part can have."""
        least_FU = np.minimum.accumulate(values_FU[:, ::-1], axis=1)[:, ::-1]
        number_O, _, most_O = self._parts_3O
        return np.asarray(least_FU[number_O, -(-self._blocks_F[number_O] // most_O) - 1])

    def least_work_2(self, works_2FU: FloatArray) -> FloatArray:
        """Return the minimum total work of each option's parts, forward and backward, [2, options]."""
        return np.asarray(self.least(works_2FU) * self._space.table.span_O[self.options])

    def part_work_2FU(self, kind: int, lines: Sequence[TangentLine], line_W: Numbers) -> FloatArray:
        """Return a lower bound of the work of parts of 1, 2, ... blocks of columns; infinite for invalid widths.

        ``kind`` is the index of the kind of device; ``line_W`` is the index in ``lines`` of each option's bound.
        """
        if not self._cuts:
            return np.zeros((2, 0, 0))
        bounds, columns_PH = self._kinds[kind]
        line_P = line_W[[cut.options[0] for cut in self._cuts]][self._cut_E[self._width_P]]
        works_2P = np.array([line.compute_work(columns_PH) for line in lines])[line_P, :, np.arange(len(line_P))].T
        return self._sum_widths_2FU(works_2P + bounds.own_steps_ms(columns_PH))

    @cached_property
    def shared_work_2FU(self) -> FloatArray:
        """Return the work that a part of 1, 2, ... blocks of columns adds to the bound ``SharedSteps``."""
        if not self._cuts:
            return np.zeros((2, 0, 0))
        return self._sum_widths_2FU(
            np.min([self._shared.compute_work(columns_PH) for _, columns_PH in self._kinds], axis=0)
        )

    def communication_FU(self, slopes_V: FloatArray) -> FloatArray:
        """Return the communication time of a part of 1, 2, ... blocks of columns; infinite for invalid widths."""
        return self._by_blocks(self._volume_EV @ slopes_V) if self._cuts else np.zeros((0, 0))

    def least(self, values_SFU: FloatArray) -> FloatArray:
        """Return, for each option, the minimum sum of ``values_SFU`` over its parts' possible widths, [S, options]."""
        if not self._cuts:
            return np.zeros((len(values_SFU), 0))
        number_O, least_O, most_O = self._parts_3O
        sums_SFN = least_sums(values_SFU, self._blocks_F, int(most_O.max()))
        found_SO = sums_SFN[:, number_O, least_O - 1]
        for more in range(1, int((most_O - least_O).max()) + 1):
            found_SO = np.minimum(found_SO, sums_SFN[:, number_O, np.minimum(least_O + more, most_O) - 1])
        return found_SO

    def of_tables(self, values_W: FloatArray) -> FloatArray:
        """Return one value per table, [F], from option values that are equal for all cuts of the table."""
        return values_W[[cut.options[0] for cut in self._cuts]]

    def _sum_widths_2FU(self, works_2P: FloatArray) -> FloatArray:
        count = len(self._cut_E)
        works_2E = np.array([np.bincount(self._width_P, works_P, count) for works_P in works_2P], dtype=np.float64)
        return np.stack([self._by_blocks(works_E) for works_E in works_2E])

    def _by_blocks(self, values_E: FloatArray) -> FloatArray:
        """Rearrange values by width into an array by table and block count, [F, U]; infinite for invalid widths."""
        found = np.full((len(self._cuts), max(cut.blocks for cut in self._cuts)), np.inf)
        found[self._cut_E, self._blocks_E - 1] = values_E
        return found


def least_sums(values_SFU: FloatArray, blocks_F: Numbers, most: int) -> FloatArray:
    """Compute the minimum total value of 1 to ``most`` parts whose widths add up to each table's, [S, F, N].

    Args:
        values_SFU: value of a part of 1, 2, ... blocks of columns; infinite for impossible widths.
    """
    blocks = values_SFU.shape[2]
    # Each additional width reduces the remaining blocks.
    from_U, to_U = np.tril_indices(blocks + 1, -1)
    values_SFUU = np.full((*values_SFU.shape[:2], blocks + 1, blocks + 1), np.inf)
    values_SFUU[:, :, to_U, from_U] = values_SFU[:, :, from_U - to_U - 1]
    sums_SFU = np.where(np.arange(blocks + 1) == blocks_F[:, None], np.zeros((len(values_SFU), 1, 1)), np.inf)
    found = []
    for _ in range(most):
        sums_SFU = (values_SFUU + sums_SFU[:, :, None]).min(axis=3)
        found.append(sums_SFU[:, :, 0])
    return np.stack(found, axis=2)


# Parameters of the functions ``_by_share`` and ``_by_count``, one function for each.
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
COUNTS = (1, 2, 3, 4, 5)
# Prices, relative to the cost of lost time budget on all devices.
PRICES = (0.0, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
# Most halvings of a range, and its least width relative to the time.
MOST_HALVES, NARROW = 7, 3e-3
# Relative difference at which the slower bisection for whole shards ends.
CLOSE_SHARDS = 4e-3
_ROUNDING = 1e-9  # tolerance for the rounding of sums


@dataclass(frozen=True)
class IndivisibleShards:
    """Lower bounds of the step time that treat shards as indivisible, as in bin packing."""

    table: OptionTable
    devices: int
    offset_ms: float  # additional time of each device
    # Least time of a device with the option's longest shard; infinite if the option is not allowed.
    alone_W: FloatArray
    common_W: FloatArray  # time on every device
    once_W: FloatArray  # one-time cost of a call with the option, beyond the minimum of its class
    is_spread_W: npt.NDArray[np.bool_]  # True if its shards are on all devices
    # For the other options: classes of equal shards, with the time of a shard, and the number of their devices.
    option_Q: Numbers
    work_Q: FloatArray
    count_Q: FloatArray
    # Tables that are cut by columns, and the work of a part of 1, 2, ... blocks.
    cuts: CutBounds
    cut_FU: FloatArray

    def least_ms(self, low: float, high: float) -> float:
        """Find the largest lower bound on the step time between ``low`` and ``high``."""
        if not self.may_fit(high):
            return high
        while high - low > CLOSE_SHARDS * high:
            middle = (low + high) / 2
            if self.may_fit(middle):
                high = middle
            else:
                low = middle
        return low

    def may_fit(self, time_ms: float) -> bool:
        """Return False if it is proven that no placement has a step time of at most ``time_ms``."""
        is_allowed_W = self.alone_W <= time_ms
        most = time_ms - self.offset_ms
        least = float(self.table.pad_by_group(np.where(is_allowed_W, self.common_W, np.inf)).min(axis=1).sum())
        ranges = [(0.0, 0, least, most)] if least < most else []
        while ranges:
            _, halves, low, high = heapq.heappop(ranges)
            excess = self._excess(is_allowed_W, most - low, high)
            if excess > _ROUNDING * self.devices:
                continue
            if halves == MOST_HALVES or high - low < NARROW * time_ms:
                return True
            middle = (low + high) / 2
            for half in ((low, middle), (middle, high)):
                heapq.heappush(ranges, (excess, halves + 1, *half))
        return False

    def _excess(self, is_allowed_W: npt.NDArray[np.bool_], room: float, most: float) -> float:
        """Return the most by which a dual feasible function's sum exceeds the device count; above 0, nothing fits."""
        common_W = self.common_W * (1 + self.is_spread_W * self.once_W / most)
        share_Q = self.work_Q * (1 + self.once_W[self.option_Q] / room) / room
        is_allowed_W = is_allowed_W & (self._widest_W * (1 + self.once_W / room) <= room * (1 + _ROUNDING))
        numbers_FQ = np.stack([of(np.minimum(share_Q, 1.0)) for of in FUNCTIONS]) * self.count_Q
        count = len(self.alone_W)
        numbers_FW = np.array([np.bincount(self.option_Q, numbers_Q, count) for numbers_Q in numbers_FQ])
        prices_M = self.devices / room * np.array(PRICES)
        excess_FM = self._least_FM(np.where(is_allowed_W, numbers_FW, np.inf), common_W, prices_M)
        excess_FM -= self.devices + prices_M * most
        best, price = np.unravel_index(int(excess_FM.argmax()), excess_FM.shape)
        if not np.isfinite(excess_FM).all():
            return float("inf")
        if excess_FM[best, price] <= 0 or not len(self.cuts.options):
            return float(excess_FM[best, price])
        # Recompute with uneven cuts by columns, which are cheaper.
        numbers_W = np.where(is_allowed_W, numbers_FW[best], np.inf)
        share_FU = self.cut_FU * (1 + self.cuts.of_tables(self.once_W)[:, None] / room) / room
        parts_FU = np.where(share_FU <= 1 + _ROUNDING, FUNCTIONS[best](np.minimum(share_FU, 1.0)), np.inf)
        of_cuts = self.cuts.least(parts_FU[None])[0] * self.table.span_O[self.cuts.options]
        numbers_W[self.cuts.options] = np.where(is_allowed_W[self.cuts.options], of_cuts, np.inf)
        least = self._least_FM(numbers_W[None], common_W, prices_M[price, None])[0, 0]
        return float(least - self.devices - prices_M[price] * most)

    @cached_property
    def _widest_W(self) -> FloatArray:
        """Return a lower bound of the widest shard's time, valid for uneven cuts too, [W]."""
        widest_W = np.zeros(len(self.alone_W))
        np.maximum.at(widest_W, self.option_Q, self.work_Q)
        if len(self.cuts.options):
            widest_W[self.cuts.options] = self.cuts.widest(self.cut_FU)
        return widest_W

    def _least_FM(self, numbers_FW: FloatArray, common_W: FloatArray, prices_M: FloatArray) -> FloatArray:
        numbers_FGO = np.stack([self.table.pad_by_group(numbers_W) for numbers_W in numbers_FW])
        common_GO = np.nan_to_num(self.table.pad_by_group(common_W), posinf=0.0)
        priced_FMGO = numbers_FGO[:, None] + prices_M[:, None, None] * common_GO
        return np.asarray(priced_FMGO.min(axis=3).sum(axis=2))


def _by_share(share_Q: FloatArray, least: float) -> FloatArray:
    """Round shares below ``least`` down to 0, and shares above 1 - ``least`` up to 1."""
    return np.where(share_Q > 1 - least, 1.0, np.where(share_Q < least, 0.0, share_Q))


def _by_count(share_Q: FloatArray, count: int) -> FloatArray:
    """Return floor((count + 1) * share) / count; multiples of 1 / (count + 1) are unchanged."""
    times_Q = (count + 1) * share_Q
    return np.where(times_Q == np.round(times_Q), share_Q, np.floor(times_Q) / count)


FUNCTIONS: tuple[Callable[[FloatArray], FloatArray], ...] = (
    lambda share_Q: share_Q,
    *(partial(_by_share, least=one) for one in SHARES),
    *(partial(_by_count, count=one) for one in COUNTS),
)
