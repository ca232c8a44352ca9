"""Fields of TorchRec's configurations that change nothing in an answer, named where they are set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

from evenshard.planner.torchrec.modules import LocatedTable
from evenshard.tables.assumptions import Assumption
from evenshard.tables.torchrec_configs import UNUSED_FIELDS, unused_field

USED_FIELDS = ("num_embeddings", "embedding_dim", "name", "data_type", "feature_names", "pooling")
"""Fields of which ``tables_of`` makes a table."""
TIMED_TYPES = ("FP32", "FP16")
"""Data types with measured times; the others are timed by their bits."""


def unused_settings(located: Sequence[LocatedTable]) -> Iterator[Assumption]:
    """What the tables' configurations say and the answer does not use."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    for one in located:
        config = one.config
        if config.data_type.value not in TIMED_TYPES:
            yield Assumption(one.name, "data_type", f"{config.data_type.value} is timed by its bits alone")
        if getattr(getattr(config, "pooling", None), "value", "") == "MEAN":
            yield Assumption(one.name, "pooling", "MEAN is timed as SUM is")
        if isinstance(one.collection, EmbeddingBagCollection) and one.collection.is_weighted():
            text = "weights of lookups are exchanged with them; the kernel is timed without"
            yield Assumption(one.name, "is_weighted", text)
        for name in changed_fields(config):
            if name not in USED_FIELDS:
                why = UNUSED_FIELDS.get(name, "evenshard does not know it")
                yield unused_field(one.name, name, why)


def changed_fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass of TorchRec that are not as they are by default, with their values."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default and not (one.name == "init_fn" and _is_usual(value)):
            found[one.name] = value
    return found


def _is_usual(init_fn: Any) -> bool:
    """Whether weights begin as TorchRec lets them where nothing is given."""
    from torch import nn

    return isinstance(init_fn, partial) and init_fn.func is nn.init.uniform_
