"""Pieces of a table that two ways to cut it have in common, and the optimizer state of new parts from that of old ones.

A state has as many numbers as the weights (Adagrad, Adam), or one for each row of a part (row-wise Adagrad): the sum of
the mean of its columns' squared gradients. So a part that is put together of old ones has the mean of their states,
weighted by columns, which is exactly what it would have summed up itself; of a part that is cut, nobody knows which
columns the sum came from, and the new parts each get all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from evenshard.placement.parts import Span

if TYPE_CHECKING:
    import torch


class Rectangle(NamedTuple):
    """Rows and columns of a table that are kept together."""

    rows: Span
    columns: Span


class Overlap(NamedTuple):
    """What an old block and a new one share.

    Attributes:
        source: number of the old block.
        rows, columns: of the table.
    """

    source: int
    rows: Span
    columns: Span


def pieces_of(new: Rectangle, old: Sequence[Rectangle]) -> Iterator[Overlap]:
    """The pieces of old blocks that a new one is made of."""
    for number, block in enumerate(old):
        rows = Span(max(new.rows.start, block.rows.start), min(new.rows.stop, block.rows.stop))
        columns = Span(max(new.columns.start, block.columns.start), min(new.columns.stop, block.columns.stop))
        if rows.size > 0 and columns.size > 0:
            yield Overlap(number, rows, columns)


def taken(values: torch.Tensor, block: Rectangle, piece: Overlap) -> torch.Tensor:
    """The piece's part of a block's weights or state, without a copy: [rows, columns], or [rows]."""
    rows = slice(piece.rows.start - block.rows.start, piece.rows.stop - block.rows.start)
    if values.dim() == 1:
        return values[rows]
    return values[rows, piece.columns.start - block.columns.start : piece.columns.stop - block.columns.start]


def add_piece(target: torch.Tensor, block: Rectangle, piece: Overlap, values: torch.Tensor) -> None:
    """Adds a piece to the weights or state of the block that it belongs to, which begin as zeros."""
    share = 1.0 if target.dim() > 1 else piece.columns.size / block.columns.size
    where = taken(target, block, piece)
    if share == 1.0:
        where.copy_(values)
    else:
        where.add_(values, alpha=share)
