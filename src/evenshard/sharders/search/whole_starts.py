"""Starts in which every table is whole: group after group goes to the device that stays the fastest with it.

That is done once freely, and once for each way to keep the rows of some devices below a pass of the sort: such a device
sorts its indices faster, but no single change leads there, as all its large tables would have to leave at once.

Legend: S starts, G groups, D devices, H columns of what is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenshard.measure.price.device_price import alone_ms
from evenshard.placement.sharding import TABLE_WISE
from evenshard.sharders.search.construction import beside
from evenshard.sharders.search.sharding_option import Piece
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Choice
from evenshard.tables.reuse import FloatArray

# Which of a price's limits on rows are tried: two passes, and three. One is for fewer than most tables have.
TRIED_PASSES = slice(1, 3)
MOST_SPLITS = 8
MOST_WHOLE_STARTS = 6


def whole_starts(space: SearchSpace) -> list[list[Choice]]:
    """The best of these starts; none where tables stay apart, may not be whole, or devices are of several kinds.

    A device's tables are priced as if one kernel call looked up all of them.
    """
    task, costs, price = space.task, space.costs, space.costs.prices[0]
    numbers = [
        next((at for at, option in enumerate(group.options) if option.sharding_type == TABLE_WISE), None)
        for group in space.groups
    ]
    if len(costs.kinds) > 1 or task.apart or any(number is None for number in numbers):
        return []
    options_G = [int(number or 0) for number in numbers]
    pieces = [group.options[number].pieces[0] for group, number in zip(space.groups, options_G, strict=True)]
    if any(piece.offload_K2 for piece in pieces):
        return []
    columns_GH = np.array([_columns(space, piece) for piece in pieces])
    rows_G = np.array(
        [sum(task.tables[at].num_rows for at in group.tables) for group in space.groups], dtype=np.float64
    )
    exchange_G = np.array([piece.volume_V for piece in pieces]) @ costs.exchange_slopes[0]
    alone_G = alone_ms(price, columns_GH) + exchange_G
    allowed_SGD, most_rows_SD = row_splits(
        rows_G, alone_G, task.num_devices, price.row_limits[TRIED_PASSES], MOST_SPLITS
    )
    for group, own in enumerate(space.groups):
        if own.allowed_D is not None:
            allowed_SGD[:, group] &= own.allowed_D
    # Those that may not go everywhere come first, the costliest first among equals.
    bound_G = np.array([own.allowed_D is not None for own in space.groups])
    found_SG = np.full(allowed_SGD.shape[:2], -1)
    sums_SDH = np.zeros((len(allowed_SGD), task.num_devices, columns_GH.shape[1]), dtype=columns_GH.dtype)
    exchange_SD, rows_SD = np.zeros(sums_SDH.shape[:2]), np.zeros(sums_SDH.shape[:2])
    free_SD = np.repeat(space.room_D[None], len(allowed_SGD), axis=0)
    ms_SD, start_S = np.zeros(sums_SDH.shape[:2]), np.arange(len(allowed_SGD))
    for group in np.lexsort((-alone_G, ~bound_G)).tolist():
        with_SDH = beside(price, sums_SDH, columns_GH[group])
        with_SD = alone_ms(price, with_SDH.reshape(-1, with_SDH.shape[2])).reshape(ms_SD.shape)
        with_SD = with_SD + exchange_SD + exchange_G[group]
        legal_SD = allowed_SGD[:, group] & (free_SD >= pieces[group].size_bytes)
        legal_SD &= rows_SD + rows_G[group] <= most_rows_SD
        device_S = np.where(legal_SD, with_SD, np.inf).argmin(axis=1)
        found_SG[:, group] = np.where(legal_SD.any(axis=1), device_S, -1)
        sums_SDH[start_S, device_S] = with_SDH[start_S, device_S]
        ms_SD[start_S, device_S] = with_SD[start_S, device_S]
        exchange_SD[start_S, device_S] += exchange_G[group]
        rows_SD[start_S, device_S] += rows_G[group]
        free_SD[start_S, device_S] -= pieces[group].size_bytes
    is_whole_S = (found_SG >= 0).all(axis=1)
    order = sorted(np.flatnonzero(is_whole_S).tolist(), key=lambda start: float(ms_SD[start].max()))
    chosen = list(dict.fromkeys(tuple(found_SG[at].tolist()) for at in order))[:MOST_WHOLE_STARTS]
    return [
        [Choice(number, (device,)) for number, device in zip(options_G, devices, strict=True)] for devices in chosen
    ]


def _columns(space: SearchSpace, piece: Piece) -> FloatArray:
    found_H = np.zeros_like(space.lookups.columns_KPH[0][0])
    for _, row in piece.cells:
        found_H = beside(space.costs.prices[0], found_H, space.lookups.columns_KPH[0][row])
    return np.asarray(found_H)


def row_splits(
    rows_G: FloatArray, alone_G: FloatArray, num_devices: int, limits: Sequence[float], most_splits: int
) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """[S, U, D] which groups may go to which devices, and [S, D] the rows that each may hold.

    The first start is free. In the others the last devices hold few rows: kept off them are the groups of many rows, or
    of many rows for their time, as far as these devices cannot hold them together.

    Args:
        rows_G: rows of each group.
        alone_G: its time on a device of its own.
        num_devices: D.
        limits: rows of a device up to which its sort takes no further pass.
        most_splits: numbers of devices with few rows that are tried, for each limit and criterion.
    """
    allowed = [np.ones((len(rows_G), num_devices), dtype=bool)]
    most_rows = [np.full(num_devices, np.inf)]
    for limit in limits:
        if rows_G.sum() <= limit:
            continue
        for criterion_G in (rows_G, rows_G / alone_G):
            order_G = np.argsort(criterion_G, kind="stable")
            total_G = np.cumsum(rows_G[order_G])
            for number in np.linspace(1, num_devices, min(num_devices, most_splits)).round().astype(int).tolist():
                few_D = np.arange(num_devices) >= num_devices - number
                kept_off_G = np.zeros(len(rows_G), dtype=bool)
                kept_off_G[order_G[total_G >= number * limit]] = True
                allowed.append(~(kept_off_G[:, None] & few_D))
                most_rows.append(np.where(few_D, limit, np.inf))
    return np.stack(allowed), np.stack(most_rows)
