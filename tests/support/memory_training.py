"""A TorchRec model that two ranks train on the CPU, and the peak of each one's memory.

Started as a command, this module is a rank. Peaks are above a baseline that has trained the same plan with few rows.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart, cut_rows, whole_part
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, ROW_WISE
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.builders import column_parts

# What is freed is given back: resident memory is what lives.
GLIBC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
STEPS, DIM = 4, 64


@dataclass(frozen=True)
class Setting:
    """Tables of equal sizes, each sharded in its way, and dense layers of 1,024 x 1,024; lookups are on average."""

    ways: tuple[str, ...]
    rows: int
    lookups: int
    batch_size: int
    optimizer: str
    pipeline: str
    dense: int


def model_of(setting: Setting) -> Any:
    """The model, on the meta device; its output is the loss."""
    import torch
    from torch import nn
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    names, meta = [f"t{number}" for number in range(len(setting.ways))], torch.device("meta")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [EmbeddingBagConfig(setting.rows, DIM, name=name, feature_names=[name]) for name in names]
            self.tables = EmbeddingBagCollection(tables=tables, device=meta)
            self.over = nn.Linear(DIM * len(tables), 4, device=meta)
            self.dense = nn.Sequential(*[nn.Linear(1024, 1024, device=meta) for _ in range(setting.dense)])

        def forward(self, features: Any) -> Any:
            loss = self.over(self.tables(features).values()).square().mean()
            loss = loss + self.dense(torch.ones(1, 1024)).square().mean()
            return loss if setting.pipeline == "none" else (loss, loss.detach())

    return Model()


def placed(setting: Setting, model: Any) -> tuple[tuple[Table, ...], Sequence[TablePart]]:
    """The model's tables and their parts: halves of columns, rows, replicas, or whole tables by turns."""
    tables = tables_of(model, {f"t{number}": float(setting.lookups) for number in range(len(setting.ways))})
    parts: list[TablePart] = []
    for number, (table, way) in enumerate(zip(tables, setting.ways, strict=True)):
        halves = [replace(half, devices=(at,)) for at, half in enumerate(column_parts(table, (DIM // 2,)))]
        cut = {COLUMN_WISE: halves, ROW_WISE: cut_rows(table, range(2)), DATA_PARALLEL: [whole_part(table, (0, 1))]}
        parts += cut.get(way, [whole_part(table, (number % 2,))])
    return tuple(tables), parts


def train(setting: Setting, rank: int) -> None:
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    meta, cpu, rng = model_of(setting), torch.device("cpu"), torch.Generator().manual_seed(rank)
    tables, parts = placed(setting, meta)
    fused = {"optimizer": EmbOptimType(setting.optimizer), "learning_rate": 0.1}
    sharders: list[Any] = [EmbeddingBagCollectionSharder(fused)]
    plan = plan_of_parts(parts, tables, meta, Nodes.one_node(2), "cpu", {})
    model = DistributedModelParallel(meta, plan=plan, device=cpu, sharders=sharders)
    in_backward = set(model.fused_optimizer.params)
    optimizer = torch.optim.Adam([one for name, one in model.named_parameters() if name not in in_backward], lr=0.01)

    def features() -> Any:
        samples = len(tables) * setting.batch_size // 2
        lengths = torch.randint(0, 2 * setting.lookups + 1, (samples,), generator=rng, dtype=torch.int32)
        values = torch.empty(int(lengths.sum()), dtype=torch.int64).random_(0, setting.rows, generator=rng)
        return KeyedJaggedTensor.from_lengths_sync([table.name for table in tables], values, lengths)

    if setting.pipeline == "sparse_dist":
        pipeline, batches = TrainPipelineSparseDist(model, optimizer, cpu), (features() for _ in range(STEPS))
        for _ in range(STEPS):
            pipeline.progress(batches)
        return
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(features()).backward()
        optimizer.step()


def resident_bytes(what: str) -> int:
    """Of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def process(rank: int, setting: Setting, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    train(replace(setting, rows=64, batch_size=16, dense=1), rank)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    baseline = resident_bytes("VmRSS")
    train(setting, rank)
    (folder / f"peak-{rank}").write_text(str(resident_bytes("VmHWM") - baseline))
    dist.barrier()
    dist.destroy_process_group()


def measured_peaks(setting: Setting, folder: Path) -> list[int]:
    """Of both ranks, bytes."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **GLIBC}
    command = [sys.executable, "-W", "ignore", "-m", "support.memory_training", json.dumps(asdict(setting))]
    ranks = [subprocess.Popen([*command, str(rank), str(folder)], env=env) for rank in range(2)]
    try:
        assert [one.wait(timeout=600) for one in ranks] == [0, 0]
    finally:
        for one in ranks:
            one.kill()
    return [int((folder / f"peak-{rank}").read_text()) for rank in range(2)]


if __name__ == "__main__":
    process(int(sys.argv[2]), Setting(**json.loads(sys.argv[1])), Path(sys.argv[3]))
