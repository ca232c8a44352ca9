"""What no placement that a task allows is predicted to take less than: over all types, all cuts and all places.

A step takes at least what its slowest device does, which is at least the mean. Compute times are convex, so that a
straight line below them holds for any sum of pieces; along such a line the work of a table is one number for each of
its options, however fine it is cut: cutting columns repeats lookups, cutting rows repeats bags, replicas repeat rows.
Each table takes the option with the least work whose pieces, alone on their device, are below the time in question; the
least time for which this fits into all devices is the bound. All wait for the slowest forward exchange, which is a
window of its own: its mean over the devices, by the options that exchange least, comes on top of such a piece. Memory
counts with a price (Lagrange) that the bound is largest for.

The bound counts the steps of time that a table's own rows need. It leaves out latencies of exchanges, and what whole
parts cannot share out evenly. Of all cuts by columns the one into two even parts stands for the rest: more parts repeat
more lookups.

Legend: G groups, W options of a group, D devices, P lookups, K kinds of devices, H columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenshard.measure.price.device_price import alone_ms
from evenshard.measure.step_time import LARGEST_SUM
from evenshard.placement.sharding import CUT_COLUMNS
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

# Sums of float32 differ by less, relatively.
_ROGNDING = 1e-4
# Shares of a device's even load at which lines touch the compute times.
SCALES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0)


def lower_bound_ms(space: SearchSpace) -> float:
    """The bound, ms; 0 where nothing can be said."""
    task, costs = space.task, space.costs
    devices = task.num_devices
    kinds = list(zip(costs.prices, space.lookups.columns_KPH, strict=True))
    alone_P = np.min([alone_ms(price, columns_PH) for price, columns_PH in kinds], axis=0)
    whole = [row for group in space.groups for _, row in group.options[0].pieces[0].cells]
    best = 0.0
    room = _room(space)
    for scale in SCALES:
        works, at_0 = [], []
        for price, columns_PH in kinds:
            line = price.line_at(scale * columns_PH[whole].sum(axis=0, dtype=np.float64) / devices)
            works.append(line.works(columns_PH) + price.own_steps_ms(columns_PH))
            at_0.append(line.at_0)
        table = _options(space, np.min(works, axis=0), alone_P)
        best = max(best, _bound(table, min(at_0), room, devices))
    return best * (1 - _ROGNDING)


def _room(space: SearchSpace) -> float:
    """Memory of all devices; without end where tables could leave it with options that the space does not have."""
    task = space.task
    if task.may_offload and not space.offloads:
        return float("inf")
    kept = (
        [group for group in space.groups if all(option.storage.is_on_device for option in group.options)]
        if space.offloads
        else []
    )
    return float(sum(task.room_bytes)) + sum(min(_bytes(option) for option in group.options) for group in kept)


def _bytes(option: ShardingOption) -> int:
    return sum(piece.size_bytes for piece in option.pieces)


@dataclass(frozen=True)
class _Ways:
    """[G, W] of the options of all groups: work of all devices together, of the slowest piece alone, and memory."""

    total_GW: FloatArray
    alone_GW: FloatArray
    bytes_GW: FloatArray


def _options(space: SearchSpace, work_P: FloatArray, alone_P: FloatArray) -> _Ways:
    flat = space.flat
    slopes_V, replica_ms = space.costs.exchange_slopes
    replicas_W = flat.values_W * replica_ms
    bounds = _least_offload(space)
    total_W = (flat.summed(work_P) + flat.volume_WV @ slopes_V + replicas_W + bounds.offload_W) * flat.copies_W
    finer_W = np.isin(flat.type_W, [number for number, name in enumerate(flat.names) if name in CUT_COLUMNS])
    alone_W = np.where(finer_W, 0.0, flat.longest(alone_P) + replicas_W + bounds.longest_W)
    if space.costs.pipeline != LARGEST_SUM:
        alone_W += _forward_exchange_ms(space)
    return _Ways(flat.padded(total_W), flat.padded(alone_W), flat.padded(bounds.bytes_W))


def _forward_exchange_ms(space: SearchSpace) -> float:
    """What the slowest device's forward exchange takes at least."""
    flat = space.flat
    exchanged_GW = flat.padded(flat.volume_WV @ space.costs.forward_slopes_V * flat.copies_W)
    return float(exchanged_GW.min(axis=1).sum()) / space.task.num_devices


class _Offload(NamedTuple):
    """[W] memory of all devices, and time outside of it, of all pieces and of the longest."""

    bytes_W: FloatArray
    offload_W: FloatArray
    longest_W: FloatArray


def _least_offload(space: SearchSpace) -> _Offload:
    """What no cache takes less than, whatever its size: each option stands for those up to the next larger cache.

    It takes the memory of its own cache, the smallest none, and the time of the next larger one, the largest none.
    """
    flat = space.flat
    bytes_W, offload_W, longest_W = flat.bytes_W.copy(), flat.offload_W.copy(), flat.longest_offload_W.copy()
    shapes: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for at, (group, number) in enumerate(zip(flat.group_W.tolist(), flat.number_W.tolist(), strict=True)):
        option = space.groups[group].options[number]
        if option.storage.is_cached:
            widths = tuple(piece.columns for piece in option.pieces)
            shape = (group, option.storage.kernel, option.sharding_type, widths)
            shapes.setdefault(shape, []).append((option.storage.load_factor, at))
    for of_shape in shapes.values():
        ordered = [at for _, at in sorted(of_shape)]
        bytes_W[ordered[0]] = 0.0
        offload_W[ordered] = [*offload_W[ordered[1:]], 0.0]
        longest_W[ordered] = [*longest_W[ordered[1:]], 0.0]
    return _Offload(bytes_W, offload_W, longest_W)


def _bound(options: _Ways, offset: float, room: float, devices: int) -> float:
    """The least time into which all groups fit, by bisection."""
    low, high = (
        0.0,
        float(options.total_GW.min(axis=1).sum()) / devices
        + max(offset, 0.0)
        + float(np.where(np.isfinite(options.alone_GW), options.alone_GW, 0).max()),
    )
    for _ in range(40):
        middle = (low + high) / 2
        if _fits(options, middle, offset, room, devices):
            high = middle
        else:
            low = middle
    return low


def _fits(options: _Ways, time_ms: float, offset: float, room: float, devices: int) -> bool:
    total = np.where(options.alone_GW <= time_ms, options.total_GW, np.inf)
    rows = np.arange(len(total))
    chosen = total.argmin(axis=1)
    if not np.isfinite(total[rows, chosen]).all():
        return False
    budget = (time_ms - offset) * devices
    if total[rows, chosen].sum() > budget:
        return False
    used = options.bytes_GW[rows, chosen].sum()
    price = float(total[rows, chosen].sum()) / max(room, 1.0) * 1e-3
    for _ in range(24):
        if used <= room:
            return True
        priced = np.where(np.isfinite(total), total + price * options.bytes_GW, np.inf)
        chosen = priced.argmin(axis=1)
        used = options.bytes_GW[rows, chosen].sum()
        if priced[rows, chosen].sum() - price * room > budget:
            return False
        price *= 2
    return True
