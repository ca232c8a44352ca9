"""Time and memory of placing, searching and training on one core, by number of tables and devices.

    python -m benchmarks.scripts.speed [--json out.json] [--picture docs/images/placing_time.png]

- place_200x8_ms, place_1000x128_ms: DreamShard's greedy policy, 200 tables on 8 devices and 1000 on 128.
- search_1000x128_s: evenshard's search, with all its proposals, 1000 tables on 128 devices.
- train_50x4_s: DreamShard's whole training at the paper's settings (presets/paper.yaml: 10 rounds of 300 cost updates
  and 10 policy updates on 50-table tasks) without measuring. Its costs are artificial, proportional to lookups.
- rollout_256x50x8_ms: 256 sampled episodes at once, 50 tables on 8 devices.
- verify_s: TorchRec's plan of 10,000 tables on 128 GPUs, of which 1 % are row-wise, verified with its model and memory.

Each case runs in its own process to measure its own peak memory; Python and torch alone take about 300 MB.
Times are medians of repeats after a warm-up; training and search run once. ``--picture`` draws the growth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, sample_tasks
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.fit import CostModelFitConfig, fit_cost_model
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_sampled, rollout
from evenshard.sharders.dreamshard.fit import CostTensors, ReinforceConfig, fit_cost_net, train_policy
from evenshard.sharders.dreamshard.sharder import (
    DreamShardCostNet,
    DreamShardPolicy,
    DreamShardSharder,
    lean_cost_net,
    lean_policy,
)
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.simple import random_placement
from evenshard.sharders.training import FitConfig
from evenshard.tables.generator import GeneratorConfig, generate_tables

ROUNDS, COST_UPDATES, MINIBATCH, POLICY_UPDATES, EPISODES, PLACEMENTS = 10, 300, 64, 10, 10, 10
BATCH_SIZE = 65536
GROWTH_TABLES, GROWTH_DEVICES, SEARCH_DEVICES = (50, 100, 200, 500, 1000), (4, 8, 32, 128), (8, 128)


def train_tasks(num_devices: int) -> tuple[ShardingTask, ...]:
    """Draw the paper's 50 train tasks of 50 tables."""
    pool = generate_tables(GeneratorConfig(856, (16,), None, 16), BATCH_SIZE, seed=0)
    return sample_tasks(pool, TaskSampling(50, 1, 50, num_devices, 5.0, BATCH_SIZE), seed=0).train


def large_task(num_tables: int, num_devices: int) -> ShardingTask:
    """Return a task whose devices have 1.5 times the memory of the tables, at least twice the largest table."""
    tables = generate_tables(GeneratorConfig(num_tables, (16,), None, 16), BATCH_SIZE, seed=0)
    sizes = [table.size_bytes for table in tables]
    return ShardingTask.whole(
        "large", tables, num_devices, max(2 * max(sizes), sum(sizes) * 3 // (2 * num_devices)), BATCH_SIZE
    )


def made_up(task: ShardingTask, rng: np.random.Generator) -> MeasuredPlacement:
    """Draw a random placement with an artificial cost: milliseconds proportional to lookups."""
    placement = random_placement(task, rng)
    lookups = np.zeros(task.num_devices)
    for table, device in zip(task.tables, placement.device_of_table, strict=True):
        lookups[device] += table.pooling_factor / 10
    cost = PlacementCost(tuple(DeviceCost(x, 1.0, 1.0, 2 * x) for x in lookups.tolist()), "made up")
    return MeasuredPlacement(
        "", 1, "random", task, placement.parts(task.tables), cost, Provenance("simulated: made up", "", "", "", 0, 0)
    )


def networks() -> tuple[DreamShardCostNet, DreamShardPolicy]:
    """Return untrained networks with fixed weights; their speed does not depend on the weights."""
    torch.manual_seed(0)
    return DreamShardCostNet(), DreamShardPolicy()


def dreamshard(task: ShardingTask) -> DreamShardSharder:
    return DreamShardSharder(*networks(), FeatureNormalizer.fit(task.tables, BATCH_SIZE))


def cost_model() -> CostModel:
    """Fit a cost model to 100 placements, because the speed of a search depends on its predictions."""
    rng = np.random.default_rng(0)
    measured = [made_up(task, rng) for task in train_tasks(4)[:20] for _ in range(5)]
    return fit_cost_model(measured, CostModelFitConfig(num_updates=300))[0]


def seconds(work: Callable[[], object], warm_ups: int = 1, repeats: int = 9) -> float:
    """Measure the median time of a function, s."""
    times = []
    for _ in range(warm_ups + repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times[warm_ups:])


def place_seconds(num_tables: int, num_devices: int) -> float:
    task = large_task(num_tables, num_devices)
    sharder = dreamshard(task)
    return seconds(lambda: sharder.place(task))


def search_seconds(num_tables: int, num_devices: int) -> float:
    task = large_task(num_tables, num_devices)
    sharder = EvenshardSharder(cost_model(), dreamshard(task))
    sharder.place(large_task(50, 4))
    return seconds(lambda: sharder.place(task), warm_ups=0, repeats=1)


def rollout_seconds() -> float:
    task = train_tasks(8)[0]
    cost_net, policy = networks()
    batch = EpisodeBatch.of([task], FeatureNormalizer.fit(task.tables, BATCH_SIZE)).repeat(256)
    choose = choose_sampled(torch.Generator().manual_seed(0))
    return seconds(lambda: rollout(batch, lean_cost_net(cost_net), lean_policy(policy), choose))


def train_seconds() -> tuple[float, float]:
    """Measure the time of all cost updates and of all policy updates, s."""
    tasks = train_tasks(4)
    normalizer = FeatureNormalizer.fit([table for task in tasks for table in task.tables], BATCH_SIZE)
    cost_net, policy = networks()
    cost_adam, policy_adam = (torch.optim.Adam(net.parameters(), fused=True) for net in (cost_net, policy))
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    batches = [EpisodeBatch.of([task], normalizer) for task in tasks]
    measured: list[MeasuredPlacement] = []
    cost_s = policy_s = 0.0
    for _ in range(ROUNDS):
        measured += [made_up(tasks[rng.integers(len(tasks))], rng) for _ in range(PLACEMENTS)]
        start = time.perf_counter()
        data = CostTensors.of(measured, normalizer)
        fit_cost_net(cost_net, cost_adam, data, FitConfig(COST_UPDATES, MINIBATCH, 5e-4), generator)
        middle = time.perf_counter()
        reinforce = ReinforceConfig(POLICY_UPDATES, EPISODES, 5e-4, 1e-3)
        train_policy(policy, policy_adam, cost_net, batches, reinforce, generator)
        cost_s, policy_s = cost_s + middle - start, policy_s + time.perf_counter() - middle
    return cost_s, policy_s


def verify_seconds() -> float:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    from evenshard.placement.parts import cut_rows, whole_part
    from evenshard.torchrec import sharding_plan, tables_of, verify
    from evenshard.torchrec.plan.verify import Job

    named = ({"name": f"t{at}", "feature_names": [f"f{at}"], "num_embeddings": 1_000 + at} for at in range(10_000))
    model = EmbeddingBagCollection([EmbeddingBagConfig(embedding_dim=64, **one) for one in named], device="meta")
    tables, parts = tables_of(model), []
    for at, table in enumerate(tables):
        parts += [whole_part(table, (at % 128,))] if at % 100 else cut_rows(table, range(128))
    plan = sharding_plan(parts, tables, model, 128, local_world_size=8, compute_device="cuda")
    return seconds(lambda: verify(plan, model, Job(128, 8, 8), memory_cap_gb=80), repeats=3)


def train_case() -> dict[str, float]:
    cost_s, policy_s = train_seconds()
    return {"train_cost_s": cost_s, "train_policy_s": policy_s, "train_50x4_s": cost_s + policy_s}


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "place_200x8": lambda: {"place_200x8_ms": place_seconds(200, 8) * 1e3},
    "place_1000x128": lambda: {"place_1000x128_ms": place_seconds(1000, 128) * 1e3},
    "search_1000x128": lambda: {"search_1000x128_s": search_seconds(1000, 128)},
    "train_50x4": train_case,
    "rollout_256x50x8": lambda: {"rollout_256x50x8_ms": rollout_seconds() * 1e3},
    "verify": lambda: {"verify_s": verify_seconds()},
    "place_growth": lambda: {f"{t}x{d}": place_seconds(t, d) for d in GROWTH_DEVICES for t in GROWTH_TABLES},
    "search_growth": lambda: {f"{t}x{d}": search_seconds(t, d) for d in SEARCH_DEVICES for t in GROWTH_TABLES},
}
MEASURED = ("place_200x8", "place_1000x128", "search_1000x128", "train_50x4", "rollout_256x50x8")


def in_own_process(case: str) -> dict[str, float]:
    """Run a case in its own process and return its printed numbers; its errors end this process."""
    command = [sys.executable, "-m", "benchmarks.scripts.speed", "--case", case]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def draw(placing_s: dict[str, float], searching_s: dict[str, float], path: Path) -> None:
    """Plot time against tables, with one line per number of devices."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained")
    panels: Sequence[tuple[str, dict[str, float], Sequence[int], float, str]] = (
        ("greedy policy", placing_s, GROWTH_DEVICES, 1e3, "ms"),
        ("search", searching_s, SEARCH_DEVICES, 1.0, "s"),
    )
    for axis, (title, times, devices, scale, unit) in zip(axes, panels, strict=True):
        for d in devices:
            values = [times[f"{t}x{d}"] * scale for t in GROWTH_TABLES]
            axis.plot(GROWTH_TABLES, values, marker="o", label=f"{d} devices")
        axis.set(
            title=title, xlabel="tables", ylabel=f"time to place, {unit} (one core)", xlim=(0, None), ylim=(0, None)
        )
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--picture", type=Path, help="draw how the times grow into this PNG")
    parser.add_argument("--case", choices=CASES, help="run one case in this process and print its numbers as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.case:
        found = CASES[args.case]()
        found[f"{args.case}_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    result: dict[str, float] = {}
    for case in MEASURED:
        found = in_own_process(case)
        for name, value in found.items():
            print(f"{name:<28}{value:>10.2f}", flush=True)
        result |= found
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.picture:
        draw(in_own_process("place_growth"), in_own_process("search_growth"), args.picture)


if __name__ == "__main__":
    main()
