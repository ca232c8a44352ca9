"""Fit of a profile to the measurements of ``gpu_kernels``, each kernel to its own times, with its errors.

    python -m benchmarks.scripts.fit_gpu_kernels h100 data/kernels/h100.jsonl.gz \
        --costs data/hardware=h100/collection=gpu_dataset --loads h100 [--write]

Kernels of calls are fitted to their own times, and so are the passes of shards in a cost dataset that are long enough
to hide the launches of their kernels. Half of the calls and of the shards are held out. Calls whose rows lie in the
order of their lookups are excluded, because real rows do not. ``--loads`` adds timed loads of ShardBench's plans: half
of those that are one fused call. Calls of random tables have at most 8.4 M lookups.

Legend: N calls, M measurable times.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.references.rows import read_rows, run_script
from benchmarks.scripts.fit_devices import lookups_range, relative_errors
from benchmarks.scripts.gpu_kernels import Shard
from benchmarks.shardbench.loads import Load, is_fitted, key_of, loads_of
from benchmarks.shardbench.page import by_cell
from benchmarks.shardbench.results import FITS, parts_of, read_journal
from benchmarks.shardbench.timed import PLANS, kernel_times_of
from evenshard.base.messages import text_table
from evenshard.measure.calibrate.device import (
    SHARD_TIMES,
    Errors,
    MeasuredShards,
    extract_shards,
    fit_constants,
    predict_times,
    stack_times,
)
from evenshard.measure.cost_dataset import load_costs
from evenshard.placement.memory import SGD
from evenshard.price.device_model import (
    BACKWARD_KERNELS,
    FORWARD_KERNELS,
    KERNELS,
    backward_ns,
    forward_ns,
    pass_ms,
)
from evenshard.price.evidence import MIN_HELD_OUT, Evidence
from evenshard.price.gpu_profile import BY_KERNEL, FREE_CONSTANTS, GpuProfile, gpu_profile, write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.shard_work import ShardWork, WorkCounter
from evenshard.price.simulated_price import work_columns
from evenshard.price.step import dense_ms
from evenshard.tables.files import load_tables
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import SEQUENCE

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam")
# Starting values of the fit: rough estimates from a few kernels.
STARTS = {
    "bounds_floor_us": 1.9,
    "bounds_ns_per_lookup": 0.0024,
    "bounds_ns_per_filled": 0.06,
    "lookup_floor_us": 2.2,
    "lookup_ns_per_bag": 0.11,
    "lookup_ns_per_request": 0.03,
    "bag_hit_ns": 50.0,
    "bag_miss_ns": 660.0,
    "index_floor_us": 27.0,
    "index_ns_per_lookup": 0.013,
    "index_ns_per_row": 0.0034,
    "sort_floor_us": 5.0,
    "sort_pairs_per_ns": 113.0,
    "gradient_floor_us": 5.4,
    "gradient_ns_per_request": 0.11,
    "gradient_ns_per_row": 0.3,
    "lookup_lane_power": 0.73,
    "gradient_lane_power": 1.0,
    "gradient_wide_power": 0.23,
    "row_lane_power": 0.6,
    "row_state_share": 0.3,
    "rounding_share": 0.5,
    "full_warp_ns_per_lookup": 0.19,
    "full_warp_ns_per_request": 0.03,
    "full_warp_ns_per_row": 0.84,
    "lookup_ns_per_spilled": 0.024,
    "index_ns_per_spilled": 0.0042,
    "gradient_ns_per_spilled": 0.03,
    "bwd_gap_us": 27.0,
    "index_bag_ns": 350.0,
    "sort_pass_us": 7.0,
    "hot_row_ns": 166.0,
}
WEIGHT_STATE = "weight_state_share"  # no measured optimizer has states per weight and divides warps
MEMORY = "hbm_efficiency"  # that of a copy within device memory, which was measured
# Constants that do not affect the times of calls: a bandwidth that lookups do not reach, a very short time.
UNSEEN = {"l2_gb_s": 40_000.0, "hot_lookup_ns": 0.01}
# Host times, if the host runs ahead of the device, as in the timed loads: no call of theirs is shorter.
LAUNCHES = {"fwd_overhead_us": 2.0, "bwd_overhead_us": 1.0, "fwd_host_us": 11.0, "bwd_host_us": 90.0}
OF_CALLS = ("_overhead_us", "_host_us", "_call_us")  # endings of constants that no single kernel has
FREE = tuple(
    name
    for name in (*FREE_CONSTANTS, *BY_KERNEL)
    if name not in (*UNSEEN, MEMORY, WEIGHT_STATE) and not name.endswith(OF_CALLS)
)
FULL_WARP = tuple(name for name in FREE if name.startswith("full_warp_"))
GROUPS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in KERNELS},
    "forward": FORWARD_KERNELS,
    "backward": BACKWARD_KERNELS,
    "both": KERNELS,
}
LONG_US = 100.0  # shorter kernels are hidden by their launches
LONG_PASS_MS = 2.0  # of passes: launching the kernels takes up to 0.6 ms
# Bands of lookups whose errors are stated separately.
BANDS = ((0.0, 1e5), (1e5, 8e6), (8e6, math.inf))
LOAD_WEIGHT = 2  # of the loads in the fit, because they are few
COSTS = "shards of the cost dataset"
# Kinds of held-out times, and the programs that measured them.
CALLS, PASSES, LOADS = "random calls", "long passes of shards", "plans' loads"
BY = {
    CALLS: "benchmarks/scripts/gpu_kernels.py",
    PASSES: "evenshard benchmark",
    LOADS: "benchmarks/shardbench/time_loads.py",
}


@dataclass(frozen=True)
class Calls:
    """Measured calls of one optimizer, with the lines of the file that they come from."""

    shards: MeasuredShards
    lines: Sequence[dict[str, Any]]

    def select(self, mask_N: npt.NDArray[np.bool_]) -> Calls:
        """Return the calls selected by a mask."""
        lines = [line for line, chosen in zip(self.lines, mask_N.tolist(), strict=True) if chosen]
        return Calls(self.shards.select(mask_N), lines)


def calls_of(profile: GpuProfile, lines: Iterable[dict[str, Any]], optimizers: Sequence[str]) -> list[Calls]:
    """Return the fused calls by optimizer."""
    counter, found = WorkCounter(profile), []
    measured = [line for line in lines if line["what"] == "shard" and not line["is_sorted"]]
    for optimizer in optimizers:
        own = [line for line in measured if line["optimizer"] == optimizer]
        work = counter.work_of([(one.tables, one.batch_size) for one in map(Shard.of_record, own)])
        times = {
            name: np.array([sum(line["kernels_us"].get(name, {}).values()) or np.nan for line in own]) / 1e3
            for name in KERNELS
        }
        shards = MeasuredShards(work, stack_times(len(own), **times), np.arange(len(own)), optimizer)
        found.append(Calls(shards, own))
    return found


def halves(calls: Calls) -> tuple[Calls, Calls]:
    """Split the calls at random into a half to fit and a half to hold out."""
    fitted_N = np.random.default_rng(0).permutation(len(calls.shards)) % 2 == 0
    return calls.select(fitted_N), calls.select(~fitted_N)


def fitted_profile(profile: GpuProfile, calls: Sequence[Calls], free: Sequence[str]) -> GpuProfile:
    """Fit the ``free`` constants of all kernels."""
    starts = {name: value for name, value in STARTS.items() if name in free}
    measured = [fitted.shards for fitted in calls if len(fitted.shards)]
    found = fit_constants(replace(profile, **starts, **UNSEEN, **LAUNCHES), measured, free)[0]
    return replace(found, **{WEIGHT_STATE: found.row_state_share})


def with_measured_memory(profile: GpuProfile, lines: Iterable[dict[str, Any]]) -> GpuProfile:
    """Set the bandwidth of device memory to that of a measured copy, counting bytes read and written."""
    copy = next(line for line in lines if line["what"] == "copy" and line["where"] == "device")
    reached = copy["num_bytes"] / copy["ms"] / 1e6 / profile.hbm_gb_s
    return replace(profile, **{MEMORY: reached})


def shards_of_costs(profile: GpuProfile, folder: Path) -> Calls:
    """Return the shards of a cost dataset, with the times of long passes only."""
    tables = load_tables(folder / "tables.parquet")
    shards = extract_shards(profile, load_costs(folder / "costs.parquet", tables))
    times_NM = np.where(shards.times_ms_NM > LONG_PASS_MS, shards.times_ms_NM, np.nan)
    return Calls(replace(shards, times_ms_NM=times_NM), [{"kind": COSTS}] * len(shards))


@dataclass(frozen=True)
class TimedLoads:
    """Timed loads of ShardBench's plans, all with SGD: L loads with N calls.

    Attributes:
        works: work of each call; ``load_N`` is its load.
        timed_L2: forward and backward ms.
        lookups_L: lookups of all calls.
        replicas_L: weights of replicas, whose dense optimizer counts as backward.
    """

    loads: Sequence[Load]
    works: ShardWork
    load_N: npt.NDArray[np.int64]
    timed_L2: FloatArray
    lookups_L: FloatArray
    replicas_L: FloatArray
    gpu: str

    @staticmethod
    def of_gpu(profile: GpuProfile, gpu: str) -> TimedLoads:
        """Read the loads of the timed plans of a GPU."""
        plans = [plan for plan in read_journal(PLANS) if plan.status == FITS and plan.gpu == gpu]
        times, found = kernel_times_of(gpu), dict[str, Load]()
        for cell, plans_of_cell in by_cell(plans).items():
            task = cell.machine.task(cell.tables)
            for plan in plans_of_cell:
                found |= {key_of(load): load for load in loads_of(task, parts_of(plan)) if load}
        loads = [load for key, load in found.items() if key in times.runs]
        calls = [call for load in loads for call in load]
        lookups_of_calls = [call.lookups_priced() for call in calls]
        call_P = np.repeat(np.arange(len(calls)), list(map(len, lookups_of_calls)))
        counter = WorkCounter(profile)
        columns_PC = work_columns(counter, list(chain.from_iterable(lookups_of_calls)))
        work = counter.shard_work(columns_PC, call_P, len(calls))
        load_N = np.repeat(np.arange(len(loads)), [len(load) for load in loads])
        values_N = [sum(rows * columns for rows, columns, _ in call.tables) * call.is_dense for call in calls]
        lookups_L, replicas_L = (np.bincount(load_N, one_N) for one_N in (work.lookups, values_N))
        timed_L2 = np.array([times.load_ms(load) for load in loads])
        return TimedLoads(loads, work, load_N, timed_L2, lookups_L, replicas_L, gpu)

    @property
    def fitted_L(self) -> npt.NDArray[np.bool_]:
        """Return True for loads to fit."""
        return np.array([is_fitted(load) for load in self.loads])

    def calls(self) -> Calls:
        """Return the loads to fit, with the times of their kernels where known."""
        chosen = np.flatnonzero(self.fitted_L)
        kernels_ms = kernel_times_of(self.gpu).kernels_ms
        known = [kernels_ms.get(key_of(self.loads[at]), {}) for at in chosen]
        times = {kernel: np.array([times_ms.get(kernel, np.nan) for times_ms in known]) for kernel in KERNELS}
        forward, backward = self.timed_L2[chosen].T
        times_NM = stack_times(len(chosen), forward=forward, backward=backward, **times)
        work = self.works.select(np.flatnonzero(self.fitted_L[self.load_N]))
        return Calls(MeasuredShards(work, times_NM, chosen, SGD), [{"kind": "load"}] * len(chosen))

    def predict_ms(self, profile: GpuProfile) -> FloatArray:
        """Return the predicted forward and backward time, [L, 2]."""
        forward_N, backward_N = forward_ns(profile, self.works), backward_ns(profile, self.works)
        calls_L, forward_L, backward_L = (
            np.bincount(self.load_N, one_N) for one_N in (np.ones(len(self.load_N)), forward_N, backward_N)
        )
        forward_L = pass_ms(forward_L, calls_L, profile.fwd_overhead_us, profile.fwd_host_us)
        backward_L = pass_ms(backward_L, calls_L, profile.bwd_overhead_us, profile.bwd_host_us)
        return np.stack([forward_L, backward_L + dense_ms(self.replicas_L, profile.hbm_bytes_per_ns, SGD)], axis=1)


def times_us(profile: GpuProfile, calls: Calls, kernels: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Return the predicted and measured sums of these kernels, [N] each."""
    columns, known = [SHARD_TIMES.index(name) for name in kernels], known_N(calls, kernels)
    predicted_N = 1e3 * predict_times(profile, calls.shards.work, calls.shards.optimizer)[:, columns].sum(axis=1)
    measured_N = 1e3 * calls.shards.times_ms_NM[:, columns].sum(axis=1)
    return predicted_N[known], measured_N[known]


def known_N(calls: Calls, kernels: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return True for calls where all of these kernels were measured, [N]."""
    columns = [SHARD_TIMES.index(name) for name in kernels]
    return np.asarray(np.isfinite(calls.shards.times_ms_NM[:, columns]).all(axis=1))


def error_line(label: str, predicted: FloatArray, measured: FloatArray) -> list[str]:
    """Return a row of the table: count, median ratio, and the errors of all calls and of the long calls."""
    cells = [label, str(len(measured)), f"{np.median(predicted / measured):.2f}"]
    for some in (np.ones(len(measured), dtype=bool), measured > LONG_US):
        errors = relative_errors(predicted[some], measured[some]) if some.any() else None
        cells += ["-", "-"] if errors is None else [f"{errors.median_percent:.1f}", f"{errors.p90_percent:.1f}"]
    return cells


def report(profile: GpuProfile, held_out: Sequence[Calls], costs: Sequence[Calls] = ()) -> str:
    """Format the errors by kernel, by optimizer and by the family of the call, and of passes of a cost dataset."""
    header = ["held-out calls", "number", "median ratio", "median error, %", "90 %", f"above {LONG_US:.0f} us", "90 %"]
    lines = [header]
    for label, kernels in GROUPS.items():
        lines.append(error_line(label, *_together(profile, held_out, kernels)))
    for one in held_out:
        lines.append(error_line(f"both, {one.shards.optimizer}", *times_us(profile, one, KERNELS)))
    for kind in sorted({line["kind"] for one in held_out for line in one.lines}):
        own = [one.select(np.array([line["kind"] == kind for line in one.lines])) for one in held_out]
        lines.append(error_line(f"both, {kind}", *_together(profile, own, KERNELS)))
    for one in costs:
        lines += [error_line(f"{COSTS}, {name}", *times_us(profile, one, (name,))) for name in ("forward", "backward")]
    return text_table(lines, "<" + ">" * 6, "  ")


def _together(profile: GpuProfile, calls: Sequence[Calls], kernels: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    predicted, measured = zip(*(times_us(profile, one, kernels) for one in calls), strict=True)
    return np.concatenate(predicted), np.concatenate(measured)


def report_loads(profile: GpuProfile, loads: TimedLoads) -> str:
    """Format the errors of held-out loads by their number of lookups, forward, backward and together."""
    predicted_L2, held_L = loads.predict_ms(profile), ~loads.fitted_L
    kinds_L = np.array([(len(load) > 1) + 2 * any(call.is_dense for call in load) for load in loads.loads])
    lines = [["held-out loads", "number", "median ratio", "median error, %", "90 %", "fwd ratio", "bwd ratio"]]
    parts = {f"{low:g} to {high:g} lookups": (loads.lookups_L >= low) & (loads.lookups_L < high) for low, high in BANDS}
    parts |= {"one call": kinds_L == 0, "several calls": kinds_L == 1, "with replicas": kinds_L > 1}
    for label, some_L in (parts | {"all": held_L}).items():
        chosen = held_L & some_L
        if chosen.any():
            both = error_line(label, predicted_L2[chosen].sum(axis=1), loads.timed_L2[chosen].sum(axis=1))[:5]
            ratios_2 = np.median(predicted_L2[chosen] / loads.timed_L2[chosen], axis=0)
            lines.append([*both, *(f"{ratio:.2f}" for ratio in ratios_2)])
    return text_table(lines, "<" + ">" * 6, "  ")


class Judged(NamedTuple):
    """Held-out times of one kind of call, their predictions and lookups, [M] each, and the lookups of the fit."""

    kind: str
    fitted: FloatArray
    lookups: FloatArray
    predicted: FloatArray
    measured: FloatArray

    @staticmethod
    def of_calls(kind: str, profile: GpuProfile, seen: Calls, judges: Calls, *sums: Sequence[str]) -> Judged:
        """Judge each of these sums of times; a time that was not measured does not count."""
        fitted, lookups = (
            np.concatenate([one.shards.work.lookups[known_N(one, names)] for names in sums]) for one in (seen, judges)
        )
        predicted, measured = zip(*(times_us(profile, judges, names) for names in sums), strict=True)
        return Judged(kind, fitted, lookups, np.concatenate(predicted), np.concatenate(measured))

    @staticmethod
    def of_loads(profile: GpuProfile, loads: TimedLoads) -> list[Judged]:
        """Judge forward and backward together of the loads that are not fitted, apart if they have one table."""
        numbers = (loads.lookups_L, loads.predict_ms(profile).sum(axis=1), loads.timed_L2.sum(axis=1))
        fitted_L = loads.fitted_L
        one_L = np.array([sum(len(call.tables) for call in load) == 1 for load in loads.loads])
        return [
            Judged(LOADS, loads.lookups_L[some_L & fitted_L], *(of_all_L[some_L & ~fitted_L] for of_all_L in numbers))
            for some_L in (~one_L, one_L)
        ]


def by_band(optimizer: str, gpu: str, judged: Sequence[Judged]) -> Iterator[Evidence]:
    """Yield the evidence of each band of lookups: the errors of the kind of times that is predicted worst.

    Kinds with too few held-out times count only in the numbers of times.
    """
    for low, high in BANDS:
        fitted = sum(int(((one.fitted >= low) & (one.fitted < high)).sum()) for one in judged)
        inside = [(one, some) for one in judged if (some := (one.lookups >= low) & (one.lookups < high)).any()]
        enough = [(one, some) for one, some in inside if some.sum() >= MIN_HELD_OUT]
        if enough:
            errors = [Errors.of(one.predicted[some], one.measured[some]) for one, some in enough]
            lookups = np.concatenate([one.lookups[some] for one, some in inside])
            kinds = list(dict.fromkeys(one.kind for one, _ in inside))
            worst = max(errors, key=lambda one: one.p90_percent)
            yield Evidence(
                "worst of " * (len(kinds) > 1) + " and ".join(kinds),
                f"one {gpu}, by {' and '.join(BY[kind] for kind in kinds)}",
                fitted,
                len(lookups),
                round(worst.median_percent, 2),
                round(worst.p90_percent, 2),
                (optimizer,),
                lookups_range(lookups),
            )


def host_times_us(lines: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Estimate the time to launch a call on the host, and the time of a call in which no kernel runs, us."""
    shards = [line for line in lines if line["what"] == "shard" and line["pooling"] != SEQUENCE]
    found = {}
    for pass_, name, kernels in (("fwd", "forward_ms", FORWARD_KERNELS), ("bwd", "backward_ms", BACKWARD_KERNELS)):
        us_N = np.array([1e3 * np.median(line[name]) for line in shards])
        busy_N = np.array([sum(sum(line["kernels_us"].get(one, {}).values()) for one in kernels) for line in shards])
        found[f"{pass_}_host_us"] = float(np.median(us_N[busy_N < 0.2 * us_N]))
        long_N = busy_N > 3 * found[f"{pass_}_host_us"]
        found[f"{pass_}_overhead_us"] = float(max(np.median((us_N - busy_N)[long_N]), 1.0))
    return found


def main() -> None:
    """Fit the profile of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="profile to fit, such as h100")
    parser.add_argument("measured", type=Path, help="output of gpu_kernels")
    parser.add_argument("--costs", type=Path, action="append", default=[], help="folder of a cost dataset")
    parser.add_argument("--adam", default="", help="profile that provides the constants of Adam, which are not fitted")
    parser.add_argument("--loads", default="", help="GPU whose timed loads are fitted, such as h100")
    parser.add_argument("--judge", type=Path, help="output of gpu_kernels on another card, which only judges")
    parser.add_argument("--write", action="store_true", help="write constants and errors into the profile")
    parser.add_argument("--keep", action="store_true", help="do not fit: the errors of the profile's constants")
    args = parser.parse_args()
    lines = read_rows(args.measured)
    start = with_measured_memory(gpu_profile(args.profile), lines)
    origin = next(line for line in lines if line["what"] == "origin")
    fitted, held_out = zip(*map(halves, calls_of(start, lines, OPTIMIZERS)), strict=True)
    free = FREE
    if args.adam:  # all calls of Adam judge
        other, adam = gpu_profile(args.adam), calls_of(start, lines, OPTIMIZERS[-1:])[0]
        start = replace(start, **{name: getattr(other, name) for name in FULL_WARP})
        fitted, held_out = (*fitted[:-1], adam.select(np.zeros(len(adam.shards), dtype=bool))), (*held_out[:-1], adam)
        free = tuple(name for name in FREE if name not in FULL_WARP)
    costs = [halves(shards_of_costs(start, folder)) for folder in args.costs]
    loads = TimedLoads.of_gpu(start, args.loads) if args.loads else None
    of_loads = [] if loads is None else [loads.calls()] * LOAD_WEIGHT
    seen = (*fitted, *(one for one, _ in costs), *of_loads)
    profile = gpu_profile(args.profile) if args.keep else fitted_profile(start, seen, free)
    print(report(profile, held_out, [one for _, one in costs]))
    if loads is not None:
        print(report_loads(profile, loads))
    if args.judge:
        print(report(profile, calls_of(start, read_rows(args.judge), OPTIMIZERS)))
    print("\n".join(f"{name}: {getattr(profile, name):.4g}" for name in FREE))
    print("\n".join(f"{name}: {us:.1f}" for name, us in host_times_us(lines).items()))
    if not args.write:
        return
    gpu = origin["hardware"].removeprefix("cuda: ")
    judged = {
        optimizer: [Judged.of_calls(CALLS, profile, *both, KERNELS)]
        for optimizer, *both in zip(OPTIMIZERS, fitted, held_out, strict=True)
    }
    for both in costs:
        judged[both[0].shards.optimizer].append(Judged.of_calls(PASSES, profile, *both, ("forward",), ("backward",)))
    if loads is not None:
        judged[SGD] += Judged.of_loads(profile, loads)
    # The wheel of FBGEMM 1.6.0 was unpacked on the H200, where it does not know its version.
    card = f"{gpu}: {origin['versions'].replace('unpackaged', '1.6.0')}"
    evidence = tuple(row for optimizer, own in judged.items() for row in by_band(optimizer, card, own))
    path = profile_path(args.profile)
    if args.keep:
        write_profile(path, {}, "", evidence, path)
        return
    for values, what in (
        (free, f"fitted to kernels of one {gpu}, see evidence"),
        ([] if free == FREE else FULL_WARP, f"fitted: as the {args.adam} profile"),
        (LAUNCHES, "fitted: to timed loads, which the host launched ahead, see benchmarks/scripts/fit_gpu_kernels.py"),
        ((MEMORY,), f"measured: a copy of 4 GB within the memory of one {gpu}"),
        (UNSEEN, "guess: no measured time depends on it"),
        ((WEIGHT_STATE,), "guess: as a state per row"),
    ):
        numbers = {name: float(f"{getattr(profile, name):.4g}") for name in values}
        write_profile(path, numbers, what, evidence, path)


if __name__ == "__main__":
    run_script(main)
