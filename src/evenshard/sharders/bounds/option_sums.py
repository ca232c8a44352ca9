"""Sums over the pieces of each option, which lower bounds start from.

Legend: W options of all groups, A their pieces, C looked-up rows of these, V kinds of volumes, P looked-up rows of the
space, G groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]


class OptionSums:
    """All options of all groups, one after the other.

    Attributes:
        group_W, number_W: the group of each, and its number there.
        copies_W: devices that each piece lives on.
        volume_WV: the volumes of one copy of all pieces.
        longest_WV: the largest volume of a piece.
        values_W: weights of a replica.
        bytes_W: memory of all devices together.
        offload_W, longest_offload_W: time outside of device memory, of one copy: of all pieces, and of the longest.
        option_A, volume_AV: the option and the volumes of each piece.
        option_C, piece_C, call_C, row_C: the option of each looked-up row, the piece, the kernel call, and the row
            of columns.
    """

    def __init__(self, space: SearchSpace) -> None:
        table, pieces = space.table, space.piece_arrays
        piece_A = table.piece_A
        self.group_W, self.number_W = table.group_O, np.arange(len(table.group_O)) - table.first_option_G[table.group_O]
        self.copies_W: FloatArray = table.span_O.astype(np.float64)
        self.option_A, self.volume_AV = table.option_A, pieces.volume_PV[piece_A]
        self.volume_WV = np.add.reduceat(self.volume_AV, table.first_O)
        self.longest_WV = np.maximum.reduceat(self.volume_AV, table.first_O)
        self.values_W = pieces.values_P[piece_A[table.first_O]]
        self.bytes_W = self.copies_W * np.add.reduceat(pieces.size_P[piece_A], table.first_O)
        offload_A = pieces.offload_PK2.sum(axis=2).max(axis=1)[piece_A]
        self.offload_W = np.add.reduceat(offload_A, table.first_O)
        self.longest_offload_W = np.maximum.reduceat(offload_A, table.first_O)
        self.piece_C, cell_C = pieces.cells_of(piece_A)
        self.option_C = self.option_A[self.piece_C]
        self.call_C, self.row_C = pieces.call_C[cell_C], pieces.row_C[cell_C]

    def sum_by_option(self, values_P: FloatArray) -> FloatArray:
        """Sum the looked-up rows of each option, [W]."""
        return np.asarray(
            np.bincount(self.option_C, weights=values_P[self.row_C], minlength=len(self.group_W)), dtype=np.float64
        )

    def longest(self, values_P: FloatArray) -> FloatArray:
        """Return the largest of the looked-up rows of each option, [W]."""
        found = np.zeros(len(self.group_W))
        np.maximum.at(found, self.option_C, values_P[self.row_C])
        return found

    def pad_by_group(self, values_W: FloatArray) -> FloatArray:
        """Index values by group and number, [G, options of a group]; infinite where there is no such option."""
        found = np.full((int(self.group_W.max()) + 1, int(self.number_W.max()) + 1), np.inf)
        found[self.group_W, self.number_W] = values_W
        return found
