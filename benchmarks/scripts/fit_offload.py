"""Fits what tables outside of device memory cost to public measurements of an H100, and says how far off it is.

    python -m benchmarks.scripts.fit_offload --truth FOLDER [--timed data/kernels/h100.jsonl.gz ...]

The folder holds other people's measurements (its README names their sources); none of it is part of the project. The
constants that this prints stand in evenshard/measure/offload.py and profiles/h100.yaml.

What was measured: FBGEMM's unpooled lookups of tables in host memory, without a cache and with one, 100 batches that
were trained over and over. In 2026 caches had 0.8 and 1.0 times the distinct rows of the whole run, and FBGEMM counted
their misses while it was timed. In 2025 they had an eighth of the table's rows and counted nothing; what is called the
backward pass is a training run, which began with an empty cache, less one of forward passes. How many rows a cache
misses is not published. It is computed here from how the batches were drawn, and the distinct rows of a batch that come
with it are compared with the published ones.

Legend: R ranges of rows that are looked up about equally often, G batches since a row was looked up, M measured times.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.references import others_measurements
from benchmarks.scripts.fit_devices import POINTS
from benchmarks.scripts.gpu_kernels import table_of
from evenshard.measure.kernel_calls import HeldPart, KernelCall, Lookup
from evenshard.measure.offload import HostLink, offload_ms
from evenshard.measure.simulated.device_model import NS_PER_MS, backward_ms, lookup_ns
from evenshard.measure.simulated.gpu_profile import CACHED_BWD_US, gpu_profile
from evenshard.measure.simulated.price import DeviceModelPrice
from evenshard.measure.simulated.shard_work import PLAIN_BYTES, WorkCounter, looked_up_rows
from evenshard.placement.storage import FUSED_UVM, FUSED_UVM_CACHING, ON_DEVICE, Storage
from evenshard.tables.cache import WAYS, set_miss_ratio
from evenshard.tables.reuse import MIN_COUNT_OF_BIN, FloatArray, ReuseBins, power_law_reuse_bins
from evenshard.tables.table import SEQUENCE, Table
from evenshard.utils.text_table import text_table

GPU, PROFILE = "H100 80GB HBM3", "h100"
LATER_POINTS = "points_2026_11.csv"
# Passes that ``timed_cases`` judges: in shorter ones the virtual machine's host, 0.6 to 0.8 ms a call, tells.
LEAST_MS = 1.5
SHORT_ROW_BYTES = 256
LOAD_FACTOR = 0.125  # gpu_ratio of the script that made the later file's lines; their notes name another's cache
BATCHES = 100  # of the measurements' runs
COUNT_NS_PER_LOOKUP = 1.02  # fitted: see ``Constants``
US_PER_MS = 1e3


@dataclass(frozen=True)
class Configuration:
    """What was run: tables of one shape, looked up once a sample by a power law, without pooling.

    Attributes:
        num_tables, num_rows, dim, batch_size, alpha: of them.
        optimizer: updates the weights.
        footprint_ratio: rows of the cache over the distinct rows of the whole run; 0 without a cache.
        load_factor: rows of the cache over those of the tables, in runs that are told so.
    """

    num_tables: int
    num_rows: int
    dim: int
    batch_size: int
    alpha: float
    optimizer: str
    footprint_ratio: float = 0.0
    load_factor: float = 0.0

    @property
    def looked_up(self) -> list[tuple[Table, int]]:
        """Its tables, each with the samples of their bags."""
        bins = reuse_bins_of_draws(self.num_rows, self.batch_size, self.alpha)
        one = Table("t", self.num_rows, self.dim, 1.0, bins)
        return [(replace(one, name=f"t{number}"), self.batch_size) for number in range(self.num_tables)]


@dataclass(frozen=True)
class Measurement:
    """A published forward and backward time.

    Attributes:
        what: as its source calls it.
        run: what was run.
        storage: where the tables were.
        uniques: distinct rows of a batch; 0 where they are not published.
        forward_ms, backward_ms: how long they took.
    """

    what: str
    run: Configuration
    storage: Storage
    uniques: int
    forward_ms: float
    backward_ms: float

    @property
    def times_ms(self) -> tuple[float, float]:
        """Both."""
        return self.forward_ms, self.backward_ms


# What was measured ---------------------------------------------------------------------------------------------------


def measurements(truth: Path) -> list[Measurement]:
    """All of the GPU, in device memory and out of it."""
    with (truth / POINTS).open(newline="") as file:
        earlier = [found for row in csv.DictReader(file) for found in _measurement(row)]
    with (truth / LATER_POINTS).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == GPU and "fused_uvm" in row["kernel"]]
    return earlier + [_later(*pair) for pair in zip(rows[::2], rows[1::2], strict=True)]


def _later(forward: dict[str, str], backward: dict[str, str]) -> Measurement:
    storage = Storage(FUSED_UVM_CACHING if FUSED_UVM_CACHING in forward["kernel"] else FUSED_UVM)
    numbers = [int(forward[name]) for name in ("tables", "rows", "dim", "batch")]
    run = Configuration(*numbers, 1.05, forward["optimizer"], load_factor=LOAD_FACTOR if storage.is_cached else 0.0)
    times_ms = [float(one["value"]) for one in (forward, backward)]
    return Measurement(f"{storage.kernel} {run.optimizer}, batch {run.batch_size:,}", run, storage, 0, *times_ms)


def _measurement(row: dict[str, str]) -> Iterator[Measurement]:
    what, uniques = row["what"], re.search(r"(\d+) distinct", row["notes"])
    if row["gpu"] != GPU or "recsys-examples" not in row["source"] or uniques is None:
        return
    ratio = re.search(r"cfr ([\d.]+)", what)
    storage = ON_DEVICE
    if ratio:
        storage = Storage(FUSED_UVM_CACHING)
    elif "no_caching" in what or "no_hbm" in what:
        storage = Storage(FUSED_UVM)
    run = Configuration(
        int(row["T"]),
        int(row["E"]),
        int(row["D"]),
        int(row["B"]),
        float(row["alpha_or_reuse"]),
        "adam" if "adam" in what else "sgd",
        float(ratio[1]) if ratio else 0.0,
    )
    forward_ms, backward_ms = (float(row[name]) / US_PER_MS for name in ("fwd_us", "bwd_us"))
    yield Measurement(what.removeprefix("TorchRec/FBGEMM "), run, storage, int(uniques[1]), forward_ms, backward_ms)


# How the batches were drawn ------------------------------------------------------------------------------------------


@lru_cache
def chances(num_rows: int, alpha: float) -> tuple[FloatArray, FloatArray]:
    """[R] rows, and [R] the chance of a lookup to be of one of them: a continuous power law from 1 up, rounded down."""
    exact = 2000
    starts_R = np.unique(np.concatenate([np.arange(1.0, exact), np.geomspace(exact, num_rows, 4000).round()]))
    below = (starts_R ** (1 - alpha) - 1) / (float(num_rows) ** (1 - alpha) - 1)
    sizes_R = np.diff(starts_R)
    return sizes_R, np.diff(below) / sizes_R


@lru_cache
def reuse_bins_of_draws(num_rows: int, lookups: int, alpha: float) -> ReuseBins:
    """The expected histogram of a batch of such lookups."""
    from scipy.stats import poisson

    sizes_R, chances_R = chances(num_rows, alpha)
    uniques_K = sizes_R @ poisson.sf(np.array(MIN_COUNT_OF_BIN) - 1, lookups * chances_R[:, None])
    uniques_K[:-1] -= uniques_K[1:]
    return tuple((uniques_K / uniques_K.sum()).tolist())


def expected_uniques(run: Configuration) -> float:
    """Distinct rows of a batch."""
    return float(_uniques_of_batches(run)[1])


def _cache_rows(run: Configuration) -> float:
    if run.load_factor:
        return run.load_factor * run.num_tables * run.num_rows
    return run.footprint_ratio * float(_uniques_of_batches(run)[-1])


def _uniques_of_batches(run: Configuration) -> FloatArray:
    """Distinct rows of 0, 1, 2, ... batches, up to all."""
    sizes_R, chances_R = chances(run.num_rows, run.alpha)
    batches_G = np.arange(BATCHES + 1)
    return np.asarray(run.num_tables * sizes_R @ -np.expm1(-run.batch_size * chances_R[:, None] * batches_G))


@lru_cache
def expected_miss(run: Configuration) -> float:
    """Share of a batch's distinct rows that FBGEMM's cache does not have, once the batches come round again.

    A row finds its set of 32 ways full of others, if at least 32 distinct rows of that set were looked up since it was:
    as many as a Poisson variable, because rows are hashed to sets. So even a cache for all rows misses some. Rows of
    the batch itself count half, since they come in before or after it.
    """
    return _expected_misses(run)[0]


def expected_cold_miss(run: Configuration) -> float:
    """The same share of the first time that the batches come, when the cache is empty at first."""
    return _expected_misses(run)[1]


@lru_cache
def _expected_misses(run: Configuration) -> tuple[float, float]:
    from scipy.stats import poisson

    rows = _cache_rows(run)
    if not rows:
        return 0.0, 0.0
    sizes_R, chances_R = chances(run.num_rows, run.alpha)
    uniques_G = _uniques_of_batches(run)
    since_G = np.arange(1, BATCHES + 1)
    gone_G = poisson.sf(WAYS - 1, np.interp(since_G - 0.5, np.arange(BATCHES + 1), uniques_G) / np.ceil(rows / WAYS))
    looked_up_R = -np.expm1(-run.batch_size * chances_R)
    # Of distinct rows that were looked up so many batches ago, and not since: the last of these is the same batch.
    unseen_RG = (1 - looked_up_R[:, None]) ** (since_G - 1)
    of_batch_G = run.num_tables * (sizes_R * looked_up_R) @ (unseen_RG * looked_up_R[:, None])
    again_G = of_batch_G.copy()
    again_G[-1] = run.num_tables * (sizes_R * looked_up_R) @ unseen_RG[:, -1]
    new = uniques_G[-1] / BATCHES
    cold = new + (of_batch_G * (1 - since_G / BATCHES)) @ gone_G
    return float(again_G @ gone_G / uniques_G[1]), float(cold / uniques_G[1])


# What it takes in device memory, and beyond --------------------------------------------------------------------------


@lru_cache
def simulated_ms(run: Configuration) -> FloatArray:
    """[2] forward and backward of the simulated device, in device memory; the bounds check was switched off."""
    return _simulated_ms([table for table, _ in run.looked_up], run.batch_size, run.optimizer)


def _simulated_ms(tables: Sequence[Table], batch_size: int, optimizer: str) -> FloatArray:
    profile = gpu_profile(PROFILE)
    counter = WorkCounter(profile, optimizer)
    work = counter.shard_work(counter.columns(tables, batch_size), np.zeros(len(tables), dtype=np.int64), 1)
    return np.concatenate([lookup_ns(profile, work) / NS_PER_MS, backward_ms(profile, work, optimizer)])


def on_device_ms(found: Measurement, every: Sequence[Measurement]) -> FloatArray:
    """[2] what it would have taken in device memory.

    As measured of smaller tables, which fit there, times what the simulated device says of the difference; as simulated
    where none were measured with such batches.
    """
    small = [
        one
        for one in every
        if one.storage == ON_DEVICE
        and (one.run.num_tables, one.run.batch_size) == (found.run.num_tables, found.run.batch_size)
        and one.run.optimizer == found.run.optimizer
    ]
    measured = np.array(small[0].times_ms) / simulated_ms(small[0].run) if small else np.ones(2)
    return np.asarray(measured * simulated_ms(found.run))


@dataclass(frozen=True)
class Constants:
    """What is fitted.

    Attributes:
        host_gb_s, under_way_bytes, update_share, find_ns_per_lookup, cached_update_ns_per_lookup: of ``HostLink``.
        cached_fwd_us: of ``GpuProfile``.
        count_ns_per_lookup: that counting the misses took while it was timed. A training has no such time.
        cached_bwd_us: of ``GpuProfile``, not fitted: by themselves, backward times of SGD say 15 us, those of Adam 42.
    """

    host_gb_s: float = 50.0
    under_way_bytes: float = 1e5
    update_share: float = 1.0
    find_ns_per_lookup: float = 1.0
    cached_update_ns_per_lookup: float = 0.05
    cached_fwd_us: float = 150.0
    count_ns_per_lookup: float = 1.0
    cached_bwd_us: float = CACHED_BWD_US

    @property
    def link(self) -> HostLink:
        """The link that has them."""
        return HostLink(**{name: getattr(self, name) for name in IN_LINK})


OF_LINK = ("host_gb_s", "under_way_bytes", "update_share")
OF_CACHE = ("find_ns_per_lookup", "cached_update_ns_per_lookup", "cached_fwd_us", "count_ns_per_lookup")
IN_LINK = (*OF_LINK, *OF_CACHE[:2])
START = Constants()


def further_ms(run: Configuration, storage: Storage, constants: Constants) -> FloatArray:
    """[2] how much longer it takes outside of device memory, by the model."""
    lookups, link = [Lookup(table, bags, run.optimizer) for table, bags in run.looked_up], constants.link
    every = ([storage] * len(lookups), [expected_miss(run)] * len(lookups))
    found_2 = np.asarray(offload_ms(lookups, *every, link).sum(axis=0))
    if storage.is_cached:
        found_2 += np.array([constants.cached_fwd_us, constants.cached_bwd_us]) / US_PER_MS
        if run.load_factor:
            cold = (expected_cold_miss(run) - expected_miss(run)) * expected_uniques(run)
            found_2[1] += cold * run.dim * PLAIN_BYTES / link.exchange_gb_s / NS_PER_MS
        else:
            found_2[0] += constants.count_ns_per_lookup * run.num_tables * run.batch_size / NS_PER_MS
    return found_2


# The fit -------------------------------------------------------------------------------------------------------------


def outside(every: Sequence[Measurement]) -> list[Measurement]:
    """Those of tables that were not in device memory."""
    return [one for one in every if one.storage != ON_DEVICE]


def fit(fitted: Sequence[Measurement], every: Sequence[Measurement]) -> Constants:
    """The constants with the least squares of relative errors of whole times.

    First those of the link, by the measurements of 2026, whose caches of two sizes tell what a missed row costs; then
    those of a cache, by all measurements of one.

    Args:
        fitted: measurements of tables outside of device memory.
        every: among which are those that say what they would take in it.
    """
    of_link = (*OF_LINK, "cached_update_ns_per_lookup", "count_ns_per_lookup")
    found = _fit(START, of_link, [one for one in fitted if one.uniques], every)
    return _fit(found, OF_CACHE, [one for one in fitted if one.storage.is_cached], every)


def _fit(
    start: Constants, free: Sequence[str], fitted: Sequence[Measurement], every: Sequence[Measurement]
) -> Constants:
    from scipy.optimize import least_squares

    inside_M2 = np.array([on_device_ms(one, every) for one in fitted])
    measured_M2 = np.array([one.times_ms for one in fitted])

    def constants(logs: FloatArray) -> Constants:
        return replace(start, **dict(zip(free, np.exp(logs).tolist(), strict=True)))

    def errors(logs: FloatArray) -> FloatArray:
        further_M2 = np.array([further_ms(one.run, one.storage, constants(logs)) for one in fitted])
        return np.asarray(np.log((inside_M2 + further_M2) / measured_M2).ravel())

    return constants(least_squares(errors, np.log([getattr(start, name) for name in free]), x_scale=0.1).x)


def held_out_fits(every: Sequence[Measurement], part: str) -> dict[Measurement, Constants]:
    """Of each measurement the fit to those of the other tables, or of the other optimizer.

    Args:
        every: all measurements; those of 2025 alone tell a cache's fixed times, so that no other tables replace them.
        part: field of ``Configuration`` that says which are held out together.
    """
    found = {}
    judged = [one for one in outside(every) if part == "optimizer" or one.uniques]
    for value in dict.fromkeys(getattr(one.run, part) for one in judged):
        own = [one for one in judged if getattr(one.run, part) == value]
        found |= dict.fromkeys(own, fit([one for one in outside(every) if one not in own], every))
    return found


# The report ----------------------------------------------------------------------------------------------------------

HELD_OUT = {"other tables": "num_tables", "other optimizer": "optimizer"}


def predictions(every: Sequence[Measurement]) -> dict[str, FloatArray]:
    """[M, 2] times of all measurements outside of device memory, by what they are predicted from."""
    shipped, found = shipped_constants(), {}
    fits = {"fit": dict.fromkeys(outside(every), shipped)}
    fits |= {f"fit to {label}": held_out_fits(every, part) for label, part in HELD_OUT.items()}
    for label, fit_of in fits.items():
        found[label] = np.array(
            [
                on_device_ms(one, every) + further_ms(one.run, one.storage, fit_of[one])
                if one in fit_of
                else (np.nan,) * 2
                for one in outside(every)
            ]
        )
    simulated = [simulated_ms(one.run) + further_ms(one.run, one.storage, shipped) for one in outside(every)]
    found["simulated device"] = np.array(simulated)
    return found


def shipped_constants() -> Constants:
    """Those that evenshard has; what counting misses took is no part of it."""
    profile = gpu_profile(PROFILE)
    link = HostLink(profile.host_gb_s)
    in_link = [getattr(link, name) for name in IN_LINK]
    return Constants(*in_link, profile.cached_fwd_us, COUNT_NS_PER_LOOKUP, profile.cached_bwd_us)


def report(every: Sequence[Measurement]) -> str:
    """The errors, and each measurement."""
    predicted = predictions(every)
    measured_M2 = np.array([one.times_ms for one in outside(every)])
    summary = [["whole times predicted from", "kernel", "times", "median error, %", "largest"]]
    for label, times_M2 in predicted.items():
        for kernel in (FUSED_UVM, FUSED_UVM_CACHING):
            own = np.array([one.storage.kernel == kernel for one in outside(every)])
            off = 100 * np.abs(times_M2 / measured_M2 - 1)[own]
            off = off[np.isfinite(off)]
            summary.append([label, kernel, str(off.size), f"{np.median(off):.1f}", f"{off.max():.1f}"])
    lines = [["measured", "tables", "missed, %", "pass", "ms", "device memory, ms", *predicted]]
    for number, one in enumerate(outside(every)):
        for side, name in enumerate(("forward", "backward")):
            cells = (one.what, str(one.run.num_tables), f"{100 * expected_miss(one.run):.1f}", name)
            inside_ms = float(on_device_ms(one, every)[side])
            found = [times_M2[number, side] / measured_M2[number, side] for times_M2 in predicted.values()]
            ratios = [f"x {ratio:.3f}" if np.isfinite(ratio) else "-" for ratio in found]
            lines.append([*cells, f"{measured_M2[number, side]:.3f}", f"{inside_ms:.2f}", *ratios])
    return text_table(summary, "<<>>>", "  ") + "\n\n" + text_table(lines, "<>><>>" + ">" * len(predicted), "  ")


def compare_other_gpu(truth: Path) -> str:
    """What the constants say of a GPU that its source does not name, with another host: nothing of it was fitted.

    FBGEMM's benchmark draws rows evenly, and updates with rowwise Adagrad. A prefetch that is said to reach so many
    bytes per second moved rows for them, as many in as out; all others were in the cache.
    """
    with (truth / POINTS).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "unnamed" in row["gpu"] and "FBGEMM" in row["source"]]
    lines = [["measured", "weights", "ms", "model"]]
    for row in rows:
        if row["bw_gb_s"] and ("UVM" in row["what"] or "prefetch" in row["what"]):
            ms = float(row["total_us"]) / US_PER_MS
            lines.append([row["what"], row["weights"], f"{ms:.2f}", f"x {_even_draws_ms(row) / ms:.2f}"])
    return text_table(lines, "<<>>", "  ")


def _even_draws_ms(row: dict[str, str]) -> float:
    """The model's time of such a measurement."""
    num_tables, num_rows, dim, batch_size = (int(row[name]) for name in ("T", "E", "D", "B"))
    pooling_factor, bits = float(row["L"]), 8 if "fp8" in row["weights"] else 32
    bins = power_law_reuse_bins(num_rows, pooling_factor * batch_size, 0.0)
    tables = [Table(f"t{number}", num_rows, dim, pooling_factor, bins, bits) for number in range(num_tables)]
    optimizer = "rowwise_adagrad"
    lookups = [Lookup(table, batch_size, optimizer) for table in tables]
    if "prefetch" in row["what"]:
        moved_bytes = float(row["bw_gb_s"]) * float(row["total_us"]) * 1e3
        uniques = looked_up_rows(tables, np.full(num_tables, pooling_factor * batch_size))[0].sum()
        miss = moved_bytes / (2 * dim * bits / 8) / uniques
        storages, misses = [Storage(FUSED_UVM_CACHING)] * num_tables, [miss] * num_tables
        return float(offload_ms(lookups, storages, misses, shipped_constants().link)[:, 0].sum())
    further = offload_ms(lookups, [Storage(FUSED_UVM)] * num_tables, [0.0] * num_tables, shipped_constants().link)
    return float(_simulated_ms(tables, batch_size, optimizer).sum() + further.sum())


def timed_cases(paths: Sequence[Path]) -> str:
    """What an answer's price says of tables in host memory that ``gpu_kernels`` timed: nothing of it was fitted.

    Passes above ``LEAST_MS`` alone.

    Args:
        paths: files of ``gpu_kernels``, each called as the profile of its GPU begins.
    """
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            cases = [line for line in map(json.loads, file) if line["what"] == "host"]
        profile = gpu_profile(path.name.removesuffix(".jsonl.gz").partition("_")[0])
        for case in cases:
            rows, dim, batch_size, factor = (case[name] for name in ("rows", "dim", "batch_size", "load_factor"))
            table = table_of("t", rows, dim, 1.0, case["alpha"], batch_size, 32, SEQUENCE)
            storage = Storage(FUSED_UVM_CACHING, factor) if factor else Storage(FUSED_UVM)
            miss = set_miss_ratio(table, batch_size, factor) if factor else 1.0
            lookup = Lookup(table, batch_size, case["optimizer"], storage.is_cached)
            call = KernelCall("", "table_wise", table.dtype, SEQUENCE, False, case["optimizer"])
            predicted_2 = DeviceModelPrice(profile).held_ms([HeldPart(call, 0, (lookup,))], 1)[0, 0]
            predicted_2 = predicted_2 + offload_ms([lookup], [storage], [miss], HostLink(profile.host_gb_s))[0]
            short = "up to" if 4 * dim <= SHORT_ROW_BYTES else "above"
            for name, predicted_ms in zip(("forward", "backward"), predicted_2.tolist(), strict=True):
                timed_ms = median(case[f"{name}_ms"])
                if timed_ms > LEAST_MS:
                    found[storage.kernel, name, f"{short} {SHORT_ROW_BYTES} bytes"].append(predicted_ms / timed_ms)
    lines = [["kernel", "pass", "rows", "cases", "predicted by timed", "least", "most"]]
    for key in sorted(found):
        ratios = found[key]
        lines.append([*key, str(len(ratios)), *(f"{one:.2f}" for one in (median(ratios), min(ratios), max(ratios)))])
    return text_table(lines, "<<<>>>>", "  ")


def main() -> None:
    """Prints the fit and its errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--truth", type=Path, default=others_measurements.default_folder(), help="folder of the measurements"
    )
    parser.add_argument("--timed", type=Path, nargs="+", default=[], help="files of gpu_kernels, to judge by")
    args = parser.parse_args()
    truth = args.truth
    if not (truth / POINTS).is_file():
        parser.error(f"{truth / POINTS}: no such file. Name the folder of the measurements (--truth).")
    every = measurements(truth)
    found = fit(outside(every), every)
    constants = [
        [name, f"{getattr(found, name):.4g}", f"{getattr(shipped_constants(), name):.4g}"]
        for name in OF_LINK + OF_CACHE
    ]
    print(text_table([["constant", "fitted", "evenshard has"], *constants], "<>>", "  "))
    drawn = [["tables", "rows of each", "distinct rows, published", "as drawn"]]
    for one in {one.uniques: one for one in every if one.uniques}.values():
        numbers = (one.run.num_rows, one.uniques, round(expected_uniques(one.run)))
        drawn.append([str(one.run.num_tables), *(f"{number:,}" for number in numbers)])
    print("\n" + text_table(drawn, ">>>>", "  "))
    print("\n" + report(every))
    print("\nA GPU that its source does not name, not fitted:\n\n" + compare_other_gpu(truth))
    if args.timed:
        print("\nTimed by ourselves, not fitted:\n\n" + timed_cases(args.timed))


if __name__ == "__main__":
    main()
