"""Fit of a profile to the measurements of ``gpu_kernels``, each kernel to its own times, with its errors.

    python -m benchmarks.scripts.fit_gpu_kernels h100 data/kernels/h100.jsonl.gz \
        --costs data/hardware=h100/collection=gpu_dataset [--write]

Kernels of calls are fitted to their own times, and so are the passes of shards in a cost dataset that are long enough
to hide the launches of their kernels. Half of the calls and of the shards are held out. Calls whose rows lie in the
order of their lookups are excluded, because real rows do not.

Legend: N calls, M measurable times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.references.rows import read_rows, run_script
from benchmarks.scripts.gpu_kernels import Shard
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
from evenshard.price.device_model import BACKWARD_KERNELS, FORWARD_KERNELS, KERNELS
from evenshard.price.evidence import Evidence
from evenshard.price.gpu_profile import BY_KERNEL, FREE_CONSTANTS, GpuProfile, gpu_profile, write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.shard_work import WorkCounter
from evenshard.tables.files import load_tables
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import SEQUENCE

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam")
# Starting values of the fit: rough estimates from a few kernels.
STARTS = {
    "bounds_floor_us": 1.9,
    "bounds_ns_per_lookup": 0.0032,
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
    "row_state_share": 0.4,
    "weight_state_share": 0.4,
    "index_bag_ns": 350.0,
    "sort_pass_us": 7.0,
    "hot_row_ns": 166.0,
}
MEMORY = "hbm_efficiency"  # that of a copy within device memory, which was measured
# Constants that do not affect the times of calls: a bandwidth that lookups do not reach, a very short time.
UNSEEN = {"l2_gb_s": 40_000.0, "hot_lookup_ns": 0.01}
OF_CALLS = ("_overhead_us", "_host_us", "_call_us")  # endings of constants that no single kernel has
FREE = tuple(
    name
    for name in (*FREE_CONSTANTS, *BY_KERNEL)
    if name not in UNSEEN and name != MEMORY and not name.endswith(OF_CALLS)
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in KERNELS},
    "forward": FORWARD_KERNELS,
    "backward": BACKWARD_KERNELS,
    "both": KERNELS,
}
LONG_US = 100.0  # shorter kernels are hidden by their launches
LONG_PASS_MS = 2.0  # of passes: launching the kernels takes up to 0.6 ms
COSTS = "shards of the cost dataset"
CALLS = "all kernels of fused calls of random tables, pooled and not, with SGD, row-wise Adagrad and Adam"
PASSES = "backward passes of shards of DLRM tables, FP16, row-wise Adagrad, batch 65,536"


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


def fitted_profile(profile: GpuProfile, calls: Sequence[Calls]) -> GpuProfile:
    """Fit the constants of all kernels."""
    return fit_constants(replace(profile, **STARTS, **UNSEEN), [one.shards for one in calls], FREE)[0]


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


def times_us(profile: GpuProfile, calls: Calls, kernels: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Return the predicted and measured sums of these kernels, [N] each."""
    columns = [SHARD_TIMES.index(name) for name in kernels]
    predicted_N = 1e3 * predict_times(profile, calls.shards.work, calls.shards.optimizer)[:, columns].sum(axis=1)
    measured_N = 1e3 * calls.shards.times_ms_NM[:, columns].sum(axis=1)
    known_N = np.isfinite(measured_N)
    return predicted_N[known_N], measured_N[known_N]


def error_line(label: str, predicted: FloatArray, measured: FloatArray) -> list[str]:
    """Return a row of the table: count, median ratio, and the errors of all calls and of the long calls."""
    cells = [label, str(len(measured)), f"{np.median(predicted / measured):.2f}"]
    for some in (np.ones(len(measured), dtype=bool), measured > LONG_US):
        errors = Errors.of(predicted[some], measured[some]) if some.any() else None
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


def evidence_of(points: str, source: str, num_fitted: int, predicted: FloatArray, measured: FloatArray) -> Evidence:
    """Return the evidence that a profile records."""
    errors = Errors.of(predicted, measured)
    shown = round(errors.median_percent, 2), round(errors.p90_percent, 2)
    return Evidence(points, source, num_fitted, len(measured), *shown)


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
    parser.add_argument("--write", action="store_true", help="write the constants into the profile")
    args = parser.parse_args()
    lines = read_rows(args.measured)
    start = with_measured_memory(gpu_profile(args.profile), lines)
    origin = next(line for line in lines if line["what"] == "origin")
    fitted, held_out = zip(*map(halves, calls_of(start, lines, OPTIMIZERS)), strict=True)
    costs = [halves(shards_of_costs(start, folder)) for folder in args.costs]
    profile = fitted_profile(start, (*fitted, *(one for one, _ in costs)))
    print(report(profile, held_out, [one for _, one in costs]))
    print("\n".join(f"{name}: {getattr(profile, name):.4g}" for name in FREE))
    print("\n".join(f"{name}: {us:.1f}" for name, us in host_times_us(lines).items()))
    if not args.write:
        return
    gpu = origin["hardware"].removeprefix("cuda: ")
    source = f"one {gpu}: {origin['versions']}, by benchmarks/scripts/gpu_kernels.py"
    counted = sum(len(one.shards) for one in fitted)
    evidence = [evidence_of(CALLS, source, counted, *_together(profile, held_out, KERNELS))]
    for seen, judges in costs:
        source = f"one {gpu}: {origin['versions']}, by evenshard benchmark"
        num_fitted = len(times_us(profile, seen, ("backward",))[1])
        evidence.append(evidence_of(PASSES, source, num_fitted, *times_us(profile, judges, ("backward",))))
    path = profile_path(args.profile)
    for values, what in (
        (FREE, f"fitted to kernels of one {gpu}, see evidence"),
        ((MEMORY,), f"measured: a copy of 4 GB within the memory of one {gpu}"),
        (UNSEEN, "guess: no measured time depends on it"),
    ):
        numbers = {name: float(f"{getattr(profile, name):.4g}") for name in values}
        write_profile(path, numbers, what, tuple(evidence), path)


if __name__ == "__main__":
    run_script(main)
