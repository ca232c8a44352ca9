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
from support.loops import TINY, params_with
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


def test_metrics_and_plots_are_there_before_anything_is_pulled(fresh: Path) -> None:
    shown = json.loads(dvc(fresh, "metrics", "show", "--json"))
    (of_file,) = shown[""]["data"].values()
    assert of_file["data"] == json.loads((fresh / "reports/summary.json").read_text())
    assert set(of_file["data"]) == {"evenshard_ms", "dreamshard_ms", "heuristic_ms", "noise_pct"}
    plots = json.loads(dvc(fresh, "plots", "show", "--json"))
    assert set(plots["data"]) == set(paths(yaml.safe_load((fresh / "dvc.yaml").read_text())["plots"]))
    assert not plots.get("errors")


def test_a_pull_brings_the_reference_loop_which_is_that_of_these_settings(fresh: Path) -> None:
    dvc(fresh, "pull")
    stages = yaml.safe_load((fresh / "dvc.yaml").read_text())["stages"]
    assert yaml.safe_load((fresh / "dvc.lock").read_text())["stages"].keys() == stages.keys()
    for stage in stages.values():
        assert all((fresh / path).exists() for path in paths([*stage["outs"], *stage.get("metrics", [])]))
    assert (fresh / "data").is_dir()
    # Where settings or commands have changed, make another reference: docs/dvc.md.
    assert json.loads(dvc(fresh, "status", "--json")) == {"hardware": ["always changed"]}
    assert git(fresh, "status", "--porcelain") == ""


def test_the_result_in_git_names_no_folder_of_the_machine_that_measured(fresh: Path) -> None:
    for path in RESULT:
        assert not re.search(r"(^|[\s\"'])(/|~|[A-Z]:\\)", (fresh / path).read_text(), flags=re.MULTILINE), path


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


def test_experiments_are_shown_compared_and_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "loop"
    loop_of(folder, params_with(TINY), monkeypatch)
    dvc(folder, "repro", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "The result")
    before = json.loads((folder / "reports/summary.json").read_text())
    dvc(folder, "exp", "run", "--quiet", "-n", "longer", "-S", "train_cost.num_updates=40")
    after = json.loads((folder / "reports/summary.json").read_text())
    assert after["dreamshard_ms"] != before["dreamshard_ms"]
    git(folder, "checkout", "--quiet", ".")
    dvc(folder, "checkout", "--quiet")

    assert "longer" in dvc(folder, "exp", "show", "--csv")
    difference = json.loads(dvc(folder, "exp", "diff", "HEAD", "longer", "--json"))
    assert difference["params"]["params.yaml"]["train_cost.num_updates"]["new"] == 40
    (metrics,) = difference["metrics"].values()
    assert metrics["dreamshard_ms"]["new"] == after["dreamshard_ms"]

    dvc(folder, "exp", "apply", "longer")
    assert json.loads((folder / "reports/summary.json").read_text()) == after
    assert (folder / "work/round_1/policy").is_dir()
    assert json.loads(dvc(folder, "status", "--json")) == {"hardware": ["always changed"]}
    changed = {line[3:] for line in git(folder, "status", "--porcelain").splitlines()}
    assert {"dvc.lock", "params.yaml", "reports/summary.json"} <= changed
    (of_file,) = json.loads(dvc(folder, "metrics", "diff", "--json")).values()
    assert of_file["dreamshard_ms"]["old"] == before["dreamshard_ms"]
    page = dvc(folder, "plots", "diff", "HEAD", "workspace").strip().removeprefix("file://")
    assert "vega" in Path(page).read_text()


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
