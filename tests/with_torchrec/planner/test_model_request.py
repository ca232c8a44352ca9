"""Ways to shard and settings that sharders, constraints and TorchRec's enumerator bound, in evenshard's plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from evenshard.placement.sharding import Communication
from evenshard.torchrec import EvenshardPlanner
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.planner.model_request import communication_of, note_fused_params
from support.torchrec_builders import MB, META, Only, Sparse, config, entries, planner, topology

TABLES = [config(f"table_{at}", 100 + 10 * at, 20 + 20 * at, f"feature_{at}") for at in range(4)]
TWO_NODES = topology(8, local_world_size=4, hbm_cap_bytes=100 * MB, ddr_cap_bytes=100 * MB)
WIDTHS = {"table_0": 20, "table_1": 20, "table_2": 20, "table_3": 40}


@pytest.mark.parametrize(
    ("way", "kernel"),
    [("row_wise", "fused_uvm_caching"), ("table_row_wise", "fused"), ("table_wise", "fused")],
)
def test_shards_of_rows_are_those_that_torchrec_lists(way: str, kernel: str) -> None:
    """Of 100 to 130 rows on 8 ranks, blocks of 13 to 17 and what is left; on the 4 of a node, of 25 to 33."""
    model, machine, sharders = Sparse(TABLES), TWO_NODES, [Only(way, kernel=kernel)]
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
    plan = entries(planner(TWO_NODES, constraints=constraints).plan(Sparse(TABLES), [Only(way)]))
    assert {one.sharding_type for one in plan.values()} <= {way, "column_wise"}
    assert len(plan["table_0"].sharding_spec.shards) == 1 and plan["table_0"].sharding_type == way
    for table in TABLES:
        widths = [one.shard_sizes[1] for one in plan[table.name].sharding_spec.shards]
        assert min(widths) >= WIDTHS[table.name] and sum(widths) == table.embedding_dim


def test_replicas_are_whole_on_every_rank() -> None:
    plan = entries(planner(TWO_NODES).plan(Sparse(TABLES), [Only("data_parallel", kernel="dense")]))
    assert all(found.ranks == list(range(8)) and found.sharding_spec is None for found in plan.values())


def test_a_table_has_the_types_and_kernels_that_both_leave_it() -> None:
    """TorchRec would also take row types on a dense kernel, which is that of replicas."""
    constraint = ParameterConstraints(
        sharding_types=["table_row_wise", "column_wise"], compute_kernels=["fused_uvm", "dense"]
    )
    constraints = {table.name: constraint for table in TABLES}
    plan = entries(planner(TWO_NODES, constraints=constraints, host_memory_gb=None).plan(Sparse(TABLES)))
    assert {one.compute_kernel for one in plan.values()} == {"fused_uvm"}
    assert {one.sharding_type for one in plan.values()} <= {"table_row_wise", "column_wise"}


def test_a_table_that_nothing_is_left_is_named() -> None:
    rows = ParameterConstraints(sharding_types=["table_row_wise"], compute_kernels=["fused_uvm_caching"])
    one = planner(TWO_NODES, constraints={"table_1": rows}, host_memory_gb=None)
    message = r"table 'table_1': its module sharder .* allows column_wise on fused"
    with pytest.raises(PlannerError, match=message) as caught:
        one.plan(Sparse(TABLES), [Only("column_wise")])
    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS


class Model(torch.nn.Module):
    """A pooled collection of 64 columns and a sequence of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=[config("b", 4_000_000, 64, "f")], device=META)
        sequences = [EmbeddingConfig(name="s", num_embeddings=4_000_000, embedding_dim=32, feature_names=["g"])]
        self.sequences = EmbeddingCollection(tables=sequences, device=META)


def registry(forward: CommType, backward: CommType, *operations: CommOp) -> Any:
    config = QCommsConfig(forward_precision=forward, backward_precision=backward)
    return get_qcomm_codecs_registry(config, list(operations) or None, torch.device("cuda"))


def found(*sharders: Any) -> tuple[Communication, tuple[str, ...]]:
    return communication_of(locate_tables(Model()), sharders)


@pytest.mark.parametrize(("backward", "word"), [(CommType.BF16, "bf16"), (CommType.FP32, "fp32")])
def test_quantized_communication_is_read_in_both_directions(backward: CommType, word: str) -> None:
    codecs = registry(CommType.FP16, backward)
    sharders = (
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs),
        EmbeddingCollectionSharder(qcomm_codecs_registry=codecs),
    )
    assert found(*sharders) == (Communication("fp16", word), ())


def test_without_qcomms_outputs_travel_in_their_own_data_type() -> None:
    params = {"output_dtype": SparseType.FP16}
    sharders = (EmbeddingBagCollectionSharder(params), EmbeddingCollectionSharder(params))
    assert found(*sharders) == (Communication("fp16", "fp16"), ())
    assert found(EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()) == (Communication(), ())


def test_data_types_that_differ_are_named_and_the_most_columns_count() -> None:
    codecs = registry(CommType.FP16, CommType.FP16)
    communication, notes = found(EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs))
    assert communication == Communication("fp16", "fp16")
    in_reverse = locate_tables({"sequences": Model().sequences, "bags": Model().bags})
    assert (
        communication_of(in_reverse, [EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)])[0] == communication
    )
    assert "predicted with fp16 forward and fp16 backward, including fp32 and fp32." in notes[0]
    alone = registry(CommType.FP16, CommType.FP16, CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL)
    bags = Model().bags
    _, notes = communication_of(
        locate_tables({"bags": bags}), [EmbeddingBagCollectionSharder(qcomm_codecs_registry=alone)]
    )
    assert "between modules or operations" in notes[0]  # rows are reduced in FP32


def test_the_planner_prices_qcomms_and_names_what_the_plan_replaces() -> None:
    answers: list[Any] = []
    for sharder in (
        EmbeddingBagCollectionSharder({"cache_load_factor": 0.05, "learning_rate": 0.1, "stochastic_rounding": True}),
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry(CommType.FP16, CommType.BF16)),
    ):
        asked: dict[str, Any] = {"hardware": "h100", "memory_cap_gb": 40.0, "effort": "quick"}
        planner = EvenshardPlanner(world_size=8, compute_device="cuda", **asked)
        planner.plan(torch.nn.ModuleDict({"bags": Model().bags}), [sharder])
        assert planner.answer is not None
        answers.append((planner.answer, planner.notes))
    (plain, notes), (quantized, _) = answers
    assert quantized.request.communication == Communication("fp16", "bf16")
    assert plain.request.communication == Communication()
    assert quantized.predicted_ms < plain.predicted_ms
    assert any("replaces cache_load_factor=0.05 of" in note for note in notes)


def test_what_changes_no_price_and_no_plan_gets_no_note() -> None:
    params = {"learning_rate": 0.1, "stochastic_rounding": True}
    assert note_fused_params([EmbeddingBagCollectionSharder(params)]) == ()
    (note,) = note_fused_params([EmbeddingBagCollectionSharder({"cache_precision": "fp16"})])
    assert "ignore cache_precision=fp16" in note
