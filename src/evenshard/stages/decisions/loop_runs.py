"""A loop in MLflow, as far as another can be compared with it: settings, headline, and the evaluation's costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenshard.stages.decisions.run_comparison import LoopRun
from evenshard.tracking.search import FoundRun, find_runs, run_artifact
from evenshard.tracking.tags import HARDWARE, STAGE, TABLES_SHA256
from evenshard.utils.errors import BadConfig
from evenshard.utils.scratch import scratch_folder

_EVALUATE, TABLE = "evaluate", "evaluation.json"


def loop_runs(names: Sequence[str]) -> list[LoopRun]:
    """The loops of these names or ids.

    Raises:
        BadConfig: if one is not there, is not a loop, is named twice, or MLflow cannot be reached.
    """
    runs = find_runs(names)
    named: dict[str, str] = {}
    for name, run in zip(names, runs, strict=True):
        if run.run_id in named:  # which would be called equal
            raise BadConfig(
                f"{named[run.run_id]} and {name} are the same run, {run.run_id}. Loops with the same settings share a "
                "name, which means the newest: name the others by id."
            )
        named[run.run_id] = name
    return [_loop_run(run) for run in runs]


def _loop_run(run: FoundRun) -> LoopRun:
    if run.parent_id:
        raise BadConfig(f"{run.name} is a stage of a loop. Name the loop: {run.parent_id}.")
    if STAGE in run.tags:
        raise BadConfig(f"{run.name} ({run.run_id}) is not a loop. Name one.")
    evaluated = [stage for stage in run.children if stage.name == _EVALUATE and stage.status == "FINISHED"]
    if not evaluated:
        return LoopRun(run.name, run.run_id, run.params, run.metrics, "")
    last = evaluated[-1]
    with scratch_folder() as folder:
        table = json.loads(run_artifact(last.run_id, TABLE, folder).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    metrics = {**run.metrics, **last.metrics}
    return LoopRun(
        run.name,
        run.run_id,
        run.params,
        metrics,
        _hardware(rows, last),
        costs_ms(rows),
        last.tags.get(TABLES_SHA256, ""),
    )


def costs_ms(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Measured cost by sharder and task, from the rows of evaluation.csv; infinite without placement or memory."""
    costs: dict[str, dict[str, float]] = {}
    for row in rows:
        cost = row["max_device_ms"]
        costs.setdefault(str(row["sharder"]), {})[str(row["task_id"])] = math.inf if cost in (None, "") else float(cost)
    return costs


def _hardware(rows: Sequence[Mapping[str, Any]], run: FoundRun) -> str:
    hardware = sorted({str(row["hardware"]) for row in rows if row.get("hardware")})
    return "; ".join(hardware) or run.tags.get(HARDWARE, "")
