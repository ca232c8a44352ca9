"""Rank correlation between predicted and measured steps of DLRM-like models on CPU ranks.

    python -m benchmarks.scripts.cpu_steps [--ranks 2] [--plans 20] [--seed 0]

Each rank trains TorchRec's DLRM under ``DistributedModelParallel`` over gloo, with random placements of the same
tables. One placement is traced, and ``observe`` gives the time of its step beside the embedding work. The predicted
step of every other placement is its predicted embedding work plus this time. The device model is that of one CPU core
(cpu_core.yaml), which was not fitted to this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.stats import spearmanr
from torch.profiler import profile, schedule
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM

from evenshard.measure.traces.ranks import observe
from evenshard.placement.parts import TablePart, whole_part
from evenshard.placement.placement import is_legal_sharding
from evenshard.planner.pricing import model_of, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from evenshard.torchrec.plan.plans import sharding_plan

HARDWARE = f"simulated:{Path(__file__).with_name('cpu_core.yaml')}"
LOCAL_BATCH, NUM_TABLES, DIM, NUM_DENSE = 2048, 12, 64, 13
ROUNDS, STEPS = 15, 4  # rounds over all placements, and steps of each in a round, of which the first is not timed
TRACED = (2, 1, 5)  # steps to wait, to warm up, and to record


def random_tables(rng: np.random.Generator) -> list[Table]:
    """Return tables of one dim with unlike rows and pooling factors."""
    rows = np.exp(rng.uniform(np.log(1e3), np.log(1e6), NUM_TABLES)).astype(int)
    lookups = np.round(np.exp(rng.uniform(np.log(1), np.log(100), NUM_TABLES)))
    return [Table(f"t{number}", int(rows[number]), DIM, float(lookups[number])) for number in range(NUM_TABLES)]


def random_parts(request: PlacementRequest, rng: np.random.Generator) -> tuple[TablePart, ...]:
    """Return whole tables on random ranks; some ranks have far more tables than others."""
    chances = rng.dirichlet(np.ones(request.num_devices))
    devices = rng.choice(request.num_devices, len(request.tables), p=chances).tolist()
    parts = tuple(whole_part(table, (device,)) for table, device in zip(request.tables, devices, strict=True))
    return parts if is_legal_sharding(request.task(), parts) else random_parts(request, rng)


def model_of_tables(tables: list[Table]) -> DLRM:
    """Return a DLRM of the tables on the meta device."""
    configs = [
        EmbeddingBagConfig(
            name=table.name, num_embeddings=table.num_rows, embedding_dim=DIM, feature_names=[table.name]
        )
        for table in tables
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return DLRM(collection, NUM_DENSE, [64, DIM], [64, 1])


def train(rank: int, num_ranks: int, folder: Path, tables: list[Table], plans: list[Any]) -> None:
    """Train with each placement; rank 0 writes the median step times, and each rank the trace of the first."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29511")}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rng, found = torch.Generator().manual_seed(rank), list[float]()
    lengths = torch.cat([torch.full((LOCAL_BATCH,), int(table.pooling_factor)) for table in tables])
    ids = torch.cat(
        [
            (torch.rand(LOCAL_BATCH * int(table.pooling_factor), generator=rng) ** 2 * table.num_rows).long()
            for table in tables
        ]
    )
    features = KeyedJaggedTensor([table.name for table in tables], ids, lengths=lengths)
    dense = torch.rand(LOCAL_BATCH, NUM_DENSE, generator=rng)
    steps = [_trainer(tables, parts, num_ranks, dense, features) for parts in plans]
    times = np.zeros((ROUNDS, len(plans)))
    for turn, (number, step) in product(range(ROUNDS), enumerate(steps)):
        for _ in range(STEPS):
            dist.barrier()
            started = time.perf_counter()
            step()
            dist.barrier()
            found.append(1e3 * (time.perf_counter() - started))
        times[turn, number] = np.median(found[1 - STEPS :])
    wait, warm_up, active = TRACED

    def save(traced: profile) -> None:
        traced.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))

    plan_of_steps = schedule(wait=wait, warmup=warm_up, active=active, repeat=1)
    with profile(schedule=plan_of_steps, record_shapes=True, on_trace_ready=save) as traced:
        for _ in range(sum(TRACED)):
            steps[0]()
            traced.step()
    if rank == 0:
        (folder / "times.json").write_text(json.dumps(np.median(times, axis=0).tolist()))
    dist.destroy_process_group()


def _trainer(
    tables: list[Table], parts: Any, num_ranks: int, dense: torch.Tensor, features: KeyedJaggedTensor
) -> Callable[[], None]:
    """Return a function that trains a model with a placement for one step."""
    whole = model_of_tables(tables)
    collections = {"sparse_arch.embedding_bag_collection": whole.sparse_arch.embedding_bag_collection}
    plan = sharding_plan(parts, tuple(tables), collections, num_ranks, compute_device="cpu", local_world_size=num_ranks)
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], 0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(dense, features).sum().backward()
        optimizer.step()

    return step


def main() -> None:
    """Measure, predict and print the steps with their rank correlation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    tables = random_tables(rng)
    request = PlacementRequest(
        tuple(tables), (24 * 2**30,) * args.ranks, LOCAL_BATCH * args.ranks, hardware=HARDWARE, training_pipeline="none"
    )
    plans = [random_parts(request, rng) for _ in range(args.plans)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.multiprocessing.spawn(train, (args.ranks, folder, tables, plans), args.ranks)
        measured = json.loads((folder / "times.json").read_text())
        traced = observe([folder / f"rank{rank}.json.gz" for rank in range(args.ranks)])
    rest_ms = traced.rest_ms("none")
    costs = part_costs(request, model_of(None, HARDWARE))
    embeddings = [found.predicted_ms for found in map(costs.predict, plans)]
    predicted = [found + (rest_ms or 0.0) for found in embeddings]
    for found, step_ms, measured_ms in zip(embeddings, predicted, measured, strict=True):
        print(f"embedding work {found:7.3f} ms, step {step_ms:7.3f} ms predicted, {measured_ms:7.3f} ms measured")
    error = np.median(np.abs(np.array(predicted[1:]) / np.array(measured[1:]) - 1))
    print(f"rest of the step, observed: {rest_ms:.3f} ms; median error of the other steps: {100 * error:.0f} %")
    print(f"rank correlation of {len(plans) - 1} other plans: {spearmanr(predicted[1:], measured[1:]).statistic:.3f}")


if __name__ == "__main__":
    main()
