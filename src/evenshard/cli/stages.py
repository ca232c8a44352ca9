"""The commands of the loop, one per stage."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evenshard.cli.arguments import (
    OUTPUT,
    PATH,
    SOURCE,
    Commands,
    at_least,
    hardware_flag,
    metrics_flag,
    output_flag,
    params_flag,
)
from evenshard.utils.outputs import NETWORK, REPORT


def _generate_tables(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.stages import generate_tables as stage
    from evenshard.tracking import stage_run
    from evenshard.utils.params import load_params, section

    params = load_params(args.params)
    config = section(params, "generate_tables", stage.GenerateTablesConfig, source=args.source, seed=args.seed)
    with stage_run("generate_tables", params, asdict(config)) as run:
        outputs = stage.GenerateTablesOutputs(args.tables_out, args.tasks_out)
        metrics = stage.run(config, stage.GenerateTablesInputs(), outputs)
        run.metrics(metrics)
        run.tables(args.tables_out)
        run.artifact(args.tables_out)
        run.artifact(args.tasks_out)
    return metrics


def _benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.measure.config import MeasureConfig
    from evenshard.measure.distributed import collective
    from evenshard.stages import benchmark as stage
    from evenshard.tracking import stage_run
    from evenshard.utils.params import load_params, section
    from evenshard.utils.provenance import Lineage

    params = load_params(args.params)
    config = section(
        params,
        "benchmark",
        stage.BenchmarkConfig,
        placements_per_round=args.placements,
        shards_per_round=args.shards,
    )
    measure = section(params, "measure", MeasureConfig, hardware=args.hardware)
    inputs = stage.BenchmarkInputs(
        tables=args.tables,
        tasks=args.tasks,
        round=args.round,
        cost_net=args.cost_net,
        policy=args.policy,
        cost_model=args.cost_model,
        journal=args.journal,
        budget_minutes=args.budget_minutes,
        part=args.part,
        num_parts=args.num_parts,
    )
    outputs = stage.BenchmarkOutputs(args.out, args.plan_out)
    if collective.is_follower():
        collective.serve(measure)
        return {}
    if args.plan_out is not None or args.budget_minutes == 0:
        return stage.run(config, measure, inputs, outputs, Lineage.here(params)).metrics
    with stage_run(inputs.name, params, {**asdict(config), **asdict(measure)}) as run:
        outcome = stage.run(config, measure, inputs, outputs, Lineage.here(params))
        run.series("measured_ms_per_placement", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
        run.tables(args.tables)
        run.costs([args.out], "benchmark")
    return outcome.metrics


def _train_cost(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.stages import train_cost as stage
    from evenshard.stages.loop import LoopConfig
    from evenshard.tracking import stage_run
    from evenshard.utils.params import load_params, section
    from evenshard.utils.provenance import Lineage

    params = load_params(args.params)
    config = section(params, "train_cost", stage.TrainCostConfig)
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    inputs = stage.TrainCostInputs(
        tables=args.tables,
        tasks=args.tasks,
        costs=tuple(args.costs),
        round=args.round,
        num_rounds=max(num_rounds, args.round),
        cost_net=args.cost_net,
        cost_model=args.cost_model,
    )
    with stage_run(f"train_cost_{args.round}", params, asdict(config)) as run:
        run.tables(args.tables)
        run.costs(args.costs, "training")
        outputs = stage.TrainCostOutputs(args.out, args.model_out)
        outcome = stage.run(config, inputs, outputs, Lineage.here(params))
        run.series("loss_per_update", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
        if args.model_out is not None:
            run.artifact(args.model_out)
    return outcome.metrics


def _train_policy(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.stages import train_policy as stage
    from evenshard.stages.loop import LoopConfig
    from evenshard.tracking import stage_run
    from evenshard.utils.params import load_params, section

    params = load_params(args.params)
    config = section(params, "train_policy", stage.TrainPolicyConfig)
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    inputs = stage.TrainPolicyInputs(
        args.tables, args.tasks, args.cost_net, args.round, max(num_rounds, args.round), args.policy
    )
    with stage_run(f"train_policy_{args.round}", params, asdict(config)) as run:
        run.tables(args.tables)
        run.learned_from(args.cost_net)
        outcome = stage.run(config, inputs, stage.TrainPolicyOutputs(args.out))
        run.series("predicted_ms_per_update", outcome.curve)
        run.metrics(outcome.metrics)
        run.artifact(args.out)
    return outcome.metrics


def _evaluate(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.measure.config import MeasureConfig
    from evenshard.measure.distributed import collective
    from evenshard.planner.serving import served_code
    from evenshard.stages import evaluate as stage
    from evenshard.tracking import log_to_parent, stage_run
    from evenshard.utils.params import load_params, section
    from evenshard.utils.provenance import Lineage

    params = load_params(args.params)
    config = section(params, "evaluate", stage.EvaluateConfig)
    measure = section(params, "measure", MeasureConfig, hardware=args.hardware)
    if collective.is_follower():
        collective.serve(measure)
        return {}
    inputs = stage.EvaluateInputs(
        args.tables, args.tasks, tuple(args.costs), args.cost_net, args.policy, args.cost_model
    )
    with stage_run("evaluate", params, {**asdict(config), **asdict(measure)}) as run:
        evaluation = stage.run(config, measure, inputs, stage.EvaluateOutputs(args.out), Lineage.here(params))
        headline = stage.headline(evaluation.metrics)
        run.tables(args.tables)
        run.evaluation(args.out, inputs.networks, served_code(), inputs.costs, headline)
    log_to_parent(headline, run.origin)
    print(evaluation.table)
    print("\nreport: " + ", ".join(str(path) for path in sorted(REPORT.paths(args.out))))
    return {}


def add_commands(commands: Commands) -> None:
    """Declares the five stages."""

    def stage(name: str, call: Any, what: str, more: str) -> argparse.ArgumentParser:
        sub = commands.add(name, call, what, more)
        params_flag(sub)
        metrics_flag(sub)
        return sub

    def inputs(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--tables", **PATH, required=True, help="the pool, as generate-tables writes it")
        sub.add_argument("--tasks", **PATH, required=True, help="train and test tasks, as generate-tables writes them")

    def at_round(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--round", type=at_least(1), default=1, help="which round of the loop this is (default: 1)")

    sub = stage(
        "generate-tables",
        _generate_tables,
        "Write a table pool and placement tasks.",
        "Tables come from the seeded DLRM 2021 generator, a public catalogue, your own table file or a recorded DLRM "
        "batch (generate_tables.source); train and test tasks share no table.",
    )
    sub.add_argument("--source", type=SOURCE, help="overrides generate_tables.source of the settings")
    sub.add_argument("--seed", type=int, help="overrides generate_tables.seed")
    sub.add_argument("--tables-out", **OUTPUT, required=True, help="table pool to write (.parquet, .json, .csv, .yaml)")
    sub.add_argument("--tasks-out", **OUTPUT, required=True, help="tasks to write (.json)")

    sub = stage(
        "benchmark",
        _benchmark,
        "Time placements of the train tasks, and random shards.",
        "Round 1 places at random; with --cost-net and --policy of the previous round, its policy proposes, and with "
        "--cost-model a search proposes its share (benchmark.searched_share). Under "
        "`torchrun --nproc-per-node N -m evenshard benchmark` N devices measure at once and really exchange.",
    )
    inputs(sub)
    at_round(sub)
    hardware_flag(sub)
    sub.add_argument("--placements", type=at_least(0), help="overrides benchmark.placements_per_round")
    sub.add_argument(
        "--shards", type=at_least(0), help="overrides benchmark.shards_per_round: random shards of 1-64 tables"
    )
    sub.add_argument("--part", type=at_least(1), default=1, metavar="I",
                     help="measure only part I of --num-parts; `evenshard merge-costs` merges them")  # fmt: skip
    sub.add_argument("--num-parts", type=at_least(1), default=1, metavar="N",
                     help="parts that several machines measure side by side, each with all controls")  # fmt: skip
    sub.add_argument("--budget-minutes", type=at_least(0, float), metavar="M",
                     help="begin no measurement after M minutes; 0 only turns the journal into costs")  # fmt: skip
    sub.add_argument("--journal", **OUTPUT, help="every measurement goes here at once; started again with the same "
                     "journal, the benchmark resumes (default: one beside --out, removed at the end)")  # fmt: skip
    sub.add_argument("--plan-out", **OUTPUT, help="measure nothing: write what is to be measured, for `python -m "
                     "evenshard.measure` on a box that has torch and FBGEMM alone")  # fmt: skip
    sub.add_argument("--cost-net", **PATH, help="cost network of the previous round")
    sub.add_argument("--policy", **PATH, help="policy of the previous round")
    sub.add_argument("--cost-model", **PATH, help="evenshard's cost model of the previous round")
    sub.add_argument("--out", **OUTPUT, required=True, help="cost dataset to write (.parquet)")

    sub = stage(
        "train-cost",
        _train_cost,
        "Fit the cost network and the cost model to the costs of `evenshard benchmark`.",
        "Give the cost datasets of all rounds so far; --cost-net goes on from the previous round's network. "
        "DreamShard's policy is trained against the cost network (--out), evenshard searches with the cost model "
        "(--model-out).",
    )
    inputs(sub)
    at_round(sub)
    sub.add_argument("--costs", **PATH, nargs="+", required=True, help="cost datasets of rounds 1 to this one")
    sub.add_argument("--cost-net", **PATH, help="cost network of the previous round")
    sub.add_argument("--cost-model", **PATH, help="evenshard's cost model of the previous round: its errors about its "
                     "own choices widen the new one's intervals")  # fmt: skip
    sub.add_argument("--out", **output_flag(NETWORK), required=True, help="folder of the network to write")
    sub.add_argument(
        "--model-out",
        **output_flag(NETWORK),
        help="folder of evenshard's cost model to write (default: none is fitted)",
    )

    sub = stage(
        "train-policy",
        _train_policy,
        "Train the placement policy against the cost network.",
        "Nothing is measured. --policy goes on from the previous round's policy.",
    )
    inputs(sub)
    at_round(sub)
    sub.add_argument("--cost-net", **PATH, required=True, help="cost network of this round")
    sub.add_argument("--policy", **PATH, help="policy of the previous round")
    sub.add_argument("--out", **output_flag(NETWORK), required=True, help="folder of the policy to write")

    sub = stage(
        "evaluate",
        _evaluate,
        "Compare all sharders on the held-out tasks and report.",
        "Writes metrics.json, evaluation.csv and pictures, and prints the table.",
    )
    inputs(sub)
    hardware_flag(sub)
    sub.add_argument("--costs", **PATH, nargs="+", required=True, help="cost datasets of all rounds")
    sub.add_argument("--cost-net", **PATH, required=True, help="cost network of the last round")
    sub.add_argument("--policy", **PATH, required=True, help="policy of the last round")
    sub.add_argument("--cost-model", **PATH, help="evenshard's cost model of the last round; evenshard then takes part")
    sub.add_argument("--out", **output_flag(REPORT), required=True, help="report folder to write into")
