"""Stage 5: does it hold on tables nobody has trained on? Measures every sharder's placement of every held-out task."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evenshard import report
from evenshard.checkpoint import load_checkpoint
from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.costs import MeasuredPlacement, PlacementCost, load_costs, save_costs
from evenshard.evaluate import EXPERTS, Answer, Result, Standing, ask, infeasible_tasks, network_accuracy, standings
from evenshard.measure import Hardware, MeasureConfig, measure_all, open_hardware
from evenshard.params import require
from evenshard.progress import progress
from evenshard.sharders.base import Sharder
from evenshard.sharders.dreamshard import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.greedy import expert_sharders, single_cost_sharder
from evenshard.sharders.random import RandomSharder
from evenshard.table_files import load_tables
from evenshard.tasks import PlacementTask, load_tasks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluateConfig:
    """Section ``evaluate`` of params.yaml.

    Attributes:
        num_rollouts: sampled placements that dreamshard compares by predicted cost, beside the most probable one; 0 is
            the published inference.
        seed: of the random sharder.
    """

    num_rollouts: int = 256
    seed: int = 0


@dataclass(frozen=True)
class EvaluateInputs:
    """``costs``: of all rounds, for the picture of cost per round; networks of the last round."""

    tables: Path
    tasks: Path
    costs: tuple[Path, ...]
    cost_net: Path
    policy: Path


@dataclass(frozen=True)
class EvaluateOutputs:
    """``report``: folder of metrics.json, evaluation.csv, table.txt, evaluation_costs.parquet and the pictures."""

    report: Path


@dataclass(frozen=True)
class Evaluation:
    """What the stage returns: the metrics written and the table to print."""

    metrics: dict[str, Any]
    table: str


def run(config: EvaluateConfig, measure: MeasureConfig, inputs: EvaluateInputs, outputs: EvaluateOutputs) -> Evaluation:
    """Measures and reports.

    Raises:
        BadInput: if an input cannot be read.
        MeasurementFailed: if a kernel fails.
    """
    require(config.num_rollouts >= 0, f"evaluate.num_rollouts is {config.num_rollouts}. Make it at least 0.")
    split = load_tasks(inputs.tasks, load_tables(inputs.tables))
    cost_net = load_checkpoint(inputs.cost_net, DreamShardCostNet)
    policy = load_checkpoint(inputs.policy, DreamShardPolicy)
    training_costs = [one for path in inputs.costs for one in load_costs(path, split.train)]
    hardware = open_hardware(measure)
    dreamshard = DreamShardSharder(cost_net.net, policy.net, policy.normalizer, config.num_rollouts)
    sharders: list[Sharder] = [
        RandomSharder(config.seed),
        *expert_sharders(),
        single_cost_sharder(_single_costs(hardware, split.test)),
        dreamshard,
    ]
    answers = [_predicted(ask(sharder, task), dreamshard) for task in split.test for sharder in sharders]
    for answer in answers:
        if answer.placement is None:
            log.warning("%s is infeasible for %s", answer.reason, answer.sharder)
    results = _measure(answers, hardware, measure)
    ranking, accuracy = standings(results), network_accuracy(results)
    origin = {
        "hardware": hardware.provenance.hardware,
        "versions": hardware.provenance.versions,
        "all_to_all": sorted({result.measured.cost.all_to_all for result in results if result.measured}),
        "link": hardware.provenance.link,
        "kernel_share_of_wall_time": round(hardware.time_share.kernel_share, 3),
    }
    metrics = report.metrics(ranking, accuracy, len(split.test), infeasible_tasks(results), origin)
    folder = outputs.report
    report.write_csv(results, folder / "evaluation.csv")
    save_costs([result.measured for result in results if result.measured], folder / "evaluation_costs.parquet")
    report.plot_predicted_vs_measured(results, accuracy, folder / "predicted_vs_measured.png")
    report.plot_cost_per_round(training_costs, folder / "cost_per_round.png")
    _plot_one_task(results, ranking, folder / "device_costs.png")
    table = report.text_table(ranking, len(split.test))
    report.write_text(table, folder / "table.txt")
    report.write_text(json.dumps(metrics, indent=1), folder / "metrics.json")
    return Evaluation(metrics, table)


def _single_costs(hardware: Hardware, tasks: Sequence[PlacementTask]) -> dict[str, float]:
    """Measured forward and backward time of every table of the tasks, alone on a device, ms."""
    alone = {table.name: (table, task.batch_size) for task in tasks for table in task.tables}
    log.info("measuring %d test tables one by one for single_cost_greedy", len(alone))
    return {
        table.name: hardware.measure_table(table, batch_size).total_ms
        for table, batch_size in progress(list(alone.values()), "single tables")
    }


def _predicted(answer: Answer, dreamshard: DreamShardSharder) -> Answer:
    if answer.placement is None:
        return answer
    return replace(answer, predicted_ms=dreamshard.predicted_ms(answer.task, answer.placement))


def _measure(answers: Sequence[Answer], hardware: Hardware, measure: MeasureConfig) -> list[Result]:
    """Measures all placements, those of one task right after each other."""
    placed = [(answer, answer.placement) for answer in answers if answer.placement is not None]
    log.info("measuring %d placements of held-out tasks", len(placed))
    jobs = [(answer.task.task_id, answer.task, placement) for answer, placement in placed]
    costs = iter(measure_all(hardware, jobs, measure, partial(progress, description="evaluate")))
    return [
        Result(
            answer,
            MeasuredPlacement(
                measurement_id=f"evaluate-{number:05d}",
                round=0,
                proposed_by=answer.sharder,
                task=answer.task,
                placement=answer.placement,
                cost=next(costs),
                provenance=hardware.provenance,
            )
            if answer.placement
            else None,
        )
        for number, answer in enumerate(answers)
    ]


def _plot_one_task(results: Sequence[Result], ranking: Sequence[Standing], path: Path) -> None:
    """Random, the best heuristic and dreamshard on the task where dreamshard's gain is the median one."""
    best = min((one for one in ranking if one.sharder in EXPERTS), key=lambda one: one.measured_ms.mean).sharder
    shown = list(dict.fromkeys(("random", best, "dreamshard")))
    by_task: dict[PlacementTask, dict[str, PlacementCost]] = {}
    for result in results:
        if result.measured and result.answer.sharder in shown:
            by_task.setdefault(result.answer.task, {})[result.answer.sharder] = result.measured.cost
    complete = [(task, costs) for task, costs in by_task.items() if len(costs) == len(shown)]
    if not complete:
        report.plot_device_costs({}, "no task that all three sharders could place", path)
        return
    complete.sort(key=lambda pair: pair[1]["dreamshard"].max_device_ms / pair[1][best].max_device_ms)
    task, costs = complete[len(complete) // 2]
    title = f"{task.task_id} (the median gain): {len(task.tables)} unseen tables on {task.num_devices} devices"
    report.plot_device_costs({name: costs[name] for name in shown}, title, path)
