"""Errors of the device model on kernels that were timed on a GPU, and the loads to time.

    python -m benchmarks.shardbench.device_errors loads loads.jsonl.gz --gpu h100    # for ``time_loads``
    python -m benchmarks.shardbench.device_errors errors --gpu h100
    python -m benchmarks.shardbench.device_errors intervals                          # of all GPUs

All of them are of the plans of `python -m benchmarks shardbench`; those that were timed are under DVC, too.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from benchmarks.references.rows import read_rows, run_script
from benchmarks.scripts.fit_gpu_kernels import OPTIMIZERS, calls_of, halves, times_us
from benchmarks.shardbench.cases import Cell
from benchmarks.shardbench.loads import Load, is_fitted, key_of, loads_of, write_loads
from benchmarks.shardbench.page import by_cell
from benchmarks.shardbench.results import FITS, Result, parts_of, read_journal
from benchmarks.shardbench.timed import KERNEL_TIMES, PLANS, kernel_times_of
from evenshard.base.errors import BadInput
from evenshard.planner.answer import interval_ms
from evenshard.planner.intervals import compute_difference_interval, measure_common_work
from evenshard.planner.pricing import device_error, part_costs, price_parts
from evenshard.price.device_model import BACKWARD_KERNELS, KERNELS
from evenshard.price.evidence import DeviceError, widest
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.sharders.model import DeviceModel
from evenshard.tables.reuse import FloatArray

# Communication is simulated on both sides, so it has no error.
EXACT = DeviceError(0.0, 10**6)
# Bands of the share of work that two plans have in common.
BANDS = ((0.0, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.01))
# Calls of random tables (``gpu_kernels``); no fit used those of the second H100 and those of Adam on the H200.
CALLS = ("h100", "h100_second", "h200")
LOOKUPS = {"below 0.1 M": (0.0, 1e5), "0.1 to 8 M": (1e5, 8e6), "from 8 M": (8e6, np.inf), "all": (0.0, np.inf)}
# Plans are compared if their predicted times differ by less than this factor.
ALIKE = 1.5
KINDS: dict[str, Callable[[Load], bool]] = {
    "no fit used": lambda load: not is_fitted(load),
    "one fused call": lambda load: len(load) == 1 and not load[0].is_dense,
    "several fused calls": lambda load: len(load) > 1 and not any(call.is_dense for call in load),
    "replicas among them": lambda load: any(call.is_dense for call in load),
    "sequences": lambda load: any(call.pooling == "none" for call in load),
}


class TimedLoad(NamedTuple):
    """A load with its forward and backward ms, timed and by the device model."""

    cell: Cell
    load: Load
    timed: tuple[float, float]
    predicted: tuple[float, float]


def timed_loads(results: Sequence[Result]) -> Iterator[TimedLoad]:
    """Yield each load that was timed, once, with the cell of the first plan that has it."""
    known, missing = set[tuple[str, str]](), set[str]()
    for cell, of_cell in by_cell(results).items():
        costs = part_costs(cell.machine.request(cell.tables), DeviceModel(cell.machine.hardware))
        times = kernel_times_of(cell.gpu)
        for one in of_cell:
            is_timed = one.kernels_ms is not None
            parts = parts_of(one)
            for load, device in zip(loads_of(costs.task, parts), costs.predict(parts).devices, strict=True):
                timed = times.load_ms(load)
                if timed is None and is_timed:
                    missing.add(key_of(load))
                key = cell.gpu, key_of(load)
                if load and timed is not None and key not in known:
                    known.add(key)
                    yield TimedLoad(
                        cell, load, timed, (device.predicted_fwd_compute_ms, device.predicted_bwd_compute_ms)
                    )
    if missing or not known:
        count = f"{len(missing)} loads of timed plans" if missing else f"all loads of {len(results)} plans"
        raise BadInput(f"{count} have no times in {KERNEL_TIMES}. Fetch them with `dvc pull data.dvc`.")


def timed_steps_ms(cell: Cell, plans: Sequence[Result]) -> list[float]:
    """Return the step times of plans with timed kernels, and communication by the links of today, unlike a journal."""
    task, times = cell.machine.task(cell.tables), kernel_times_of(cell.gpu)
    found = [times.step_ms(task, parts_of(one), cell.machine.links) for one in plans]
    return [ms for ms in found if ms is not None]


def errors(results: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: predicted over timed loads, by model and by kind of load, and rank correlations of plans."""
    found = list(timed_loads(results))
    parts = (f"{of}: ratio | median | 90 %" for of in ("forward", "backward", "both"))
    yield f"| loads | count | {' | '.join(parts)} | rank correlation |"
    yield "|---|" + "---:|" * 11
    yield _errors_row("all", found)
    for model in dict.fromkeys(one.cell.model for one in found):
        yield _errors_row(model, [one for one in found if one.cell.model == model])
    for kind, has in KINDS.items():
        yield _errors_row(kind, [one for one in found if has(one.load)])
    yield ""
    yield "| cell | plans timed | device model by timed: median | least | most | rank correlation |"
    yield "|---|" + "---:|" * 5
    for cell, of_cell in by_cell(results).items():
        model, request = DeviceModel(cell.machine.hardware), cell.machine.request(cell.tables)
        costs, timed = part_costs(request, model), [one for one in of_cell if one.kernels_ms is not None]
        predicted = (price_parts(request, model, costs, costs.predict(parts_of(one)))[0].predicted_ms for one in timed)
        pairs = np.array(list(zip(predicted, timed_steps_ms(cell, timed), strict=True)), dtype=float)
        if len(pairs) > 2:
            ratios = pairs[:, 0] / pairs[:, 1]
            yield (
                f"| {cell} | {len(pairs)} of {len(of_cell)} | {np.median(ratios):.2f} | {ratios.min():.2f} | "
                f"{ratios.max():.2f} | {spearmanr(*pairs.T).statistic:.3f} |"
            )
    yield ""
    yield from gaps(found)
    yield ""
    runs = [one for cell in by_cell(results) for one in kernel_times_of(cell.gpu).runs.values() if len(one) > 1]
    if runs:
        apart = np.array([abs(sum(one[0]) / sum(one[1]) - 1) for one in runs])
        middle, most = 100 * np.median(apart), 100 * apart.max()
        yield f"Two runs of a load, with other lookups: {middle:.1f} % apart (median), {most:.1f} % at most."


def gaps(loads: Sequence[TimedLoad]) -> Iterator[str]:
    """Yield the launch overhead of backward passes by number of calls, and the shortest passes of one call."""
    for gpu in dict.fromkeys(one.cell.gpu for one in loads):
        own, kernels_ms = [one for one in loads if one.cell.gpu == gpu], kernel_times_of(gpu).kernels_ms
        more_us = defaultdict[int, list[float]](list)
        for one in own:
            if key_of(one.load) in kernels_ms:
                own_ms = sum(kernels_ms[key_of(one.load)][name] for name in BACKWARD_KERNELS)
                more_us[len(one.load)].append(1e3 * (one.timed[1] - own_ms))
        for calls, found in sorted(more_us.items()):
            more = f"{median(found):.0f} us more than their kernels"
            yield f"{gpu}, {calls} calls: backward passes take {more} (median of {len(found)} loads)."
        alone = np.array([one.timed for one in own if KINDS["one fused call"](one.load)])
        if len(alone):
            forward_us, backward_us = 1e3 * alone.min(axis=0)
            yield f"{gpu}: the shortest call takes {forward_us:.0f} us forward, {backward_us:.0f} us backward."


class PlanPair(NamedTuple):
    """Two plans of a cell: the work that their slowest devices share, and the difference with its interval."""

    gpu: str
    shared: float
    is_inside: bool
    half_width: float


def intervals(results: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: the share of timed steps, and of differences of two plans, inside their 90 % intervals.

    Communication is the same on both sides, and counts as exact. Differences are those of plans of a cell whose
    predicted times differ by less than a factor of 1.5.
    """
    yield from inside_by_calls(results)
    yield ""
    inside_steps, pairs = [], list[PlanPair]()
    for cell, of_cell in by_cell(results).items():
        model, request = DeviceModel(cell.machine.hardware), cell.machine.request(cell.tables)
        costs, names = part_costs(request, model), [table.name for table in request.tables]
        priced, timed = [], [one for one in of_cell if one.kernels_ms is not None]
        for one, timed_ms in zip(timed, timed_steps_ms(cell, timed), strict=True):
            found, _ = price_parts(request, model, costs, costs.predict(parts_of(one)))
            error = device_error(request, model, found)
            low_ms, high_ms = interval_ms(found, error, EXACT, costs.pipeline)
            inside_steps.append(low_ms <= timed_ms <= high_ms)
            priced.append((found, timed_ms, error))
        for (old, old_ms, old_error), (new, new_ms, new_error) in combinations(priced, 2):
            if set(old.parts) == set(new.parts) or not 1 / ALIKE < old.predicted_ms / new.predicted_ms < ALIKE:
                continue
            shared = measure_common_work(old, new, names)
            errors = widest(old_error, new_error), EXACT
            saves = compute_difference_interval(old, new, (costs.pipeline,) * 2, names, errors)
            half_width = (saves.high_ms - saves.low_ms) / 2 / new.predicted_ms
            pairs.append(PlanPair(cell.gpu, shared, saves.low_ms <= old_ms - new_ms <= saves.high_ms, half_width))
    yield f"{100 * fmean(inside_steps):.0f} % of {len(inside_steps)} steps are inside."
    yield ""
    yield "| differences | pairs of plans | inside | half the width, of a step (median) |"
    yield "|---|---:|---:|---:|"
    rows = [
        (f"shared work {low:g} to {min(high, 1):g}", [one for one in pairs if low <= one.shared < high])
        for low, high in BANDS
    ]
    rows += [(gpu, [pair for pair in pairs if pair.gpu == gpu]) for gpu in dict.fromkeys(pair.gpu for pair in pairs)]
    for name, own in [*rows, ("all", pairs)]:
        if own:
            inside, width = fmean(pair.is_inside for pair in own), median(pair.half_width for pair in own)
            yield f"| {name} | {len(own):,} | {100 * inside:.0f} % | {100 * width:.1f} % |"


class TimedCalls(NamedTuple):
    """Calls or loads with one optimizer: lookups, predicted and timed times, [N] each."""

    profile: GpuProfile
    name: str
    optimizer: str
    lookups_N: FloatArray
    predicted_N: FloatArray
    timed_N: FloatArray


def timed_calls(results: Sequence[Result]) -> Iterator[TimedCalls]:
    """Yield the calls of ``gpu_kernels`` by optimizer, those of fitted GPUs held out, and the plans' loads by kind."""
    for name in CALLS:
        profile = gpu_profile(name.partition("_")[0])
        for calls in calls_of(profile, read_rows(KERNEL_TIMES / f"{name}.jsonl.gz"), OPTIMIZERS):
            is_judge = "_" in name or (name, calls.shards.optimizer) == ("h200", "adam")
            some = calls if is_judge else halves(calls)[1]
            times = times_us(profile, some, KERNELS)
            assert len(times[0]) == len(some.shards), "a kernel of a call was not timed"
            yield TimedCalls(profile, f"{name}, calls", calls.shards.optimizer, some.shards.work.lookups, *times)
    loads = list(timed_loads(results))
    for gpu in dict.fromkeys(one.cell.gpu for one in loads):
        for kind, has in KINDS.items():
            own = [one for one in loads if one.cell.gpu == gpu and has(one.load)]
            if own:
                request = own[0].cell.machine.request(own[0].cell.tables)
                numbers = [(count_lookups(one.load), sum(one.predicted), sum(one.timed)) for one in own]
                yield TimedCalls(gpu_profile(gpu), f"{gpu}, loads: {kind}", request.optimizer, *np.array(numbers).T)


def count_lookups(load: Load) -> float:
    """Return the lookups of a load."""
    return sum(features * each * call.batch_size for call in load for _, features, each, _ in call.lookups)


def inside_by_calls(results: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: the share of timed calls and loads within the stated factor, by optimizer and lookups."""
    yield "| timed | optimizer | lookups | number | predicted / timed | stated factor | inside |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for one in timed_calls(results):
        factors_N = np.array([one.profile.error_of(one.optimizer, lookups).factor for lookups in one.lookups_N])
        ratios_N = one.predicted_N / one.timed_N
        for band, (low, high) in LOOKUPS.items():
            some_N = (one.lookups_N >= low) & (one.lookups_N < high)
            if some_N.any():
                inside = np.mean(np.abs(np.log(ratios_N[some_N])) <= np.log(factors_N[some_N]))
                stated = " to ".join(dict.fromkeys(f"{end:.2f}" for end in np.quantile(factors_N[some_N], (0, 1))))
                yield (
                    f"| {one.name} | {one.optimizer} | {band} | {some_N.sum()} | "
                    f"{np.median(ratios_N[some_N]):.2f} | {stated} | {100 * inside:.0f} % |"
                )


def _errors_row(name: str, loads: Sequence[TimedLoad]) -> str:
    timed_L2 = np.array([one.timed for one in loads]).reshape(-1, 2)
    predicted_L2 = np.array([one.predicted for one in loads]).reshape(-1, 2)
    texts = [name, str(len(loads))]
    if not loads:
        return f"| {' | '.join(texts + ['-'] * 10)} |"
    timed_3L = np.vstack([timed_L2.T, timed_L2.sum(axis=1)])
    predicted_3L = np.vstack([predicted_L2.T, predicted_L2.sum(axis=1)])
    for timed_L, predicted_L in zip(timed_3L, predicted_3L, strict=True):
        ratios = predicted_L / timed_L
        off = 100 * abs(ratios - 1)
        texts += [f"{np.median(ratios):.2f}", f"{np.median(off):.1f}", f"{np.quantile(off, 0.9):.1f}"]
    texts.append(f"{spearmanr(timed_3L[2], predicted_3L[2]).statistic:.3f}" if len(loads) > 2 else "-")
    return f"| {' | '.join(texts)} |"


def main() -> None:
    """Write loads, or print errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("loads", help="write the loads of the plans' devices").add_argument("out", type=Path)
    commands.add_parser("errors", help="print the model's errors")
    commands.add_parser("intervals", help="print the share of timed steps inside their intervals")
    for name, one in commands.choices.items():
        if name != "intervals":
            one.add_argument("--gpu", default="h100")
        one.add_argument("--journal", type=Path, default=PLANS, help="journal (default: that of the timed plans)")
    args = parser.parse_args()
    gpu = None if args.command == "intervals" else args.gpu
    results = [one for one in read_journal(args.journal) if one.status == FITS and gpu in (None, one.gpu)]
    if not results:
        raise BadInput(f"0 plans of {gpu or 'any GPU'} in {args.journal}. Fetch timed plans with `dvc pull data.dvc`.")
    if args.command == "intervals":
        print("\n".join(intervals(results)))
        return
    if args.command == "errors":
        print("\n".join(errors(results)))
        return
    loads = (
        load
        for cell, of_cell in by_cell(results).items()
        for one in of_cell
        for load in loads_of(cell.machine.task(cell.tables), parts_of(one))
    )
    print(f"{write_loads(args.out, (load for load in loads if load))} loads")


if __name__ == "__main__":
    run_script(main)
