"""Public models of sequences, as their owners configure them, read and placed from the model object.

DLRMv3: meta-recsys/generative-recommenders, dlrm_v3/configs.py. Primus-DLRM: AMD-AGI/Primus-DLRM, OneTrans-L on
Yambda-5B.
"""

from __future__ import annotations

from itertools import product

import pytest
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

import evenshard
from evenshard.placement.placement import check_sharding, parts_by_table
from evenshard.placement.sharding import SEQUENCE_TYPES, sharding_type
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of
from support.torchrec_builders import META

GB = 1024**3


class Model(nn.Module):
    """A collection of sequences and what comes after it."""

    def __init__(self, configs: list[EmbeddingConfig]) -> None:
        super().__init__()
        self.embeddings = EmbeddingCollection(tables=configs, device=META)
        self.dense = nn.Linear(8, 1, device=META)


def dlrm_v3(rows_of_features: dict[tuple[str, ...], int]) -> Model:
    """Tables of dim 512 in FP16, called as their first feature."""
    return Model(
        [
            EmbeddingConfig(
                name=features[0],
                feature_names=list(features),
                num_embeddings=rows,
                embedding_dim=512,
                data_type=DataType.FP16,
            )
            for features, rows in rows_of_features.items()
        ]
    )


USER = ("user_id",)
DLRM_V3 = {
    "streaming": {
        ("item_id", "item_candidate_id"): 10**9,
        ("item_category_id", "item_candidate_category_id"): 128,
        USER: 10**7,
    },
    "movielens-13b": {("movie_id", "item_movie_id"): 10**9, USER: 3 * 10**6},
    "movielens-1m": {
        ("movie_id", "item_movie_id"): 10**7,
        **{(name,): 10**7 for name in ("user_id", "sex", "age_group", "occupation", "zip_code")},
    },
    "kuairand": {
        ("video_id", "item_video_id"): 10**7,
        USER: 10**7,
        **{(f"{name}_user_num_range",): rows for name, rows in (("follow", 9), ("fans", 9), ("friend", 8))},
        ("register_days_range",): 8,
        ("user_active_degree",): 8,
    },
    "debug": {
        ("uih_post_id", "item_post_id", "uih_owner_id", "item_owner_id"): 10**7,
        ("viewer_id",): 10**7,
        ("dummy_contexual",): 10**7,
    },
}
YAMBDA_ROWS = {"item": 9_390_624, "artist": 1_293_395, "album": 3_367_692}
HISTORIES = ("hist_lp", "hist_like", "hist_skip")


def primus() -> Model:
    """Three tables of an item and three histories each, and the users."""
    configs = [
        EmbeddingConfig(
            name=name,
            feature_names=[name, *(f"{history}_{name}" for history in HISTORIES)],
            num_embeddings=rows,
            embedding_dim=64,
        )
        for name, rows in YAMBDA_ROWS.items()
    ]
    users = EmbeddingConfig(name="uid", feature_names=["uid"], num_embeddings=1_000_001, embedding_dim=64)
    return Model([*configs, users])


PRIMUS_LOOKUPS = {"uid": 1.0} | {name: 1.0 for name in YAMBDA_ROWS}
PRIMUS_LOOKUPS |= {f"{history}_{name}": 500.0 for history, name in product(HISTORIES, YAMBDA_ROWS)}


@pytest.mark.parametrize("dataset", DLRM_V3)
def test_every_table_of_dlrm_v3_is_read(dataset: str) -> None:
    known = DLRM_V3[dataset]
    tables = tables_of(dlrm_v3(known))
    assert [(one.name, one.num_rows) for one in tables] == [(names[0], rows) for names, rows in known.items()]
    assert {(one.dtype, one.pooling, one.module, one.embedding_dim) for one in tables} == {
        ("fp16", "none", "embeddings", 512)
    }
    assert [one.num_features for one in tables] == [len(names) for names in known]


def test_a_feature_called_as_its_table_has_lookups_of_its_own() -> None:
    """History and candidates of the streaming model; without the candidates, the name means the table."""
    model = dlrm_v3(DLRM_V3["streaming"])
    item, category, user = tables_of(model, {"item_id": 2000.0, "item_candidate_id": 32.0, "item_category_id": 2032.0})
    assert item == Table(
        "item_id",
        10**9,
        512,
        2032.0,
        weight_bits=16,
        pooling="none",
        feature_names=("item_id", "item_candidate_id"),
        feature_pooling_factors=(2000.0, 32.0),
        module="embeddings",
    )
    assert category.feature_pooling_factors == (1016.0, 1016.0)
    assert user.pooling_factor == 1.0
    assert item.size_bytes / GB == pytest.approx(953.67, abs=0.01)


def test_the_shared_tables_of_primus_are_read() -> None:
    *shared, users = tables_of(primus(), PRIMUS_LOOKUPS)
    assert [(one.name, one.num_rows, one.pooling_factor) for one in shared] == [
        (name, rows, 1501.0) for name, rows in YAMBDA_ROWS.items()
    ]
    assert {one.feature_pooling_factors for one in shared} == {(1.0, 500.0, 500.0, 500.0)}
    assert shared[0].feature_names == ("item", "hist_lp_item", "hist_like_item", "hist_skip_item")
    assert (users.pooling_factor, users.outputs_per_sample) == (1.0, 1.0)
    assert shared[0].outputs_per_sample == 1501.0


@pytest.mark.parametrize(
    ("model", "num_devices", "memory_cap_gb"), [(dlrm_v3(DLRM_V3["streaming"]), 16, 120), (primus(), 4, 8)]
)
def test_sequences_are_placed_from_the_model_object(model: Model, num_devices: int, memory_cap_gb: int) -> None:
    """954 GB of items on devices of 120 GB go by rows."""
    answer = evenshard.place(model, num_devices, memory_cap_gb, inter="infiniband_ndr" if num_devices > 8 else "")
    task = answer.request.task()
    by_table = parts_by_table(task, answer.parts)
    ways = {table.name: sharding_type(by_table[table.name], table, task.machine) for table in task.tables}
    assert set(ways.values()) <= set(SEQUENCE_TYPES)
    assert ways.get("item_id", "row_wise") == "row_wise"
    check_sharding(task, answer.parts)
