"""dvc.yaml is the loop that params.yaml describes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.outputs import MODEL_PARTS
from evenshard.base.provenance import RESULT
from evenshard.loop.loop import STAGES
from support.repository import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import paths, unroll

NETWORKS = ("cost_net", "policy", "cost_model")
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())


@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_round_k_depends_on_round_k_minus_1_and_the_newest_costs(num_rounds: int) -> None:
    stages = unroll({**PARAMS, "loop": {"num_rounds": num_rounds}})["stages"]
    pool = ["work/tables.parquet", "work/tasks.json"]
    for k in range(1, num_rounds + 1):
        before = [] if k == 1 else [f"work/round_{k - 1}/{name}" for name in NETWORKS]
        assert stages[f"benchmark_{k}"]["deps"] == (["reports/hardware.json", *pool] if k == 1 else before)
        assert stages[f"train_cost_{k}"]["deps"] == [f"work/round_{k}/costs.parquet", *before[::2]]
        assert stages[f"train_policy_{k}"]["deps"] == [f"work/round_{k}/cost_net", *before[1:2]]
    last = ["costs.parquet", *NETWORKS]
    assert stages["evaluate"]["deps"] == [f"work/round_{num_rounds}/{name}" for name in last]


def test_every_file_that_a_command_names_is_an_output_or_made_by_a_stage_before_it() -> None:
    known: set[str] = set()
    for name, stage in unroll(PARAMS)["stages"].items():
        known |= outputs({name: stage}).keys()
        assert {word for word in stage["cmd"].split() if word.startswith("work/")} <= known
        assert set(stage.get("deps", [])) <= known


def test_a_stage_that_reads_the_pool_names_its_files_or_the_settings_behind_them() -> None:
    for stage in unroll(PARAMS)["stages"].values():
        if "--tables work/tables.parquet" in stage["cmd"]:
            assert "work/tables.parquet" in stage.get("deps", []) or "generate_tables" in stage["params"]


def test_a_round_leaves_the_folder_of_a_model() -> None:
    stages = unroll(PARAMS)["stages"]
    left = {out for name in ("train_cost_2", "train_policy_2") for out in paths(stages[name]["outs"])}
    networks = {f"work/round_2/{name}" for name in NETWORKS}
    assert (
        networks
        == {f"work/round_2/{name}" for name in MODEL_PARTS}
        == {out for out in left if not out.endswith(".json")}
    )


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


def test_the_hardware_is_written_each_time_and_reaches_every_stage_that_measures() -> None:
    stages = unroll(PARAMS)["stages"]
    (written,) = paths(stages["hardware"]["outs"])
    assert stages["hardware"]["always_changed"] and stages["hardware"]["cmd"].endswith(written)
    made_by = {path: name for name, one in stages.items() for path in paths(one["outs"])}

    def before(name: str) -> set[str]:
        found = {made_by[dep] for dep in stages[name].get("deps", []) if dep in made_by}
        return found.union(*map(before, found))

    for name in stages:
        assert ("hardware" in before(name)) == (name not in ("hardware", "generate_tables"))


@pytest.mark.parametrize("num_rounds", [3, 10])
def test_the_graph_fits_a_terminal(num_rounds: int) -> None:
    from dvc.dagascii import draw

    stages = unroll({**PARAMS, "loop": {"num_rounds": num_rounds}})["stages"]
    made_by = {out: name for name, one in stages.items() for out in paths(one["outs"])}
    edges = list(dict.fromkeys((name, made_by[dep]) for name, one in stages.items() for dep in one.get("deps", [])))
    assert max(map(len, draw(list(stages), edges).splitlines())) <= 80


def test_the_metrics_fit_a_terminal() -> None:
    shown = [path for one in unroll(PARAMS)["stages"].values() for path in paths(one.get("metrics", []))]
    assert shown == ["reports/summary.json"]


def test_files_that_the_settings_name_are_inputs() -> None:
    own = {**PARAMS, "generate_tables": {**PARAMS["generate_tables"], "source": "mine.csv"}}
    own["measure"] = {**PARAMS["measure"], "recorded_batch": "batch.pt.gz"}
    stages = unroll(own)["stages"]
    assert all("mine.csv" in stages[name]["deps"] for name in ("generate_tables", "train_cost_2", "evaluate"))
    assert "batch.pt.gz" in stages["benchmark_1"]["deps"]
    assert "batch.pt.gz" in stages["evaluate"]["deps"]


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_are_complete(preset: Path) -> None:
    params = yaml.safe_load(preset.read_text())
    assert params.keys() <= PARAMS.keys()
    unroll(params)
    for stage in STAGES:
        stage.settings(params, {})
