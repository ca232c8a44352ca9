"""A TorchRec model that a rank trains on the CPU, with tables of equal sizes, each sharded in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.torchrec_training import in_parts

MACHINE, DIM, STEPS = Nodes.one_node(2), 64, 4
META, CPU = torch.device("meta"), torch.device("cpu")


@dataclass(frozen=True)
class Setting:
    ways: tuple[str, ...]  # of the tables
    rows: int
    lookups: int  # of a sample, on average
    batch_size: int
    optimizer: str
    pipeline: str
    dense: int  # layers of 1,024 x 1,024

    @property
    def names(self) -> list[str]:
        return [f"t{number}" for number in range(len(self.ways))]


class Model(torch.nn.Module):
    """Its output is the loss."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        tables = [EmbeddingBagConfig(setting.rows, DIM, name=name, feature_names=[name]) for name in setting.names]
        self.setting, self.tables = setting, EmbeddingBagCollection(tables=tables, device=META)
        self.over = torch.nn.Linear(DIM * len(tables), 4, device=META)
        self.dense = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device=META) for _ in range(setting.dense)])

    def forward(self, features: Any) -> Any:
        loss = self.over(self.tables(features).values()).square().mean()
        loss = loss + self.dense(torch.ones(1, 1024)).square().mean()
        return loss if self.setting.pipeline == "none" else (loss, loss.detach())


def placed(setting: Setting) -> tuple[Model, tuple[Table, ...], list[TablePart]]:
    """The model, its tables and their parts."""
    model = Model(setting)
    tables = tables_of(model, dict.fromkeys(setting.names, float(setting.lookups)))
    ways = enumerate(zip(tables, setting.ways, strict=True))
    return model, tuple(tables), [part for at, one in ways for part in in_parts(*one, MACHINE, at % 2)]


def train(setting: Setting, rank: int) -> None:
    (meta, tables, parts), rng = placed(setting), torch.Generator().manual_seed(rank)
    fused = {"optimizer": EmbOptimType(setting.optimizer), "learning_rate": 0.1}
    sharders: list[Any] = [EmbeddingBagCollectionSharder(fused)]
    plan = plan_of_parts(parts, tables, meta, MACHINE, "cpu", {})
    model = DistributedModelParallel(meta, plan=plan, device=CPU, sharders=sharders)
    in_backward = set(model.fused_optimizer.params)
    optimizer = torch.optim.Adam([one for name, one in model.named_parameters() if name not in in_backward], lr=0.01)

    def features() -> Any:
        samples = len(tables) * setting.batch_size // 2
        lengths = torch.randint(0, 2 * setting.lookups + 1, (samples,), generator=rng, dtype=torch.int32)
        values = torch.empty(int(lengths.sum()), dtype=torch.int64).random_(0, setting.rows, generator=rng)
        return KeyedJaggedTensor.from_lengths_sync(setting.names, values, lengths)

    batches, pipeline = (features() for _ in range(STEPS)), TrainPipelineSparseDist(model, optimizer, CPU)
    for _ in range(STEPS):
        if setting.pipeline == "sparse_dist":
            pipeline.progress(batches)
            continue
        optimizer.zero_grad()
        model(next(batches)).backward()
        optimizer.step()
