"""Measurement plan for another machine, as one JSON file with tables, jobs and settings.

evenshard benchmark ... --plan-out plan.json                     where evenshard is installed
python -m evenshard.measure plan.json --journal gpu.jsonl        on the GPU machine, with only torch, NumPy and FBGEMM
evenshard benchmark ... --journal gpu.jsonl --budget-minutes 0   where evenshard is installed: writes costs.parquet
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evenshard.base.documents import load_json
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.knobs import RANGES
from evenshard.base.messages import brief, reason_of
from evenshard.base.outputs import write_text
from evenshard.base.typed import record_of
from evenshard.measure.campaign import Job
from evenshard.measure.config import MeasureConfig
from evenshard.placement.placement import Placement, parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table

PLAN_VERSION = 1
MAX_PLAN_BYTES = 2**30  # larger files are rejected before they are parsed
_TASK_FIELDS = ("task_id", "num_devices", "memory_cap_bytes", "batch_size")


def save_measure_plan(jobs: Sequence[Job], config: MeasureConfig, path: Path) -> None:
    """Write jobs and settings; each table is written once, even if many jobs use it."""
    tables = tuple(dict.fromkeys(table for job in jobs for table in job.task.tables))
    number_of = {table: number for number, table in enumerate(tables)}
    plan = _Plan(PLAN_VERSION, config, tables, tuple(_encode_job(job, number_of) for job in jobs))
    write_text(path, json.dumps(asdict(plan)) + "\n")


def _encode_job(job: Job, number_of: dict[Table, int]) -> _Record:
    return _Record(
        **{name: getattr(job, name) for name in ("measurement_id", "round", "proposed_by", "group")},
        **{name: getattr(job.task, name) for name in _TASK_FIELDS},
        tables=tuple(number_of[table] for table in job.task.tables),
        device_of_table=job.placement.device_of_table,
    )


@dataclass(frozen=True)
class _Plan:
    plan: int
    measure: MeasureConfig
    tables: tuple[Table, ...]
    jobs: tuple[_Record, ...]


@dataclass(frozen=True)
class _Record:
    measurement_id: str
    task_id: str
    tables: tuple[int, ...]
    num_devices: int
    memory_cap_bytes: int
    batch_size: int
    device_of_table: tuple[int, ...]
    round: int
    proposed_by: str
    group: str


@blame_file
def load_measure_plan(path: Path) -> tuple[list[Job], MeasureConfig]:
    """Read jobs and settings; the keys of jobs are preserved.

    Raises:
        BadFile: if the file is missing, truncated, not a plan, or holds an impossible job.
    """
    remedy = "Write it with `evenshard benchmark --plan-out`."
    try:
        content = load_json(path.read_bytes(), MAX_PLAN_BYTES)
        version = content.get("plan") if isinstance(content, dict) else None
        if version != PLAN_VERSION:
            raise ValueError(f"plan version is {brief(version)}, but this evenshard reads {PLAN_VERSION}")
        plan = record_of(_Plan, content)
        return [_decode_job(record, plan.tables) for record in plan.jobs], plan.measure
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except (ValueError, BadConfig, OSError) as error:
        raise BadFile(path, f"is not a plan ({reason_of(error)})", remedy) from None


def _decode_job(record: _Record, tables: Sequence[Table]) -> Job:
    if not all(0 <= number < len(tables) for number in record.tables):
        raise ValueError(f"job {brief(record.measurement_id)} uses a table number outside 0 to {len(tables) - 1}")
    of_task = {name: getattr(record, name) for name in _TASK_FIELDS}
    task = ShardingTask.whole(tables=tuple(tables[number] for number in record.tables), **of_task)
    of = f"task {brief(task.task_id)}"
    for table in task.tables:
        if problem := table.problem():
            raise ValueError(f"{of}, table {brief(table.name)}: {problem}")
    if problem := RANGES["batch_size"].problem(task.batch_size):
        raise ValueError(f"{of}: batch_size {problem}")
    if task.memory_cap_bytes < 1 or not task.tables:
        raise ValueError(f"{of} has no tables, or its devices have no memory")
    parts = Placement(record.device_of_table, task.num_devices).parts(task.tables)
    parts_by_table(task, parts)
    return Job(record.measurement_id, task, parts, record.round, record.proposed_by, record.group)
