"""The input of the pipeline ``place``: arguments of ``evenshard.place``, as a section of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evenshard.kubeflow.retry import tried_again
from evenshard.planner import api
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.rivals import HEURISTICS
from evenshard.utils.params import section


@dataclass(frozen=True)
class PlaceRequest:
    """Section ``place``; see ``evenshard.place`` for what its arguments mean."""

    num_devices: int = 8
    memory_cap_gb: float | tuple[float, ...] = 64.0
    batch_size: int = api.DEFAULT_BATCH_SIZE
    hardware: str = api.DEFAULT_HARDWARE
    optimizer: str = "sgd"
    reserved_gb: float = 0.0
    pinned: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    forbidden: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    forbidden_devices: tuple[int, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    allow_column_split: bool = False
    embedding_dim: int | None = None
    weight_bits: int | None = None
    default_pooling_factor: float = 1.0
    seed: int = 0


@tried_again
def place_tables(tables: str, model: str | None, request: Mapping[str, Any]) -> PlacementAnswer:
    """Places tables, and compares with the heuristics.

    Args:
        tables: path or S3 address of a table file, folder of traffic or DLRM batch file.
        model: a model's folder, here or on S3, or its MLflow URI; None for the one that comes with evenshard.
        request: fields of ``PlaceRequest``.

    Raises:
        BadInput: if something of that cannot be used.
        InfeasibleTask: if there is no legal placement.
    """
    asked = section({"place": dict(request)}, "place", PlaceRequest)
    return api.place(tables, model=model, compare=HEURISTICS, **asdict(asked))
