"""A plan is the same on the other side, and a bare box measures it with nothing but torch and numpy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import some_tables, table, task
from evenshard.errors import BadFile
from evenshard.measure import Job, MeasureConfig
from evenshard.measure.plan import load_plan, save_plan
from evenshard.placement import Placement
from evenshard.tables import Table

TABLES = (*some_tables(3), Table("uncounted", 10, 4, 0.1), table("half", bits=16))
JOBS = [
    Job("round2-00000", task(TABLES, 3, task_id="a"), Placement((0, 2, 2, 1, 0), 3), 2, "dreamshard", "0"),
    Job("shard-00001", task(TABLES[1:3], 1, cap=12345, task_id="b"), Placement((0, 0), 1), 2, "random_shard", "s"),
]
CONFIG = MeasureConfig(hardware="cuda", repeats=7, keep_cache_warm=True, seed=3)


def test_jobs_keys_and_settings_come_back(tmp_path: Path) -> None:
    save_plan(JOBS, CONFIG, tmp_path / "plan.json")
    jobs, config = load_plan(tmp_path / "plan.json")
    assert jobs == JOBS and config == CONFIG
    assert [job.key for job in jobs] == [job.key for job in JOBS]
    assert len(json.loads((tmp_path / "plan.json").read_text())["tables"]) == len(TABLES)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"plan": 1}', '{"plan": 99, "tables": [], "jobs": [], "measure": {}}']
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(BadFile, match=r"plan\.json: no plan"):
        load_plan(tmp_path / "plan.json")
    with pytest.raises(BadFile, match="no such file"):
        load_plan(tmp_path / "none.json")
