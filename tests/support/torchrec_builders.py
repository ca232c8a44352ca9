"""A small TorchRec model of two collections, and ways to place it, that the tests of the export share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.parts import Span
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.simple import expert_sharders
from evenshard.torchrec import TablePart

META = torch.device("meta")
GREEDY = expert_sharders()[0]
USER = [
    EmbeddingBagConfig(name="id", feature_names=["user_id"], num_embeddings=50, embedding_dim=8),
    EmbeddingBagConfig(name="clicks", feature_names=["clicks"], num_embeddings=40, embedding_dim=16),
    EmbeddingBagConfig(name="wide", feature_names=["wide"], num_embeddings=30, embedding_dim=24),
]
ITEM = [
    EmbeddingBagConfig(name="id", feature_names=["item_id", "item_before"], num_embeddings=60, embedding_dim=8),
    EmbeddingBagConfig(
        name="tags", feature_names=["tags"], num_embeddings=20, embedding_dim=4, pooling=PoolingType.MEAN
    ),
]
ROWS_OF_FEATURE = {feature: one.num_embeddings for one in (*USER, *ITEM) for feature in one.feature_names}
NAMES = ("user.ebc.id", "clicks", "wide", "item.id", "tags")


class Tower(nn.Module):
    """A collection one level down."""

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection(tables=USER, device=device)


class Model(nn.Module):
    """Two collections, both with a table called id, and a linear layer."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.user = Tower(device)
        self.item = EmbeddingBagCollection(tables=ITEM, device=device)
        self.over = nn.Linear(8 + 16 + 24 + 2 * 8 + 4, 1, device=device)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        pooled = {**self.user.ebc(features).to_dict(), **self.item(features).to_dict()}
        return self.over(torch.cat([pooled[feature] for feature in ROWS_OF_FEATURE], dim=1)).squeeze(1)


WORLD_SIZE = 2


@dataclass(frozen=True)
class Fixed:
    """A sharder that knows the answer."""

    device_of_table: tuple[int, ...]
    name: str = "fixed"

    def place(self, task: ShardingTask) -> Placement:
        return Placement(self.device_of_table, task.num_devices)


def part_of(table: str, device: int, start: int, stop: int) -> TablePart:
    """Columns of a table on a device."""
    num_rows = dict(zip(NAMES, (one.num_embeddings for one in (*USER, *ITEM)), strict=True)).get(table, 1)
    return TablePart(table, Span(0, num_rows), Span(start, stop), (device,))


SPLIT = (
    part_of("wide", 1, 8, 24),  # parts out of order and of unequal width
    part_of("wide", 0, 0, 8),
    part_of("clicks", 0, 0, 8),
    part_of("clicks", 1, 8, 16),
    part_of("user.ebc.id", 0, 0, 8),
    part_of("item.id", 1, 0, 8),
    part_of("tags", 0, 0, 4),
)
PATHS = {"user.ebc": USER, "item": ITEM}


def gb(num_bytes: int) -> float:
    """As memory caps are given."""
    return num_bytes / BYTES_PER_GB


def topology(world_size: int, compute_device: str = "cuda", **kwargs: Any) -> Any:
    """TorchRec's description of a machine; one node, and 1 GB per GPU, where nothing else is given."""
    from torchrec.distributed.planner import types

    given = {"world_size": world_size, "local_world_size": world_size, "hbm_cap_bytes": BYTES_PER_GB, **kwargs}
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(**given),
        types.HardwareConfig(),
        types.KernelConfig(compute_device=compute_device, use_hardware_based_bandwidth=True),
    )
