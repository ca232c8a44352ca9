"""What no placement that a task allows is predicted to take less than: over all types, all cuts and all places.

A step takes the slowest device, which takes at least the mean. Compute times are convex, so that a straight line below
them holds for any sum of pieces; along such a line the work of a table is one number for each way to shard it, however
fine it is cut: cutting columns repeats lookups, cutting rows repeats bags, replicas repeat rows. Each table takes the
way with the least work whose pieces, alone on their device, are below the time in question; the least time for which
this fits into all devices is the bound. Memory counts with a price (Lagrange) that the bound is largest for.

The bound counts the steps of time that a table's own rows need. It leaves out latencies of exchanges, and what whole
parts cannot share out evenly. Of all cuts by columns the one into two even parts stands for the rest: more parts repeat
more lookups.

Legend: U units, W ways of a unit, D devices, P lookups, K kinds of devices, H columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenshard.measure.price.device_price import alone_ms
from evenshard.placement.sharding import CUT_COLUMNS
from evenshard.sharders.search.sharding_option import Way
from evenshard.sharders.search.space import Options
from evenshard.tables.reuse import FloatArray

_ROUNDING = 1e-4
"""Sums of float32 differ by less, relatively."""
SCALES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0)
"""Shares of a device's even load at which lines touch the compute times."""


def lower_bound_ms(options: Options) -> float:
    """The bound, ms; 0 where nothing can be said."""
    task, costs = options.task, options.costs
    devices = task.num_devices
    kinds = list(zip(costs.prices, options.lookups.columns_KPH, strict=True))
    alone_P = np.min([alone_ms(price, columns_PH) for price, columns_PH in kinds], axis=0)
    whole = [row for unit in options.units for _, row in unit.ways[0].pieces[0].cells]
    best = 0.0
    room = _room(options)
    for scale in SCALES:
        works, at_0 = [], []
        for price, columns_PH in kinds:
            line = price.line_at(scale * columns_PH[whole].sum(axis=0, dtype=np.float64) / devices)
            works.append(line.works(columns_PH) + price.own_steps_ms(columns_PH))
            at_0.append(line.at_0)
        table = _ways(options, np.min(works, axis=0), alone_P)
        best = max(best, _bound(table, min(at_0), room, devices))
    return best * (1 - _ROUNDING)


def _room(options: Options) -> float:
    """Memory of all devices; without end where tables could leave it in ways that the options do not have."""
    task = options.task
    if task.may_offload and not options.offloads:
        return float("inf")
    kept = (
        [unit for unit in options.units if all(way.storage.is_on_device for way in unit.ways)]
        if options.offloads
        else []
    )
    return float(sum(task.room_bytes)) + sum(min(_bytes(way) for way in unit.ways) for unit in kept)


def _bytes(way: Way) -> int:
    return sum(piece.size_bytes for piece in way.pieces)


@dataclass(frozen=True)
class _Ways:
    """[U, W] of the ways of all units: work of all devices together, of the slowest piece alone, and memory."""

    total_UW: FloatArray
    alone_UW: FloatArray
    bytes_UW: FloatArray


def _ways(options: Options, work_P: FloatArray, alone_P: FloatArray) -> _Ways:
    flat = options.flat
    slopes_V, replica_ms = options.costs.exchange_slopes
    replicas_W = flat.values_W * replica_ms
    bounds = _least_offload(options)
    total_W = (flat.summed(work_P) + flat.volume_WV @ slopes_V + replicas_W + bounds.offload_W) * flat.copies_W
    finer_W = np.isin(flat.type_W, [number for number, name in enumerate(flat.names) if name in CUT_COLUMNS])
    alone_W = np.where(finer_W, 0.0, flat.longest(alone_P) + replicas_W + bounds.longest_W)
    return _Ways(flat.padded(total_W), flat.padded(alone_W), flat.padded(bounds.bytes_W))


class _Offload(NamedTuple):
    """[W] memory of all devices, and time outside of it, of all pieces and of the longest."""

    bytes_W: FloatArray
    offload_W: FloatArray
    longest_W: FloatArray


def _least_offload(options: Options) -> _Offload:
    """What no cache takes less than, whatever its size: each way stands for those up to the next larger cache.

    It takes the memory of its own cache, the smallest none, and the time of the next larger one, the largest none.
    """
    flat = options.flat
    bytes_W, offload_W, longest_W = flat.bytes_W.copy(), flat.offload_W.copy(), flat.longest_offload_W.copy()
    shapes: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for at, (unit, number) in enumerate(zip(flat.unit_W.tolist(), flat.number_W.tolist(), strict=True)):
        way = options.units[unit].ways[number]
        if way.storage.is_cached:
            widths = tuple(piece.columns for piece in way.pieces)
            shape = (unit, way.storage.kernel, way.sharding_type, widths)
            shapes.setdefault(shape, []).append((way.storage.load_factor, at))
    for of_shape in shapes.values():
        ordered = [at for _, at in sorted(of_shape)]
        bytes_W[ordered[0]] = 0.0
        offload_W[ordered] = [*offload_W[ordered[1:]], 0.0]
        longest_W[ordered] = [*longest_W[ordered[1:]], 0.0]
    return _Offload(bytes_W, offload_W, longest_W)


def _bound(ways: _Ways, offset: float, room: float, devices: int) -> float:
    """The least time into which all units fit, by bisection."""
    low, high = (
        0.0,
        float(ways.total_UW.min(axis=1).sum()) / devices
        + max(offset, 0.0)
        + float(np.where(np.isfinite(ways.alone_UW), ways.alone_UW, 0).max()),
    )
    for _ in range(40):
        middle = (low + high) / 2
        if _fits(ways, middle, offset, room, devices):
            high = middle
        else:
            low = middle
    return low


def _fits(ways: _Ways, time_ms: float, offset: float, room: float, devices: int) -> bool:
    total = np.where(ways.alone_UW <= time_ms, ways.total_UW, np.inf)
    rows = np.arange(len(total))
    chosen = total.argmin(axis=1)
    if not np.isfinite(total[rows, chosen]).all():
        return False
    budget = (time_ms - offset) * devices
    if total[rows, chosen].sum() > budget:
        return False
    used = ways.bytes_UW[rows, chosen].sum()
    price = float(total[rows, chosen].sum()) / max(room, 1.0) * 1e-3
    for _ in range(24):
        if used <= room:
            return True
        priced = np.where(np.isfinite(total), total + price * ways.bytes_UW, np.inf)
        chosen = priced.argmin(axis=1)
        used = ways.bytes_UW[rows, chosen].sum()
        if priced[rows, chosen].sum() - price * room > budget:
            return False
        price *= 2
    return True
