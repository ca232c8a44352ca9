"""Errors of the rules for data sheets, on GPUs that are held out from the rules.

    python -m benchmarks.scripts.gpu_rules [--truth FOLDER]

The folder has published measurements (its README names their sources), which are not part of the project. The
last line is of ``EVIDENCE`` in evenshard/price/gpu_rules.py. Errors are of logarithms, in percent: 10 is a factor of
1.105 either way.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.references import others_measurements
from benchmarks.references.rows import run_script
from benchmarks.scripts.fit_devices import (
    FITS,
    JUDGED,
    measured_points,
    published_points,
    sequence_report,
    sequence_times,
    shards_of_2080_ti,
)
from evenshard.base.messages import text_table
from evenshard.measure.calibrate.device import SHARD_TIMES, MeasuredShards, predict_times
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.gpu_rules import FITTED, HOST_SHARE, constants_by_rules, speed_of
from evenshard.tables.reuse import FloatArray

GPUS = ("rtx_2080_ti", "v100", "a100_80gb", *FITTED, "b200")
SHARDS_OF = 20  # every 20th shard of the RTX 2080 Ti is used
SEQUENCES, ALPHA = "sequences", 1.05  # kernels of a step on the B200, rows by a power law
TIMES = (*SHARD_TIMES, SEQUENCES)
# Alternative definitions of the speed of a GPU.
SPEEDS: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "SMs x clock x L1, the rule": speed_of,
    "SMs x root of (clock x L1)": lambda gpu: gpu["num_sms"] * math.sqrt(gpu["clock_ghz"] * gpu["l1_kb"]),
    "SMs x clock x root of L1": lambda gpu: gpu["num_sms"] * gpu["clock_ghz"] * math.sqrt(gpu["l1_kb"]),
    "SMs x clock": lambda gpu: gpu["num_sms"] * gpu["clock_ghz"],
    "SMs": lambda gpu: gpu["num_sms"],
    "memory bandwidth": lambda gpu: gpu["hbm_gb_s"],
    "root of SMs x clock x memory bandwidth": lambda gpu: math.sqrt(
        gpu["num_sms"] * gpu["clock_ghz"] * gpu["hbm_gb_s"]
    ),
    "no speed: all constants as they are": lambda gpu: 1.0,
}


@dataclass(frozen=True)
class Held:
    """Ratios of predicted to measured times of a GPU that the rules did not see, by kind of time."""

    ratios: Mapping[str, FloatArray]

    @property
    def errors(self) -> FloatArray:
        """Return all errors as percent of the logarithm."""
        return 100 * np.abs(np.log(np.concatenate(list(self.ratios.values()))))


def profile_by_rules(name: str, speed: Callable[[Mapping[str, float]], float] = speed_of) -> GpuProfile:
    """Return the profile of a GPU by rules that were learned without it."""
    known = {one: numbers_of(gpu_profile(one)) for one in FITTED if one != name}
    profile = gpu_profile(name)
    sheet = numbers_of(profile) | {"pcie_gb_s": profile.host_gb_s / HOST_SHARE}
    constants, _ = constants_by_rules(sheet, known, speed)
    constants["warps_per_sm"] = profile.warps_per_sm  # a data sheet says it
    return replace(profile, **constants)


def numbers_of(profile: GpuProfile) -> dict[str, float]:
    """Return all constants of a profile."""
    return {name: value for name, value in asdict(profile).items() if isinstance(value, float)}


def read_measured(truth: Path) -> dict[str, list[MeasuredShards]]:
    """Read the measurements of each GPU except the B200."""
    points = published_points(truth)
    found = {"rtx_2080_ti": [shards_of_2080_ti(truth, gpu_profile("rtx_2080_ti"))]}
    few = np.arange(len(found["rtx_2080_ti"][0])) % SHARDS_OF == 0
    found["rtx_2080_ti"] = [found["rtx_2080_ti"][0].select(few)]
    for name in GPUS:
        gpus = JUDGED.get(name) or (FITS[name].gpus if name in FITS else ())
        if gpus:
            own = [one for one in points if one.gpu in gpus and not one.is_older_kernel]
            found[name] = measured_points(gpu_profile(name), own)
    return found


def held_out(
    measured: Mapping[str, list[MeasuredShards]],
    truth: Path,
    speed: Callable[[Mapping[str, float]], float] = speed_of,
) -> dict[str, Held]:
    """Predict each GPU by the rules of all other GPUs."""
    found = {}
    for name in GPUS:
        profile = profile_by_rules(name, speed)
        ratios: dict[str, list[FloatArray]] = defaultdict(list)
        for shards in measured.get(name, ()):
            predicted_NM = predict_times(profile, shards.work, shards.optimizer)
            for column, time in enumerate(SHARD_TIMES):
                known_N = np.isfinite(shards.times_ms_NM[:, column])
                ratios[time].append(predicted_NM[known_N, column] / shards.times_ms_NM[known_N, column])
        if name == "b200":
            times = sequence_times(truth, profile)
            ratios[SEQUENCES].append(np.array([times.by_alpha_ms[ALPHA] / times.measured_ms]))
        found[name] = Held({time: own for time, parts in ratios.items() if len(own := np.concatenate(parts))})
    return found


def of_all(held: Mapping[str, Held]) -> tuple[float, float]:
    """Return the median and 90th percentile of all errors, with equal weight for each GPU."""
    errors = np.concatenate([one.errors for one in held.values()])
    weights = np.concatenate([np.full(len(one.errors), 1 / len(one.errors)) for one in held.values()])
    order = np.argsort(errors)
    shares = np.cumsum(weights[order]) / weights.sum()
    median, most = (float(errors[order][np.searchsorted(shares, share)]) for share in (0.5, 0.9))
    return median, most


def kernel_report(held: Mapping[str, Held]) -> str:
    """Format the errors by GPU and kernel."""
    lines = [["GPU", "time", "points", "median ratio", "median error, %", "90 %"]]
    for name, one in held.items():
        for time in sorted(one.ratios, key=TIMES.index):
            own = one.ratios[time]
            errors = 100 * np.abs(np.log(own))
            lines.append([name, time, str(len(own)), f"{np.median(own):.2f}", *_percents(errors)])
        lines.append([name, "all", str(len(one.errors)), "", *_percents(one.errors)])
    for time in (time for time in TIMES if sum(time in one.ratios for one in held.values()) > 1):
        own = np.concatenate([one.ratios[time] for one in held.values() if time in one.ratios])
        errors = 100 * np.abs(np.log(own))
        lines.append(["all", time, str(len(own)), f"{np.median(own):.2f}", *_percents(errors)])
    return text_table(lines, "<<>>>>", "  ")


def _percents(errors: FloatArray) -> list[str]:
    return [f"{one:.0f}" for one in np.percentile(errors, [50, 90])]


def speed_report(measured: Mapping[str, list[MeasuredShards]], truth: Path) -> str:
    """Format the mean errors of each GPU for each definition of speed."""
    lines = [["speed", *GPUS, "all"]]
    for name, speed in SPEEDS.items():
        means = [float(one.errors.mean()) for one in held_out(measured, truth, speed).values()]
        lines.append([name, *(f"{mean:.0f}" for mean in (*means, np.mean(means)))])
    return text_table(lines, "<" + ">" * (len(GPUS) + 1), "  ")


def main() -> None:
    """Print all reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--truth", type=Path, default=others_measurements.default_folder(), help="folder of the files")
    truth = parser.parse_args().truth
    measured = read_measured(truth)
    held = held_out(measured, truth)
    print(kernel_report(held), sequence_report(truth), speed_report(measured, truth), sep="\n\n", end="\n\n")
    count = sum(len(one.errors) for one in held.values())
    print("EVIDENCE: {} points, median and 90 % {:.1f} and {:.1f}".format(count, *of_all(held)))


if __name__ == "__main__":
    run_script(main)
