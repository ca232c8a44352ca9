"""``evenshard.place`` of a TorchRec model: its lookups and constraints count as in ``EvenshardPlanner``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.torchrec import EvenshardPlanner
from support.request_builders import untrained
from support.torchrec_builders import ITEM, META, USER, Model
from support.traffic_builders import write_parquet

MODEL, TWO = untrained(), 2
CONSTRAINTS = {
    "clicks": ParameterConstraints(sharding_types=["row_wise"], pooling_factors=[7.5]),
    "tags": ParameterConstraints(pooling_factors=[3.0], compute_kernels=["fused"]),
    "wide": ParameterConstraints(sharding_types=["column_wise"], min_partition=12, enforce_hbm=True),
}


def placed(tables: Any = None, **named: Any) -> evenshard.PlacementAnswer:
    return evenshard.place(Model(META) if tables is None else tables, TWO, 1.0, model=MODEL, batch_size=1024, **named)


def test_numbers_and_lists_are_the_lookups_of_the_planner() -> None:
    given = {"clicks": 7.5, "item.id": [20.0, 3.0], "wide": [2]}
    planner = EvenshardPlanner(
        world_size=TWO, compute_device="cuda", memory_cap_gb=1.0, host_memory_gb=0.0, pooling_factors=given, model=MODEL
    )
    planner.plan(Model(META))
    answer = placed(pooling_factors=given)
    assert planner.answer is not None and planner.answer.request.tables == answer.request.tables
    lookups = {one.name: one.feature_lookups for one in answer.request.tables}
    assert (lookups["clicks"], lookups["item.id"], lookups["wide"]) == ((7.5,), (20.0, 3.0), (2.0,))
    assert answer.predicted_ms == planner.answer.predicted_ms > placed().predicted_ms


def test_lookups_are_given_to_tables_of_every_source(tmp_path: Path) -> None:
    record = {"name": "a", "num_rows": 1000, "embedding_dim": 8, "pooling_factor": 2}
    file = tmp_path / "t.yaml"
    file.write_text("- {name: a, num_rows: 1000, embedding_dim: 8, pooling_factor: 2}\n")
    for tables in ([record], str(file), [evenshard.Table("a", 1000, 8, 2.0)]):
        assert placed(tables, pooling_factors={"a": [9.0]}).request.tables[0].pooling_factor == 9.0
    traffic = write_parquet(
        tmp_path / "sample", {"user_id": [[1], [2]], "clicks": [[1, 2], [3, 4]], "wide": [[1], [2]]}
    )
    collection = EmbeddingBagCollection(tables=USER, device=META)
    counted = placed(collection, traffic=traffic, pooling_factors={"wide": 5.0})
    assert [one.pooling_factor for one in counted.request.tables] == [1.0, 2.0, 5.0]
    assert "lookups per sample" not in counted.summary()


def test_constraints_bound_types_and_count_as_in_the_planner() -> None:
    planner = EvenshardPlanner(
        world_size=TWO,
        compute_device="cuda",
        memory_cap_gb=1.0,
        host_memory_gb=0.0,
        constraints=CONSTRAINTS,
        model=MODEL,
    )
    planner.plan(Model(META))
    answer = placed(constraints=CONSTRAINTS)
    assert planner.answer is not None
    ours, theirs = answer.request, planner.answer.request
    assert (ours.tables, ours.rules.table_types) == (theirs.tables, theirs.rules.table_types)
    assert ours.rules.min_columns == theirs.rules.min_columns
    assert answer.type_of_table["clicks"] == "row_wise" and answer.predicted_ms == planner.answer.predicted_ms
    assert {one.table for one in answer.assumptions if one.column == "pooling_factor"} == {
        "user.ebc.id",
        "wide",
        "item.id",
    }


def test_a_table_too_narrow_for_its_constraint_stays_whole_as_in_the_planner() -> None:
    narrow = {"tags": ParameterConstraints(sharding_types=["column_wise"])}
    assert placed(constraints=narrow).type_of_table["tags"] == "table_wise"


def test_constraints_of_tables_that_are_not_there_are_named() -> None:
    notes = placed(constraints={**CONSTRAINTS, "gone": ParameterConstraints()}).notes
    assert "constraints names tables that the model does not have: gone." in notes


def test_pooling_factors_stand_against_those_of_constraints() -> None:
    both = placed(constraints=CONSTRAINTS, pooling_factors={"clicks": 2.0})
    assert {one.name: one.pooling_factor for one in both.request.tables}["clicks"] == 2.0


@pytest.mark.parametrize(
    ("tables", "named", "message"),
    [
        (
            "mlperf_dlrm_v2",
            {"constraints": CONSTRAINTS},
            "constraints apply only to tables of a TorchRec model. For these",
        ),
        (
            [evenshard.Table("a", 9, 8, 1.0)],
            {"constraints": CONSTRAINTS},
            "constraints apply only to tables of a TorchRec",
        ),
        (USER, {"constraints": [1]}, r"constraints is \[1\], not a mapping"),
        (USER, {"constraints": {"id": [1]}}, r"constraints of table 'id' are \[1\]. Give TorchRec's constraints"),
        (
            USER,
            {"constraints": {"id": ParameterConstraints(pooling_factors=20.0)}},  # type: ignore[arg-type]
            "constraints of table 'id': pooling_factors are 20.0. Give a list with one number per feature",
        ),
        (
            ITEM,
            {"constraints": {"id": ParameterConstraints(pooling_factors=[2.0])}},
            "1 pooling_factors for 2 features",
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
