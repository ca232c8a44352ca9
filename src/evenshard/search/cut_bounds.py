"""What no cut of a table by columns takes less than, into however many parts and however uneven ones.

An even cut is not always the least: rows of up to 32 columns take a quarter of a warp, rows of up to 64 half of one, so
that 80 columns take less as 64 and 16 than as 40 and 40. So each width is priced, and the least sum of widths that make
up the table is found for each number of parts. An option of the search stands for its own number of parts, and for
those up to the next option's: all of them together take at least that sum, and the widest of them at least what a part
of an even share takes alone.

Where tables are many, that is done for those that are looked up most; of the others, even cuts stand for all.

Legend: F tables with a type that cuts them, U blocks of ``COLUMN_STEP`` columns, E widths of all tables, W options,
P lookups, N parts, S sets of values, O ``options``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, busiest_rows, lookup_share
from evenshard.placement.sharding import TYPES
from evenshard.price.collectives import part_volume
from evenshard.price.kernel_calls import Lookup, part_lookups
from evenshard.search.bound_lines import SharedSteps, TangentLine, price_bounds
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]
MOST_WIDTHS = 1_000


@dataclass(frozen=True)
class _Cut:
    """A table that a type may cut by columns; each option stands for a range of ``parts``."""

    position: int
    way: str
    options: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    rows: Span | None
    least_blocks: int
    blocks: int


class CutBounds:
    """The least that cuts by columns take.

    Attributes:
        options: numbers, among all options, of those that are bounded here.
    """

    def __init__(self, space: SearchSpace, shared: SharedSteps | None = None) -> None:
        self._space, self._shared = space, shared or SharedSteps()
        self._cuts, left = list[_Cut](), MOST_WIDTHS
        for cut in sorted(self._all_cuts(), key=lambda one: -space.task.tables[one.position].pooling_factor):
            left -= cut.blocks
            if left < 0:
                break
            self._cuts.append(cut)
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
            # The option of the fewest parts stands for cuts into fewer, too; parts live on devices of their own.
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
                volume = part_volume(table, cut.way, columns, lookup_share(table, rows), task.num_devices)
                volume_EV.append(volume.numbers_V)
        self._width_P, self._volume_EV = np.array(width_of_P, dtype=np.int64), np.array(volume_EV)
        self._cut_E, self._blocks_E = np.array(width_E, dtype=np.int64).reshape(-1, 2).T
        prices = self._space.costs.prices if lookups else []
        self._kinds = [(price_bounds(price), price.columns(lookups)) for price in prices]

    def alone_ms(self, slopes_V: FloatArray) -> FloatArray:
        """Bound the time of the widest part of each option, alone on its device, from below; 0 where rows are cut."""
        if not self._cuts:
            return np.zeros(0)
        alone_E = np.zeros(len(self._cut_E))
        least_P = np.min([bounds.least_ms(columns_PH) for bounds, columns_PH in self._kinds], axis=0)
        np.maximum.at(alone_E, self._width_P, least_P)
        alone_O = self.widest(self._by_blocks(alone_E + self._volume_EV @ slopes_V))
        has_rows_O = [cut.rows is None for cut in self._cuts for _ in cut.parts]
        return np.where(has_rows_O, alone_O, 0.0)

    def widest(self, values_FU: FloatArray) -> FloatArray:
        """Return the least value, by blocks, of the widest part, which has an even share at least, [options]."""
        least_FU = np.minimum.accumulate(values_FU[:, ::-1], axis=1)[:, ::-1]
        number_O, _, most_O = self._parts_3O
        return np.asarray(least_FU[number_O, -(-self._blocks_F[number_O] // most_O) - 1])

    def works_2(self, works_2FU: FloatArray) -> FloatArray:
        """Return the least work of all parts of each option, both passes, [2, options]."""
        return np.asarray(self.least(works_2FU) * self._space.table.span_O[self.options])

    def part_works_2FU(self, kind: int, lines: Sequence[TangentLine], line_W: Numbers) -> FloatArray:
        """Return the work of a part of 1, 2, ... blocks on one kind of device; infinite where there is none.

        Args:
            line_W: number of the line of each of all options.
        """
        if not self._cuts:
            return np.zeros((2, 0, 0))
        bounds, columns_PH = self._kinds[kind]
        line_P = line_W[[cut.options[0] for cut in self._cuts]][self._cut_E[self._width_P]]
        works_2P = np.array([line.works(columns_PH) for line in lines])[line_P, :, np.arange(len(line_P))].T
        return self._sum_widths_2FU(works_2P + bounds.own_steps_ms(columns_PH))

    @cached_property
    def shared_works_2FU(self) -> FloatArray:
        """The same of the steps that all parts need together, on any kind of device."""
        if not self._cuts:
            return np.zeros((2, 0, 0))
        return self._sum_widths_2FU(np.min([self._shared.works(columns_PH) for _, columns_PH in self._kinds], axis=0))

    def exchanged_FU(self, slopes_V: FloatArray) -> FloatArray:
        """What a part of 1, 2, ... blocks exchanges; infinite where there is none."""
        return self._by_blocks(self._volume_EV @ slopes_V) if self._cuts else np.zeros((0, 0))

    def least(self, values_SFU: FloatArray) -> FloatArray:
        """Return the least sum of values of the parts of each option, [S, options], of values by blocks."""
        if not self._cuts:
            return np.zeros((len(values_SFU), 0))
        number_O, least_O, most_O = self._parts_3O
        sums_SFN = least_sums(values_SFU, self._blocks_F, int(most_O.max()))
        found_SO = sums_SFN[:, number_O, least_O - 1]
        for more in range(1, int((most_O - least_O).max()) + 1):
            found_SO = np.minimum(found_SO, sums_SFN[:, number_O, np.minimum(least_O + more, most_O) - 1])
        return found_SO

    def of_tables(self, values_W: FloatArray) -> FloatArray:
        """[F] values of options that are alike in all cuts of a table."""
        return values_W[[cut.options[0] for cut in self._cuts]]

    def _sum_widths_2FU(self, works_2P: FloatArray) -> FloatArray:
        count = len(self._cut_E)
        works_2E = np.array([np.bincount(self._width_P, works_P, count) for works_P in works_2P], dtype=np.float64)
        return np.stack([self._by_blocks(works_E) for works_E in works_2E])

    def _by_blocks(self, values_E: FloatArray) -> FloatArray:
        """Index values of widths by table and blocks, [F, U]; infinite where there is no such width."""
        found = np.full((len(self._cuts), max(cut.blocks for cut in self._cuts)), np.inf)
        found[self._cut_E, self._blocks_E - 1] = values_E
        return found


def least_sums(values_SFU: FloatArray, blocks_F: Numbers, most: int) -> FloatArray:
    """Return the least sum of values of widths that make up a table, for 1, 2, ... ``most`` of them, [S, F, N].

    Args:
        values_SFU: of a width of 1, 2, ... blocks; infinite where there is none.
    """
    blocks = values_SFU.shape[2]
    # One more width leads from some blocks that are left to fewer.
    from_U, to_U = np.tril_indices(blocks + 1, -1)
    values_SFUU = np.full((*values_SFU.shape[:2], blocks + 1, blocks + 1), np.inf)
    values_SFUU[:, :, to_U, from_U] = values_SFU[:, :, from_U - to_U - 1]
    sums_SFU = np.where(np.arange(blocks + 1) == blocks_F[:, None], np.zeros((len(values_SFU), 1, 1)), np.inf)
    found = []
    for _ in range(most):
        sums_SFU = (values_SFUU + sums_SFU[:, :, None]).min(axis=3)
        found.append(sums_SFU[:, :, 0])
    return np.stack(found, axis=2)
