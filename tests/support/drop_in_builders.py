"""A small model, its planner on two small GPUs, and module sharders, for tests in the place of TorchRec's planner."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import (
    Topology,
)
from torchrec.distributed.types import (
    ShardingPlan,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.torchrec import EvenshardPlanner
from support.request_builders import untrained
from support.torchrec_builders import META, topology

MB = 2**20
WARNINGS = pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")


def bags(number: int, rows: int = 100, dim: int = 64, **more: Any) -> list[EmbeddingBagConfig]:
    """Tables as TorchRec's tests have them: table_0 looked up by feature_0, and so on."""
    return [
        EmbeddingBagConfig(
            name=f"table_{at}", feature_names=[f"feature_{at}"], num_embeddings=rows, embedding_dim=dim, **more
        )
        for at in range(number)
    ]


class Sparse(nn.Module):
    """A collection below a name, and a layer."""

    def __init__(self, tables: list[EmbeddingBagConfig], is_weighted: bool = False) -> None:
        super().__init__()
        self.sparse = nn.Module()
        self.sparse.ebc = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=META)
        self.over = nn.Linear(10, 10, device=META)


def two_gpus(megabytes: float = 2, **more: Any) -> Topology:
    return topology(2, hbm_cap_bytes=int(megabytes * MB), **more)


def planner(machine: Topology | None = None, **given: Any) -> EvenshardPlanner:
    """With a model that was not trained, weights alone that count, and no memory beside the devices'."""
    own: dict[str, Any] = {"model": untrained(), "training_pipeline": "", "host_memory_gb": 0, **given}
    return EvenshardPlanner(two_gpus() if machine is None else machine, **own)


def entries(plan: ShardingPlan) -> dict[str, Any]:
    """Of all tables, by name."""
    return {name: one for of in plan.plan.values() for name, one in of.items()}  # type: ignore[attr-defined]


class TableWise(EmbeddingBagCollectionSharder):
    """A module sharder that knows one type."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused"]


class TableOrRowWise(TableWise):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise", "table_wise"]
