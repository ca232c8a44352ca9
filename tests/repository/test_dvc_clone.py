"""What DVC and git bring to a fresh clone of what is committed: the reference loop with its metrics and plots.

And where a loop measures: on another machine, and never twice on the same one. Git, DVC, remote and kernels are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.provenance import RESULT
from evenshard.measure.cost_rows import read_lineage
from evenshard.measure.local_hardware import MACHINE
from support.dataset_builders import dvc, git, own_name
from support.loops import params_with
from support.repository import ROOT
from support.tracking_builders import empty_file

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import paths, unroll

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    folder = tmp_path_factory.mktemp("clones") / "main"
    git(ROOT, "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder))
    return folder


def test_a_clone_shows_metrics_and_plots_and_pulls_the_loop_of_these_settings(fresh: Path) -> None:
    (of_file,) = json.loads(dvc(fresh, "metrics", "show", "--json"))[""]["data"].values()
    assert of_file["data"] == json.loads((fresh / "reports/summary.json").read_text())
    plots = json.loads(dvc(fresh, "plots", "show", "--json"))
    content = yaml.safe_load((fresh / "dvc.yaml").read_text())
    assert set(plots["data"]) == set(paths(content["plots"])) and not plots.get("errors")
    for path in RESULT:  # no folder of the machine that measured
        assert not re.search(r"(^|[\s\"'])(/|~|[A-Z]:\\)", (fresh / path).read_text(), flags=re.MULTILINE), path
    dvc(fresh, "pull")
    stages = content["stages"]
    assert yaml.safe_load((fresh / "dvc.lock").read_text())["stages"].keys() == stages.keys()
    for stage in stages.values():
        assert all((fresh / path).exists() for path in paths([*stage["outs"], *stage.get("metrics", [])]))
    # Where settings or commands have changed, make another reference: docs/dvc.md.
    assert json.loads(dvc(fresh, "status", "--json")) == {"hardware": ["always changed"]}
    assert git(fresh, "status", "--porcelain") == ""


def loop_of(folder: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with the loop of these settings and nothing run."""
    (folder / ".dvc").mkdir(parents=True)
    for name in (".dvc/config", ".dvc/.gitignore", ".gitignore"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "dvc.yaml").write_text(yaml.safe_dump(unroll(params)))
    git(folder, "init", "--quiet")
    own_name(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty_file(folder.parent)}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_the_same_machine_is_up_to_date_and_another_one_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = {"hardware": "cpu", "num_batches": 1, "warmup": 0, "repeats": 1, "visits": 1, "controls": 0}
    tables = {"batch_size": 16, "max_rows": 100, "num_tables": 16, "tables_per_task": 4, "num_devices": 2}
    folder = tmp_path / "loop"
    changes = {"measure": measure, "benchmark": {"placements_per_round": 2}, "generate_tables": tables}
    loop_of(folder, params_with(changes), monkeypatch)

    def measured(machine: str) -> bool:
        monkeypatch.setenv(MACHINE, machine)
        words = [sys.executable, "-m", "dvc", "repro", "benchmark_1"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Running stage 'hardware'" in done.stdout
        return "Running stage 'benchmark_1'" in done.stdout

    assert measured("ours") and not measured("ours")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "The result")
    commit = git(folder, "rev-parse", "HEAD").strip()
    assert measured("another")
    changed = git(folder, "status", "--porcelain").split("\n")
    assert sorted(line[3:] for line in changed if line) == ["dvc.lock", "reports/hardware.json"]
    assert read_lineage(folder / "work/round_1/costs.parquet")["git_commit"] == commit  # and not dirty
    shutil.rmtree(folder / "work")
    assert not measured("another")  # what was measured comes back from the cache
    assert (folder / "work/round_1/costs.parquet").exists()
