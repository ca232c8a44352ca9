"""The loop's result with other tables, tasks and networks: runs the whole loop of params.yaml once per seed.

    python -m benchmarks.scripts.loop_seeds --seeds 0 1 2 --json out.json

Every random choice takes the seed: tables, tasks, lookups, placements, initial weights. Everything is measured for
real, in this process; params.yaml of the working directory gives the settings.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from evenshard.measure.config import MeasureConfig
from evenshard.sharders.catalog import SHARDERS
from evenshard.stages import benchmark, evaluate, generate_tables, loop, train_cost, train_policy
from evenshard.utils.console import log_to_stderr
from evenshard.utils.params import load_params, section

SHOWN = tuple(one.name for one in SHARDERS if one.in_loop)


def run_loop(params: dict[str, Any], seed: int, work: Path) -> tuple[dict[str, Any], str]:
    """The loop of DreamShard's Algorithm 1 for one seed: the metrics and the table of its report."""
    measure = section(params, "measure", MeasureConfig, seed=seed)
    num_rounds = section(params, "loop", loop.LoopConfig).num_rounds
    tables, tasks = work / "tables.parquet", work / "tasks.json"
    generate_tables.run(
        section(params, "generate_tables", loop.GenerateTablesConfig, seed=seed),
        loop.GenerateTablesInputs(),
        loop.GenerateTablesOutputs(tables, tasks),
    )
    costs: list[Path] = []
    cost_net = policy = cost_model = None
    for number in range(1, num_rounds + 1):
        folder = work / f"round_{number}"
        costs.append(folder / "costs.parquet")
        benchmark.run(
            section(params, "benchmark", loop.BenchmarkConfig, seed=seed),
            measure,
            loop.BenchmarkInputs(tables, tasks, number, cost_net, policy, cost_model=cost_model),
            loop.BenchmarkOutputs(costs[-1]),
        )
        train_cost.run(
            section(params, "train_cost", loop.TrainCostConfig, seed=seed),
            loop.TrainCostInputs(tables, tuple(costs), tasks, number, num_rounds, cost_net, cost_model),
            loop.TrainCostOutputs(folder / "cost_net", folder / "cost_model"),
        )
        cost_net, cost_model = folder / "cost_net", folder / "cost_model"
        train_policy.run(
            section(params, "train_policy", loop.TrainPolicyConfig, seed=seed),
            loop.TrainPolicyInputs(tables, tasks, cost_net, number, num_rounds, policy),
            loop.TrainPolicyOutputs(folder / "policy"),
        )
        policy = folder / "policy"
    assert cost_net is not None and policy is not None
    evaluate.run(
        section(params, "evaluate", loop.EvaluateConfig, seed=seed),
        measure,
        loop.EvaluateInputs(tables, tasks, tuple(costs), cost_net, policy, cost_model),
        loop.EvaluateOutputs(work / "reports"),
    )
    return json.loads((work / "reports/metrics.json").read_text()), (work / "reports/table.txt").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, help="keep everything here")
    parser.add_argument("--json", type=Path, help="write the metrics of every seed here")
    args = parser.parse_args()
    log_to_stderr()
    torch.set_num_threads(1)
    params = load_params(Path("params.yaml"))
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in args.seeds:
            start = time.perf_counter()
            metrics, table = run_loop(params, seed, (args.work or Path(scratch)) / f"seed_{seed}")
            found[seed] = {**metrics, "wall_s": time.perf_counter() - start}
            print(f"seed {seed}, {found[seed]['wall_s']:.0f} s\n{table}\n", flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1) + "\n")
    print("| seed | " + " | ".join(SHOWN) + " | network: median error, tau |")
    print("|---" * (len(SHOWN) + 2) + "|")
    for seed, metrics in found.items():
        cells = []
        for name in SHOWN:
            one = metrics["sharders"][name]
            low, high = one["difference_ci95_pct"]
            difference = f"{one['difference_to_best_heuristic_pct']:+.1f} % [{low:+.1f}, {high:+.1f}]"
            cells.append(
                f"{one['mean_measured_ms']:.2f} ms, {difference}"
                if low != high
                else f"{one['mean_measured_ms']:.2f} ms"
            )
        network = metrics["cost_network"]
        cells.append(f"{network['median_abs_pct_error']:.1f} %, {network['kendall_tau']:.2f}")
        print(f"| {seed} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
