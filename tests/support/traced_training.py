"""A real TorchRec training on the CPU whose ranks record their traces as `evenshard observe --help` shows."""

from __future__ import annotations

from pathlib import Path

from support.ranks import run_ranks

WORLD_SIZE, LOCAL_BATCH, LOOKUPS = 2, 16, 3
TABLES = {"id": (50, 8), "clicks": (40, 16), "wide": (30, 24)}
PLAN = "plan.json"


def record(folder: Path) -> list[Path]:
    """The traces of both ranks, in their order, which they write beside the plan in the folder."""
    run_ranks(train, WORLD_SIZE, folder)
    return [folder / f"trace_rank{rank}.json.gz" for rank in range(WORLD_SIZE)]


def train(rank: int, folder: Path) -> None:
    """Six steps, three of them recorded."""
    import torch
    from torch.profiler import profile, schedule
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.model_parallel import DistributedModelParallel

    from evenshard.torchrec import load_plan

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
