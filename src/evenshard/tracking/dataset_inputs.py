"""Cost datasets as MLflow inputs: name, hash, columns and origin; the rows stay in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenshard.tracking.tags import COSTS_DVC_MD5, COSTS_SHA256, HARDWARE, costs_tags

# MLflow keeps no longer digest; the whole hash stands in a tag.
DIGEST_LENGTH = 36


def dataset_record(path: Path, context: str) -> dict[str, Any]:
    """A cost dataset as MLflow shall show it, in plain values: it can be logged when the file is gone.

    Args:
        context: benchmark, training or evaluation.

    Raises:
        BadFile: if it cannot be read.
    """
    import pyarrow.parquet as pq

    tags = costs_tags([path])
    schema = pq.read_schema(path)
    columns = [_column(name, str(kind)) for name, kind in zip(schema.names, schema.types, strict=True)]
    return {
        "dataset": {
            "name": "/".join(path.parts[-2:]),
            "digest": tags[COSTS_SHA256][:DIGEST_LENGTH],
            "source_type": "local",
            "source": json.dumps({"uri": path.as_posix()}),
            "schema": json.dumps({"mlflow_colspec": columns}),
            "profile": json.dumps({"num_rows": pq.read_metadata(path).num_rows, "hardware": tags[HARDWARE]}),
        },
        "tags": {"mlflow.data.context": context, **{key: tags[key] for key in (COSTS_SHA256, COSTS_DVC_MD5)}},
    }


def dataset_input(record: Mapping[str, Any]) -> Any:
    """MLflow's entity of such a record."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return DatasetInput(Dataset(**record["dataset"]), [InputTag(key, value) for key, value in record["tags"].items()])


def _column(name: str, kind: str) -> dict[str, object]:
    if kind.startswith("list"):
        return {"name": name, "type": "array", "items": {"type": "string"}, "required": True}
    return {"name": name, "type": {"int64": "long", "double": "double"}.get(kind, "string"), "required": True}
