"""The kernels of H100 and H200 as they were measured, against the profiles; and the measuring itself, on the CPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.scripts import gpu_kernels
from benchmarks.scripts.fit_gpu_kernels import OPTIMIZERS, Calls, calls_of, halves, read_lines, times_us
from benchmarks.scripts.gpu_kernels import Bench, Shard, random_shard
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
    return Errors.of(np.concatenate(predicted), np.concatenate(true))


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_profiles_state_their_errors_of_the_calls_that_judge(name: str) -> None:
    stated = gpu_profile(name).evidence[0]
    fitted, held_out = zip(*map(halves, measured(name)), strict=True)
    assert sum(len(one.shards) for one in fitted) == stated.fitted
    assert sum(len(one.shards) for one in held_out) == stated.held_out
    found = errors_of(name, held_out)
    assert (found.median_percent, found.p90_percent) == pytest.approx(
        (stated.median_error_percent, stated.p90_error_percent), abs=0.3
    )


def test_another_card_takes_as_long() -> None:
    calls = measured("h100_second")
    limits = {"bounds_check": (6, 18), "lookup": (13, 33), "index": (9, 26), "sort": (6, 16), "gradient": (20, 55)}
    for kernel, (median, most) in limits.items():
        found = errors_of("h100", calls, (kernel,))
        assert found.median_percent < median and found.p90_percent < most, kernel
    found = errors_of("h100", calls)
    assert found.median_percent < 10 and found.p90_percent < 27


# Measuring -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """On the CPU, whose kernels of Adam are missing."""
    monkeypatch.setattr(gpu_kernels, "OPTIMIZERS", {"rowwise_adagrad": 0.5, "sgd": 0.5})
    for name, most in (("MAX_LOOKUPS", 2**13), ("MAX_WEIGHT_BYTES", 2**24), ("MAX_OUTPUT_BYTES", 2**22)):
        monkeypatch.setattr(gpu_kernels, name, most)
    monkeypatch.setattr(gpu_kernels, "BATCH_SIZES", (256,) * 8)
    with closing(Bench(torch.device("cpu"), tmp_path, 0)) as found:
        yield found


def test_kernels_are_checked_against_double_precision_before_anything_is_timed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu_kernels.check(bench) < 1e-5
    right = gpu_kernels.reference_step
    monkeypatch.setattr(gpu_kernels, "reference_step", lambda *of: (-right(*of)[0], right(*of)[1]))
    with pytest.raises(AssertionError, match="kernels are off by 2"):
        gpu_kernels.check(bench)


def test_a_measured_call_is_a_line_from_which_its_tables_are_made_again(bench: Bench, tmp_path: Path) -> None:
    shard = random_shard((0, 0, 0))
    bench.shard(shard)
    bench.calls([shard, shard])
    *_, line, calls = read_lines(tmp_path / "measured.jsonl")
    assert line["what"] == "shard" and Shard.of_record(line) == shard
    assert len(line["forward_ms"]) == gpu_kernels.REPEATS and min(line["backward_ms"]) > 0
    expected = sum(round(table.pooling_factor * shard.batch_size) for table in shard.tables)
    assert line["num_lookups"] == [expected]
    assert calls["what"] == "calls" and len(calls["alone_ms"]) == 2
