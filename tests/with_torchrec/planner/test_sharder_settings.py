"""Settings of module sharders that a plan's price depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from evenshard.placement.sharding import Communication
from evenshard.torchrec import EvenshardPlanner
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.planner.model_request import communication_of, note_fused_params

META = torch.device("meta")


class Model(torch.nn.Module):
    """A pooled collection of 64 columns and a sequence of 32."""

    def __init__(self) -> None:
        super().__init__()
        bags = [EmbeddingBagConfig(name="b", num_embeddings=4_000_000, embedding_dim=64, feature_names=["f"])]
        self.bags = EmbeddingBagCollection(tables=bags, device=META)
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
