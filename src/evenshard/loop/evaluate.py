"""Stage 5, after the last round: measures every sharder's placement of every held-out task."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from evenshard.base.console import progress
from evenshard.base.errors import require
from evenshard.base.installation import require_package
from evenshard.base.outputs import MODEL_FOLDER, MODEL_PARTS, REPORT, atomic_path, write_text
from evenshard.base.process import one_thread
from evenshard.base.provenance import Lineage
from evenshard.loop import report
from evenshard.loop.loop import EvaluateConfig, EvaluateInputs, EvaluateOutputs
from evenshard.loop.propose import measure_answers
from evenshard.loop.sharder_comparison import (
    Answer,
    Result,
    Standing,
    ask,
    infeasible_tasks,
    network_accuracy,
    standings,
)
from evenshard.loop.stage import Outcome
from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs, save_costs
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal, journal_beside
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.noise import estimate_noise, find_controls
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import load_tasks, single_table_task
from evenshard.price.costs import MeasuredPlacement, PlacementCost
from evenshard.sharders.catalog import HEURISTICS, SHARDERS, Resources, Sharder, load_sharder
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.price import predict_whole
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.tables.files import load_tables

log = logging.getLogger(__name__)


def run(
    config: EvaluateConfig,
    measure: MeasureConfig,
    inputs: EvaluateInputs,
    outputs: EvaluateOutputs,
    lineage: Lineage | None = None,
) -> Outcome:
    """Measure every sharder's placement of every held-out task, and write the report.

    Raises:
        BadInput: if an input cannot be read.
        MeasurementFailed: if a kernel fails.
    """
    require_package("matplotlib")  # fails here, not after measuring
    if outputs.model is not None:
        require(inputs.cost_model is not None, "a model folder needs evenshard's cost model. Add --cost-model.")
    pool = load_tables(inputs.tables)
    split = load_tasks(inputs.tasks, pool)
    policy = load_sharder(inputs.cost_net, inputs.policy, config.num_rollouts)
    rounds = [load_costs(path, pool) for path in inputs.costs]
    model = None if inputs.cost_model is None else CostModel.load(inputs.cost_model)
    search = SearchConfig(scores_per_table=config.scores_per_table, seed=config.seed)
    own_journal = journal_beside(outputs.report)
    with closing(open_hardware(measure)) as hardware, Journal(inputs.journal or own_journal) as journal:
        resources = Resources(
            config.seed,
            measure.hardware,
            measure.link,
            single_cost_ms=_measure_single_tables(hardware, split.test, measure, journal),
            policy=policy,
            cost_model=model,
            search=search,
        )
        takes_part = [entry for entry in SHARDERS if entry.in_loop and entry.can_use(resources)]
        sharders: list[Sharder] = [entry.build(resources) for entry in takes_part]
        with one_thread():
            answers = [
                _add_prediction(ask(sharder, task), policy.predict_ms) for task in split.test for sharder in sharders
            ]
        for answer in answers:
            if answer.placement is None:
                log.warning("%s found no placement: %s", answer.sharder, answer.reason)
        by_id = {f"evaluate-{number:05d}": answer for number, answer in enumerate(answers)}
        measured = measure_answers(by_id, split.train, hardware, measure, journal, "evaluate")
        origin, device_error = _describe_hardware(hardware, measured), hardware.provenance.device_error
    found = {placement.measurement_id: placement for placement in measured}
    results = [Result(answer, found.get(name)) for name, answer in by_id.items()]
    noise = estimate_noise([find_controls(run) for run in (*rounds, measured)])
    ranking, accuracy = standings(results, noise), network_accuracy(results)
    of_model = None if model is None else network_accuracy(_predict_with(model, results))
    metrics = report.metrics(ranking, accuracy, len(split.test), infeasible_tasks(results), noise, origin, of_model)
    folder = outputs.report
    report.write_csv(results, folder / "evaluation.csv")
    save_costs(measured, folder / "evaluation_costs.parquet", lineage)
    tried = [placement for run in rounds for placement in run]
    report.write_plot_data(results, ranking, tried, folder)
    report.plot_predicted_vs_measured(results, accuracy, origin["hardware"], folder / "predicted_vs_measured.png")
    report.plot_cost_per_round(tried, folder / "cost_per_round.png")
    _plot_one_task(results, ranking, [one.name for one in takes_part if one.is_learned], folder / "device_costs.png")
    table = report.standings_text(ranking, len(split.test), noise, origin["hardware"], device_error)
    write_text(folder / "table.txt", table + "\n")
    write_text(folder / "metrics.json", json.dumps(metrics, indent=1) + "\n")
    write_text(folder / "summary.json", json.dumps(report.summary(ranking), indent=1) + "\n")
    if outputs.page is not None:
        report.save_report_page(folder, table, metrics, outputs.page)
    if outputs.summary is not None:
        report.save_summary(table, metrics, outputs.summary)
    if outputs.model is not None:
        with atomic_path(outputs.model, MODEL_FOLDER) as draft:
            for name in MODEL_PARTS:
                shutil.copytree(getattr(inputs, name), draft / name)
    own_journal.unlink(missing_ok=True)
    written = ", ".join(str(path) for path in sorted(REPORT.paths(folder)))
    return Outcome(_headline(metrics), text=f"{table}\n\nreport: {written}")


def _headline(metrics: Mapping[str, Any]) -> dict[str, float]:
    of_sharders = {f"{name}.mean_measured_ms": found["mean_measured_ms"] for name, found in metrics["sharders"].items()}
    others = {
        prefix + key: value
        for name, prefix in (("cost_network", ""), ("cost_model", "cost_model."), ("noise", "noise."))
        for key, value in metrics.get(name, {}).items()
    }
    return {key: float(value) for key, value in (of_sharders | others).items() if value is not None}


def _measure_single_tables(
    hardware: Hardware, tasks: Sequence[ShardingTask], measure: MeasureConfig, journal: Journal
) -> dict[str, float]:
    """Measure forward plus backward time of each table alone on a device, once, ms."""
    tables = {table.name: single_table_task(table, task.batch_size) for task in tasks for table in task.tables}
    jobs = [
        Job(task.task_id, task, place_on_one_device(task).parts(task.tables), 0, "single_table", "single tables")
        for task in tables.values()
    ]
    log.info("measuring %d test tables one at a time for single_cost_greedy", len(jobs))
    show = partial(progress, description="single tables")
    measured = measure_jobs(hardware, jobs, replace(measure, visits=1), journal, track=show)
    return {name: placement.cost.max_device_ms for name, placement in zip(tables, measured, strict=True)}


def _add_prediction(answer: Answer, predicted_ms: Callable[[ShardingTask, Placement], float]) -> Answer:
    if answer.placement is None:
        return answer
    return replace(answer, predicted_ms=predicted_ms(answer.task, answer.placement))


def _predict_with(model: CostModel, results: Sequence[Result]) -> list[Result]:
    def predicted_ms(task: ShardingTask, placement: Placement) -> float:
        (predicted,) = predict_whole(model, [(task, placement)])
        return predicted.predicted_ms

    return [replace(result, answer=_add_prediction(result.answer, predicted_ms)) for result in results]


def _describe_hardware(hardware: Hardware, measured: Sequence[MeasuredPlacement]) -> dict[str, Any]:
    origin, error = hardware.provenance, hardware.provenance.device_error
    return {
        **{name: getattr(origin, name) for name in ("hardware", "driver", "versions")},
        "device_error": None if error is None else asdict(error),
        "all_to_all": sorted({placement.cost.all_to_all for placement in measured}),
        "link": origin.link,
        "kernel_share_of_wall_time": round(hardware.time_share.kernel_share, 3),
    }


def _plot_one_task(results: Sequence[Result], ranking: Sequence[Standing], learned: Sequence[str], path: Path) -> None:
    """Plot device times of the main sharders on the task with the median gain of the last learned sharder."""
    best = min((one for one in ranking if one.sharder in HEURISTICS), key=lambda one: one.measured_ms.mean).sharder
    shown = list(dict.fromkeys(("random", best, *learned)))
    by_task: dict[ShardingTask, dict[str, PlacementCost]] = {}
    for result in results:
        if result.measured and result.measured.cost.fits and result.answer.sharder in shown:
            by_task.setdefault(result.answer.task, {})[result.answer.sharder] = result.measured.cost
    complete = [(task, costs) for task, costs in by_task.items() if len(costs) == len(shown)]
    if not complete:
        report.plot_device_costs({}, f"no task was placed by all of {', '.join(shown)}", path)
        return
    complete.sort(key=lambda pair: pair[1][learned[-1]].max_device_ms / pair[1][best].max_device_ms)
    task, costs = complete[len(complete) // 2]
    what = f"{len(task.tables)} unseen tables on {task.num_devices} devices"
    title = f"{task.task_id} (median gain of {learned[-1]}): {what}"
    report.plot_device_costs({name: costs[name] for name in shown}, title, path)
