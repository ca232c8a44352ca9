"""Every field of TorchRec's configurations makes a table what it is, or is named as one that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
from torch import nn
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    NoEvictionPolicy,
    PoolingType,
)

from evenshard.tables.records import UNUSED_FIELDS
from evenshard.torchrec import tables_of
from evenshard.torchrec.model.tables import USED_FIELDS, list_changed_fields, table_set_of

# Each field, set to something else.
SET: dict[str, Any] = {
    "num_embeddings": 99,
    "embedding_dim": 12,
    "name": "other",
    "data_type": DataType.FP16,
    "feature_names": ["a", "b"],
    "pooling": PoolingType.MEAN,
    "weight_init_max": 0.5,
    "weight_init_min": -0.5,
    "num_embeddings_post_pruning": 5,
    "init_fn": nn.init.zeros_,
    "need_pos": True,
    "input_dim": 1000,
    "total_num_buckets": 4,
    "use_virtual_table": True,
    "virtual_table_eviction_policy": NoEvictionPolicy(),
    "enable_embedding_update": True,
    "stash_weights": True,
}
PLAIN = {
    kind: kind(name="plain", feature_names=["plain"], num_embeddings=50, embedding_dim=8)
    for kind in (EmbeddingBagConfig, EmbeddingConfig)
}


def named(*configs: Any) -> dict[str, str]:
    """The settings that the answer names, besides lookups and reuse."""
    found = table_set_of(list(configs)).assumptions
    return {one.column: one.text for one in found if one.column not in ("pooling_factor", "reuse_bins")}


def test_every_field_is_known() -> None:
    names = {one.name for kind in PLAIN for one in fields(kind)}
    assert names <= set(SET) and names <= set(USED_FIELDS) | set(UNUSED_FIELDS)
    assert not set(USED_FIELDS) & set(UNUSED_FIELDS)


@pytest.mark.parametrize("kind", PLAIN)
def test_every_field_changes_the_table_or_is_named(kind: type) -> None:
    for name in (one.name for one in fields(kind)):
        before, after = PLAIN[kind], replace(PLAIN[kind], **{name: SET[name]})
        assert name in list_changed_fields(after)
        assert (tables_of([after]) != tables_of([before])) is (name in USED_FIELDS), name
        assert name in USED_FIELDS or named(after)[name].startswith("ignored: ")


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_configuration_says_nothing_in_vain(kind: type) -> None:
    assert named(PLAIN[kind]) == named(replace(PLAIN[kind], num_embeddings=7)) == {}
    assert named(replace(PLAIN[kind], init_fn=partial(nn.init.normal_, std=0.1))).keys() == {"init_fn"}


@dataclass
class Later(EmbeddingBagConfig):
    """Of a later TorchRec."""

    speed: int = 0


def test_a_field_that_a_later_torchrec_adds_is_named() -> None:
    later = Later(name="plain", feature_names=["plain"], num_embeddings=50, embedding_dim=8, speed=3)
    assert named(later)["speed"] == "ignored: unknown to evenshard"
