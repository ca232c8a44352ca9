"""A GPU box that has torch, numpy and FBGEMM alone can measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BARE = """
import sys

MISSING = {"pandas", "pyarrow", "yaml", "pydantic", "rich", "scipy", "matplotlib", "mlflow", "dvc", "kfp", "boto3"}


class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Bare())
from pathlib import Path

from evenshard.measure import MeasureConfig, open_hardware
from evenshard.sharders.greedy import expert_sharders
from evenshard.table_files import load_tables
from evenshard.tasks import PlacementTask

task = PlacementTask("t", load_tables(Path(sys.argv[1])), 2, 10**9, 16)
hardware = open_hardware(MeasureConfig(hardware="cpu", repeats=1, warmup=0))
for sharder in expert_sharders():
    assert hardware.measure(task, sharder.place(task)).max_device_ms > 0
"""


def test_measuring_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    tables.write_text(
        '[{"name": "a", "num_rows": 9, "embedding_dim": 4, "pooling_factor": 2},'
        ' {"name": "b", "num_rows": 5, "embedding_dim": 8, "pooling_factor": 1}]'
    )
    done = subprocess.run([sys.executable, "-c", BARE, str(tables)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
