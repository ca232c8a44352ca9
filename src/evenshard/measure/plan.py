"""How does a list of placements get to a bare GPU box? As one JSON file: the tables, the jobs, how to measure.

evenshard benchmark ... --plan-out plan.json                     where evenshard is installed
python -m evenshard.measure plan.json --journal gpu.jsonl        on the box, with torch, numpy and FBGEMM alone
evenshard benchmark ... --journal gpu.jsonl --budget-minutes 0   back again: the journal becomes costs.parquet
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard.atomic import atomic_path
from evenshard.errors import BadFile
from evenshard.measure.campaign import Job
from evenshard.measure.hardware import MeasureConfig
from evenshard.placement import Placement
from evenshard.tables import Table
from evenshard.tasks import PlacementTask

PLAN_VERSION = 1


def save_plan(jobs: Sequence[Job], config: MeasureConfig, path: Path) -> None:
    """Writes jobs and settings; each table stands once, however many jobs hold it."""
    number_of = {
        table: number for number, table in enumerate(dict.fromkeys(table for job in jobs for table in job.task.tables))
    }
    content = {
        "plan": PLAN_VERSION,
        "measure": asdict(config),
        "tables": [asdict(table) for table in number_of],
        "jobs": [_record(job, number_of) for job in jobs],
    }
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(content) + "\n")


def _record(job: Job, number_of: dict[Table, int]) -> dict[str, Any]:
    return {
        "measurement_id": job.measurement_id,
        "task_id": job.task.task_id,
        "tables": [number_of[table] for table in job.task.tables],
        "num_devices": job.task.num_devices,
        "memory_cap_bytes": job.task.memory_cap_bytes,
        "batch_size": job.task.batch_size,
        "device_of_table": job.placement.device_of_table,
        "round": job.round,
        "proposed_by": job.proposed_by,
        "group": job.group,
    }


def load_plan(path: Path) -> tuple[list[Job], MeasureConfig]:
    """Jobs and settings as they were saved; a job's key is the same.

    Raises:
        BadFile: if the file is missing, torn or no plan.
    """
    remedy = "Write it with `evenshard benchmark --plan-out`."
    try:
        content = json.loads(path.read_text())
        if content["plan"] != PLAN_VERSION:
            raise ValueError(f"plan version {content['plan']}, this evenshard reads {PLAN_VERSION}")
        tables = [
            Table(**{**one, "reuse_bins": None if one["reuse_bins"] is None else tuple(one["reuse_bins"])})
            for one in content["tables"]
        ]
        return [_job(record, tables) for record in content["jobs"]], MeasureConfig(**content["measure"])
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
        raise BadFile(path, f"no plan ({error!r})", remedy) from None


def _job(record: dict[str, Any], tables: Sequence[Table]) -> Job:
    task = PlacementTask(
        task_id=record["task_id"],
        tables=tuple(tables[number] for number in record["tables"]),
        num_devices=record["num_devices"],
        memory_cap_bytes=record["memory_cap_bytes"],
        batch_size=record["batch_size"],
    )
    return Job(
        measurement_id=record["measurement_id"],
        task=task,
        placement=Placement(tuple(record["device_of_table"]), task.num_devices),
        round=record["round"],
        proposed_by=record["proposed_by"],
        group=record["group"],
    )
