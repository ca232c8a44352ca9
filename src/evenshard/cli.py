"""The command line: parse and call, nothing else.

Exit codes: 0 done, 1 failed, 2 bad input. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from evenshard import __version__
from evenshard.errors import BadInput, EvenshardError, InfeasibleTask


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Try {self.prog} --help.\n")


def _generate_tables(args: argparse.Namespace, params: dict[str, Any]) -> Mapping[str, Any]:
    from evenshard.params import section
    from evenshard.stages import generate_tables as stage
    from evenshard.tracking import stage_run

    config = section(params, "generate_tables", stage.GenerateTablesConfig, source=args.source, seed=args.seed)
    with stage_run("generate_tables", params, asdict(config)) as run:
        outputs = stage.GenerateTablesOutputs(args.tables_out, args.tasks_out)
        metrics = stage.run(config, stage.GenerateTablesInputs(), outputs)
        run.metrics(metrics)
        run.artifact(args.tasks_out)
    return metrics


def _benchmark(args: argparse.Namespace, params: dict[str, Any]) -> Mapping[str, Any]:
    from evenshard.measure import MeasureConfig
    from evenshard.params import section
    from evenshard.stages import benchmark as stage
    from evenshard.tracking import stage_run

    config = section(params, "benchmark", stage.BenchmarkConfig, placements_per_round=args.placements)
    measure = section(params, "measure", MeasureConfig, hardware=args.hardware)
    inputs = stage.BenchmarkInputs(args.tables, args.tasks, args.round, args.cost_net, args.policy)
    with stage_run(f"benchmark_{args.round}", params, {**asdict(config), **asdict(measure)}) as run:
        outcome = stage.run(config, measure, inputs, stage.BenchmarkOutputs(args.out))
        run.series("measured_ms_per_placement", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
    return outcome.metrics


def _train_cost(args: argparse.Namespace, params: dict[str, Any]) -> Mapping[str, Any]:
    from evenshard.params import section
    from evenshard.stages import train_cost as stage
    from evenshard.stages.loop import LoopConfig
    from evenshard.tracking import stage_run

    config = section(params, "train_cost", stage.TrainCostConfig)
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    inputs = stage.TrainCostInputs(
        args.tables, args.tasks, tuple(args.costs), args.round, max(num_rounds, args.round), args.cost_net
    )
    with stage_run(f"train_cost_{args.round}", params, asdict(config)) as run:
        outcome = stage.run(config, inputs, stage.TrainCostOutputs(args.out))
        run.series("loss_per_update", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
    return outcome.metrics


def _train_policy(args: argparse.Namespace, params: dict[str, Any]) -> Mapping[str, Any]:
    from evenshard.params import section
    from evenshard.stages import train_policy as stage
    from evenshard.stages.loop import LoopConfig
    from evenshard.tracking import stage_run

    config = section(params, "train_policy", stage.TrainPolicyConfig)
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    inputs = stage.TrainPolicyInputs(
        args.tables, args.tasks, args.cost_net, args.round, max(num_rounds, args.round), args.policy
    )
    with stage_run(f"train_policy_{args.round}", params, asdict(config)) as run:
        outcome = stage.run(config, inputs, stage.TrainPolicyOutputs(args.out))
        run.series("predicted_ms_per_update", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
    return outcome.metrics


def _evaluate(args: argparse.Namespace, params: dict[str, Any]) -> Mapping[str, Any]:
    from evenshard.measure import MeasureConfig
    from evenshard.params import section
    from evenshard.stages import evaluate as stage
    from evenshard.tracking import log_to_parent, stage_run

    config = section(params, "evaluate", stage.EvaluateConfig)
    measure = section(params, "measure", MeasureConfig, hardware=args.hardware)
    inputs = stage.EvaluateInputs(args.tables, args.tasks, tuple(args.costs), args.cost_net, args.policy)
    with stage_run("evaluate", params, {**asdict(config), **asdict(measure)}) as run:
        evaluation = stage.run(config, measure, inputs, stage.EvaluateOutputs(args.out))
        headline = {
            f"{name}.mean_measured_ms": one["mean_measured_ms"]
            for name, one in evaluation.metrics["sharders"].items()
            if one["mean_measured_ms"] is not None
        } | {key: value for key, value in evaluation.metrics["cost_network"].items() if value is not None}
        run.metrics(headline)
        run.artifact(args.out)
    log_to_parent(headline)
    print(evaluation.table)
    print("\nreport: " + ", ".join(str(path) for path in sorted(args.out.iterdir())))
    return {}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="evenshard", description="Learns where to put a recommender model's embedding tables.")
    parser.add_argument("--version", action="version", version=f"evenshard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    path: dict[str, Any] = {"type": Path, "metavar": "PATH"}

    def command(name: str, call: Callable[..., Any], what: str, more: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=f"{what} {more}")
        sub.set_defaults(call=call)
        sub.add_argument("--params", **path, default=Path("params.yaml"), help="settings (default: params.yaml)")
        sub.add_argument("--metrics", **path, help="also write the stage's metrics to this JSON file")
        return sub

    def inputs(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--tables", **path, required=True, help="the pool, as generate-tables writes it")
        sub.add_argument("--tasks", **path, required=True, help="train and test tasks, as generate-tables writes them")

    def at_round(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--round", type=_positive, default=1, help="which round of the loop this is (default: 1)")

    def hardware(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--hardware", help="auto, cpu or cuda (default: measure.hardware of the settings)")

    sub = command(
        "generate-tables",
        _generate_tables,
        "Write a table pool and placement tasks.",
        "Tables come from the seeded DLRM 2021 generator, a public catalogue, your own table file or a recorded DLRM "
        "batch (generate_tables.source); train and test tasks share no table.",
    )
    sub.add_argument("--source", help="overrides generate_tables.source of the settings")
    sub.add_argument("--seed", type=int, help="overrides generate_tables.seed")
    sub.add_argument("--tables-out", **path, required=True, help="table pool to write (.parquet, .json, .csv, .yaml)")
    sub.add_argument("--tasks-out", **path, required=True, help="tasks to write (.json)")

    sub = command(
        "benchmark",
        _benchmark,
        "Measure placements of the train tasks on real kernels.",
        "Round 1 places at random; with --cost-net and --policy of the previous round, its policy proposes.",
    )
    inputs(sub)
    at_round(sub)
    hardware(sub)
    sub.add_argument("--placements", type=int, help="overrides benchmark.placements_per_round")
    sub.add_argument("--cost-net", **path, help="cost network of the previous round")
    sub.add_argument("--policy", **path, help="policy of the previous round")
    sub.add_argument("--out", **path, required=True, help="cost dataset to write (.parquet)")

    sub = command(
        "train-cost",
        _train_cost,
        "Fit the cost network to measured costs.",
        "Give the cost datasets of all rounds so far; --cost-net goes on from the previous round's network.",
    )
    inputs(sub)
    at_round(sub)
    sub.add_argument("--costs", **path, nargs="+", required=True, help="cost datasets of rounds 1 to this one")
    sub.add_argument("--cost-net", **path, help="cost network of the previous round")
    sub.add_argument("--out", **path, required=True, help="folder of the network to write")

    sub = command(
        "train-policy",
        _train_policy,
        "Train the placement policy against the cost network.",
        "Nothing is measured. --policy goes on from the previous round's policy.",
    )
    inputs(sub)
    at_round(sub)
    sub.add_argument("--cost-net", **path, required=True, help="cost network of this round")
    sub.add_argument("--policy", **path, help="policy of the previous round")
    sub.add_argument("--out", **path, required=True, help="folder of the policy to write")

    sub = command(
        "evaluate",
        _evaluate,
        "Measure every sharder on the held-out tasks and report.",
        "Writes metrics.json, evaluation.csv and pictures, and prints the table.",
    )
    inputs(sub)
    hardware(sub)
    sub.add_argument("--costs", **path, nargs="+", required=True, help="cost datasets of all rounds")
    sub.add_argument("--cost-net", **path, required=True, help="cost network of the last round")
    sub.add_argument("--policy", **path, required=True, help="policy of the last round")
    sub.add_argument("--out", **path, required=True, help="report folder to write into")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("is below 1")
    return value


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parser().parse_args(argv)
    from evenshard.params import load_params
    from evenshard.progress import log_to_stderr

    log_to_stderr()
    try:
        metrics = args.call(args, load_params(args.params))
        if args.metrics is not None:
            _write_metrics(metrics, args.metrics)
    except (BadInput, InfeasibleTask) as error:
        print(f"evenshard {args.command}: {error}", file=sys.stderr)
        return 2
    except EvenshardError as error:
        print(f"evenshard {args.command} failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"evenshard {args.command} failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"evenshard {args.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def _write_metrics(metrics: Mapping[str, Any], path: Path) -> None:
    from evenshard.atomic import atomic_path

    with atomic_path(path) as draft:
        draft.write_text(json.dumps(metrics, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
