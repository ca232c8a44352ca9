"""Collections with MEAN tables that a search cuts by rows as a whole, or not at all.

TorchRec takes means of rows by dividing a collection's whole output, which is right where all of its tables have rows.
Where some MEAN tables have rows and other tables have not, each group that would have to change counts as overflow of
memory. Where a MEAN table has rows, the time of the division is added to a step.

Legend: K collections, P pieces and O options of all groups, G groups, M placements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenshard.placement.sharding import ROWS_ALONE
from evenshard.price.loads import Indices
from evenshard.price.step import PartCosts
from evenshard.search.sharding_option import OptionTable, Pieces, TableGroup
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import MEAN

# Overflow of each group that has to change.
WRONG = 0.1


class MeanCollections:
    """The collections of a space, with their rows.

    Attributes:
        names: the collections (``Table.collection``); most tasks have none.
        number_G: number of the collection of each group; -1 for none.
        is_row_O, is_mean_O: True for rows of tables of the collections, and for those of their MEAN tables.
    """

    def __init__(self, costs: PartCosts, groups: Sequence[TableGroup], table: OptionTable, num_pieces: int) -> None:
        task = costs.task
        self.names = sorted(task.may_go_in_rows) if task.means_of_rows else []
        firsts = [task.tables[group.tables[0]] for group in groups]
        number_of = {name: number for number, name in enumerate(self.names)}
        self.number_G = np.array([number_of.get(one.collection, -1) for one in firsts])
        self._size_K = np.bincount(self.number_G[self.number_G >= 0], minlength=len(self.names))
        self._divided_K = np.array([costs.divided_ms({name}) for name in self.names])
        number_O = self.number_G[table.group_O]
        self.is_row_O = np.array([name in ROWS_ALONE for name in table.types])[table.type_O] & (number_O >= 0)
        self.is_mean_O = self.is_row_O & np.array([one.pooling == MEAN for one in firsts])[table.group_O]
        self._number_P = np.full(num_pieces, -1)
        number_O = number_O + len(self.names) * self.is_mean_O
        self._number_P[table.piece_A[table.first_O[self.is_row_O]]] = number_O[self.is_row_O]

    def count_rows(self, pieces: Pieces, count: int) -> Indices:
        """[M, 2 K] other tables, then MEAN tables of each collection that pieces of ``count`` changes put in rows."""
        own, size = pieces.select(self._number_P[pieces.piece_F] >= 0), 2 * len(self.names)
        found = np.bincount(own.change_F * size + self._number_P[own.piece_F], own.sign_F, count * size)
        return found.reshape(count, size).astype(np.int64)

    def overflow(self, rows_MK: Indices) -> FloatArray:
        """[M] overflow of the fewest groups that have to change, given the tables in rows."""
        others_MK, means_MK = np.split(rows_MK, 2, axis=1)
        return np.asarray(WRONG * np.minimum(means_MK, self._size_K - means_MK - others_MK).sum(axis=1))

    def divided_ms(self, rows_MK: Indices) -> FloatArray:
        """[M] time of dividing the outputs of collections with MEAN tables in rows, ms."""
        return np.asarray((rows_MK[:, len(self.names) :] > 0) @ self._divided_K)
