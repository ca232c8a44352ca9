"""The dense layers of models, which are those that a request would write by hand, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.price.dense import Attention, DenseModel
from evenshard.torchrec import EvenshardPlanner, dense_bytes
from evenshard.torchrec.model.dense_layers import find_dense_layers
from evenshard.torchrec.model.tables import table_set_of

META = torch.device("meta")
CONFIGS = [
    EmbeddingBagConfig(name=name, num_embeddings=100, embedding_dim=16, feature_names=[name]) for name in ("a", "b")
]


def bags() -> EmbeddingBagCollection:
    return EmbeddingBagCollection(tables=CONFIGS, device=META)


def sorted_shapes(products: Iterable[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Without the orientation of the matrices."""
    return sorted((rows, min(sizes), max(sizes)) for rows, *sizes in products)


@pytest.mark.parametrize(
    ("model", "written"),
    [
        (
            DLRM(bags(), 13, [32, 16], [8, 4, 1], dense_device=META),
            DenseModel(inputs=13, bottom=(32, 16), interaction="dot", top=(8, 4, 1)),
        ),
        (
            DLRM_DCN(bags(), 13, [32, 16], [8, 4, 1], dcn_num_layers=2, dcn_low_rank_dim=3, dense_device=META),
            DenseModel(inputs=13, bottom=(32, 16), interaction="cross", cross_layers=2, cross_rank=3, top=(8, 4, 1)),
        ),
    ],
)
def test_a_dlrm_has_the_layers_that_a_request_would_write(model: nn.Module, written: DenseModel) -> None:
    tables = table_set_of(model).tables
    found, expected = find_dense_layers(model, tables), written.of_tables(tables)
    assert found is not None
    # A layer with one output is left out.
    assert sorted_shapes(found.products) == sorted_shapes(one for one in expected.products if min(one[1:]) > 1)
    assert found.moved_values == expected.moved_values and (found.attention, found.dtype) == (0.0, "fp32")


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = EmbeddingConfig(name="s", num_embeddings=100, embedding_dim=16, feature_names=["s"])
        self.tables = EmbeddingCollection(tables=[config], device=META)
        self.block = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, device=META, dtype=torch.bfloat16)
        self.positions = nn.Embedding(50, 16, device=META)


class InteractionArch(nn.Sequential):
    """Of another library, with TorchRec's name."""


def test_a_class_of_the_same_name_is_no_dot_product() -> None:
    model = InteractionArch(bags(), nn.Linear(8, 4, device=META))
    found = find_dense_layers(model, table_set_of(model).tables)
    assert found == DenseModel(layers=((1.0, 8, 4),)).of_tables(table_set_of(model).tables)


def test_attention_sees_each_token_of_the_longest_sequence() -> None:
    tables = table_set_of(Sequence(), {"s": 20.0}).tables
    found = find_dense_layers(Sequence(), tables)
    expected = DenseModel("bf16", attention=(Attention(16, 20.0, ffn=32),)).of_tables(tables)
    assert found is not None and (found.attention, found.dtype) == (expected.attention, "bf16")
    assert found.moved_values == expected.moved_values
    assert sorted_shapes(found.products) == sorted_shapes(expected.products)


def test_place_and_the_planner_know_the_step_of_a_model() -> None:
    model = DLRM(bags(), 13, [32, 16], [8, 4, 1], dense_device=META)
    answer = evenshard.place(model, 2, hardware="h100", batch_size=64, effort="quick")
    planner = EvenshardPlanner(world_size=2, compute_device="cuda", batch_size=32, hardware="h100", effort="quick")
    planner.plan(model, get_default_sharders())
    assert planner.answer is not None and planner.answer.request.dense == answer.request.dense
    assert answer.step is not None and answer.request.dense == find_dense_layers(model, answer.request.tables)
    assert find_dense_layers(bags(), answer.request.tables) is None


# Bytes, by hand; benchmarks/memory_cpu_202611.md has them measured ----------------------------------------------------


class Model(nn.Module):
    """60 MB of tables, and 10 x 30 + 30 dense parameters, 5 frozen ones, and a buffer of 7 bytes."""

    def __init__(self, device: torch.device | None = META, data_type: torch.dtype = torch.float32) -> None:
        super().__init__()
        config = EmbeddingBagConfig(name="t", feature_names=["f"], num_embeddings=1_000_000, embedding_dim=16)
        self.tower = nn.Sequential(nn.Linear(10, 30, device=device, dtype=data_type))
        self.tables = EmbeddingBagCollection(tables=[config], device=META)
        self.frozen = nn.Parameter(torch.zeros(5, device=device, dtype=data_type), requires_grad=False)
        self.register_buffer("mask", torch.zeros(7, dtype=torch.bool, device=device))


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 2), ("momentum", 3), ("adagrad", 3), ("adam", 4)])
def test_parameters_gradients_and_states(optimizer: str, copies: int) -> None:
    assert dense_bytes(Model(), optimizer) == 4 * (copies * 330 + 5) + 7
    assert dense_bytes(Model(torch.device("cpu")), optimizer) == dense_bytes(Model(), optimizer)


def test_half_precision_halves_gradients_and_states_too() -> None:
    assert dense_bytes(Model(data_type=torch.bfloat16)) == 2 * (4 * 330 + 5) + 7


def test_a_layer_at_two_paths_counts_once() -> None:
    model = Model()
    model.again = model.tower
    assert dense_bytes(model) == dense_bytes(Model())


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"optimizer is 'lion'\. Choose from sgd, momentum, adagrad, adam"):
        dense_bytes(Model(), "lion")
