"""A GPU box that has torch, numpy and FBGEMM alone can measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BARE = """
import sys

MISSING = {"pandas", "pyarrow", "yaml", "pydantic", "rich", "scipy", "matplotlib", "mlflow", "dvc", "kfp", "boto3"}


class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Bare())
from pathlib import Path

from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.journal import Journal
from evenshard.sharders.simple import expert_sharders
from evenshard.tables.files import load_tables
from evenshard.placement.task import ShardingTask

task = ShardingTask.whole("t", load_tables(Path(sys.argv[1])), 2, 10**9, 16)
config = MeasureConfig(hardware="cpu", repeats=1, warmup=0)
jobs = [Job(one.name, task, one.place(task).parts(task.tables), 0, one.name, "t") for one in expert_sharders()]
with Journal(Path(sys.argv[2])) as journal:
    measured = measure_jobs(open_hardware(config), jobs, config, journal)
assert len(measured) == len(jobs) and all(one.cost.max_device_ms > 0 for one in measured)
"""


@pytest.mark.slow
def test_measuring_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    tables.write_text(
        '[{"name": "a", "num_rows": 9, "embedding_dim": 4, "pooling_factor": 2},'
        ' {"name": "b", "num_rows": 5, "embedding_dim": 8, "pooling_factor": 1}]'
    )
    journal = tmp_path / "journal.jsonl"
    done = subprocess.run([sys.executable, "-c", BARE, str(tables), str(journal)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert journal.read_text().count('"job"') > 0
