"""The peak memory of real training on two ranks, within 10 % of its prediction."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
if not Path("/proc/self/clear_refs").exists():
    pytest.skip("the kernel tells no peak of resident memory", allow_module_level=True)

from evenshard.placement.memory import WORKSPACE_BYTES, PartMemory, moments, part_memory, sample_memory
from evenshard.torchrec import dense_bytes
from support.memory_training import Setting, placed, train
from support.ranks import run_ranks

WAYS = ("table_wise", "column_wise", "table_wise", "data_parallel")
MIXED = Setting(WAYS, 60_000, 10, 32_768, "exact_row_wise_adagrad", "none", 4)
ROWS = Setting(("row_wise", "table_wise", "table_wise"), 60_000, 20, 32_768, "exact_sgd", "sparse_dist", 1)


def predicted_peak(setting: Setting, rank: int) -> int:
    """With what only CPUs take.

    gloo copies what it scatters and gathers of parts in rows. FBGEMM sorts the lookups of one table after the other: 6
    bytes of each one stay until the end, and 12 while its table is sorted.
    """
    model, tables, parts = placed(setting)
    by_name, mine = {table.name: table for table in tables}, [part for part in parts if rank in part.devices]
    fused = "sgd" if setting.optimizer == "exact_sgd" else "rowwise_adagrad"
    sizes = [
        part_memory(
            part,
            by_name[part.table],
            num_devices=2,
            batch_size=setting.batch_size,
            optimizer=fused if len(part.devices) == 1 else "adam",  # the dense optimizer trains replicas
            pipeline=setting.pipeline,
        )
        for part in mine
    ]
    own = sample_memory(tables, num_devices=2, batch_size=setting.batch_size, pipeline=setting.pipeline, parts=parts)
    held, both = sum(sizes, PartMemory()), list(zip(mine, sizes, strict=True))
    lookups = [size.workspace / WORKSPACE_BYTES for part, size in both if len(part.devices) == 1]
    gloo = sum(size.outputs for part, size in both if part.rows.size < setting.rows)
    at = moments(held._replace(workspace=round(6 * sum(lookups) + 12 * max(lookups))), own)
    peak = max(size + gloo * (name in ("outputs are sent", "gradients are sent")) for name, size in at.items())
    return held.lasting_bytes + own.inputs + dense_bytes(model, "adam") + peak


def resident_bytes(what: str) -> int:
    """Of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def measured_peaks(rank: int, out: Path) -> list[int]:
    """Of a rank, above a baseline that has trained the same plan with few rows. What is freed is given back at once."""
    libc, found = ctypes.CDLL(None), []
    for option, value in ((-8, 1), (-3, 65_536), (-1, 65_536)):  # arenas, thresholds of mmap and of trimming
        libc.mallopt(option, value)
    for setting in (MIXED, ROWS):
        train(replace(setting, rows=64, batch_size=16, dense=1), rank)
        gc.collect()
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        baseline = resident_bytes("VmRSS")
        train(setting, rank)
        found.append(resident_bytes("VmHWM") - baseline)
    return found


@pytest.mark.slow
def test_the_peak_of_real_training_is_within_10_percent(tmp_path: Path) -> None:
    for rank, peaks in enumerate(run_ranks(measured_peaks, 2, tmp_path, LOCAL_WORLD_SIZE="2")):
        for setting, measured in zip((MIXED, ROWS), peaks, strict=True):
            assert measured > 80 * 1024**2
            assert predicted_peak(setting, rank) == pytest.approx(measured, rel=0.1)
