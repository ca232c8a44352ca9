"""A plan is the same on the other side, and a bare box measures it with nothing but torch, numpy and pydantic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadFile
from evenshard.measure.campaign import Job
from evenshard.measure.config import MeasureConfig
from evenshard.measure.plan import load_measure_plan, save_measure_plan
from evenshard.placement.placement import Placement
from evenshard.tables.table import Table
from support.builders import some_tables, table, task

TABLES = (*some_tables(3), Table("uncounted", 10, 4, 0.1), table("half", bits=16))
FIRST, SECOND = task(TABLES, 3, task_id="a"), task(TABLES[1:3], 1, cap=12345, task_id="b")
JOBS = [
    Job("round2-00000", FIRST, Placement((0, 2, 2, 1, 0), 3).parts(FIRST.tables), 2, "dreamshard", "0"),
    Job("shard-1", SECOND, Placement((0, 0), 1).parts(SECOND.tables), 2, "random_shard", "s"),
]
CONFIG = MeasureConfig(hardware="cuda", repeats=7, keep_cache_warm=True, seed=3)


def test_jobs_keys_and_settings_come_back_and_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    save_measure_plan(JOBS, CONFIG, tmp_path / "plan.json")
    jobs, config = load_measure_plan(tmp_path / "plan.json")
    assert jobs == JOBS and config == CONFIG
    assert [job.key for job in jobs] == [job.key for job in JOBS]
    assert len(json.loads((tmp_path / "plan.json").read_text())["tables"]) == len(TABLES)
    for content in ("", "[]", '{"plan": 1}', '{"plan": 99, "tables": [], "jobs": [], "measure": {}}', "[" * 100_000):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(BadFile, match=r"plan\.json: is not a plan"):
            load_measure_plan(tmp_path / "plan.json")
    with pytest.raises(BadFile, match="no such file"):
        load_measure_plan(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("jobs.0.tables.0", len(TABLES), "job .round2-00000. uses a table number outside 0 to 4"),
        ("jobs.0.tables.0", -1, "a table number outside 0 to 4"),
        ("jobs.0.device_of_table.0", 3, "table 't0' is on device 3, but the devices are 0 to 2"),
        ("jobs.0.device_of_table", [0], "the placement has 1 tables, but 5 tables are given"),
        ("jobs.0.num_devices", 10**9, "num_devices is 1000000000, not a whole number from 1 to 4,096"),
        ("jobs.1.batch_size", 0, "task 'b': batch_size is 0, not a whole number from 1"),
        ("jobs.1.memory_cap_bytes", 0, "task 'b' has no tables, or its devices have no memory"),
        ("tables.0.pooling_factor", -2.0, r"task 'a', table 't0': pooling_factor is -2\.0, not a number from 0"),
        ("measure.more", 1, "'more' is unknown"),
    ],
)
def test_an_impossible_job_is_refused(tmp_path: Path, path: str, value: Any, why: str) -> None:
    save_measure_plan(JOBS, CONFIG, tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    record = content
    for step in steps:
        record = record[step]
    record[last] = value
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(BadFile, match=rf"plan\.json: is not a plan .*{why}"):
        load_measure_plan(tmp_path / "plan.json")
