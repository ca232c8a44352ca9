"""The ways to shard that TorchRec's enumerator lists, bound by sharders and constraints, in evenshard's plans."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from support.drop_in_builders import MB, Sparse, TableWise, entries, planner
from support.torchrec_builders import topology

TABLES = [
    EmbeddingBagConfig(
        name=f"table_{at}", feature_names=[f"feature_{at}"], num_embeddings=100 + 10 * at, embedding_dim=20 + 20 * at
    )
    for at in range(4)
]
WIDTHS = {"table_0": 20, "table_1": 20, "table_2": 20, "table_3": 40}


class Only(EmbeddingBagCollectionSharder):
    """One type on one kernel."""

    def __init__(self, way: str, kernel: str = "fused") -> None:
        super().__init__()
        self.way, self.kernel = way, kernel

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [self.way]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [self.kernel]


def two_nodes() -> Any:
    return topology(8, local_world_size=4, hbm_cap_bytes=100 * MB, ddr_cap_bytes=100 * MB)


@pytest.mark.parametrize(
    ("way", "kernel"),
    [("row_wise", "fused"), ("row_wise", "fused_uvm_caching"), ("table_row_wise", "fused"), ("table_wise", "fused")],
)
def test_shards_of_rows_are_those_that_torchrec_lists(way: str, kernel: str) -> None:
    """Of 100 to 130 rows on 8 ranks, blocks of 13 to 17 and what is left; on the 4 of a node, of 25 to 33."""
    model, machine, sharders = Sparse(TABLES), two_nodes(), [Only(way, kernel)]
    own = entries(planner(machine, host_memory_gb=None).plan(model, sharders))
    for option in EmbeddingEnumerator(machine, batch_size=256).enumerate(model, sharders):
        found = own[option.name]
        assert (found.sharding_type, found.compute_kernel) == (way, kernel)
        listed = [(shard.size, shard.offset) for shard in option.shards]
        assert [(one.shard_sizes, one.shard_offsets) for one in found.sharding_spec.shards] == listed


@pytest.mark.parametrize("way", ["column_wise", "table_column_wise"])
def test_parts_of_columns_are_as_wide_as_the_constraints_ask(way: str) -> None:
    """The 20 columns of the first table cannot be cut: one shard, of the same type."""
    constraints = {name: ParameterConstraints(min_partition=width) for name, width in WIDTHS.items()}
    plan = entries(planner(two_nodes(), constraints=constraints).plan(Sparse(TABLES), [Only(way)]))
    assert {one.sharding_type for one in plan.values()} <= {way, "column_wise"}
    assert len(plan["table_0"].sharding_spec.shards) == 1 and plan["table_0"].sharding_type == way
    for table in TABLES:
        widths = [one.shard_sizes[1] for one in plan[table.name].sharding_spec.shards]
        assert min(widths) >= WIDTHS[table.name] and sum(widths) == table.embedding_dim


def test_replicas_are_whole_on_every_rank() -> None:
    one = planner(two_nodes())
    plan = entries(one.plan(Sparse(TABLES), [Only("data_parallel", "dense")]))
    assert all(found.ranks == list(range(8)) and found.sharding_spec is None for found in plan.values())
    for option in one._best_plan or ():
        assert [shard.size for shard in option.shards] == [list(option.tensor.shape)] * 8


def test_a_table_has_the_types_and_kernels_that_both_leave_it() -> None:
    """TorchRec would also take row types on a dense kernel, which is that of replicas."""
    constraint = ParameterConstraints(
        sharding_types=["table_row_wise", "column_wise"], compute_kernels=["fused_uvm", "dense"]
    )
    constraints = {table.name: constraint for table in TABLES}
    plan = entries(planner(two_nodes(), constraints=constraints, host_memory_gb=None).plan(Sparse(TABLES)))
    assert {one.compute_kernel for one in plan.values()} == {"fused_uvm"}
    assert {one.sharding_type for one in plan.values()} <= {"table_row_wise", "column_wise"}


def test_a_table_that_nothing_is_left_is_named() -> None:
    rows = ParameterConstraints(sharding_types=["table_row_wise"], compute_kernels=["fused_uvm_caching"])
    one = planner(two_nodes(), constraints={"table_1": rows}, host_memory_gb=None)
    message = r"table 'table_1': its module sharder .* allows column_wise on fused"
    with pytest.raises(PlannerError, match=message) as caught:
        one.plan(Sparse(TABLES), [Only("column_wise")])
    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS


def test_tables_of_weighted_bags_are_weighted() -> None:
    for is_weighted in (True, False):
        one = planner(two_nodes())
        one.plan(Sparse(TABLES, is_weighted=is_weighted), [TableWise()])
        assert one.answer is not None
        assert {table.is_weighted for table in one.answer.request.tables} == {is_weighted}
        assert {option.is_weighted for option in one._best_plan or ()} == {is_weighted}
