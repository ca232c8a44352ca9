"""dvc.yaml is the loop that params.yaml describes; DVC and git bring it to a clone, with metrics and plots."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.outputs import HARDWARE_FILE, MODEL_PARTS
from evenshard.base.provenance import RESULT
from evenshard.loop.loop import STAGES
from support.dataset_builders import dvc, git
from support.repository import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import paths, unroll

NETWORKS = ("cost_net", "policy", "cost_model")
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_round_k_depends_on_round_k_minus_1_and_all_costs_so_far(num_rounds: int) -> None:
    stages = unroll({**PARAMS, "loop": {"num_rounds": num_rounds}})["stages"]
    pool = {"work/tables.parquet", "work/tasks.json"}
    costs = [f"work/round_{k}/costs.parquet" for k in range(1, num_rounds + 1)]
    for k in range(1, num_rounds + 1):
        before = [] if k == 1 else [f"work/round_{k - 1}/{name}" for name in NETWORKS]
        assert set(stages[f"benchmark_{k}"]["deps"]) == {HARDWARE_FILE, *pool, *before}
        assert set(stages[f"train_cost_{k}"]["deps"]) == {*pool, *costs[:k], *before[::2]}
        assert set(stages[f"train_policy_{k}"]["deps"]) == {*pool, f"work/round_{k}/cost_net", *before[1:2]}
    networks = {f"work/round_{num_rounds}/{name}" for name in NETWORKS}
    assert set(stages["evaluate"]["deps"]) == {HARDWARE_FILE, *pool, *costs, *networks}


def test_a_stage_lists_every_file_that_its_command_names() -> None:
    known: set[str] = set()
    for name, stage in unroll(PARAMS)["stages"].items():
        written = outputs({name: stage}).keys()
        read = set(stage.get("deps", []))
        assert read <= known
        assert {word for word in stage["cmd"].split() if word.startswith("work/")} <= read | written
        known |= written


def outputs(stages: dict[str, Any]) -> dict[str, bool]:
    """Every output of some stages, and whether DVC's cache has it."""
    every = [one for stage in stages.values() for kind in ("outs", "metrics") for one in stage.get(kind, [])]
    return {path: not isinstance(one, dict) or one[path].get("cache", True) for one in every for path in paths([one])}


def test_git_has_what_dvcs_cache_has_not() -> None:
    stages = unroll(PARAMS)
    cached = outputs(stages["stages"])
    assert {path for path, in_cache in cached.items() if not in_cache} == {str(one) for one in RESULT[1:]}
    assert str(RESULT[0]) == "dvc.lock"
    asked = "\n".join([*cached, *map(str, RESULT)])
    words = ["git", "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(words, cwd=ROOT, input=asked, capture_output=True, text=True).stdout.split()
    assert set(ignored) == {path for path, in_cache in cached.items() if in_cache}
    drawn = paths(stages["plots"])
    assert drawn and {Path(one).suffix for one in drawn} <= {".csv", ".json"} and not any(map(cached.get, drawn))
    left = {out for name in ("train_cost_2", "train_policy_2") for out in paths(stages["stages"][name]["outs"])}
    assert {f"work/round_2/{name}" for name in MODEL_PARTS} == {out for out in left if not out.endswith(".json")}


def test_the_hardware_is_written_each_time_and_reaches_every_stage_that_measures() -> None:
    stages = unroll(PARAMS)["stages"]
    (written,) = paths(stages["hardware"]["outs"])
    assert stages["hardware"]["always_changed"] and stages["hardware"]["cmd"].endswith(written)
    for name, stage in stages.items():
        measures = name == "evaluate" or name.startswith("benchmark")
        assert (written in stage.get("deps", [])) == measures


def test_files_that_the_settings_name_are_inputs() -> None:
    own = {**PARAMS, "generate_tables": {**PARAMS["generate_tables"], "source": "mine.csv"}}
    own["measure"] = {**PARAMS["measure"], "recorded_batch": "batch.pt.gz"}
    stages = unroll(own)["stages"]
    assert stages["generate_tables"]["deps"] == ["mine.csv"]
    assert "batch.pt.gz" in stages["benchmark_1"]["deps"]
    assert "batch.pt.gz" in stages["evaluate"]["deps"]


def test_presets_are_complete() -> None:
    for preset in (ROOT / "presets").glob("*.yaml"):
        params = yaml.safe_load(preset.read_text())
        assert params.keys() <= PARAMS.keys() and unroll(params)
        for stage in STAGES:
            stage.settings(params, {})


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_a_clone_shows_metrics_and_plots_and_pulls_the_loop_of_these_settings(tmp_path: Path) -> None:
    fresh = tmp_path / "main"
    git(ROOT, "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(fresh))
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
