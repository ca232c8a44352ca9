"""Small TorchRec models, ways to place them, and planners on small machines, for tests in TorchRec's place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import types
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.parts import Span
from evenshard.sharders.simple import expert_sharders
from evenshard.torchrec import EvenshardPlanner, TablePart
from support.request_builders import untrained

META, MB = torch.device("meta"), 2**20
GREEDY = expert_sharders()[0]
WARNINGS = pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")


def config(name: str, rows: int, dim: int, *features: str, **more: Any) -> EmbeddingBagConfig:
    names = list(features or (name,))
    return EmbeddingBagConfig(name=name, feature_names=names, num_embeddings=rows, embedding_dim=dim, **more)


USER = [config("id", 50, 8, "user_id"), config("clicks", 40, 16), config("wide", 30, 24)]
ITEM = [config("id", 60, 8, "item_id", "item_before"), config("tags", 20, 4, pooling=PoolingType.MEAN)]
NAMES = ("user.ebc.id", "clicks", "wide", "item.id", "tags")


class Model(nn.Module):
    """Two collections, one of them one level down, both with a table called id, and a linear layer."""

    rows = {feature: one.num_embeddings for one in (*USER, *ITEM) for feature in one.feature_names}  # noqa: RUF012

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.user = nn.Module()
        self.user.ebc = EmbeddingBagCollection(tables=USER, device=device)
        self.item = EmbeddingBagCollection(tables=ITEM, device=device)
        self.over = nn.Linear(8 + 16 + 24 + 2 * 8 + 4, 1, bias=False, device=device)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        pooled = {**self.user.ebc(features).to_dict(), **self.item(features).to_dict()}
        return self.over(torch.cat([pooled[feature] for feature in self.rows], dim=1)).squeeze(1)


# Parts out of order and of unequal width.
SPLIT = tuple(
    TablePart(NAMES[at], Span(0, (*USER, *ITEM)[at].num_embeddings), Span(*columns), (device,))
    for at, device, *columns in (
        *((2, 1, 8, 24), (2, 0, 0, 8), (1, 0, 0, 8), (1, 1, 8, 16)),
        *((0, 0, 0, 8), (3, 1, 0, 8), (4, 0, 0, 4)),
    )
)


def gb(num_bytes: int) -> float:
    """As memory caps are given."""
    return num_bytes / BYTES_PER_GB


def topology(world_size: int, compute_device: str = "cuda", **kwargs: Any) -> Any:
    """TorchRec's description of a machine; one node, and 1 GB per GPU, where nothing else is given."""
    given = {"world_size": world_size, "local_world_size": world_size, "hbm_cap_bytes": BYTES_PER_GB, **kwargs}
    kernels = types.KernelConfig(compute_device=compute_device, use_hardware_based_bandwidth=True)
    return types.TopologyFactory.create_topology(types.TrainerConfig(**given), types.HardwareConfig(), kernels)


def bags(number: int, rows: int = 100, dim: int = 64, **more: Any) -> list[EmbeddingBagConfig]:
    """Tables as TorchRec's tests have them: table_0 looked up by feature_0, and so on."""
    return [config(f"table_{at}", rows, dim, f"feature_{at}", **more) for at in range(number)]


class Sparse(nn.Module):
    """A collection below a name, and a layer."""

    def __init__(self, tables: list[EmbeddingBagConfig], is_weighted: bool = False) -> None:
        super().__init__()
        self.sparse = nn.Module()
        self.sparse.ebc = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=META)
        self.over = nn.Linear(10, 10, device=META)


def two_gpus(megabytes: float = 2, **more: Any) -> types.Topology:
    return topology(2, hbm_cap_bytes=int(megabytes * MB), **more)


def planner(machine: types.Topology | None = None, **given: Any) -> EvenshardPlanner:
    """With a model that was not trained, weights alone that count, and no memory beside the devices'."""
    own: dict[str, Any] = {"model": untrained(), "training_pipeline": "", "host_memory_gb": 0, **given}
    return EvenshardPlanner(two_gpus() if machine is None else machine, **own)


def entries(plan: Any) -> dict[str, Any]:
    """Of all tables, by name."""
    return {name: one for of in plan.plan.values() for name, one in of.items()}


class Only(EmbeddingBagCollectionSharder):
    """A module sharder that knows these types, on one kernel."""

    def __init__(self, *ways: str, kernel: str = "fused") -> None:
        super().__init__()
        self.ways, self.kernel = ways, kernel

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(self.ways)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [self.kernel]
