"""Uneven cuts: columns of a table's part on the slow device go to another part of the table, or become a new part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenshard.placement.parts import COLUMN_STEP, ON_DEVICE
from evenshard.placement.sharding import TABLE_WISE
from evenshard.sharders.search.pieces import Pieces
from evenshard.sharders.search.state import Choice, State

BLOCKS = (1, 2, 4, 8, 16)
# Devices, the least busy ones, that columns of a table are shifted to; of these, with no part of the table so far.
MOST_TARGETS, MOST_NEW = 5, 3


def column_shifts(pieces: Pieces, state: State, slow: int, groups: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
    """Changes that shift columns of each of these groups from the slow device to another one.

    Args:
        groups: with a part by columns, or a whole table, on the slow device.
    """
    order = [device for device in np.argsort(state.device_ms_D, kind="stable").tolist() if device != slow]
    for group in groups:
        yield from ([(group, choice)] for choice in _choices(pieces, state, slow, group, order))


def _choices(pieces: Pieces, state: State, slow: int, group: int, order: Sequence[int]) -> Iterator[Choice]:
    space, option, choice = pieces.space, state.option(group), state.choices[group]
    own = space.groups[group]
    if len(own.tables) > 1 or option.storage != ON_DEVICE:
        return
    types, by_columns = {one.sharding_type for one in own.options}, space.by_columns(own.tables[0])
    if by_columns not in types:
        return
    width_at = dict(zip(choice.places, (piece.columns for piece in option.pieces), strict=True))
    least = space.task.limits_of(own.tables[0]).min_column_steps * COLUMN_STEP
    new = [device for device in order if device not in width_at and pieces.may_go(state, group, device)][:MOST_NEW]
    targets = [device for device in order if device in width_at or device in new][:MOST_TARGETS]
    for target in targets:
        for columns in (COLUMN_STEP * blocks for blocks in BLOCKS):
            left = width_at[slow] - columns
            if left == 0 and target in new:  # the part moves as it is, which is no other cut
                continue
            after = width_at | {slow: left, target: width_at.get(target, 0) + columns}
            shifted = sorted(((width, device) for device, width in after.items() if width), reverse=True)
            name = by_columns if len(shifted) > 1 else TABLE_WISE
            if name not in types or shifted[-1][0] < least or shifted[0][0] > space.task.max_columns:
                continue
            number = space.number_of(group, name, [width for width, _ in shifted], ON_DEVICE, is_shifted=True)
            if number is not None:
                yield Choice(number, tuple(device for _, device in shifted))
