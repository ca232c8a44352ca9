"""The inputs of the component ``drift``, the flags of ``evenshard drift``; its result as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenshard.kubeflow.place_request import as_markdown
from evenshard.kubeflow.retry import with_retries
from evenshard.planner.model import learned_model_of
from evenshard.planner.options import option_field
from evenshard.stages.decisions.drift import Drift, drift_of, print_drift
from evenshard.tables.sources import tables_from
from evenshard.utils.params import section
from evenshard.utils.s3 import local


@dataclass(frozen=True)
class DriftRequest:
    """Section ``drift``.

    Attributes:
        batch_size: today's global batch, samples; None for the largest that the model was trained on.
        num_devices: devices that the tables live on; None leaves devices aside.
        embedding_dim: dim of all tables, where they come from a sample of traffic.
        default_pooling_factor: lookups per sample of tables that do not tell.
        tolerated_pct: so much of the load may lie outside of the training data, and so many of the tables may be rare
            there, per cent.
        columns: columns of the tables that are called otherwise, each with evenshard's.
    """

    batch_size: int | None = None
    num_devices: int | None = None
    embedding_dim: int | None = None
    default_pooling_factor: float = option_field("default_pooling_factor")
    tolerated_pct: float = 5.0
    columns: Mapping[str, str] | None = None


@with_retries
def drift_since(tables: str, model: str, request: Mapping[str, Any]) -> tuple[Drift, str]:
    """What has become of a model's ground, and the same in Markdown.

    Args:
        tables: path or S3 address of a table file, folder of traffic or DLRM batch file.
        model: a model's folder, here or on S3, or its MLflow URI.
        request: fields of ``DriftRequest``.

    Raises:
        BadInput: if something of that cannot be used.
    """
    asked = section({"drift": dict(request)}, "drift", DriftRequest)
    held = learned_model_of(model, None)
    batch_size = asked.batch_size or int(held.trained_on.batch_size[1])
    with local(tables, listed=True) as path:
        now = tables_from(
            path,
            batch_size,
            embedding_dim=asked.embedding_dim,
            default_pooling_factor=asked.default_pooling_factor,
            columns=asked.columns,
        )
    found = drift_of(held.trained_on, now.tables, batch_size, asked.num_devices, asked.tolerated_pct)
    return found, as_markdown(lambda file: print_drift(found, held.source, file))
