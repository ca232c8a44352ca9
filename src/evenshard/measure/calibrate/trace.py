"""The free constants of a device model, each fitted to the times of its own kernels in a training's traces.

A call of a fused module is one shard: medians over the steps of a trace. From four shards on, half of them are held out
and judge; below that, nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from evenshard.measure.calibrate.constants import (
    Calibration,
    Errors,
    MeasuredShards,
    fit_constants,
    measured_times,
    prediction_errors,
)
from evenshard.measure.simulated.device_model import KERNELS
from evenshard.measure.simulated.gpu_profile import BOUNDS, GpuProfile
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.measure.traces.fused_calls import DENSE, FusedCall
from evenshard.placement.optimizer_state import NUMBERS
from evenshard.tables.table import Table
from evenshard.utils.errors import BadInput

_MEMORY = ("hbm_efficiency", "l2_gb_s")
CONSTANTS_OF_KERNEL: Mapping[str, tuple[str, ...]] = {
    "bounds_check": ("bounds_floor_us", "bounds_ns_per_bag", "bounds_ns_per_lookup"),
    "lookup": ("lookup_floor_us", "lookup_ns_per_bag", "lookup_ns_per_request", "bag_hit_ns", "bag_miss_ns", *_MEMORY),
    "index": ("index_floor_us", "index_ns_per_bag", "index_ns_per_lookup", "index_ns_per_row"),
    "sort": ("sort_floor_us", "sort_pairs_per_ns"),
    "gradient": ("gradient_floor_us", "gradient_ns_per_request", "gradient_ns_per_row", "hot_lookup_ns", *_MEMORY),
}
# Constants that the operators' time on the CPU says directly, and where a call has it.
HOST_CONSTANTS = {"fwd_host_us": "forward_host_us", "bwd_host_us": "backward_host_us"}
MIN_JUDGED = 4
# Lookups of a call may differ so much from those of its tables; beyond, they are other tables.
MAX_LOOKUPS_OFF = 0.2


@dataclass(frozen=True)
class TracedShard:
    """The tables of a fused call, and the call (``median_calls``)."""

    tables: tuple[Table, ...]
    call: FusedCall


def shard_of(calls: Sequence[FusedCall], tables: Sequence[Table]) -> TracedShard | str:
    """The shard of a rank; where its trace cannot say what these tables take, why, in a clause.

    Args:
        calls: of the rank, one for each module (``median_calls``).
        tables: that live on it.
    """
    fused = [call for call in calls if call.optimizer != DENSE and not call.weighted]
    expected = (len(tables), sum(table.embedding_dim for table in tables))
    same = [call for call in fused if (call.num_tables, call.sum_of_dims) == expected]
    if not same:
        if any(call.num_tables is None for call in fused):
            return "it has no sizes (record_shapes=True)"
        found = ", ".join(f"{call.num_tables} tables of {call.sum_of_dims} columns" for call in fused) or "none"
        return f"no unweighted call is of its {expected[0]} tables of {expected[1]} columns together (calls: {found})"
    call = same[0]
    lookups = sum(table.pooling_factor for table in tables) * (call.batch_size or 0)
    if not call.kernels_us:
        return "it has no kernels of a GPU"
    if abs((call.num_lookups or 0) - lookups) > MAX_LOOKUPS_OFF * lookups:
        return f"it looked up {call.num_lookups:,} rows, the tables' pooling factors make {lookups:,.0f}"
    return TracedShard(tuple(tables), call)


def fit_to_calls(profile: GpuProfile, shards: Sequence[TracedShard], seed: int = 0) -> Calibration:
    """Fits the constants of every kernel that the calls have launched to its own times, and the host's to theirs.

    Args:
        profile: the profile that the fit starts from, and stays close to where the traces say nothing.
        shards: at least one, all of one GPU.
        seed: seed of the split into fitted and held-out shards.

    Raises:
        BadInput: if the calls are of several GPUs, or their optimizer is none that device models know.
    """
    gpus = sorted({shard.call.gpu for shard in shards})
    if len(gpus) > 1:
        raise BadInput(f"the traces are of several GPUs ({', '.join(gpus)}). Calibrate on the traces of one.")
    unknown = sorted({shard.call.optimizer for shard in shards} - NUMBERS.keys())
    if unknown:
        raise BadInput(f"optimizer {unknown[0]} has no device model. Use one of {', '.join(NUMBERS)}.")
    order = np.random.default_rng(seed).permutation(len(shards)).tolist()
    num_held_out = len(shards) // 2 if len(shards) >= MIN_JUDGED else 0
    held_out = [shards[number] for number in order[:num_held_out]]
    fitted = [shards[number] for number in order[num_held_out:]]
    launched = [name for name in KERNELS if any(shard.call.class_us(name) > 0 for shard in fitted)]
    free = tuple(dict.fromkeys(name for kernel in launched for name in CONSTANTS_OF_KERNEL[kernel]))
    result, at_bound = fit_constants(profile, _group_by_optimizer(profile, fitted), free)
    result = replace(result, fwd_host_us=_host_us("fwd_host_us", fitted), bwd_host_us=_host_us("bwd_host_us", fitted))
    judges = held_out or fitted
    return Calibration(
        profile=result,
        constants=(*free, *HOST_CONSTANTS),
        num_fitted=len(fitted),
        num_held_out=len(held_out),
        before=_errors(profile, judges),
        after=_errors(result, judges),
        at_bound=at_bound,
        hardware=gpus[0],
        points="fused calls in traces, kernel by kernel",
        source=f"traces of a training on {gpus[0]}",
    )


def _host_us(name: str, shards: Sequence[TracedShard]) -> float:
    low, high = BOUNDS[name]
    times: list[float] = [getattr(shard.call, HOST_CONSTANTS[name]) for shard in shards]
    return min(max(median(times), low), high)


def _group_by_optimizer(profile: GpuProfile, shards: Sequence[TracedShard]) -> list[MeasuredShards]:
    """The shards by their optimizer, with the times of their kernels."""
    counter = WorkCounter(profile)
    result = []
    for optimizer in dict.fromkeys(shard.call.optimizer for shard in shards):
        same = [shard for shard in shards if shard.call.optimizer == optimizer]
        work = counter.work_of([(shard.tables, shard.call.batch_size or 0) for shard in same])
        times_ms = {name: np.array([shard.call.class_us(name) or np.nan for shard in same]) / 1e3 for name in KERNELS}
        result.append(MeasuredShards(work, measured_times(len(same), **times_ms), np.arange(len(same)), optimizer))
    return result


def _errors(profile: GpuProfile, shards: Sequence[TracedShard]) -> dict[str, Errors]:
    """Errors of each kernel. If there are several optimizers, those of the one with the most shards."""
    most = max(_group_by_optimizer(profile, shards), key=len)
    return prediction_errors(profile, most, KERNELS)
