"""A TorchRec model that a rank trains on the CPU, with tables of equal sizes, each sharded in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of
from evenshard.torchrec.plan.plans import plan_of_parts

MACHINE, DIM, STEPS = Nodes.one_node(2), 64, 4


@dataclass(frozen=True)
class Setting:
    """What is trained: the ways of its tables, lookups a sample on average, and dense layers of 1,024 x 1,024."""

    ways: tuple[str, ...]
    rows: int
    lookups: int
    batch_size: int
    optimizer: str
    pipeline: str
    dense: int


def model_of(setting: Setting) -> tuple[Any, tuple[Table, ...], tuple[TablePart, ...]]:
    """The model on the meta device, whose output is the loss, its tables and their parts."""
    import torch
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    from support.torchrec_training import in_parts

    names, meta = [f"t{number}" for number in range(len(setting.ways))], torch.device("meta")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [EmbeddingBagConfig(setting.rows, DIM, name=name, feature_names=[name]) for name in names]
            self.tables = EmbeddingBagCollection(tables=tables, device=meta)
            self.over = torch.nn.Linear(DIM * len(tables), 4, device=meta)
            self.dense = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device=meta) for _ in range(setting.dense)])

        def forward(self, features: Any) -> Any:
            loss = self.over(self.tables(features).values()).square().mean()
            loss = loss + self.dense(torch.ones(1, 1024)).square().mean()
            return loss if setting.pipeline == "none" else (loss, loss.detach())

    tables = tables_of(Model(), {name: float(setting.lookups) for name in names})
    ways = zip(tables, setting.ways, strict=True)
    return (
        Model(),
        tuple(tables),
        tuple(part for at, (table, way) in enumerate(ways) for part in in_parts(table, way, MACHINE, at % 2)),
    )


def train(setting: Setting, rank: int) -> None:
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    (meta, tables, parts), cpu, rng = model_of(setting), torch.device("cpu"), torch.Generator().manual_seed(rank)
    sharders: Sequence[Any] = [
        EmbeddingBagCollectionSharder({"optimizer": EmbOptimType(setting.optimizer), "learning_rate": 0.1})
    ]
    plan = plan_of_parts(parts, tables, meta, MACHINE, "cpu", {})
    model = DistributedModelParallel(meta, plan=plan, device=cpu, sharders=list(sharders))
    in_backward = set(model.fused_optimizer.params)
    optimizer = torch.optim.Adam([one for name, one in model.named_parameters() if name not in in_backward], lr=0.01)

    def features() -> Any:
        samples = len(tables) * setting.batch_size // 2
        lengths = torch.randint(0, 2 * setting.lookups + 1, (samples,), generator=rng, dtype=torch.int32)
        values = torch.empty(int(lengths.sum()), dtype=torch.int64).random_(0, setting.rows, generator=rng)
        return KeyedJaggedTensor.from_lengths_sync([table.name for table in tables], values, lengths)

    batches = (features() for _ in range(STEPS))
    pipeline = TrainPipelineSparseDist(model, optimizer, cpu)
    for _ in range(STEPS):
        if setting.pipeline == "sparse_dist":
            pipeline.progress(batches)
            continue
        optimizer.zero_grad()
        model(next(batches)).backward()
        optimizer.step()
