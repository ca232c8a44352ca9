"""``evenshard.place`` of a TorchRec model: its lookups and constraints count as in ``EvenshardPlanner``."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.placement.placement import check_sharding
from evenshard.torchrec import EvenshardPlanner
from support.request_builders import untrained
from support.torchrec_builders import META, USER, Model

MODEL, TWO = untrained(), 2
CONSTRAINTS = {
    "clicks": ParameterConstraints(sharding_types=["row_wise"], pooling_factors=[7.5]),
    "tags": ParameterConstraints(pooling_factors=[3.0], compute_kernels=["fused"]),
    "wide": ParameterConstraints(sharding_types=["column_wise"], min_partition=12, enforce_hbm=True),
}


def placed(tables: Any = None, **named: Any) -> evenshard.PlacementAnswer:
    return evenshard.place(Model(META) if tables is None else tables, TWO, 1.0, model=MODEL, batch_size=1024, **named)


def planned(**named: Any) -> evenshard.PlacementAnswer:
    """The answer of a planner for the same machine."""
    machine: dict[str, Any] = {"world_size": TWO, "compute_device": "cuda", "memory_cap_gb": 1.0, "host_memory_gb": 0.0}
    planner = EvenshardPlanner(model=MODEL, **machine, **named)
    planner.plan(Model(META))
    assert planner.answer is not None
    return planner.answer


def test_numbers_and_lists_are_the_lookups_of_the_planner() -> None:
    given = {"clicks": 7.5, "item.id": [20.0, 3.0], "wide": [2]}
    answer, theirs = placed(pooling_factors=given), planned(pooling_factors=given)
    assert theirs.request.tables == answer.request.tables
    lookups = {one.name: one.feature_lookups for one in answer.request.tables}
    assert (lookups["clicks"], lookups["item.id"], lookups["wide"]) == ((7.5,), (20.0, 3.0), (2.0,))
    assert answer.predicted_ms == theirs.predicted_ms > placed().predicted_ms


def test_constraints_bound_types_and_count_as_in_the_planner() -> None:
    answer, of_planner = placed(constraints=CONSTRAINTS), planned(constraints=CONSTRAINTS)
    ours, theirs = answer.request, of_planner.request
    assert (ours.tables, ours.rules.table_types) == (theirs.tables, theirs.rules.table_types)
    assert ours.rules.min_columns == theirs.rules.min_columns
    assert answer.type_of_table["clicks"] == "row_wise" and answer.predicted_ms == of_planner.predicted_ms
    assert {one.table for one in answer.assumptions if one.column == "pooling_factor"} == {
        "user.ebc.id",
        "wide",
        "item.id",
    }


@pytest.mark.parametrize(
    ("tables", "named", "message"),
    [
        ("mlperf_dlrm_v2", {"constraints": CONSTRAINTS}, "constraints apply only to tables of a TorchRec model. For"),
        (USER, {"constraints": [1]}, r"constraints is \[1\], not a mapping"),
        (
            USER,
            {"constraints": {"id": ParameterConstraints(pooling_factors=20.0)}},  # type: ignore[arg-type]
            "constraints of table 'id': pooling_factors are 20.0. Give a list with one number per feature",
        ),
        (
            USER,
            {
                "constraints": {"id": ParameterConstraints(sharding_types=["table_wise"])},
                "table_types": {"id": "row_wise"},
            },
            "table 'id' has two different rules of table_types",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(tables: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        placed(tables, **named)


def test_sequences_of_a_public_model_are_read_and_placed() -> None:
    """DLRMv3's streaming model (meta-recsys/generative-recommenders): 954 GB of items on devices of 120 GB."""
    rows = {("item_id", "item_candidate_id"): 10**9, ("item_category_id",): 128, ("user_id",): 10**7}
    configs = [
        EmbeddingConfig(
            name=features[0],
            feature_names=list(features),
            num_embeddings=number,
            embedding_dim=512,
            data_type=DataType.FP16,
        )
        for features, number in rows.items()
    ]
    model = EmbeddingCollection(tables=configs, device=META)
    lookups = {"item_id": 2000.0, "item_candidate_id": 32.0}  # the first is that of the feature, not of its table
    answer = evenshard.place(model, 16, 120, batch_size=1024, inter="infiniband_ndr", pooling_factors=lookups)
    item, _, user = answer.request.tables
    assert (item.feature_pooling_factors, item.outputs_per_sample, user.pooling_factor) == ((2000.0, 32.0), 2032.0, 1.0)
    assert (item.dtype, item.pooling, item.size_bytes) == ("fp16", "none", 1024 * 10**9)
    check_sharding(answer.task, answer.parts)
    assert answer.type_of_table["item_id"] == "row_wise"
