"""Coefficients of the formula, fitted to costs of random placements. None is negative: more work never costs less.

Forward and backward are fitted apart, all sharding types together, as a device holds shards of several. The exchanges
are not fitted: the formula has the links' own times. Of tables outside of device memory, what they add is fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from evenshard.measure.hardware import HardwareName
from evenshard.measure.kernel_calls import Lookup
from evenshard.measure.link import Link
from evenshard.measure.offload import host_link, offload_ms
from evenshard.measure.price.step import dense_ms
from evenshard.measure.simulated.gpu_profile import HOST_GB_S, profile_of
from evenshard.placement.machine import Machine
from evenshard.placement.memory import INDEX_BYTES, LENGTH_BYTES, LOOKUP_WEIGHT_BYTES
from evenshard.placement.parts import TablePart, lookup_share, whole_part
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import (
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    sharding_type,
)
from evenshard.placement.storage import FUSED_UVM, FUSED_UVM_CACHING, Storage
from evenshard.placement.task import ShardingTask
from evenshard.tables.cache import LOAD_FACTORS, max_new_rows, set_miss_ratio
from evenshard.tables.reuse import FloatArray, feasible_reuse_bins, rows_and_counts
from evenshard.tables.table import Table
from evenshard.torchrec.estimator.examples import Example, FittedMachine, draw_examples
from evenshard.torchrec.estimator.formula import (
    FIT_OF_TYPE,
    FP32_BYTES,
    FittedShard,
    Rates,
    WorldSize,
    host_work_of,
    link_rate,
    shard_times,
    work_of,
)

NODES = (1, 2, 8)
WORLDS, PER_WORLD = 45, 5
# One in so many sets of tables is not fitted to, but compared with.
HELD_OUT = 5
DEVICES_OF_AN_EXAMPLE = 6
# L2 cache of hardware that no profile describes: a guess.
L2_BYTES = 40e6
# A coefficient below this share of the largest one is noise of the solver, and left out.
LEAST_SHARE = 1e-6
FITTED_TYPES = (TABLE_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL)


def fit_estimator(machine: FittedMachine, seed: int = 0) -> dict[str, Any]:
    """The coefficients, and what they were fitted to: all that the formula asks for, as plain values.

    Args:
        machine: that costs are of.
        seed: of the tables and placements.

    Raises:
        BadInput: if the hardware or a link is unknown.
    """
    worlds = list(draw_examples(machine, NODES, WORLDS, PER_WORLD, seed))
    fitted = [one for number, world in enumerate(worlds) if number % HELD_OUT != HELD_OUT - 1 for one in world]
    held_out = worlds[HELD_OUT - 1 :: HELD_OUT]
    fit = constants_of(machine, list(dict.fromkeys(table for one in fitted for table in one.task.tables)))
    fit["compute"] = _compute(fitted, fit)
    fit["kernels"] = _kernels(fitted, fit, machine)
    fit["error"] = _error(held_out, fit)
    return fit


def shards_of_devices(task: ShardingTask, parts: Sequence[TablePart]) -> list[list[FittedShard]]:
    """The shards of every device as the formula sees them."""
    by_table = parts_by_table(task, parts)
    found: list[list[FittedShard]] = [[] for _ in range(task.num_devices)]
    for table in task.tables:
        of_table = by_table[table.name]
        way = sharding_type(of_table, table, task.machine)
        for part in of_table:
            shard = shard_work(task, table, part, way)
            for device in part.devices:
                found[device].append(shard)
    return [_with_call_shares(shards) for shards in found]


def _with_call_shares(shards: Sequence[FittedShard]) -> list[FittedShard]:
    """The shards of a device, which bear what their kernel calls cost in equal parts."""
    counts = Counter(FIT_OF_TYPE[shard.sharding_type] for shard in shards)
    return [replace(shard, call_share=1 / counts[FIT_OF_TYPE[shard.sharding_type]]) for shard in shards]


def shard_work(task: ShardingTask, table: Table, part: TablePart, way: str) -> FittedShard:
    """A part as the formula sees it."""
    share = lookup_share(table, part.rows) * table.num_rows / part.rows.size  # of its lookups, for each of its rows
    return FittedShard(
        way,
        "dense" if way == DATA_PARALLEL else part.storage.kernel,
        part.rows.size,
        part.columns.size,
        table.num_rows,
        table.pooling_factor * task.batch_size * share,
        float(table.num_features * task.batch_size),
        table.weight_bits / 8,
        not table.is_sequence,
        table.is_weighted,
        task.communication.forward_bytes,
        task.communication.backward_bytes,
        part.storage.load_factor if part.storage.is_cached else 0.2,
    )


def size_of_machine(machine: Machine) -> WorldSize:
    """The devices of a machine as the formula sees them."""
    return WorldSize(machine.num_devices, machine.devices_per_node, machine.domain_size)


def rated_ms(task: ShardingTask, parts: Sequence[TablePart], fit: Mapping[str, Any]) -> float:
    """What TorchRec's planner would rate a placement at: the largest sum over a device."""
    size = size_of_machine(task.machine)
    rates = Rates(link_rate(fit["intra"], size.domain), link_rate(fit["inter"], size.world), fit["host_gb_s"] * 1e6)
    sums = (
        sum(shard_times(shard, size, rates, fit).total for shard in shards) for shards in shards_of_devices(task, parts)
    )
    return max(sums)


def constants_of(machine: FittedMachine, tables: Sequence[Table]) -> dict[str, Any]:
    """What is not fitted: links, and what the reuse of rows is usually like."""
    name, links = HardwareName.parse(machine.hardware), machine.links()
    profile = profile_of(name)
    assert links.inter is not None
    bytes_per_ns = name.kind.memory_bytes_per_ns
    if profile is not None:
        bytes_per_ns = profile.hbm_bytes_per_ns
    shares = [_shares(table, machine.batch_size) for table in tables]
    known = [one for one in shares if one is not None]
    return {
        "hardware": machine.hardware,
        "distinct_share": float(np.median([one[0] for one in known])),
        "new_share": float(np.median([one[1] for one in known])),
        "l2_bytes": L2_BYTES if profile is None else profile.l2_bytes,
        "host_gb_s": HOST_GB_S if profile is None else profile.host_gb_s,
        "dense_ms": _round(dense_ms(1e6 / FP32_BYTES, bytes_per_ns, machine.optimizer)),
        "intra": _link(links.intra),
        "inter": _link(links.inter),
        "exchange": {
            "latency_us": links.inter.latency_us,
            "node_latency_us": links.intra.latency_us,
            "forward_share": links.intra.forward_share,
            "index_bytes": INDEX_BYTES,
            "length_bytes": LENGTH_BYTES,
            "lookup_weight_bytes": LOOKUP_WEIGHT_BYTES,
        },
    }


def _link(link: Link) -> dict[str, float]:
    """Nanoseconds for a byte: of a rank's own, of the rank's that moves most, and of all ranks'; a straight line."""
    return {
        "own_ns": 1 / link.bandwidth_gb_s,
        "slowest_ns": 1 / link.slowest_gb_s,
        "shared_ns": 1 / link.shared_gb_s,
    }


def _shares(table: Table, batch_size: int) -> tuple[float, float] | None:
    """Distinct rows for each lookup, and the share of them that are new in a batch; None where most rows are seen."""
    lookups = table.pooling_factor * batch_size
    bins = feasible_reuse_bins(table.num_rows, lookups)
    rows_TK, _ = rows_and_counts(np.array([bins]), np.array([float(table.num_rows)]), np.array([lookups]))
    distinct = float(rows_TK.sum())
    if not 1 <= distinct < 0.1 * table.num_rows:
        return None
    return distinct / lookups, max_new_rows(rows_TK[0], table.num_rows) / distinct


def _compute(examples: Sequence[Example], fit: Mapping[str, Any]) -> dict[str, Any]:
    """Coefficients of forward and backward by type, each of its own kernel call."""
    rows, times, weights = [], [], []
    names: list[str] = []
    for example in examples:
        size, totals_D = size_of_machine(example.task.machine), example.times_D3.sum(axis=1)
        order, shards_of = np.argsort(-totals_D), shards_of_devices(example.task, example.parts)
        chosen = {*order[:2].tolist(), *order[:: max(len(order) // (DEVICES_OF_AN_EXAMPLE - 2), 1)].tolist()}
        for device in sorted(chosen):
            sums = {kind: dict[str, float]() for kind in FITTED_TYPES}
            for shard in shards_of[device]:
                work = work_of(shard, size, fit["distinct_share"], fit["l2_bytes"])
                names = list(work)
                of_type = sums[FIT_OF_TYPE[shard.sharding_type]]
                for name, value in work.items():
                    of_type[name] = of_type.get(name, 0.0) + value
            names = [name for name in names if name != "dense_bytes"]
            rows.append([sums[kind].get(name, 0.0) for kind in FITTED_TYPES for name in names])
            dense = sum(of_type.get("dense_bytes", 0.0) for of_type in sums.values()) * fit["dense_ms"]
            times.append(example.times_D3[device, :2] - [0.0, dense])
            weights.append(1 / max(float(example.times_D3[:, :2].sum(axis=1).max()) - dense, 1e-3))
    work_NC, times_N2 = np.array(rows), np.array(times)
    found: dict[str, Any] = {kind: {} for kind in FITTED_TYPES}
    for which, values in _passes(work_NC, times_N2, np.array(weights)):
        for kind, of_kind in zip(FITTED_TYPES, values.reshape(len(FITTED_TYPES), -1).tolist(), strict=True):
            found[kind][which] = {name: _round(one) for name, one in zip(names, of_kind, strict=True) if one > 0}
    found[DATA_PARALLEL]["backward"]["dense_bytes"] = fit["dense_ms"]
    return found


def _kernels(examples: Sequence[Example], fit: Mapping[str, Any], machine: FittedMachine) -> dict[str, Any]:
    """Coefficients of what tables outside of device memory add."""
    link = host_link(Machine(1, 1), profile_of(HardwareName.parse(machine.hardware)))
    tables = list(dict.fromkeys(table for one in examples for table in one.task.tables))[:600]
    lookups = [Lookup(table, machine.batch_size, machine.optimizer) for table in tables]
    task, host = machine.request(tables, 1).task(), fit["host_gb_s"] * 1e6
    found: dict[str, Any] = {}
    for kernel in (FUSED_UVM_CACHING, FUSED_UVM):
        cached = kernel == FUSED_UVM_CACHING
        factors = LOAD_FACTORS if cached else (1.0,)
        storages = [Storage(kernel, factors[number % len(factors)]) for number in range(len(tables))]
        misses = [
            set_miss_ratio(table, machine.batch_size, storage.load_factor) if cached else 1.0
            for table, storage in zip(tables, storages, strict=True)
        ]
        times_N2 = offload_ms(lookups, storages, misses, link)
        work = [
            host_work_of(shard_work(task, table, whole_part(table, (0,), storage), TABLE_WISE), fit, host)
            for table, storage in zip(tables, storages, strict=True)
        ]
        names = [name for name in work[0] if cached or name != "missed_ms"]
        work_NC = np.array([[one[name] for name in names] for one in work])
        weights = 1 / np.maximum(times_N2.sum(axis=1), 1e-3)
        found[kernel] = {
            which: {name: _round(one) for name, one in zip(names, values, strict=True) if one > 0}
            for which, values in _passes(work_NC, times_N2, weights)
        }
    return found


def _passes(work_NC: FloatArray, times_N2: FloatArray, weights_N: FloatArray) -> Iterator[tuple[str, FloatArray]]:
    """The coefficients of the forward pass and of the backward pass."""
    for number, which in enumerate(("forward", "backward")):
        yield which, _not_negative(work_NC, times_N2[:, number], weights_N)


def _not_negative(work_NC: FloatArray, times_N: FloatArray, weights_N: FloatArray) -> FloatArray:
    """[C] least squares of weighted errors, with an intercept that is dropped: it is the same for all placements."""
    from scipy.optimize import nnls

    with_one = np.concatenate([work_NC, np.ones((len(work_NC), 1))], axis=1) * weights_N[:, None]
    scale_C = np.linalg.norm(with_one, axis=0)
    scale_C[scale_C == 0] = 1.0
    values, _ = nnls(with_one / scale_C, times_N * weights_N, maxiter=50 * with_one.shape[1])
    values[values < LEAST_SHARE * values.max()] = 0.0
    return np.asarray((values / scale_C)[:-1])


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def _error(held_out: Sequence[Sequence[Example]], fit: Mapping[str, Any]) -> dict[str, Any]:
    """How far ratings of placements of other tables are from their costs."""
    from scipy.stats import spearmanr

    errors, ranks = [], []
    for world in held_out:
        true = [float(one.times_D3.sum(axis=1).max()) for one in world]
        rated = [rated_ms(one.task, one.parts, fit) for one in world]
        errors += [abs(a / b - 1) for a, b in zip(rated, true, strict=True)]
        if len(world) > 2:
            ranks.append(float(spearmanr(true, rated).statistic))
    return {
        "sets_of_tables": len(held_out),
        "placements": len(errors),
        "median_percent": round(100 * float(np.median(errors)), 1),
        "p90_percent": round(100 * float(np.percentile(errors, 90)), 1),
        "mean_rank_correlation": round(fmean(ranks), 3),
    }
