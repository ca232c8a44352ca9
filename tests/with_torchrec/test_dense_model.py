"""Bytes of the dense rest, by hand; benchmarks/memory_cpu_202611.md has them measured."""

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.base.errors import BadConfig
from evenshard.torchrec import dense_bytes

META = torch.device("meta")


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
