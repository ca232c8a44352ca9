"""Fit of the profiles of simulated devices to public measurements, with errors on held-out measurements.

    python -m benchmarks.scripts.fit_devices --truth FOLDER [PROFILE ...] [--write]

The folder has published measurements (its README names their sources), which are not part of the project. GPUs whose
kernels were traced are fitted to the times of each kernel. Of the RTX 2080 Ti only totals are known: it keeps the
proportions of the V100's kernels if totals do not determine them. Errors are of measurements that the fit did not use:
half of the shards, or each published configuration in turn.

Legend: N shards, M measurable times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from benchmarks.references import others_measurements
from benchmarks.references.rows import read_rows, run_script
from evenshard.base.documents import load_yaml
from evenshard.base.messages import text_table
from evenshard.measure.calibrate.device import (
    SHARD_TIMES,
    Errors,
    MeasuredShards,
    fit_constants,
    predict_times,
    stack_times,
)
from evenshard.placement.memory import SGD
from evenshard.price.device_model import (
    BACKWARD_KERNELS,
    FORWARD_KERNELS,
    KERNELS,
    NS_PER_MS,
    kernel_times,
)
from evenshard.price.evidence import Evidence
from evenshard.price.gpu_profile import FREE_CONSTANTS, GpuProfile, gpu_profile, origin_of, sources_of, write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.kernel_calls import Lookup
from evenshard.price.shard_work import WorkCounter
from evenshard.price.simulated_price import work_columns
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray, ReuseBins, power_law_reuse_bins
from evenshard.tables.table import SEQUENCE, Table

US_PER_MS = 1e3
MOVED = 0.02  # constants that the fit moves by less stay estimates
STARTS, START_ORDER = Path(__file__).with_suffix(".yaml"), ("v100", "a100_80gb", "rtx_2080_ti")
ONCE = (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1)
BESIDE_KERNELS, MEMORY = ("short_call_us", "medium_call_us"), "hbm_efficiency"
# Bands of a shard's lookups for the evidence of the RTX 2080 Ti, whose small shards have larger errors.
BANDS = (0, 1e5, 1e6, 1e9)
FEW_LOOKUPS = 8.8  # of a sample: a tenth of the shards have fewer
UNSEEN_OF = 5  # each fifth table is unseen by the fit that is judged by it
SHARD_HEADER = ["held-out shards", "shards", "median error, %", "90 % below", "median ratio", "rank correlation"]
POINTS = "gpu_points.csv"
POINTS_SOURCE = (
    "public traces and benchmarks: facebookresearch/HolisticTraceAnalysis and param, meta-pytorch, NVIDIA, owensgroup"
)
SHARDS_SOURCE = "NeuroShard's cost network (MLSys 2023), which learned from measurements of one RTX 2080 Ti"


@dataclass(frozen=True)
class Fit:
    """Measurements and constants of a fit.

    Attributes:
        gpus: the GPUs of gpu_points.csv whose measurements count; none: the shards of the RTX 2080 Ti.
        free: the constants to fit.
        takes_from: the profile that supplies all other constants.
        starts: constants with a different starting value.
        extrapolated_from: the profile that supplies missing evidence.
        prior: weight of the starting values, as of a measured time that is off by a factor of e.
    """

    gpus: tuple[str, ...]
    free: tuple[str, ...]
    takes_from: str = ""
    starts: tuple[tuple[str, float], ...] = ()
    extrapolated_from: str = ""
    prior: float = 0.3


_KERNEL_CONSTANTS = tuple(name for name in FREE_CONSTANTS if name not in BESIDE_KERNELS)
_BESIDE_MEMORY = tuple(name for name in _KERNEL_CONSTANTS if name != MEMORY)  # which would end at the peak
_A100 = ("A100-40GB PG509", "A100-80GB", "unnamed (A100 80GB fits best)")
FITS = {
    "rtx_2080_ti": Fit((), (*_BESIDE_MEMORY, *BESIDE_KERNELS), prior=2.0),
    "v100": Fit(("V100", "V100-16GB", "V100-32GB", "unnamed (V100 likely, Jan 2021)"), _BESIDE_MEMORY),
    "a100_80gb": Fit(_A100, _KERNEL_CONSTANTS),
    "a100_40gb": Fit(_A100, (), "a100_80gb"),
}
# Of these GPUs every kernel was measured (fit_gpu_kernels.py): the few published points only judge.
JUDGED = {"h100": ("H100 80GB HBM3",), "h200": ("H200",)}


@dataclass(frozen=True)
class Point:
    """One published measurement.

    Attributes:
        gpu: the GPU, as its source names it.
        source: where it is published.
        tables, batch_size, optimizer: the measured call.
        time: one of ``SHARD_TIMES``.
        ms: how long it took.
    """

    gpu: str
    source: str
    tables: tuple[Table, ...]
    batch_size: int
    optimizer: str
    time: str
    ms: float
    is_older_kernel: bool = False  # from before FBGEMM: compared, not fitted

    @property
    def configuration(self) -> tuple[str, str, int, str]:
        """Return the key that all times of the same run share."""
        return (self.gpu, repr(self.tables), self.batch_size, self.optimizer)


# Points --------------------------------------------------------------------------------------------------------------

KERNEL_ROWS = {
    "kernel: bounds_check_indices": "bounds_check",
    "kernel: embedding_codegen forward lookup": "lookup",
    "kernels: index": "index",
    "kernels: radix sort": "sort",
    "kernels: gradient": "gradient",
}
FORWARD, BACKWARD = (*FORWARD_KERNELS, "forward"), (*BACKWARD_KERNELS, "backward")
NO_BOUNDS_CHECK = ("fwd kernel", "fwd, bwd+SGD", "TorchRec/FBGEMM")


def published_points(truth: Path) -> list[Point]:
    """Yield the rows of gpu_points.csv that have a shape, and a time of kernels or calls that the model predicts."""
    return [point for row in read_rows(truth / POINTS) for point in _points_of(row)]


def _points_of(row: dict[str, str]) -> Iterable[Point]:
    what, gpu = row["what"], row["gpu"]
    if not all(row[name] for name in ("T", "E", "D", "B", "L")) or "MI" in gpu or gpu.startswith("RTX"):
        return
    if any(word in what for word in ("caching", "no_hbm", "LXU", "UVM")):
        return
    times = dict(_times_of(what, row))
    if not times:
        return
    tables, batch_size = _tables_of(row), int(row["B"])
    optimizer = _optimizer_of(row)
    older = "pre-FBGEMM" in row["notes"]
    for time, us in times.items():
        yield Point(gpu, row["source"], tables, batch_size, optimizer, time, us / US_PER_MS, older)


def _times_of(what: str, row: dict[str, str]) -> Iterable[tuple[str, float]]:
    forward, backward = (float(row[name]) if row[name] else 0.0 for name in ("fwd_us", "bwd_us"))
    for start, time in KERNEL_ROWS.items():
        if what.startswith(start):
            yield time, forward or backward
    if what.startswith("fwd kernels; bwd span"):
        check = float(row["notes"].split("bounds check ", 1)[1].split(" us", 1)[0])
        yield "bounds_check", check
        yield "lookup", forward - check
        yield "backward", backward
    elif what.startswith(NO_BOUNDS_CHECK):
        long_enough = forward > 100  # us; shorter times are those of the host
        if forward:
            yield ("lookup" if long_enough or what.startswith("fwd kernel") else "forward"), forward
        if backward:
            yield "backward", backward
    elif what.startswith("fwd; bwd = ForwardBackward"):
        yield "forward", forward
        yield "backward", backward
    elif what.startswith("span") and float(row["L"]) > 0:
        yield "backward", backward


def _optimizer_of(row: dict[str, str]) -> str:
    text = (row["what"] + " " + row["notes"]).lower()
    if "adam" in row["what"]:
        return "adam"
    if "rowwise adagrad" in text or "row-wise adagrad" in text or "trace" in row["source"]:
        return "rowwise_adagrad"
    return "adagrad" if "exact adagrad" in text else "sgd"


def _tables_of(row: dict[str, str]) -> tuple[Table, ...]:
    """Return the tables of a row: all of one shape, with their own hotness if the row lists it."""
    count, batch_size = int(row["T"]), int(row["B"])
    num_rows, dim, pooling = max(int(float(row["E"])), 1), max(round(float(row["D"])), 1), float(row["L"])
    bits = 16 if row["weights"] == "fp16" else 32
    hotness = [pooling] * count
    if "hotness of the 3 tables" in row["notes"]:
        listed = row["notes"].split("[", 1)[1].split("]", 1)[0]
        hotness = [float(one) for one in listed.split(",")]
    return tuple(
        Table(f"t{number}", num_rows, dim, one, _reuse_of(row, num_rows, one * batch_size), bits)
        for number, one in enumerate(hotness)
    )


def _reuse_of(row: dict[str, str], num_rows: int, lookups: float) -> ReuseBins | None:
    law = row["alpha_or_reuse"]
    if "reuse 0" in law and "reuse 0.1" not in law:
        return ONCE
    if law == "uniform":
        return power_law_reuse_bins(num_rows, lookups, 0.0)
    try:
        return power_law_reuse_bins(num_rows, lookups, float(law))
    except ValueError:
        return None


def measured_points(profile: GpuProfile, points: Sequence[Point]) -> list[MeasuredShards]:
    """Convert the points to measured shards, grouped by optimizer."""
    counter, found = WorkCounter(profile), []
    for optimizer in sorted({point.optimizer for point in points}):
        own = [point for point in points if point.optimizer == optimizer]
        configurations = {key: number for number, key in enumerate(dict.fromkeys(one.configuration for one in own))}
        columns, shards, times_NM, groups = [], [], [], []
        for number, point in enumerate(own):
            columns.append(counter.columns(point.tables, point.batch_size))
            shards += [number] * len(point.tables)
            times_NM.append(stack_times(1, **{point.time: np.array([point.ms])})[0])
            groups.append(configurations[point.configuration])
        work = counter.shard_work(np.concatenate(columns), np.array(shards), len(own))
        found.append(MeasuredShards(work, np.array(times_NM), np.array(groups), optimizer))
    return found


# Shards --------------------------------------------------------------------------------------------------------------


def shards_of_2080_ti(truth: Path, profile: GpuProfile) -> MeasuredShards:
    """Read the measured shards of the RTX 2080 Ti, which have only the sum of forward and backward."""
    measured = others_measurements.read(truth)
    counter = WorkCounter(profile)
    columns = [counter.columns(tables, others_measurements.BATCH_SIZE) for tables in measured.shards]
    num_shards = len(columns)
    owners = np.repeat(np.arange(num_shards), [len(tables) for tables in measured.shards])
    work = counter.shard_work(np.concatenate(columns), owners, num_shards)
    return MeasuredShards(work, stack_times(num_shards, both=measured.shard_ms), np.arange(num_shards))


# Fits ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """A fitted profile, its evidence, and a table of its errors."""

    profile: GpuProfile
    evidence: tuple[Evidence, ...]
    report: str


def fit_shards(start: GpuProfile, truth: Path, fit: Fit) -> Fitted:
    """Fit half of the shards, and report the errors on the other half and on tables that a second fit did not use."""
    shards = shards_of_2080_ti(truth, start)
    fitted_N = np.random.default_rng(0).permutation(len(shards)) % 2 == 0
    profile, _ = fit_constants(start, [shards.select(fitted_N)], fit.free, fit.prior)
    held_out = shards.select(~fitted_N)
    work, predicted, measured_ms = held_out.work, *_both_ms(profile, held_out)
    low = work.lookups < FEW_LOOKUPS * others_measurements.BATCH_SIZE
    parts = {
        ("1 table" if last == 1 else f"{first} to {last} tables"): (work.num_tables >= first)
        & (work.num_tables <= last)
        for first, last in ((1, 1), (2, 3), (4, 7), (8, 11), (12, 15))
    }
    parts |= {f"below {FEW_LOOKUPS} lookups per sample": low, "all": np.ones(len(held_out), dtype=bool)}
    lines = [SHARD_HEADER] + [_shard_line(label, predicted[some], measured_ms[some]) for label, some in parts.items()]
    numbers = [{int(table.name) for table in tables} for tables in others_measurements.read(truth).shards]
    unseen_N = np.array([any(number % UNSEEN_OF == 1 for number in own) for own in numbers])
    other, _ = fit_constants(start, [shards.select(~unseen_N)], fit.free, fit.prior)
    lines.append(_shard_line("all with an unseen table", *_both_ms(other, shards.select(unseen_N))))
    evidence = []
    for least, most in pairwise(BANDS):
        some = (work.lookups >= least) & (work.lookups < most)
        of_fitted = shards.work.lookups[fitted_N]
        errors = Errors.of(predicted[some], measured_ms[some])
        evidence.append(
            Evidence(
                "shards of 1 to 15 recorded tables, dims 4 to 128, FP32, batch 65,536: forward and backward together",
                SHARDS_SOURCE,
                int(((of_fitted >= least) & (of_fitted < most)).sum()),
                int(some.sum()),
                round(errors.median_percent, 2),
                round(errors.p90_percent, 2),
                (SGD,),
                lookups_range(work.lookups[some]),
            )
        )
    return Fitted(profile, tuple(evidence), text_table(lines, "<>>>>>", "  "))


def relative_errors(predicted: FloatArray, measured: FloatArray) -> Errors:
    """Return the errors relative to the measured times, as tables of pages state them."""
    return Errors(*np.percentile(100 * np.abs(predicted / measured - 1), [50, 90]).tolist())


def lookups_range(lookups_N: FloatArray) -> tuple[float, float]:
    """Return the least and most lookups of calls, as evidence states them."""
    return max(round(float(lookups_N.min())), 1), round(float(lookups_N.max()))


def _both_ms(profile: GpuProfile, shards: MeasuredShards) -> tuple[FloatArray, FloatArray]:
    """Return the predicted and measured sums of forward and backward, [N] each."""
    both = SHARD_TIMES.index("both")
    return predict_times(profile, shards.work)[:, both], shards.times_ms_NM[:, both]


def _shard_line(label: str, predicted: FloatArray, measured_ms: FloatArray) -> list[str]:
    errors = relative_errors(predicted, measured_ms)
    rank = float(np.corrcoef(*(np.argsort(np.argsort(ms)) for ms in (predicted, measured_ms)))[0, 1])
    shown = (errors.median_percent, errors.p90_percent)
    ratio = float(np.median(predicted / measured_ms))
    return [label, str(len(predicted)), *(f"{one:.1f}" for one in shown), f"{ratio:.3f}", f"{rank:.4f}"]


def fit_points(start: GpuProfile, points: Sequence[Point], fit: Fit) -> Fitted:
    """Fit all points; each configuration in turn is held out from a fit of all others."""
    profile = _fit(start, points, fit)
    lines = [["measured", "tables", "rows", "dim", "batch", "lookups a bag", "optimizer", "ms", "fitted", "held out"]]
    held_out: dict[Point, float] = {}
    for configuration in dict.fromkeys(point.configuration for point in points):
        others = [point for point in points if point.configuration != configuration]
        without = _fit(start, others, fit) if others else start
        own = [point for point in points if point.configuration == configuration]
        held_out |= {point: _predicted_ms(without, point) for point in own}
        for point in own:
            first = point.tables[0]
            poolings = " ".join(f"{one:.3g}" for one in dict.fromkeys(table.pooling_factor for table in point.tables))
            shape = [
                len(point.tables),
                first.num_rows,
                first.embedding_dim,
                point.batch_size,
                poolings,
            ]
            ratios = [f"x {ms / point.ms:.2f}" for ms in (_predicted_ms(profile, point), held_out[point])]
            lines.append([point.time, *map(str, shape), point.optimizer, f"{point.ms:.3f}", *ratios])
    summary = [["held out", "times", "median ratio", "median error, %", "90 % below"]]
    for label, names in (("forward", FORWARD), ("backward", BACKWARD)):
        own_ms = {point: ms for point, ms in held_out.items() if point.time in names}
        if own_ms:
            error, ratio = _errors_of(own_ms), float(np.median([ms / point.ms for point, ms in own_ms.items()]))
            shown = (f"{ratio:.2f}", f"{error.median_percent:.1f}", f"{error.p90_percent:.1f}")
            summary.append([label, str(len(own_ms)), *shown])
    logs = Errors.of(np.array(list(held_out.values())), np.array([point.ms for point in held_out]))
    pooling = [sum(table.pooling_factor for table in point.tables) for point in points]
    lookups = np.array(pooling) * [point.batch_size for point in points]
    evidence = Evidence(
        "kernels and calls of published configurations, each predicted by a fit to the others",
        POINTS_SOURCE,
        sum(not point.is_older_kernel for point in points) if fit.free else 0,
        len(points),
        round(logs.median_percent, 2),
        round(logs.p90_percent, 2),
        tuple(sorted({point.optimizer for point in points})),
        lookups_range(lookups),
    )
    tables = (text_table(summary, "<>>>>", "  "), text_table(lines, "<" + ">" * 5 + "<>>>", "  "))
    return Fitted(profile, (evidence,), "\n\n".join(tables))


def _errors_of(predicted: dict[Point, float]) -> Errors:
    return relative_errors(np.array(list(predicted.values())), np.array([point.ms for point in predicted]))


def _fit(start: GpuProfile, points: Sequence[Point], fit: Fit) -> GpuProfile:
    fitted = [point for point in points if not point.is_older_kernel]
    return fit_constants(start, measured_points(start, fitted), fit.free, fit.prior)[0] if fit.free else start


def _predicted_ms(profile: GpuProfile, point: Point) -> float:
    (shard,) = measured_points(profile, [point])
    return float(predict_times(profile, shard.work, point.optimizer)[0, SHARD_TIMES.index(point.time)])


# Sequences -----------------------------------------------------------------------------------------------------------

LATER_POINTS = "points_2026_11.csv"
SEQUENCES, SAMPLES, FEATURES = "all FBGEMM embedding kernels", 8192, (4, 4, 4, 1)
ALPHAS = (0.0, 0.8, 1.05, 1.2, 1.5)


@dataclass(frozen=True)
class SequenceTimes:
    """Times of the kernels that look up sequences on one of 8 B200, in a step of AMD's Primus-DLRM.

    Attributes:
        measured_ms: published.
        by_alpha_ms: of the profile, which nothing was fitted to, if rows follow a power law of this exponent.
        pooled_ms: the same, if each lookup were a bag.
    """

    measured_ms: float
    by_alpha_ms: dict[float, float]
    pooled_ms: float


def sequence_times(truth: Path, profile: GpuProfile) -> SequenceTimes:
    """Predict the times by a profile of the B200, for the published numbers of rows that the rank looks up.

    All but the last table have long sequences. A table's rows are dealt to the ranks. Three of its four features are
    histories, one is a single item.
    """
    row = next(row for row in read_rows(truth / LATER_POINTS) if row["kernel"].startswith(SEQUENCES))
    rows = [int(count) // 8 for count in row["rows"].split(";")]
    lookups = float(row["pooling"].split()[0])
    single = 0.78 * SAMPLES  # as the share of all lookups that this rank has
    of_table = [(lookups - 4 * single) / 3 + single] * 3 + [single]

    def kernels_ms(alpha: float, is_sequence: bool = True) -> float:
        found = [
            Lookup(
                Table(
                    f"t{number}",
                    num_rows,
                    int(row["dim"]),
                    own / SAMPLES / features,
                    power_law_reuse_bins(num_rows, own, alpha),
                    pooling=SEQUENCE,
                ),
                SAMPLES * features,
            )
            for number, (num_rows, own, features) in enumerate(zip(rows, of_table, FEATURES, strict=True))
        ]
        counter, shard = WorkCounter(profile), np.zeros(len(found), dtype=np.int64)
        work = counter.shard_work(
            work_columns(counter, found if is_sequence else [one.pooled for one in found]), shard, 1
        )
        times = kernel_times(profile, work, "adam")
        return sum(float(getattr(times, name)[0]) for name in KERNELS) / NS_PER_MS

    by_alpha = {alpha: kernels_ms(alpha) for alpha in ALPHAS}
    return SequenceTimes(float(row["value"]), by_alpha, kernels_ms(1.05, is_sequence=False))


def sequence_report(truth: Path) -> str:
    """Format the published time and the profile's predictions."""
    times = sequence_times(truth, gpu_profile("b200"))
    lines = [["B200: sequences, rows by a power law", "ms", "of the published"]]
    found = {f"exponent {alpha}": ms for alpha, ms in times.by_alpha_ms.items()}
    found |= {"exponent 1.05, were each lookup a bag": times.pooled_ms, "published": times.measured_ms}
    lines += [[label, f"{ms:.2f}", f"x {ms / times.measured_ms:.2f}"] for label, ms in found.items()]
    return text_table(lines, "<>>", "  ")


def main() -> None:
    """Fit the profiles of the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", help="profiles to fit (default: all)")
    parser.add_argument(
        "--truth", type=Path, default=others_measurements.default_folder(), help="folder of the measurements"
    )
    parser.add_argument("--write", action="store_true", help="write the fitted constants into the profiles")
    arguments = parser.parse_args()
    truth = arguments.truth
    if unknown := sorted(set(arguments.profiles) - set(FITS)):
        parser.error(f"{unknown[0]} is not a profile. Use some of {', '.join(FITS)}.")
    points = published_points(truth)
    for name in arguments.profiles or FITS:
        fit, start = FITS[name], _start(name)
        own = [point for point in points if point.gpu in fit.gpus]
        if name == "rtx_2080_ti":
            fitted = fit_shards(start, truth, fit)
        elif own:
            fitted = fit_points(start, own, fit)
        else:
            fitted = Fitted(start, (), "no measurement")
        if own and not fit.free:  # all its constants were fitted to the same points
            fitted = replace(fitted, evidence=gpu_profile(fit.takes_from).evidence)
        summary = "\n".join(map(_summary, fitted.evidence)) or "no measurements to compare with"
        print(f"\n## {name}\n\n{summary}\n\n{fitted.report}\n")
        if arguments.write:
            _write(name, fit, fitted)


def _summary(evidence: Evidence) -> str:
    return (
        f"{evidence.points} ({evidence.calls}): {evidence.fitted} fitted, {evidence.held_out} held out, "
        f"median error {evidence.median_error_percent} %, 90 % below {evidence.p90_error_percent} %"
    )


def _start(name: str) -> GpuProfile:
    """Return a profile before its fit: the data sheet's constants, and rough or another profile's values."""
    fit, profile = FITS[name], gpu_profile(name)
    if fit.takes_from:
        other = gpu_profile(fit.takes_from)
        return replace(profile, **{one: getattr(other, one) for one in FREE_CONSTANTS} | dict(fit.starts))
    column = START_ORDER.index(name)
    starts = {constant: float(values[column]) for constant, values in load_yaml(STARTS.read_text()).items()}
    return replace(profile, **starts)


def _write(name: str, fit: Fit, fitted: Fitted) -> None:
    """Write the fitted constants and then all others, each with its source."""
    start, path = _start(name), profile_path(name)
    fitted_source = (
        "fitted to totals of shards, see evidence" if not fit.gpus else "fitted to public kernels, see evidence"
    )
    sources = sources_of(profile_path(fit.takes_from)) if fit.takes_from else {}

    def source_of(constant: str) -> str:
        if constant in own:
            return fitted_source
        if fit.takes_from:
            return f"{origin_of(sources[constant])}: as the {fit.takes_from} profile"
        return "guess: no measurement tells it, see benchmarks/scripts/fit_devices.yaml"

    values = {one: float(getattr(fitted.profile, one)) for one in FREE_CONSTANTS}
    moved = {one for one in fit.free if abs(values[one] - getattr(start, one)) > MOVED * getattr(start, one)}
    own = {one: value for one, value in values.items() if one in moved}
    measured = set() if fit.takes_from else {MEMORY}  # its source is not the fit's
    others = {one: getattr(start, one) for one in FREE_CONSTANTS if one not in moved | measured}
    constants = others | own
    for source, names in groupby(sorted(constants, key=source_of), source_of):
        of_source = {name: constants[name] for name in names}
        write_profile(path, of_source, source, fitted.evidence, path, fit.extrapolated_from)


if __name__ == "__main__":
    run_script(main)
