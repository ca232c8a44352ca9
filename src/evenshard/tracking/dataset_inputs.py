"""Cost datasets as MLflow inputs: name, hash, columns and origin; the rows stay in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenshard.tracking.tags import COSTS_DVC_MD5, COSTS_SHA256, HARDWARE, costs_tags

DIGEST_LENGTH = 36
"""MLflow keeps no longer digest; the whole hash stands in a tag."""


def describe_costs(path: Path, context: str) -> dict[str, Any]:
    """A cost dataset as JSON.

    Args:
        context: benchmark, training or evaluation.

    Raises:
        BadFile: if it cannot be read.
    """
    import pyarrow.parquet as pq

    tags = costs_tags([path])
    schema, rows = pq.read_schema(path), pq.read_metadata(path).num_rows
    return {
        "name": "/".join(path.parts[-2:]),
        "sha256": tags[COSTS_SHA256],
        "dvc_md5": tags[COSTS_DVC_MD5],
        "hardware": tags[HARDWARE],
        "path": path.as_posix(),
        "num_rows": rows,
        "columns": {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
        "context": context,
    }


def dataset_input(described: Mapping[str, Any]) -> Any:
    """MLflow's entity of what ``describe_costs`` says."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=described["name"],
        digest=described["sha256"][:DIGEST_LENGTH],
        source_type="local",
        source=json.dumps({"uri": described["path"]}),
        schema=json.dumps({"mlflow_colspec": [_column(*one) for one in described["columns"].items()]}),
        profile=json.dumps({"num_rows": described["num_rows"], "hardware": described["hardware"]}),
    )
    tags = [
        InputTag("mlflow.data.context", described["context"]),
        InputTag(COSTS_SHA256, described["sha256"]),
        InputTag(COSTS_DVC_MD5, described["dvc_md5"]),
    ]
    return DatasetInput(dataset, tags)


def _column(name: str, kind: str) -> dict[str, Any]:
    if kind.startswith("list"):
        return {"name": name, "type": "array", "items": {"type": "string"}, "required": True}
    return {"name": name, "type": {"int64": "long", "double": "double"}.get(kind, "string"), "required": True}
