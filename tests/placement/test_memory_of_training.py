"""The peak memory of real training on two ranks, within 10 % of its prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
if not Path("/proc/self/clear_refs").exists():
    pytest.skip("the kernel tells no peak of resident memory", allow_module_level=True)

from evenshard.placement.memory import WORKSPACE_BYTES, PartMemory, moments, part_memory, sample_memory
from evenshard.torchrec import dense_bytes
from support.memory_training import Setting, measured_peaks, model_of, placed

MIXED = Setting(
    ("table_wise", "column_wise", "table_wise", "data_parallel"),
    60_000,
    10,
    32_768,
    "exact_row_wise_adagrad",
    "none",
    4,
)
ROWS = Setting(("row_wise", "table_wise", "table_wise"), 60_000, 20, 32_768, "exact_sgd", "sparse_dist", 1)


def predicted_peak(setting: Setting, rank: int) -> int:
    """With what only CPUs take.

    gloo copies what it scatters and gathers of parts in rows. FBGEMM sorts the lookups of one table after the other: 6
    bytes of each one stay until the end, and 12 while its table is sorted.
    """
    model = model_of(setting)
    tables, parts = placed(setting, model)
    by_name, fused = (
        {table.name: table for table in tables},
        {"exact_sgd": "sgd"}.get(setting.optimizer, "rowwise_adagrad"),
    )
    mine = [part for part in parts if rank in part.devices]
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
    held = sum(sizes, PartMemory())
    sorted_lookups = [
        size.workspace / WORKSPACE_BYTES for part, size in zip(mine, sizes, strict=True) if len(part.devices) == 1
    ]
    gloo = sum(size.outputs for part, size in zip(mine, sizes, strict=True) if part.rows.size < setting.rows)
    at = moments(held._replace(workspace=round(6 * sum(sorted_lookups) + 12 * max(sorted_lookups))), own)
    peak = max(size + gloo * (name in ("outputs are sent", "gradients are sent")) for name, size in at.items())
    return held.lasting_bytes + own.inputs + dense_bytes(model, "adam") + peak


@pytest.mark.slow
@pytest.mark.parametrize("setting", [MIXED, ROWS], ids=["every way but rows", "rows, inputs of three batches"])
def test_the_peak_of_real_training_is_within_10_percent(setting: Setting, tmp_path: Path) -> None:
    for rank, measured in enumerate(measured_peaks(setting, tmp_path)):
        assert measured > 80 * 1024**2
        assert predicted_peak(setting, rank) == pytest.approx(measured, rel=0.1)
