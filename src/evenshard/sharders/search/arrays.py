"""All pieces and all options of a search as arrays, so that many changes are counted at once.

Legend: G groups, W options, V kinds of volumes, P pieces, K kinds of devices, C kernel calls or looked-up rows,
N changes, E pieces that they add or take away, F the same on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import VOLUMES
from evenshard.measure.price.loads import CellChanges, repeat_numbers
from evenshard.sharders.search.sharding_option import Piece, TableGroup
from evenshard.tables.reuse import FloatArray


@dataclass(frozen=True)
class FlatOptions:
    """All options of all groups, one after the other, as arrays.

    Legend: W options, A their pieces, C looked-up rows of these.

    Attributes:
        group_W, number_W: the group of each, and its number there.
        copies_W: devices that each piece lives on.
        volume_WV: what all pieces add to the volumes of one copy.
        longest_WV: the volume of the piece that adds most.
        values_W: weights of a replica.
        bytes_W: memory of all devices together.
        largest_bytes_W: of the largest piece.
        host_W: memory of all hosts together; of their SSDs too, which both are short of.
        offload_W, longest_offload_W: time outside of device memory, of one copy: of all pieces, and of the longest.
        option_A, volume_AV: the option of each piece, and what it adds to the volumes of a device.
        option_C, piece_C, row_C: of each looked-up row the option, the piece, and its number in the matrix of columns.
        names: sharding types.
        type_W: the number of each one's type.
    """

    group_W: npt.NDArray[np.int64]
    number_W: npt.NDArray[np.int64]
    copies_W: FloatArray
    volume_WV: FloatArray
    longest_WV: FloatArray
    values_W: FloatArray
    bytes_W: FloatArray
    largest_bytes_W: FloatArray
    host_W: FloatArray
    offload_W: FloatArray
    longest_offload_W: FloatArray
    option_A: npt.NDArray[np.int64]
    volume_AV: FloatArray
    option_C: npt.NDArray[np.int64]
    piece_C: npt.NDArray[np.int64]
    row_C: npt.NDArray[np.int64]
    names: tuple[str, ...]
    type_W: npt.NDArray[np.int64]

    @staticmethod
    def of(groups: Sequence[TableGroup]) -> FlatOptions:
        """The options of these groups."""
        names: dict[str, int] = {}
        rows: list[tuple[float, ...]] = []
        cells: list[tuple[int, int]] = []
        option_A: list[int] = []
        volumes_AV: list[FloatArray] = []
        for group, one in enumerate(groups):
            for number, option in enumerate(one.options):
                volumes = np.array([piece.volume_V for piece in option.pieces])
                own = float(option.pieces[0].span)
                rows.append(
                    (
                        group,
                        number,
                        own,
                        option.pieces[0].values,
                        own * sum(piece.size_bytes for piece in option.pieces),
                        names.setdefault(option.sharding_type, len(names)),
                        *volumes.sum(axis=0),
                        *volumes.max(axis=0),
                        own * sum(piece.host_bytes + piece.ssd_bytes for piece in option.pieces),
                        sum(piece.offload_ms() for piece in option.pieces),
                        max(piece.offload_ms() for piece in option.pieces),
                        max(piece.size_bytes for piece in option.pieces),
                    )
                )
                for piece in option.pieces:
                    cells += [(len(option_A), row) for _, row in piece.cells]
                    option_A.append(len(rows) - 1)
                    volumes_AV.append(piece.volume_V)
        table, of_cells = np.array(rows), np.array(cells, dtype=np.int64)
        kinds = len(VOLUMES)
        of_pieces = np.array(option_A, dtype=np.int64)
        group_W, number_W, type_W = table[:, [0, 1, 5]].astype(np.int64).T
        return FlatOptions(
            group_W,
            number_W,
            table[:, 2],
            table[:, 6 : 6 + kinds],
            table[:, 6 + kinds : 6 + 2 * kinds],
            table[:, 3],
            table[:, 4],
            table[:, -1],
            table[:, -4],
            table[:, -3],
            table[:, -2],
            of_pieces,
            np.array(volumes_AV),
            of_pieces[of_cells[:, 0]],
            of_cells[:, 0],
            of_cells[:, 1],
            tuple(names),
            type_W,
        )

    def sum_by_option(self, values_P: FloatArray) -> FloatArray:
        """[W] sums over the looked-up rows of each option."""
        return np.asarray(
            np.bincount(self.option_C, weights=values_P[self.row_C], minlength=len(self.group_W)), dtype=np.float64
        )

    def longest(self, values_P: FloatArray) -> FloatArray:
        """[W] the largest of the looked-up rows of each option."""
        found = np.zeros(len(self.group_W))
        np.maximum.at(found, self.option_C, values_P[self.row_C])
        return found

    def pad_by_group(self, values_W: FloatArray) -> FloatArray:
        """[G, options of a group] infinite where there is no such option."""
        found = np.full((int(self.group_W.max()) + 1, int(self.number_W.max()) + 1), np.inf)
        found[self.group_W, self.number_W] = values_W
        return found


@dataclass(frozen=True)
class PieceChanges:
    """Pieces that changes add or take away, all changes one after the other. Legend: E pieces.

    Attributes:
        change_E: the change that each belongs to.
        piece_E: its number among the pieces of the space.
        device_E: the first of its devices, or one of them.
        sign_E: 1 where it comes, -1 where it goes.
    """

    change_E: npt.NDArray[np.int64]
    piece_E: npt.NDArray[np.int64]
    device_E: npt.NDArray[np.int64]
    sign_E: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PieceArrays:
    """All pieces as arrays. Legend: P pieces, K kinds of devices, C kernel calls of a piece.

    Attributes:
        span_P, size_P, host_P, ssd_P, values_P, volume_PV: as ``Piece`` has them.
        offload_PK2: as ``Piece`` has it; zeros where all pieces are in device memory.
        cells_P: cells of each; ``call_C`` and ``row_C`` have those of all pieces, the first at ``first_P``.
    """

    span_P: npt.NDArray[np.int64]
    size_P: npt.NDArray[np.int64]
    host_P: npt.NDArray[np.int64]
    ssd_P: npt.NDArray[np.int64]
    values_P: FloatArray
    volume_PV: FloatArray
    offload_PK2: FloatArray
    cells_P: npt.NDArray[np.int64]
    first_P: npt.NDArray[np.int64]
    call_C: npt.NDArray[np.int64]
    row_C: npt.NDArray[np.int64]

    @staticmethod
    def of(pieces: Sequence[Piece], num_kinds: int) -> PieceArrays:
        """These pieces."""
        whole = [(one.span, one.size_bytes, one.host_bytes, one.ssd_bytes) for one in pieces]
        span_P, size_P, host_P, ssd_P = np.array(whole, dtype=np.int64).T
        cells = np.array([cell for one in pieces for cell in one.cells], dtype=np.int64).reshape(-1, 2)
        cells_P = np.array([len(one.cells) for one in pieces], dtype=np.int64)
        nothing = ((0.0, 0.0),) * num_kinds
        return PieceArrays(
            span_P,
            size_P,
            host_P,
            ssd_P,
            values_P=np.array([one.values for one in pieces]),
            volume_PV=np.array([one.volume_V for one in pieces]),
            offload_PK2=np.array([one.offload_K2 or nothing for one in pieces]),
            cells_P=cells_P,
            first_P=np.cumsum(cells_P) - cells_P,
            call_C=cells[:, 0],
            row_C=cells[:, 1],
        )

    def on_each_device(self, changes: PieceChanges) -> PieceChanges:
        """The changes of each device by itself."""
        from_F, offset_F = repeat_numbers(self.span_P[changes.piece_E])
        return PieceChanges(
            changes.change_E[from_F],
            changes.piece_E[from_F],
            changes.device_E[from_F] + offset_F,
            changes.sign_E[from_F],
        )

    def cells(self, changes: PieceChanges) -> CellChanges:
        """The lookups that changes add or take away."""
        from_C, offset_C = repeat_numbers(self.cells_P[changes.piece_E])
        cell_C = self.first_P[changes.piece_E[from_C]] + offset_C
        return CellChanges(
            changes.change_E[from_C],
            self.call_C[cell_C],
            self.row_C[cell_C],
            changes.device_E[from_C],
            changes.sign_E[from_C],
        )

    @staticmethod
    def users(cells: CellChanges, count: int, num_calls: int) -> FloatArray:
        """[N, C] how many more pieces use each kernel call after each of so many changes."""
        at_C = cells.change_E * num_calls + cells.call_E
        return np.asarray(
            np.bincount(at_C, cells.sign_E, count * num_calls).reshape(count, num_calls), dtype=np.float64
        )
