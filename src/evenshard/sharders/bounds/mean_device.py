"""The least time into which tables fit if work could be shared out evenly among devices.

Legend: G groups, W options of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]
# Relative difference of times at which a bisection ends.
CLOSE = 1e-5


@dataclass(frozen=True)
class Options:
    """[G, W] of the options of all groups: work of all devices together, of the slowest piece alone, and memory."""

    total_GW: FloatArray
    alone_GW: FloatArray
    bytes_GW: FloatArray


def least_time_ms(
    options: Options, offset: float, room: float, devices: int, known: float = 0.0
) -> tuple[float, Numbers | None]:
    """The least time into which all groups fit, by bisection, and what each of them chooses there.

    Args:
        known: times below are not asked for: where all fit into that, it is returned, without a choice.
        offset: what each device takes besides.
        room: memory of all devices together.
        devices: how many.
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
    """Return options that fit into a time, as far as a price of memory tells; None if none do."""
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
