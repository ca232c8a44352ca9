"""The commands of docs/dvc.md that add a cost dataset, with real DVC and git."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.dataset_builders import clone, dvc, make_repository, measure
from support.documented import snippet


@pytest.mark.nightly
def test_a_fresh_clone_pulls_what_was_added(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    root = make_repository(tmp_path / "team/repository")
    measure(root / "work/dataset")
    (root / "work/dataset/tasks.json").write_text(json.dumps([]))
    commands = snippet("docs/dvc.md", "--max-noise").replace("git add data.dvc", "git add data.dvc dvcstore")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", commands], cwd=root, env=environment, check=True)
    fresh = clone(root, tmp_path / "fresh")
    dvc(fresh, "pull")
    pulled = fresh / "data/hardware=h200/collection=mine"
    assert sorted(path.name for path in pulled.iterdir()) == ["costs.parquet", "tables.parquet", "tasks.json"]
    assert (pulled / "costs.parquet").read_bytes() == (root / "work/dataset/costs.parquet").read_bytes()
