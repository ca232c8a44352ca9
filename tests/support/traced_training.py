"""One rank of a real TorchRec training on the CPU that records its trace as `evenshard observe --help` shows.

Usage: python -m support.traced_training FOLDER RANK. FOLDER holds the plan; the trace is written beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE_S

WORLD_SIZE, LOCAL_BATCH, LOOKUPS = 2, 16, 3
TABLES = {"id": (50, 8), "clicks": (40, 16), "wide": (30, 24)}
PLAN = "plan.json"


def record(folder: Path) -> list[Path]:
    """The traces of both ranks, in their order."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "support.traced_training", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(WORLD_SIZE)
    ]
    errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), b"\n".join(errors).decode()
    return [folder / f"trace_rank{rank}.json.gz" for rank in range(WORLD_SIZE)]


def train(folder: Path, rank: int) -> None:
    """Six steps, three of them recorded."""
    import torch
    import torch.distributed as dist
    from torch.profiler import profile, schedule
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.model_parallel import DistributedModelParallel

    from evenshard.torchrec import load_plan

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name])
        for name, (rows, dim) in TABLES.items()
    ]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
            self.over = torch.nn.Linear(sum(dim for _, dim in TABLES.values()), 1)

        def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
            return self.over(self.tables(features).values())

    whole = Model()
    plan = load_plan(folder / PLAN, whole, compute_device="cpu")
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan)
    generator = torch.Generator().manual_seed(rank)
    lengths = torch.full((len(TABLES) * LOCAL_BATCH,), LOOKUPS)
    steps = schedule(wait=2, warmup=1, active=3, repeat=1)

    def save(prof: profile) -> None:
        prof.export_chrome_trace(str(folder / f"trace_rank{rank}.json.gz"))

    with profile(schedule=steps, record_shapes=True, on_trace_ready=save) as prof:
        for _ in range(6):
            ids = torch.randint(0, 30, (int(lengths.sum()),), generator=generator)
            model(KeyedJaggedTensor([*TABLES], ids, lengths=lengths)).sum().backward()
            prof.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
