"""All pieces and all options of a search as arrays.

Legend: G groups, O options of all groups, A pieces of all options, P distinct pieces, V kinds of volumes, K kinds of
devices, C kernel calls or looked-up rows, E some of the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenshard.measure.price.loads import Indices, Mask, repeat_numbers
from evenshard.placement.parts import COLUMN_STEP, Storage
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.tables.reuse import FloatArray


class OptionTable:
    """All options of all groups, one after the other, and the pieces of each.

    Args:
        cut_O: the same number for options with the same widths of pieces.

    Attributes:
        num_options_G, first_option_G: options of each group, and the number of its first one.
        group_O: the group of each option.
        count_O, first_O: pieces of each option, and the first one in ``piece_A``.
        piece_A, option_A: the number of each piece among the distinct ones, and its option.
        types, type_O: sharding types, and the number of each option's.
        storages, storage_O: the same of storages.
        span_O, home_O: devices, one after the other, of each piece, and those that all pieces are among.
        bytes_O: device memory of the largest piece.
        width_O: columns of the widest piece.
        is_unusual_O: True if columns are cut neither evenly into a power of two of parts, nor into equal parts as wide
            as a power of two.
        is_replica_O: True if every device holds a replica.
        shape_O: the same number for options of the same type and the same columns of the first piece.
        twin_O, first_twin_O, num_twins_O: options by groups of twins, which differ in their storage alone; the place of
            each option's first twin in ``twin_O``, and the number of its twins, itself among them.
        most_pieces: of an option.
    """

    def __init__(
        self,
        num_options_G: Indices,
        count_O: Indices,
        piece_A: Indices,
        types: tuple[tuple[str, ...], Indices],
        storages: tuple[tuple[Storage, ...], Indices],
        homes_2O: Indices,
        cut_O: Indices,
        pieces: PieceArrays,
    ) -> None:
        self.num_options_G, self.count_O, self.piece_A = num_options_G, count_O, piece_A
        (self.types, self.type_O), (self.storages, self.storage_O) = types, storages
        self.span_O: Indices = homes_2O[0]
        self.home_O: Indices = homes_2O[1]
        self.first_option_G = np.cumsum(num_options_G) - num_options_G
        self.group_O = np.repeat(np.arange(len(num_options_G)), num_options_G)
        self.first_O = np.cumsum(count_O) - count_O
        self.option_A = np.repeat(np.arange(len(count_O)), count_O)
        self.most_pieces = int(count_O.max())
        self._columns_A = columns_A = pieces.columns_P[piece_A]
        self.bytes_O = np.maximum.reduceat(pieces.size_P[piece_A], self.first_O)
        self.width_O = np.maximum.reduceat(columns_A, self.first_O)
        least_O = np.minimum.reduceat(columns_A, self.first_O)
        is_even_O = self.width_O - least_O <= COLUMN_STEP
        is_power_O = (self.width_O == least_O) & _is_power_of_two(self.width_O)
        self.is_unusual_O = ~(is_even_O & (_is_power_of_two(count_O) | is_power_O))
        self.is_replica_O = pieces.values_P[piece_A[self.first_O]] > 0
        columns_O = columns_A[self.first_O]
        shapes_O = self.type_O * (columns_O.max() + 1) + columns_O
        self.shape_O = np.unique(shapes_O, return_inverse=True)[1]
        alike_O = (self.group_O * len(self.types) + self.type_O) * (cut_O.max() + 1) + cut_O
        _, twins_O, count_B = np.unique(alike_O, return_inverse=True, return_counts=True)
        self.twin_O = np.argsort(twins_O, kind="stable")
        self.num_twins_O = count_B[twins_O]
        self.first_twin_O = (np.cumsum(count_B) - count_B)[twins_O]

    def option(self, number: int) -> ShardingOption:
        """Return an option, given its number among those of all groups."""
        own = slice(self.first_O[number], self.first_O[number] + self.count_O[number])
        return ShardingOption(
            self.types[self.type_O[number]],
            self.storages[self.storage_O[number]],
            int(self.span_O[number]),
            int(self.home_O[number]),
            tuple(self.piece_A[own].tolist()),
            tuple(self._columns_A[own].tolist()),
        )


def _is_power_of_two(numbers: Indices) -> Mask:
    return np.asarray(numbers & (numbers - 1) == 0)


@dataclass(frozen=True)
class PieceArrays:
    """All pieces as arrays. Legend: P pieces, K kinds of devices, C kernel calls of a piece.

    Attributes:
        columns_P: columns of each.
        span_P: devices, one after the other, that each have as much of it.
        size_P, host_P, ssd_P: bytes of device memory, of the host's memory, and of the host's SSDs.
        values_P: weights of a replica.
        volume_PV: volumes that it adds to each of its devices (``PartVolume``).
        offload_PK2: added time of forward and backward outside of device memory, ms; zeros in device memory.
        cells_P: cells of each: a kernel call and a row of the matrix of columns, each call once. ``call_C`` and
            ``row_C`` have those of all pieces, the first at ``first_P``.
    """

    columns_P: Indices
    span_P: Indices
    size_P: Indices
    host_P: Indices
    ssd_P: Indices
    values_P: FloatArray
    volume_PV: FloatArray
    offload_PK2: FloatArray
    cells_P: Indices
    first_P: Indices
    call_C: Indices
    row_C: Indices

    def cells_of(self, piece_E: Indices) -> tuple[Indices, Indices]:
        """Return the number of each cell's piece in ``piece_E``, and the number of the cell."""
        from_C, offset_C = repeat_numbers(self.cells_P[piece_E])
        return from_C, self.first_P[piece_E[from_C]] + offset_C
