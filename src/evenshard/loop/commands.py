"""Arguments of the commands and pipelines other than the stages of the loop."""

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
    """Origin of measured shards, which their file lacks.

    Raises:
        BadConfig: if a value is invalid.
    """

    hardware: str = knob(REQUIRED, "hardware that they were measured on, such as 'cuda: NVIDIA H200'")
    batch_size: int = knob(REQUIRED, "samples of one step")
    weight_bits: int = knob(32, "4, 8, 16 or 32 per weight")
    optimizer: str = knob("sgd", "optimizer of the backward passes")

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
    """Traces of one training, and the placement to compare them with."""

    traces: tuple[Path, ...] = knob(REQUIRED, ".json, .json.gz, or an archive of several (.tar.gz)", flag="TRACE")
    placement: Path | None = knob(
        None,
        "compare with what evenshard predicts: placement.json, evenshard's TorchRec plan (with --tables), or a table "
        "file",
    )
    tables: Path | None = knob(None, "table file of a TorchRec plan")
    model: str | None = knob(None, "predicts for a plan or a table file (default: the device model of the GPU)")
    columns: Mapping[str, str] | None = knob_field("columns")


@dataclass(frozen=True)
class PromoteInputs:
    """Models to compare, and the held-out tasks of the comparison."""

    candidate: str | None = knob(
        None,
        "models:/evenshard-cost/7, or a folder such as work/round_3, which is registered if it wins (default: the "
        "newest version of evenshard-cost)",
    )
    tables: Path = knob(Path("work/tables.parquet"), "the pool")
    tasks: Path = knob(Path("work/tasks.json"), "its test tasks are held out")
    costs: tuple[Path, ...] = knob((), "cost datasets of earlier runs: their controls show the noise between runs")
    tolerance_pct: float = knob(
        1.0, "largest slowdown that counts as equally fast, with 95 % confidence", range=NOT_NEGATIVE, metavar="PCT"
    )


@dataclass(frozen=True)
class DriftRequest:
    """Today's tables and the tolerated drift; section ``drift`` of a pipeline."""

    batch_size: int | None = knob(
        None,
        "samples of a step over all devices (default: that of the placement, else the largest of the training data)",
    )
    num_devices: int | None = knob(
        None, "devices that the tables live on (default: those of the placement, else any)", flag="--devices"
    )
    embedding_dim: int | None = knob_field("embedding_dim")
    default_pooling_factor: float = knob_field("default_pooling_factor")
    columns: Mapping[str, str] | None = knob_field("columns")
    tolerated_pct: float = knob(
        5.0,
        "part of the load that may lie outside of the training data, and of the tables that may be rare there",
        range=NOT_NEGATIVE,
        metavar="PCT",
    )


@dataclass(frozen=True)
class WatchConfig:
    """Move of a running training; section ``watch`` of a pipeline."""

    steps: int = knob(100_000, "training steps that are still to come", range=COUNT_OR_NONE)
    restart_minutes: float = knob(
        10.0, "minutes that the training stands still for a move, on top of the transfer", range=NOT_NEGATIVE
    )
    link_gb_s: float | None = knob(
        None, "GB per second that a device sends and receives (default: the link of the machine)", range=POSITIVE
    )
    surely: bool = knob(True, "a move must pay by the lower end of the 90 % interval, and not only as predicted")

    def __post_init__(self) -> None:
        check_knobs(self, "watch.")
