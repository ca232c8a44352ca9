"""TorchRec's ParameterConstraints: every field is used, handed on to the plan, or listed in the log."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, KeyValueParams
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig

from evenshard.base.errors import BadConfig
from evenshard.placement.parts import COMPUTE_KERNELS
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.rules import Rules
from evenshard.torchrec.model.tables import table_set_of
from evenshard.torchrec.planner.constraints import USED, ConstrainedModel, apply_constraints

CONFIGS = [
    EmbeddingBagConfig(name="a", embedding_dim=64, num_embeddings=100, feature_names=["f", "g"]),
    EmbeddingBagConfig(name="b", embedding_dim=16, num_embeddings=100, feature_names=["h"]),
]
# A value of each field that is not its default.
SET: dict[str, Any] = {
    "sharding_types": ["row_wise", "data_parallel"],
    "compute_kernels": ["dense"],
    "min_partition": 32,
    "pooling_factors": [3.0, 5.0],
    "num_poolings": [2.0, 1.0],
    "batch_sizes": [64, 32],
    "is_weighted": True,
    "cache_params": CacheParams(load_factor=0.1),
    "enforce_hbm": True,
    "stochastic_rounding": False,
    "bounds_check_mode": object(),
    "feature_names": ["g", "f"],
    "output_dtype": DataType.FP16,
    "device_group": "cpu",
    "key_value_params": KeyValueParams(l2_cache_size=1),
    "use_virtual_table": True,
}


def of(kernels: tuple[str, ...] = COMPUTE_KERNELS, **named: Any) -> ConstrainedModel:
    constraints = {"a": ParameterConstraints(**named)}
    return apply_constraints(CONFIGS, constraints, table_set_of(CONFIGS), (TABLE_WISE,), "cuda", kernels, 512)


@pytest.mark.parametrize("name", [one.name for one in fields(ParameterConstraints)])
def test_every_field_is_used_or_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "evenshard.torchrec.planner.constraints")
    try:
        found = of(**{name: SET[name]})
    except BadConfig as error:
        assert name in USED and name in str(error)
        return
    said = [f"These fields of constraints do not affect the placement: {name}"]
    assert found.notes == () and caplog.messages == ([] if name in USED else said)


def test_constraints_become_rules_and_tables() -> None:
    found = of(sharding_types=["row_wise", "table_wise"], min_partition=32, is_weighted=True, pooling_factors=[3, 5])
    assert found.rules.table_types == {"a": ("row_wise", "table_wise")}
    assert found.rules.min_columns == {"a": 32}
    a, b = found.known.tables
    assert (a.is_weighted, a.pooling_factor, a.feature_pooling_factors) == (True, 8.0, (3.0, 5.0))
    assert not b.is_weighted and b.pooling_factor == 1.0
    assert [one.table for one in found.known.assumptions if one.column == "pooling_factor"] == ["b"]


def assumed_lookups(**constraints: dict[str, Any]) -> set[str]:
    """The tables whose lookups are assumed under constraints with these fields."""
    given = {name: ParameterConstraints(**named) for name, named in constraints.items()}
    found = apply_constraints(CONFIGS, given, table_set_of(CONFIGS), (TABLE_WISE,), "cuda", COMPUTE_KERNELS, 512)
    return {one.table for one in found.known.assumptions if one.column == "pooling_factor"}


def test_one_lookup_that_is_given_is_not_assumed() -> None:
    types = {"sharding_types": ["table_wise"]}
    assert assumed_lookups(b={"pooling_factors": [1.0]}) == {"a"}
    assert assumed_lookups(b={**types}) == {"a", "b"}
    assert assumed_lookups(a={**types, "pooling_factors": [3.0, 5.0]}, b={**types, "pooling_factors": [1.0]}) == set()
    assert assumed_lookups(a={"pooling_factors": [3.0, 5.0]}, b={**types}) == {"b"}


BOTH = ["row_wise", "data_parallel"]


@pytest.mark.parametrize(
    ("kernels", "allowed", "types", "left"),
    [
        (["dense"], None, ["data_parallel"], []),
        (["fused", "fused_uvm"], None, [TABLE_WISE], ["fused", "fused_uvm"]),
        (["fused"], BOTH, ["row_wise"], ["fused"]),
        (["fused", "dense"], BOTH, BOTH, ["fused"]),
        ([EmbeddingComputeKernel.FUSED, "fused_uvm", "ssd_virtual_table"], None, [TABLE_WISE], ["fused", "fused_uvm"]),
        (["key_value"], None, [TABLE_WISE], ["key_value"]),
        (["dense", "fused_uvm"], BOTH, ["row_wise"], ["fused_uvm"]),
        (["dense", "fused_uvm"], ["data_parallel"], ["data_parallel"], []),
    ],
)
def test_kernels_say_where_weights_may_be_kept_and_dense_is_that_of_replicas(
    kernels: list[Any], allowed: list[str] | None, types: list[str], left: list[str]
) -> None:
    rules = of(compute_kernels=kernels, sharding_types=allowed).rules
    assert rules.table_types == {"a": tuple(types)} and rules.table_kernels == ({"a": tuple(left)} if left else {})


def test_kernels_that_the_machine_has_no_memory_for_are_left_aside() -> None:
    found = of(("fused",), compute_kernels=["fused", "fused_uvm_caching"])
    assert found.rules.table_kernels == {"a": ("fused",)}
    with pytest.raises(BadConfig, match=r"are \['fused_uvm'\], but evenshard can only use dense, fused here"):
        of(("fused",), compute_kernels=["fused_uvm"])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"compute_kernels": ["dense"], "sharding_types": ["row_wise"]}, "compute_kernels .* do not support row_wise"),
        ({"device_group": "rank3"}, "device_group is 'rank3', but the devices are cuda. To choose a rank, use pinned="),
        ({"pooling_factors": [1.0, 2.0, 3.0]}, "3 pooling_factors for 2 features"),
        ({"batch_sizes": [64, -1]}, r"batch_sizes are \[64, -1\]. Give numbers of at least 0"),
        ({"pooling_factors": [1.0, float("nan")]}, r"pooling_factors are \[1.0, nan\]. Give numbers of at least 0"),
        ({"num_poolings": [1.0, 1e5]}, "feature_pooling_factors has 100,001 values, more than 10,000"),
        ({"feature_names": ["x"]}, r"feature_names are \['x'\], but the table's are \['f', 'g'\]"),
    ],
)
def test_what_cannot_be_placed_is_one_line(named: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        of(**named)


def test_a_constraint_of_no_table_is_named_and_left_aside() -> None:
    constraints = {"z": ParameterConstraints(min_partition=8)}
    found = apply_constraints(CONFIGS, constraints, table_set_of(CONFIGS), (), "cuda", COMPUTE_KERNELS, 512)
    assert found.notes == ("constraints names tables that the model does not have: z.",)
    assert found.rules == Rules()
