"""Checkpoints: a network comes back as it was, optimizer included, or the folder is named as the problem."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evenshard.base.errors import BadFile, TrainingFailed
from evenshard.sharders.checkpoint import (
    Checkpoint,
    Round,
    load_checkpoint,
    load_network,
    new_checkpoint,
    save_checkpoint,
)
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import descend
from support.builders import BATCH_SIZE, cost_net, policy, some_tables
from support.model_builders import save_network

TABLES = some_tables(6)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def fit(checkpoint: Checkpoint[DreamShardCostNet]) -> None:
    """A few steps that shrink the weights."""
    for _ in range(3):
        descend(checkpoint.optimizer, torch.stack([one.square().sum() for one in checkpoint.net.parameters()]).sum())


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(mine[name].equal(others[name]) for name in mine)


def test_networks_come_back_as_they_were(tmp_path: Path) -> None:
    saved = replace(new_checkpoint(cost_net(seed=5, scale_ms=42.0), NORMALIZER), round=3)
    save_checkpoint(saved, tmp_path / "net")
    loaded = load_checkpoint(tmp_path / "net", DreamShardCostNet)
    assert same_weights(loaded.net, saved.net) and float(loaded.net.cost_scale_ms) == 42.0
    assert (loaded.normalizer, loaded.round, loaded.is_new) == (NORMALIZER, 3, False)
    save_checkpoint(new_checkpoint(policy(seed=5), NORMALIZER), tmp_path / "policy")
    assert load_checkpoint(tmp_path / "policy", DreamShardPolicy).is_new
    assert same_weights(load_network(tmp_path / "policy", DreamShardPolicy)[0], policy(seed=5))
    save_network(cost_net(seed=5), NORMALIZER, tmp_path / "net")  # one that learns no more needs no optimizer
    net, normalizer = load_network(tmp_path / "net", DreamShardCostNet)
    assert same_weights(net, cost_net(seed=5)) and normalizer == NORMALIZER


def test_the_learning_rate_falls_linearly_over_the_rounds() -> None:
    assert [Round(number, 4).decay(0.8) for number in (1, 2, 4)] == pytest.approx([0.8, 0.6, 0.2])


def test_training_goes_on_as_if_nothing_had_been_saved(tmp_path: Path) -> None:
    never_saved = new_checkpoint(cost_net(), NORMALIZER)
    fit(never_saved)
    save_checkpoint(never_saved, tmp_path / "net")
    loaded = load_checkpoint(tmp_path / "net", DreamShardCostNet)
    forgetful = new_checkpoint(cost_net(), NORMALIZER)
    forgetful.net.load_state_dict(never_saved.net.state_dict())
    for checkpoint in (never_saved, loaded, forgetful):
        fit(checkpoint)
    assert same_weights(loaded.net, never_saved.net)
    assert not same_weights(forgetful.net, never_saved.net)  # a fresh Adam goes elsewhere


def test_saving_again_replaces_the_folder_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    save_checkpoint(new_checkpoint(cost_net(seed=1), NORMALIZER), folder)
    (folder / "trained_on.json").touch()
    save_checkpoint(new_checkpoint(cost_net(seed=2), NORMALIZER), folder)
    assert same_weights(load_checkpoint(folder, DreamShardCostNet).net, cost_net(seed=2))
    assert sorted(found.name for found in folder.iterdir()) == ["config.json", "optimizer.pt", "state.pt"]
    assert [found.name for found in tmp_path.iterdir()] == ["net"]
    (folder / "thesis.txt").touch()
    with pytest.raises(BadFile, match=r"contains thesis\.txt, which is not part of a network and would be lost"):
        save_checkpoint(new_checkpoint(cost_net(seed=3), NORMALIZER), folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a network that has trained, with moments."""
    trained = new_checkpoint(cost_net(), NORMALIZER)
    fit(trained)
    save_checkpoint(trained, tmp_path / "net")
    return tmp_path / "net"


def refused(folder: Path, why: str) -> None:
    """On one line that names the folder."""
    with pytest.raises(BadFile, match=why) as caught:
        load_checkpoint(folder, DreamShardCostNet)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["config.json", "state.pt", "optimizer.pt"])
def test_each_missing_or_torn_file_is_named(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for keep in (0.0, 0.5, 0.99):
        (folder / name).write_bytes(whole[: int(keep * len(whole))])
        refused(folder, "not readable as a saved network")
    (folder / name).unlink()
    refused(folder, f"{name} is missing.*train-cost")


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        (
            "state",
            lambda net: net["table_mlp.0.0.weight"].mul_(math.nan),
            r"network \(state\.pt.*a number is not finite",
        ),
        ("optimizer", lambda adam: adam["step"].fill_(-1.0), r"optimizer\.pt, parameter 3.*exp_avg_sq is negative"),
    ],
)
def test_changed_weights_and_moments_are_refused(folder: Path, file: str, change: Any, why: str) -> None:
    content = torch.load(folder / f"{file}.pt", weights_only=True)
    change(content if file == "state" else content["state"][3])
    torch.save(content, folder / f"{file}.pt")
    refused(folder, why)


def test_an_optimizer_of_another_kind_is_refused_and_its_settings_are_those_of_the_code(folder: Path) -> None:
    content = torch.load(folder / "optimizer.pt", weights_only=True)
    content["param_groups"][0].update(lr=math.nan, betas="none")
    torch.save(content, folder / "optimizer.pt")
    group = load_checkpoint(folder, DreamShardCostNet).optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.999) and group["lr"] == 1e-3
    for other in ([], {"state": []}, {"state": {0: {}}}, {"more": []}, torch.zeros(3), "text"):
        torch.save(other, folder / "optimizer.pt")
        refused(folder, r"optimizer\.pt is not the state of an optimizer with")


def test_a_network_that_diverged_is_not_saved_and_the_older_one_stays(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = new_checkpoint(cost_net(), NORMALIZER)
    fit(broken)
    moments = broken.optimizer.state_dict()["state"][3]["exp_avg_sq"]
    for tensor, name in ((moments, "exp_avg_sq of parameter 3"), (broken.net.cost_scale_ms, "cost_scale_ms")):
        tensor.fill_(math.inf)
        with pytest.raises(TrainingFailed, match=rf"diverged: {name} is not finite.*Lower the learning rate"):
            save_checkpoint(broken, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [found.name for found in folder.parent.iterdir()] == ["net"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": "1"}, "round is '1', not a whole number"),
        ({"round": -1}, "round is -1, below 0"),
        ({"normalizer": {"mean": [0.0] * 20, "scale": [1.0] * 21}}, "does not have 21 features"),
        ({"more": 1}, "'more' is unknown"),
        ({"kind": "dreamshard_policy"}, "contains a dreamshard_policy, not a DreamShardCostNet"),
    ],
)
def test_a_config_of_other_types_is_refused(folder: Path, change: dict[str, Any], why: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    refused(folder, why)
    del config["normalizer"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "normalizer")


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("never_opened_by_load", "w")


def test_no_pickled_code_is_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Hostile()}, folder / "state.pt")
    # no word of how to run it
    refused(folder, r"state\.pt cannot be read: it is damaged, or contains objects other than tensors\)")
    assert not (tmp_path / "never_opened_by_load").exists()
