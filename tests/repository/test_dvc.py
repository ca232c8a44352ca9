"""dvc.yaml is the loop that params.yaml describes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evenshard.sharders.models import PARTS
from support.repository import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import unrolled

NETWORKS = ("cost_net", "policy", "cost_model")
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())


def test_dvc_yaml_fits_params_yaml() -> None:
    done = subprocess.run(
        [sys.executable, "pipelines/dvc_rounds.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_round_k_reads_round_k_minus_1_and_all_costs_so_far(num_rounds: int) -> None:
    stages = unrolled({**PARAMS, "loop": {"num_rounds": num_rounds}})["stages"]
    assert len(stages) == 2 + 3 * num_rounds
    for k in range(1, num_rounds + 1):
        before = [] if k == 1 else [f"work/round_{k - 1}/{name}" for name in NETWORKS]
        assert stages[f"benchmark_{k}"]["deps"][2:] == before
        costs = [f"work/round_{number}/costs.parquet" for number in range(1, k + 1)]
        assert stages[f"train_cost_{k}"]["deps"][2 : 2 + k] == costs
        assert stages[f"train_cost_{k}"]["deps"][2 + k :] == before[::2]
        assert stages[f"train_policy_{k}"]["deps"][2:] == [f"work/round_{k}/cost_net", *before[1:2]]
    assert stages["evaluate"]["deps"][-3:] == [f"work/round_{num_rounds}/{name}" for name in NETWORKS]


def test_every_file_that_a_command_names_is_declared() -> None:
    for stage in unrolled(PARAMS)["stages"].values():
        declared = {*stage.get("deps", []), *stage["outs"], *(path for one in stage.get("metrics", []) for path in one)}
        assert {word for word in stage["cmd"].split() if word.startswith("work/")} <= declared


def test_a_round_leaves_the_folder_of_a_model() -> None:
    stages = unrolled(PARAMS)["stages"]
    left = {out for name in ("train_cost_2", "train_policy_2") for out in stages[name]["outs"]}
    assert left == {f"work/round_2/{name}" for name in NETWORKS} == {f"work/round_2/{name}" for name in PARTS}


def test_every_input_is_some_stages_output() -> None:
    stages = unrolled(PARAMS)["stages"].values()
    written = {out for stage in stages for out in stage["outs"]}
    assert {dep for stage in stages for dep in stage.get("deps", [])} <= written


def test_files_that_the_settings_name_are_inputs() -> None:
    own = {**PARAMS, "generate_tables": {**PARAMS["generate_tables"], "source": "mine.csv"}}
    own["measure"] = {**PARAMS["measure"], "recorded_batch": "batch.pt.gz"}
    stages = unrolled(own)["stages"]
    assert stages["generate_tables"]["deps"] == ["mine.csv"]
    assert "batch.pt.gz" in stages["benchmark_1"]["deps"]
    assert "batch.pt.gz" in stages["evaluate"]["deps"]


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_are_complete(preset: Path) -> None:
    params = yaml.safe_load(preset.read_text())
    assert params.keys() == PARAMS.keys()
    unrolled(params)
