"""TorchRec's table configurations as records: what their fields are called here, and which of them change nothing.

A record is what ``dataclasses.asdict`` makes of an ``EmbeddingBagConfig`` or an ``EmbeddingConfig``, or its JSON, where
types and poolings are texts such as "DataType.FP16", "FP16" and "PoolingType.MEAN".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenshard.tables.assumptions import Assumption
from evenshard.tables.table import SEQUENCE

# evenshard's names of TorchRec's data types, where they are others.
DATA_TYPE_OF = {"UINT8": "int8", "NFP8": "fp8"}
_NO_TIME = "initial weights take no time of a step"
# Fields that change nothing in an answer, and why.
UNUSED_FIELDS = {
    "weight_init_max": _NO_TIME,
    "weight_init_min": _NO_TIME,
    "init_fn": _NO_TIME,
    "num_embeddings_post_pruning": "all rows are placed, as in training",
    "need_pos": "weights by position are not timed",
    "input_dim": "rows and lookups are those of the table",
    "total_num_buckets": "rows are cut into equal blocks, not at buckets",
    "use_virtual_table": "all rows count as memory of a device",
    "virtual_table_eviction_policy": "rows stay where they are",
    "enable_embedding_update": "updates from outside are not timed",
    "stash_weights": "weights count as memory of a device all the time",
}


def is_config(record: Mapping[Any, Any]) -> bool:
    """Whether a record is a configuration of TorchRec: it has fields that only those have."""
    return "num_embeddings" in record and any(name in record for name in UNUSED_FIELDS)


def implied_pooling(record: Mapping[Any, Any]) -> str | None:
    """The pooling that a configuration does not state: an ``EmbeddingConfig`` has none, its table holds sequences."""
    return SEQUENCE if is_config(record) and "pooling" not in record else None


def unused_in(table: str, record: Mapping[Any, Any]) -> Iterator[Assumption]:
    """What a configuration says and the answer does not use; ``init_fn`` is always set."""
    if implied_pooling(record) is not None:
        yield Assumption(table, "pooling", f"{SEQUENCE}, as of an EmbeddingConfig: TorchRec's fields, and no pooling")
    for name, why in UNUSED_FIELDS.items():
        if name != "init_fn" and record.get(name) not in (None, "", False, "False"):
            yield unused_field(table, name, why)


def unused_field(table: str, name: str, why: str) -> Assumption:
    """The note that a configuration sets a field in vain."""
    return Assumption(table, name, f"it changes nothing in the answer: {why}")
