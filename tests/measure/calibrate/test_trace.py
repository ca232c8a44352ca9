"""Profiles fitted to traces: each term comes out of the times of its own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.cli import main
from evenshard.measure.calibrate.trace import CONSTANTS_OF_KERNEL, HOST_CONSTANTS, TracedShard, fit_to_calls, shard_of
from evenshard.measure.simulated.device_model import KERNELS, kernel_times
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, gpu_profile
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.measure.traces.fused_calls import FusedCall
from evenshard.tables.files import save_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import BadInput
from support.builders import table
from support.truth import truth_file

REAL = gpu_profile("a100_80gb")
START = replace(REAL, **{name: 1.5 * getattr(REAL, name) for name in FREE_CONSTANTS if name != "hbm_efficiency"})
BATCH = 8192


def shard(tables: Sequence[Table], optimizer: str = "rowwise_adagrad", gpu: str = "NVIDIA A100") -> TracedShard:
    """A call whose kernels take exactly what the real profile says."""
    counter = WorkCounter(REAL)
    work = counter.shard_work(counter.columns(tables, BATCH), np.zeros(len(tables), dtype=np.int64), 1)
    times = kernel_times(REAL, work, optimizer)
    call = FusedCall(
        rank=0,
        gpu=gpu,
        step=None,
        position=0,
        optimizer=optimizer,
        weighted=False,
        num_tables=len(tables),
        batch_size=BATCH,
        sum_of_dims=sum(one.embedding_dim for one in tables),
        num_lookups=round(sum(one.pooling_factor for one in tables) * BATCH),
        kernels_us={name: {f"{name} kernel": float(getattr(times, name)[0]) / 1e3} for name in KERNELS},
        forward_span_us=0.0,
        backward_span_us=0.0,
        forward_host_us=81.0,
        backward_host_us=404.0,
    )
    return TracedShard(tuple(tables), call)


def shards(count: int) -> list[TracedShard]:
    rng = np.random.default_rng(3)
    return [
        shard([
            table(f"t{number}", int(10 ** rng.uniform(2, 6)), int(rng.choice([16, 64, 128])), float(rng.uniform(1, 40)))
            for number in range(int(rng.integers(2, 40)))
        ])
        for _ in range(count)
    ]  # fmt: skip


def test_terms_come_from_their_kernels_and_unseen_shards_confirm_them() -> None:
    found = fit_to_calls(START, shards(24))
    assert (found.num_fitted, found.num_held_out, found.hardware) == (12, 12, "NVIDIA A100")
    for name in KERNELS:
        assert found.before[name].median_percent > 15 and found.after[name].median_percent < 3, name
    assert found.profile.sort_pairs_per_ns == pytest.approx(REAL.sort_pairs_per_ns, rel=0.03)
    assert found.profile.bounds_ns_per_lookup == pytest.approx(REAL.bounds_ns_per_lookup, rel=0.1)
    assert (found.profile.fwd_host_us, found.profile.bwd_host_us) == (81.0, 404.0)
    assert found.evidence.held_out == 12 and (found.evidence.median_error_percent or 0) < 3


def test_a_kernel_that_is_in_no_trace_leaves_its_constants() -> None:
    (only,) = shards(1)
    kernels = {name: of for name, of in only.call.kernels_us.items() if name != "sort"}
    found = fit_to_calls(START, [replace(only, call=replace(only.call, kernels_us=kernels))])
    assert found.num_held_out == 0 and found.evidence.held_out == 0
    for name in CONSTANTS_OF_KERNEL["sort"]:
        assert getattr(found.profile, name) == getattr(START, name) and name not in found.constants
    assert found.after["lookup"].median_percent < 1 < found.before["lookup"].median_percent
    assert "sort" not in found.after


def test_every_free_constant_but_those_of_measuring_has_a_kernel() -> None:
    covered = {name for of in CONSTANTS_OF_KERNEL.values() for name in of} | HOST_CONSTANTS.keys()
    assert set(FREE_CONSTANTS) - covered == {"fwd_overhead_us", "bwd_overhead_us", "short_call_us", "medium_call_us"}
    assert tuple(CONSTANTS_OF_KERNEL) == KERNELS


def test_calls_of_other_tables_gpus_and_optimizers_are_refused() -> None:
    first, second = shards(2)
    assert isinstance(shard_of([first.call], first.tables), TracedShard)
    assert "no unweighted call is of its" in str(shard_of([first.call], second.tables))
    assert "calls: none" in str(shard_of([replace(first.call, weighted=True)], first.tables))
    more = [replace(one, pooling_factor=one.pooling_factor * 1.5) for one in first.tables]
    assert "the tables' pooling factors make" in str(shard_of([first.call], more))
    assert "record_shapes" in str(shard_of([replace(first.call, num_tables=None)], first.tables))
    assert "no kernels of a GPU" in str(shard_of([replace(first.call, kernels_us={})], first.tables))
    with pytest.raises(BadInput, match="several GPUs"):
        fit_to_calls(START, [first, replace(second, call=replace(second.call, gpu="NVIDIA H200"))])
    with pytest.raises(BadInput, match="optimizer shampoo has no device model"):
        fit_to_calls(START, [replace(first, call=replace(first.call, optimizer="shampoo"))])


@pytest.mark.slow
def test_a_real_a100_s_trace_corrects_another_gpu_s_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """122 tables of 90,837 rows and 8,720 columns together; how they are split is not published."""
    trace = str(truth_file("traces/a100_40gb_8ranks.json.gz"))
    sizes = [(744 + (number < 69), 71 + (number < 58)) for number in range(122)]
    tables = [Table(f"t{number}", rows, dim, 15.8157) for number, (rows, dim) in enumerate(sizes)]
    save_tables(tables, tmp_path / "tables.json")
    out = tmp_path / "mine.yaml"
    argv = ["calibrate-device", "--trace", trace, "--profile", "v100", "--out", str(out)]
    assert main([*argv, "--tables", str(tmp_path / "tables.json")]) == 0
    assert "1 calls on NVIDIA A100-PG509-200 fitted" in capsys.readouterr().out
    found = gpu_profile(str(out))
    assert gpu_profile("v100").l2_gb_s < 1900 <= found.l2_gb_s <= 2100  # as published for random rows of this GPU
    assert found.sort_pairs_per_ns == pytest.approx(37, rel=0.05)
    assert found.evidence[0].held_out == 0 and found.extrapolated_from == "v100"
    save_tables(tables[:100], tmp_path / "fewer.json")
    assert main([*argv, "--tables", str(tmp_path / "fewer.json")]) == 2
    assert "calls: 122 tables of 8720 columns" in capsys.readouterr().err
    assert main(argv) == 2
    assert "--placement" in capsys.readouterr().err
    assert main(["calibrate-device", "--profile", "h200", "--out", str(out)]) == 2
    assert "--costs or --trace" in capsys.readouterr().err
