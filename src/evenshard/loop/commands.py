"""Arguments of commands and pipelines that are not stages of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import COUNT_OR_NONE, NOT_NEGATIVE, POSITIVE, REQUIRED, check_knobs, knob
from evenshard.planner.knobs import knob_field
from evenshard.price.hardware import provenance_problem


@dataclass(frozen=True)
class ImportCostsConfig:
    """Facts about imported shards that their file does not contain.

    Raises:
        BadConfig: if a value is invalid.
    """

    hardware: str = knob(REQUIRED, "hardware of the measurements, such as 'cuda: NVIDIA H200'")
    batch_size: int = knob(REQUIRED, "batch size, samples")
    weight_bits: int = knob(32, "bits per weight: 4, 8, 16 or 32")
    optimizer: str = knob("sgd", "optimizer of the measured backward passes")

    def __post_init__(self) -> None:
        from evenshard.placement.memory import optimizer_problem
        from evenshard.tables.table import check_weight_bits

        if problem := provenance_problem(self.hardware):
            raise BadConfig(f"{problem}. Write it as 'cuda: RTX 2080 Ti'.")
        check_knobs(self)
        if problem := optimizer_problem(self.optimizer):
            raise BadConfig(f"{problem}. Choose one of these.")
        check_weight_bits(self.weight_bits)


@dataclass(frozen=True)
class ObserveInputs:
    """Traces of one training job, and the placement to compare them with."""

    traces: tuple[Path, ...] = knob(
        REQUIRED, "trace of a rank (.json, .json.gz), or an archive of several (.tar.gz)", flag="TRACE"
    )
    placement: Path | None = knob(
        None,
        "compare with evenshard's prediction for this placement.json, TorchRec plan of evenshard (with --tables), or "
        "table file",
    )
    tables: Path | None = knob(None, "table file of a TorchRec plan")
    model: str | None = knob(None, "model that predicts for a plan or a table file (default: device model of the GPU)")
    columns: Mapping[str, str] | None = knob_field("columns")


@dataclass(frozen=True)
class PromoteInputs:
    """Models to compare, and the held-out tasks of the comparison."""

    candidate: str | None = knob(
        None,
        "model to promote: models:/evenshard-cost/7, or a folder such as work/round_3, registered if it wins (default: "
        "newest version of evenshard-cost)",
    )
    tables: Path = knob(Path("work/tables.parquet"), "table pool of the tasks")
    tasks: Path = knob(Path("work/tasks.json"), "tasks; both models place the test tasks")
    costs: tuple[Path, ...] = knob((), "cost datasets of earlier runs; their controls show the noise between runs")
    tolerance_pct: float = knob(
        1.0, "largest slowdown that counts as equally fast, with 95 % confidence", range=NOT_NEGATIVE, metavar="PCT"
    )


@dataclass(frozen=True)
class DriftRequest:
    """Settings for comparing today's tables with a model's training data; section ``drift`` of a pipeline."""

    batch_size: int | None = knob(
        None, "global batch size, samples (default: that of the placement, else the largest in the training data)"
    )
    num_devices: int | None = knob(
        None, "number of devices (default: that of the placement, else not checked)", flag="--devices"
    )
    embedding_dim: int | None = knob_field("embedding_dim")
    default_pooling_factor: float = knob_field("default_pooling_factor")
    columns: Mapping[str, str] | None = knob_field("columns")
    tolerated_pct: float = knob(
        5.0,
        "tolerated share of the load outside the training range, and of tables that are rare in the training data",
        range=NOT_NEGATIVE,
        metavar="PCT",
    )


@dataclass(frozen=True)
class WatchConfig:
    """Settings for deciding whether to move a running training job; section ``watch`` of a pipeline."""

    steps: int = knob(100_000, "remaining training steps", range=COUNT_OR_NONE)
    restart_minutes: float = knob(10.0, "downtime of a move besides the transfer, minutes", range=NOT_NEGATIVE)
    link_gb_s: float | None = knob(
        None, "bandwidth of a device in each direction, GB/s (default: the machine's link)", range=POSITIVE
    )
    surely: bool = knob(True, "move only if the lower end of the 90 % interval of the saving pays for it")

    def __post_init__(self) -> None:
        check_knobs(self, "watch.")
