"""The kernels of H100 and H200 as they were measured, against the profiles; and the measuring itself, on the CPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.scripts.fit_devices import relative_errors
from benchmarks.scripts.fit_gpu_kernels import OPTIMIZERS, Calls, calls_of, halves, times_us
from evenshard.measure.calibrate.device import Errors
from evenshard.price.device_model import KERNELS
from evenshard.price.gpu_profile import gpu_profile
from support.dvc_store import stored

pytestmark = pytest.mark.nightly


def measured(name: str) -> tuple[Calls, ...]:
    path = stored(f"kernels/{name}.jsonl.gz")
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return tuple(calls_of(gpu_profile(name[:4]), lines, OPTIMIZERS))


def errors_of(profile: str, calls: Sequence[Calls], kernels: Sequence[str] = KERNELS) -> Errors:
    predicted, true = zip(*(times_us(gpu_profile(profile), one, kernels) for one in calls), strict=True)
    return relative_errors(np.concatenate(predicted), np.concatenate(true))


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_stated_errors_cover_the_calls_that_judge(name: str) -> None:
    for calls in measured(name):
        optimizer = calls.shards.optimizer
        judges = calls if (name, optimizer) == ("h200", "adam") else halves(calls)[1]  # no fit used its calls of Adam
        lookups, times = judges.shards.work.lookups, times_us(gpu_profile(name), judges, KERNELS)
        for row in gpu_profile(name).evidence:
            if row.optimizers == (optimizer,) and row.lookups:
                some = (lookups >= row.lookups[0] - 1) & (lookups <= row.lookups[1] + 1)
                found = Errors.of(*(one[some] for one in times)).p90_percent
                assert found <= row.p90_error_percent + 0.3 and some.sum() <= row.held_out, row
                assert optimizer != "adam" or some.sum() == row.held_out  # only calls were timed


def test_another_card_takes_as_long() -> None:
    calls = measured("h100_second")
    limits = {"bounds_check": (6, 18), "lookup": (13, 33), "index": (9, 26), "sort": (6, 16), "gradient": (20, 55)}
    for kernel, (median, most) in limits.items():
        found = errors_of("h100", calls, (kernel,))
        assert found.median_percent < median and found.p90_percent < most, kernel
    found = errors_of("h100", calls)
    assert found.median_percent < 10 and found.p90_percent < 27
