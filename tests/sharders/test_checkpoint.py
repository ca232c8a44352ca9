"""Checkpoints: a network comes back as it was, optimizer included, or the folder is named as the problem."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evenshard.base.errors import BadFile, TrainingFailed
from evenshard.placement.placement import Placement
from evenshard.sharders.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_network,
    new_checkpoint,
    save_checkpoint,
)
from evenshard.sharders.dreamshard.fit import CostTensors, fit_cost_net
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import FitConfig
from support.builders import BATCH_SIZE, FakeHardware, cost_net, measured, policy, some_tables, task
from support.model_builders import save_network

TABLES = some_tables(6)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def data() -> CostTensors:
    of_task = task(TABLES, devices=2)
    placements = [Placement((number % 2, 0, 1, 0, 1, number // 2), 2) for number in range(4)]
    return CostTensors.of(
        [measured(of_task, one.device_of_table, FakeHardware().measure(of_task, one)) for one in placements], NORMALIZER
    )


def fit(checkpoint: Checkpoint[DreamShardCostNet], seed: int) -> None:
    config = FitConfig(num_updates=10, minibatch_size=3, learning_rate=1e-3)
    fit_cost_net(checkpoint.net, checkpoint.optimizer, data(), config, torch.Generator().manual_seed(seed))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(mine[name].equal(others[name]) for name in mine)


def test_a_cost_network_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = replace(new_checkpoint(cost_net(seed=5, scale_ms=42.0), NORMALIZER), round=3)
    save_checkpoint(saved, tmp_path / "net")
    loaded = load_checkpoint(tmp_path / "net", DreamShardCostNet)
    assert same_weights(loaded.net, saved.net) and float(loaded.net.cost_scale_ms) == 42.0
    assert loaded.normalizer == NORMALIZER
    assert loaded.round == 3


def test_a_policy_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = new_checkpoint(policy(seed=5, scale_ms=42.0), NORMALIZER)
    save_checkpoint(saved, tmp_path / "policy")
    loaded = load_checkpoint(tmp_path / "policy", DreamShardPolicy)
    assert same_weights(loaded.net, saved.net) and loaded.round == 0
    features = NORMALIZER(TABLES, BATCH_SIZE)
    assert loaded.net.encode(loaded.normalizer(TABLES, BATCH_SIZE)).equal(saved.net.encode(features))


def test_training_goes_on_as_if_nothing_had_been_saved(tmp_path: Path) -> None:
    never_saved = new_checkpoint(cost_net(), NORMALIZER)
    fit(never_saved, seed=1)
    save_checkpoint(never_saved, tmp_path / "net")
    loaded = load_checkpoint(tmp_path / "net", DreamShardCostNet)
    forgetful = new_checkpoint(cost_net(), NORMALIZER)
    forgetful.net.load_state_dict(never_saved.net.state_dict())
    for checkpoint in (never_saved, loaded, forgetful):
        fit(checkpoint, seed=2)
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
    assert same_weights(load_checkpoint(folder, DreamShardCostNet).net, cost_net(seed=2))


def test_a_network_that_learns_no_more_needs_no_optimizer(tmp_path: Path) -> None:
    saved = cost_net(seed=5, scale_ms=42.0)
    save_network(saved, NORMALIZER, tmp_path / "net", round_number=2)
    assert sorted(found.name for found in (tmp_path / "net").iterdir()) == ["config.json", "state.pt"]
    net, normalizer = load_network(tmp_path / "net", DreamShardCostNet)
    assert same_weights(net, saved) and normalizer == NORMALIZER
    with pytest.raises(BadFile, match=r"optimizer\.pt is missing"):
        load_checkpoint(tmp_path / "net", DreamShardCostNet)
    with pytest.raises(BadFile, match="not a DreamShardPolicy"):
        load_network(tmp_path / "net", DreamShardPolicy)


def test_a_whole_checkpoint_can_be_used_as_a_network(tmp_path: Path) -> None:
    save_checkpoint(new_checkpoint(policy(seed=5), NORMALIZER), tmp_path / "policy")
    assert same_weights(load_network(tmp_path / "policy", DreamShardPolicy)[0], policy(seed=5))


# What is wrong with a folder -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(new_checkpoint(cost_net(), NORMALIZER), tmp_path / "net")
    return tmp_path / "net"


def test_a_missing_folder_is_a_bad_file_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"config\.json is missing.*train-cost") as caught:
        load_checkpoint(tmp_path / "net", DreamShardCostNet)
    assert str(tmp_path / "net") in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "state.pt", "optimizer.pt"])
def test_each_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        load_checkpoint(folder, DreamShardCostNet)


@pytest.mark.parametrize("name", ["config.json", "state.pt", "optimizer.pt"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_each_torn_file_is_a_bad_file_on_one_line(folder: Path, name: str, keep: float) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(BadFile, match="not readable as a saved network") as caught:
        load_checkpoint(folder, DreamShardCostNet)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_of_the_other_kind_is_named_as_such(folder: Path) -> None:
    with pytest.raises(BadFile, match="contains a dreamshard_cost_net, not a DreamShardPolicy"):
        load_checkpoint(folder, DreamShardPolicy)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    torch.save({"table_mlp.0.0.weight": torch.zeros(3, 3)}, folder / "state.pt")
    with pytest.raises(BadFile, match="not readable as a saved network"):
        load_checkpoint(folder, DreamShardCostNet)


Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state["table_mlp.0.0.weight"].mul_(math.nan), "table_mlp.0.0.weight: a number is not finite"),
        (lambda state: state["table_mlp.0.0.bias"][3:4].fill_(math.inf), "table_mlp.0.0.bias: a number is not finite"),
        (lambda state: state.update(more=torch.zeros(1)), "contains 'more', which the network does not have"),
        (lambda state: state.pop("overall_head.2.bias"), "lacks overall_head.2.bias"),
        (lambda state: state.update({"overall_head.2.bias": torch.zeros(2)}), r"bias: is \[2\] float32, not \[1\]"),
        (lambda state: state.update({"overall_head.2.bias": torch.zeros(1).half()}), "float16, not .* float32"),
        (lambda state: state.update({"overall_head.2.bias": torch.zeros(1).to_sparse()}), "bias: is "),
        (lambda state: state.update({"overall_head.0.weight": torch.zeros(1, 1).expand(64, 32)}), "weight: is "),
        (lambda state: state.update({"overall_head.2.bias": [0.0]}), "is not a mapping of names to tensors"),
        (lambda state: state["cost_scale_ms"].zero_(), "cost_scale_ms: a scale is not positive"),
    ],
)
def test_changed_weights_are_refused_in_one_line(folder: Path, change: Callable[[Tensors], Any], why: str) -> None:
    state = torch.load(folder / "state.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "state.pt")
    for load in (load_checkpoint, load_network):
        with pytest.raises(BadFile, match=rf"saved network \(state\.pt.*{why}") as caught:
            load(folder, DreamShardCostNet)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", [[], {"state": []}, {"state": {0: {}}}, {"more": []}, torch.zeros(3), "text"])
def test_an_optimizer_of_another_kind_is_refused(folder: Path, content: Any) -> None:
    torch.save(content, folder / "optimizer.pt")
    with pytest.raises(BadFile, match=r"optimizer\.pt is not the state of an optimizer with"):
        load_checkpoint(folder, DreamShardCostNet)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda kept: kept["exp_avg"].mul_(math.nan), "exp_avg: a number is not finite"),
        (lambda kept: kept["exp_avg_sq"].fill_(-1.0), "step or exp_avg_sq is negative"),
        (lambda kept: kept["step"].fill_(-1.0), "step or exp_avg_sq is negative"),
        (lambda kept: kept.update(exp_avg=torch.zeros(2, 2)), r"exp_avg: is \[2, 2\]"),
        (lambda kept: kept.update(step=3.0), "is not a mapping of names to tensors"),
        (lambda kept: kept.pop("exp_avg"), "is not the state of an Adam"),
    ],
)
def test_changed_moments_are_refused(tmp_path: Path, change: Callable[[Tensors], Any], why: str) -> None:
    trained = new_checkpoint(cost_net(), NORMALIZER)
    fit(trained, seed=1)
    save_checkpoint(trained, tmp_path / "net")
    path = tmp_path / "net" / "optimizer.pt"
    content = torch.load(path, weights_only=True)
    change(content["state"][3])
    torch.save(content, path)
    with pytest.raises(BadFile, match=rf"optimizer\.pt, parameter 3.*{why}"):
        load_checkpoint(tmp_path / "net", DreamShardCostNet)


def test_settings_of_the_optimizer_are_those_of_the_code(tmp_path: Path) -> None:
    save_checkpoint(new_checkpoint(cost_net(), NORMALIZER), tmp_path / "net")
    content = torch.load(tmp_path / "net" / "optimizer.pt", weights_only=True)
    content["param_groups"][0].update(lr=math.nan, betas="none")
    torch.save(content, tmp_path / "net" / "optimizer.pt")
    group = load_checkpoint(tmp_path / "net", DreamShardCostNet).optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.999) and group["lr"] == 1e-3


def test_a_network_that_diverged_is_not_saved_and_the_older_one_stays(folder: Path) -> None:
    before = digest(folder)
    broken = new_checkpoint(cost_net(), NORMALIZER)
    fit(broken, seed=1)
    moments = broken.optimizer.state_dict()["state"][3]["exp_avg_sq"]
    for tensor, name in ((moments, "exp_avg_sq of parameter 3"), (broken.net.cost_scale_ms, "cost_scale_ms")):
        tensor.fill_(math.inf)
        with pytest.raises(TrainingFailed, match=rf"diverged: {name} is not finite.*Lower the learning rate"):
            save_checkpoint(broken, folder)
    assert digest(folder) == before and [found.name for found in folder.parent.iterdir()] == ["net"]


def digest(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": "1"}, "round is '1', not a whole number"),
        ({"round": -1}, "round is -1, below 0"),
        ({"kind": ["dreamshard_cost_net"]}, "kind is .*, not a string"),
        ({"normalizer": [1.0]}, "normalizer is .*, not a mapping"),
        ({"normalizer": {"mean": ["a"] * 21, "scale": [1.0] * 21}}, "mean.0. is 'a', not a number"),
        ({"normalizer": {"mean": [0.0] * 21, "scale": [0.0] * 21}}, "a scale of 0 or below"),
        ({"normalizer": {"mean": [math.nan] * 21, "scale": [1.0] * 21}}, "'NaN' is not a valid number"),
        ({"more": 1}, "'more' is unknown"),
    ],
)
def test_a_config_of_other_types_is_refused(folder: Path, change: dict[str, Any], why: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(BadFile, match=why):
        load_checkpoint(folder, DreamShardCostNet)


@pytest.mark.parametrize("key", ["kind", "round", "normalizer"])
def test_a_config_without_a_key_is_refused(folder: Path, key: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile, match=key):
        load_checkpoint(folder, DreamShardCostNet)


def test_a_normalizer_of_the_wrong_number_of_features_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["normalizer"]["mean"].pop()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile):
        load_checkpoint(folder, DreamShardCostNet)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("never_opened_by_load", "w")


def test_no_pickled_code_is_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Hostile()}, folder / "state.pt")
    with pytest.raises(
        BadFile, match=r"state\.pt cannot be read: it is damaged, or contains objects other than tensors\)"
    ):  # no word of how to run it
        load_checkpoint(folder, DreamShardCostNet)
    assert not (tmp_path / "never_opened_by_load").exists()
