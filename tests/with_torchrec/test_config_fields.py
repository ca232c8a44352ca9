"""Every field of TorchRec's configurations makes a table what it is, or is named as one that changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace
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
from evenshard.tables.sources import complete_tables, with_weight_bits
from evenshard.torchrec import tables_of
from evenshard.torchrec.model.tables import USED_FIELDS, list_changed_fields, table_set_of
from support.torchrec_builders import USER
from support.traffic_builders import write_parquet

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
@pytest.mark.parametrize("name", SET)
def test_every_field_changes_the_table_or_is_named(kind: type, name: str) -> None:
    if name not in {one.name for one in fields(kind)}:
        return
    before, after = PLAIN[kind], replace(PLAIN[kind], **{name: SET[name]})
    assert name in list_changed_fields(after)
    if name in USED_FIELDS:
        assert tables_of([after]) != tables_of([before])
    else:
        assert tables_of([after]) == tables_of([before])
        assert named(after)[name].startswith("ignored: ")


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_configuration_says_nothing_in_vain(kind: type) -> None:
    assert named(PLAIN[kind]) == named(replace(PLAIN[kind], num_embeddings=7)) == {}
    assert named(replace(PLAIN[kind], init_fn=partial(nn.init.normal_, std=0.1))).keys() == {"init_fn"}


def test_a_field_that_a_later_torchrec_adds_is_named() -> None:
    class Later(EmbeddingBagConfig):
        """With one more field."""

    later = Later(name="plain", feature_names=["plain"], num_embeddings=50, embedding_dim=8)
    field = fields(EmbeddingBagConfig)[-1]
    Later.__dataclass_fields__ = {**EmbeddingBagConfig.__dataclass_fields__, "speed": _like(field, "speed", 0)}
    later.speed = 3
    assert named(later)["speed"] == "ignored: unknown to evenshard"


def _like(field: Any, name: str, default: Any) -> Any:
    """A field of another name."""
    from copy import copy

    found = copy(field)
    found.name, found.default = name, default
    return found


def test_settings_stay_named_where_traffic_is_counted(tmp_path: Any) -> None:
    known = table_set_of([replace(USER[1], input_dim=1000, data_type=DataType.BF16)])
    traffic = write_parquet(tmp_path, {"clicks": [[1, 2], [3]]})
    counted = complete_tables(known, 2, traffic)
    assert [one.column for one in counted.assumptions] == ["input_dim"]
    assert [one.column for one in with_weight_bits(counted, 32).assumptions] == ["input_dim"]
