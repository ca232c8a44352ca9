"""Loops that train a learned sharder other than DreamShard: AutoShard, and a third one that only the tests declare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.cli import main
from evenshard.measure.cost_rows import read_rows
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.sharder import AutoShardPolicy
from evenshard.sharders.catalog import identify_sharder, load_learned_sharder, load_sharder
from evenshard.sharders.checkpoint import load_checkpoint, read_kind
from evenshard.sharders.models import load_model
from evenshard.tables.files import save_tables
from evenshard.tracking import StageRun
from evenshard.tracking.registry import REGISTERED_POLICY, download_model, find_newest_version
from support.builders import cost_net, policy, some_tables
from support.convex_builders import NORMALIZER
from support.loops import run_loop
from support.model_builders import save_network
from support.tracking_builders import new_registry

AUTOSHARD: dict[str, dict[str, Any]] = {
    "loop": {"num_rounds": 2},
    "train_policy": {"method": "autoshard", "settings": {"num_slots": 4, "unroll_length": 25}},
}


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop of two rounds that trains AutoShard, tracked."""
    with new_registry(tmp_path_factory) as folder:
        run_loop(AUTOSHARD)
    return folder


@pytest.mark.slow
def test_the_loop_trains_autoshard_proposes_with_it_and_compares_it(loop: Path) -> None:
    for number in (1, 2):
        folder = loop / f"work/round_{number}"
        assert load_checkpoint(folder / "cost_net", AutoShardCostNet).round == number
        assert load_checkpoint(folder / "policy", AutoShardPolicy).round == number
    first, second = (load_checkpoint(loop / f"work/round_{number}/policy", AutoShardPolicy) for number in (1, 2))
    assert float(second.net.cost_scale_ms) == float(first.net.cost_scale_ms)
    assert [float(next(iter(one.optimizer.state.values()))["step"]) for one in (first, second)] == [6.0, 12.0]
    rows = read_rows(loop / "work/round_2/costs.parquet")
    assert {"autoshard", "evenshard"} <= {row["proposed_by"] for row in rows}
    assert "dreamshard" not in {row["proposed_by"] for row in rows}
    metrics = json.loads((loop / "reports/metrics.json").read_text())
    assert {"autoshard", "evenshard"} <= metrics["sharders"].keys() and "dreamshard" not in metrics["sharders"]
    assert metrics["sharders"]["autoshard"]["num_infeasible"] == 0
    assert metrics["cost_network"]["median_abs_pct_error"] > 0
    assert "autoshard_ms" in json.loads((loop / "reports/summary.json").read_text())
    trained = json.loads((loop / "work/round_2/train_policy.json").read_text())
    assert -1 <= trained["reward"] <= 1 and "predicted_ms" not in trained


@pytest.mark.slow
def test_place_and_mlflow_load_what_holds_autoshard(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(loop)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{loop}/mlflow.db")
    save_tables(some_tables(8), Path("mine.json"))
    words = ["place", "mine.json", "--devices", "2", "--memory-cap-gb", "1", "--batch-size", "4096"]
    assert main([*words, "--model", "work/round_2", "--out", "placement.json"]) == 0
    model = load_model("work/round_2")
    assert model.policy is not None and model.policy.name == "autoshard"
    version = find_newest_version(REGISTERED_POLICY)
    assert version is not None
    with download_model(version.uri) as folder:
        assert load_sharder(folder / "cost_net", folder / "policy").name == "autoshard"


@pytest.mark.slow
def test_stages_follow_the_method_and_refuse_another_ones_cost_network(
    loop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(loop)
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())
    pool = ["--tables", "work/tables.parquet", "--tasks", "work/tasks.json"]
    words = ["train-policy", *pool, "--cost-net", "work/round_1/cost_net", "--method", "dreamshard", "--out", "other"]
    assert main(words) == 2 and not Path("other").exists()
    line = capsys.readouterr().err.splitlines()[-1]
    assert "train_policy.method is dreamshard, but work/round_1/cost_net contains a 'autoshard_cost_net'." in line
    words = ["train-cost", *pool, "--costs", "work/round_1/costs.parquet", "--method", "dreamshard", "--out", "net"]
    assert main(words) == 0 and read_kind(Path("net")) == "dreamshard_cost_net"


def test_settings_of_a_method_win_and_unknown_ones_are_refused() -> None:
    from evenshard.loop.loop import TrainPolicyConfig

    found = load_learned_sharder("autoshard").settings_of(TrainPolicyConfig(num_updates=7, settings={"num_slots": 3}))
    assert (found.num_updates, found.num_slots, found.unroll_length) == (7, 3, 100)
    found = load_learned_sharder("autoshard").settings_of(TrainPolicyConfig(num_updates=7, settings={"num_updates": 9}))
    assert found.num_updates == 9
    assert load_learned_sharder("dreamshard").settings_of(TrainPolicyConfig(num_episodes=4)).num_episodes == 4
    with pytest.raises(BadConfig, match=r"train_policy.settings: 'num_slots' is unknown"):
        load_learned_sharder("dreamshard").settings_of(TrainPolicyConfig(settings={"num_slots": 3}))
    with pytest.raises(BadConfig, match=r"train_policy.method is 'other'. Choose from dreamshard, autoshard"):
        load_learned_sharder("other")


def test_a_policy_names_its_sharder(tmp_path: Path) -> None:
    save_network(cost_net(), NORMALIZER, tmp_path / "cost_net")
    save_network(policy(), NORMALIZER, tmp_path / "policy")
    assert identify_sharder(tmp_path / "policy").name == "dreamshard"
    assert load_sharder(tmp_path / "cost_net", tmp_path / "policy").name == "dreamshard"
    with pytest.raises(BadFile, match="contains a 'dreamshard_cost_net', not the policy of a sharder"):
        identify_sharder(tmp_path / "cost_net")
