"""Predicted training steps beside published ones, and a trial of the step as the objective of the search.

    python -m benchmarks.scripts.steps
    python -m benchmarks.scripts.steps --objective

The first command places the tables of each published job and predicts its whole step (simulated). Jobs of HugeCTR train
with its own placement and collectives, and overlap more than TorchRec does. The published times are those of the logs:
the time between two evaluations, divided by its steps.

The second command searches ShardBench's cells with known dense layers under several sets of sharding types. It counts
the cells in which the plan with the fastest step beats the step of the plan with the least embedding time by more than
1 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import evenshard
from benchmarks.shardbench.cases import SEQUENCE_MODELS, Cell, cells
from evenshard.base.errors import InfeasibleTask
from evenshard.base.messages import text_table
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.planner.what_if.machines import build_machine
from evenshard.report.answer import PlacementAnswer
from evenshard.tables.table import Table

MLPERF = {"communication": ["fp16"], "weight_bits": 16, "optimizer": "rowwise_adagrad"}
# The dense optimizer is AdaGrad, too, so replicas are allowed.
MLPERF |= {"dense_optimizer": "rowwise_adagrad"}
# meta-pytorch/torchrec, distributed/benchmark/yaml/sparse_data_dist_base.yml with TestOverArchLarge, 32,768 samples a
# rank. Layer norms and the regrouping of outputs are left out.
TORCHREC_DENSE = {
    "dtype": "fp32",
    "layers": [[1, 100, 128], [1, 128, 1024], [1, 1024, 128], [1, 46208, 1024], *[[1, 1024, 1024]] * 5],
}
SAMPLES_OF_RANK = 32_768


def torchrec_tables() -> list[Table]:
    """Return the 172 tables of TorchRec's benchmark; MEAN is timed like SUM."""
    plain = [Table(f"table_{number}", 100_000, 256, 30.0, module="ebc") for number in range(90)]
    weighted = [Table(f"weighted_{number}", 100_000, 256, 30.0, module="wec", is_weighted=True) for number in range(80)]
    half = Table("FP16_table", 100_000, 512, 30.0, module="ebc", weight_bits=16)
    return [*plain, *weighted, half, Table("large_table", 1_000_000, 2048, 30.0, module="ebc")]


def torchrec_knobs(tables: Sequence[Table]) -> Mapping[str, Any]:
    """Return the knobs of TorchRec's benchmark: table-wise, with one column-wise table."""
    types = {table.name: "table_wise" for table in tables} | {"large_table": "column_wise"}
    return {"table_types": types, "dense": TORCHREC_DENSE, "optimizer": "sgd", "memory_cap_gb": 185}


@dataclass(frozen=True)
class PublishedStep:
    """A published training step."""

    job: str
    hardware: str
    num_devices: int
    batch_size: int
    measured_ms: float
    source: str


STEPS = (
    PublishedStep("mlperf_dlrm_v2", "h100", 8, 55_296, 3.315, "MLPerf v4.1, ASUSTeK ESC_N8_E11"),
    PublishedStep("mlperf_dlrm_v2", "b200", 8, 55_296, 2.150, "MLPerf v5.0, 8 x B200"),
    PublishedStep("mlperf_dlrm_v2", "h100", 64, 135_168, 2.935, "MLPerf v3.0, dgxh100_n8: 4.552 s, 1,551 steps"),
    PublishedStep("mlperf_dlrm_v2", "h100", 128, 135_168, 2.953, "MLPerf v3.0, dgxh100_n16: 4.58 s, 1,551 steps"),
    PublishedStep("mlperf_dlrm_v2", "h100", 128, 135_168, 1.940, "MLPerf v3.1, eos_n16: 3.01 s, 1,551 steps"),
    PublishedStep("mlperf_dlrm_v2", "h100", 128, 135_168, 1.825, "MLPerf v4.0, eos_n16: 2.83 s, 1,551 steps"),
    PublishedStep("torchrec", "b200", 8, SAMPLES_OF_RANK * 8, 343.7, "meta-pytorch/torchrec issue 4712"),
    PublishedStep("torchrec", "b200", 8, SAMPLES_OF_RANK * 8, 327.4, "the same, without gradients of lookup weights"),
    PublishedStep("torchrec", "b200", 2, SAMPLES_OF_RANK * 2, 323.1, "PR 3845, 2 x GB200"),
    PublishedStep("torchrec", "h100", 2, SAMPLES_OF_RANK * 2, 568.7, "PR 4066, unnamed GPUs of 96 GB"),
    PublishedStep("torchrec", "a100_80gb", 2, SAMPLES_OF_RANK * 2, 837.8, "PR 3580, unnamed GPUs of 80 GB"),
    PublishedStep("primus", "b200", 8, 8_192, 335.7, "AMD-AGI/Primus-DLRM, fits the passes of attention"),
)


def place_job(step: PublishedStep) -> PlacementAnswer:
    """Place the tables of a published job."""
    machine = build_machine(f"simulated:{step.hardware}", step.num_devices)
    shared = {"hardware": step.hardware, "batch_size": step.batch_size, "inter": machine.inter}
    if step.job == "torchrec":
        tables = torchrec_tables()
        return evenshard.place(tables, step.num_devices, **shared, **torchrec_knobs(tables))
    knobs = MLPERF if step.job == "mlperf_dlrm_v2" else {"optimizer": "adam"}
    return evenshard.place(step.job, step.num_devices, **shared, **knobs)


def print_steps() -> None:
    """Print the predicted and the measured step of each published job."""
    rows = [("job", "GPUs", "batch", "measured, ms", "predicted", "ratio", "90 %", "inside", "source")]
    for step in STEPS:
        found = place_job(step).step
        assert found is not None, "the hardware has a device model"
        inside = found.low_ms <= step.measured_ms <= found.high_ms
        rows.append(
            (
                *(step.job, f"{step.num_devices} x {step.hardware}", f"{step.batch_size:,}", f"{step.measured_ms:.4g}"),
                *(f"{found.total_ms:.4g}", f"{found.total_ms / step.measured_ms:.2f}"),
                *(f"{found.low_ms:.4g} to {found.high_ms:.4g}", "yes" if inside else "no", step.source),
            )
        )
    print(text_table(rows, "<>>>>>><<"))


# The objective --------------------------------------------------------------------------------------------------------

GPUS, DEVICES, WORTH_PCT = ("h100", "h200", "a100_80gb", "b200"), (8, 16, 64, 128), 1.0
WITHOUT_REPLICAS = tuple(name for name in SHARDING_TYPES if name != "data_parallel")
KINDS = (
    (),
    WITHOUT_REPLICAS,
    ("table_wise", "column_wise", "data_parallel"),
    ("table_wise", "row_wise", "data_parallel"),
)


def plans_of(cell: Cell) -> Iterator[PlacementAnswer]:
    """Yield plans of a cell with different sets of sharding types; two seeds of the full set."""
    for types, seed in [*((types, 0) for types in KINDS), ((), 1)]:
        machine = cell.machine
        try:
            yield evenshard.place(
                cell.model, cell.devices, hardware=cell.gpu, batch_size=machine.batch_size, inter=machine.nodes.inter,
                optimizer="rowwise_adagrad", sharding_types=types, seed=seed,
            )  # fmt: skip
        except InfeasibleTask:
            continue


def print_objective() -> None:
    """Print the gain of the best plan by step in each cell, and count the cells in which it matters."""
    rows = [("model", "GPUs", "embedding work, ms", "step, ms", "best step, ms", "gain, %")]
    gains = []
    for cell in cells(("mlperf_dlrm_v2", *SEQUENCE_MODELS), GPUS, DEVICES):
        plans = [(plan.predicted_ms, plan.step.total_ms) for plan in plans_of(cell) if plan.step is not None]
        if not plans:
            continue
        (embeddings_ms, step_ms), best_ms = min(plans), min(total for _, total in plans)
        gains.append(100 * (1 - best_ms / step_ms))
        numbers = (f"{embeddings_ms:.3f}", f"{step_ms:.3f}", f"{best_ms:.3f}", f"{gains[-1]:.2f}")
        rows.append((cell.model, f"{cell.devices} x {cell.gpu}", *numbers))
        print(*rows[-1], flush=True)
    print(text_table(rows, "<>>>>>"))
    print(
        f"{sum(gain > WORTH_PCT for gain in gains)} of {len(gains)} cells gain more than {WORTH_PCT:g} % of the step."
    )


def main() -> None:
    """Print the steps, or the trial of the objective."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--objective", action="store_true", help="try the step as the objective of the search")
    print_objective() if parser.parse_args().objective else print_steps()


if __name__ == "__main__":
    main()
