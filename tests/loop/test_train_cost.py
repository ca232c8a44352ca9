"""What learns from which measured costs: DreamShard's network from whole placements, evenshard's model from all."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evenshard.base.errors import BadConfig, BadFile, BadInput, TrainingFailed
from evenshard.base.knobs import SHARE, knob
from evenshard.base.provenance import Lineage
from evenshard.cli.arguments import add_flags, flag_values
from evenshard.loop import loop, train_cost, train_policy
from evenshard.loop.loop import TRAIN_COST, TrainCostConfig
from evenshard.measure.cost_dataset import save_costs
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSplit, save_tasks
from evenshard.price.costs import CONTROL, RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.sharders.cost_model.cost_model import Calibration, CostModel, ExchangeTime
from evenshard.sharders.simple import random_placement
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tables.files import save_tables
from support.builders import PROVENANCE, FakeHardware, some_tables, task
from support.convex_builders import random_model

POOL = some_tables(12)
TASKS = tuple(task([POOL[(n * 5 + i) % 12] for i in range(6)], task_id=f"train-{n:03d}") for n in range(5))
CONFIG = loop.TrainCostConfig(num_updates=3, convex_updates=3)


def run_of(of_task: ShardingTask, placement: Placement, who: str, number: int, round_number: int) -> MeasuredPlacement:
    of_cost = FakeHardware().measure(of_task, placement)
    name = f"{who}-{round_number}-{number}"
    return MeasuredPlacement(name, round_number, who, of_task, placement.parts(of_task.tables), of_cost, PROVENANCE)


def placements(who: str = "random", count: int = 5, round_number: int = 1) -> list[MeasuredPlacement]:
    rng = np.random.default_rng(round_number)
    chosen = [TASKS[number % len(TASKS)] for number in range(count)]
    return [run_of(one, random_placement(one, rng), who, n, round_number) for n, one in enumerate(chosen)]


def shards(count: int = 3) -> list[MeasuredPlacement]:
    tasks = [task(POOL[2 * n : 2 * n + 3], devices=1, task_id=f"shard-{n}") for n in range(count)]
    return [run_of(one, place_on_one_device(one), RANDOM_SHARD, n, 1) for n, one in enumerate(tasks)]


class Stage:
    """The stage on files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, (folder / "tables.parquet", folder / "tasks.json")
        self.metrics: dict[str, float] = {}
        save_tables(POOL, self.files[0])
        save_tasks(TaskSplit(TASKS, ()), self.files[1])

    def run(
        self,
        name: str,
        *rounds: Sequence[MeasuredPlacement],
        cost_model: Path | None = None,
        config: loop.TrainCostConfig = CONFIG,
    ) -> dict[str, float]:
        costs = tuple(self.folder / f"{name}-{number}.parquet" for number in range(1, len(rounds) + 1))
        for path, one in zip(costs, rounds, strict=True):
            save_costs(one, path)
        tables, tasks = self.files
        inputs = loop.TrainCostInputs(tables, costs, tasks, len(rounds), 3, cost_model=cost_model)
        outputs = loop.TrainCostOutputs(self.folder / name / "cost_net", self.folder / name / "cost_model")
        return train_cost.run(config, inputs, outputs, Lineage(git_commit="c0ffee")).metrics

    def model(self, name: str) -> CostModel:
        return CostModel.load(self.folder / name / "cost_model")

    def same(self, one: str, other: str, part: str) -> bool:
        a, b = (torch.load(self.folder / name / part / "state.pt", weights_only=True) for name in (one, other))
        return all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """With ``plain``: what five random placements teach."""
    made = Stage(tmp_path_factory.mktemp("stage"))
    made.metrics = made.run("plain", placements())
    return made


def test_random_shards_teach_the_cost_model_alone(stage: Stage) -> None:
    plain, more = stage.metrics, stage.run("more", placements() + shards())
    assert stage.same("plain", "more", "cost_net") and not stage.same("plain", "more", "cost_model")
    devices = sum(len(set(one.placement.device_of_table)) for one in placements())
    assert (plain["cost_model_num_devices"], more["cost_model_num_devices"]) == (devices, devices + 3)
    assert plain["num_placements"] == more["num_placements"] == 5
    assert 0 < more["cost_model_held_out_pct_error"] < math.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_training_that_diverged_is_not_saved_and_keeps_the_older_networks(stage: Stage) -> None:
    folder = stage.folder / "plain"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(TrainingFailed, match=r"the training diverged: .* Lower the learning rate"):
        stage.run("plain", placements(), config=replace(CONFIG, learning_rate=1e30))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    inputs = loop.TrainPolicyInputs(*stage.files, folder / "cost_net", 1, 1)
    outputs = loop.TrainPolicyOutputs(stage.folder / "policy")
    with pytest.raises(TrainingFailed, match=r"the training diverged: .* Lower the learning rate"):
        train_policy.run(loop.TrainPolicyConfig(num_updates=3, learning_rate=1e30), inputs, outputs)
    assert not outputs.policy.exists()


def test_controls_and_what_ran_out_of_memory_teach_nothing(stage: Stage) -> None:
    controls = placements(CONTROL, count=4, round_number=7)
    full = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1.0, 1.0, 1.0, 1.0)), "modelled")
    failed = [replace(one, measurement_id=f"full-{n}", cost=full) for n, one in enumerate(placements(round_number=8))]
    stage.run("with_controls", [*placements(), *controls, *failed])
    for part in ("cost_net", "cost_model"):
        assert stage.same("plain", "with_controls", part)
    with pytest.raises(BadFile, match="no placement that fits"):
        stage.run("nothing", [*controls, *failed])


def test_all_rounds_teach_and_the_model_says_what_it_was_trained_on(stage: Stage) -> None:
    stage.run("rounds", placements() + shards(), placements("evenshard", count=4, round_number=2))
    known = TrainingDomain.load(stage.folder / "rounds/cost_model/trained_on.json")
    files = [stage.folder / f"rounds-{number}.parquet" for number in (1, 2)]
    everything = [*placements(), *shards(), *placements(count=4, round_number=2)]
    assert known == TrainingDomain.of(everything, "c0ffee", files)
    assert TrainingDomain.load(stage.folder / "rounds/cost_net/trained_on.json").num_measured == 9
    assert known.num_measured == 12 and known.num_devices == (1, 2)


def test_without_a_folder_for_it_no_cost_model_is_fitted_and_its_updates_do_not_count(stage: Stage) -> None:
    tables, tasks = stage.files
    inputs = loop.TrainCostInputs(tables, (stage.folder / "plain-1.parquet",), tasks, 1, 3)
    found = train_cost.run(
        replace(CONFIG, convex_updates=4), inputs, loop.TrainCostOutputs(stage.folder / "net/cost_net")
    )
    assert not any(name.startswith("cost_model") for name in found.metrics)
    assert [path.name for path in (stage.folder / "net").iterdir()] == ["cost_net"]
    assert stage.same("plain", "net", "cost_net")


def test_the_previous_models_errors_about_its_own_choices_of_this_round_widen_the_intervals(stage: Stage) -> None:
    """The previous model expected a millionth of what they took."""
    wrong = random_model()
    wrong.net.time_scale_ms.mul_(1e-6)
    wrong.exchange = ExchangeTime()
    folder = stage.folder / "wrong"
    wrong.save(folder)

    def calibration(name: str, who: tuple[str, str], cost_model: Path | None) -> Calibration:
        stage.run(name, placements(who[0]), placements(who[1], round_number=2), cost_model=cost_model)
        return stage.model(name).calibration

    alone = calibration("alone", ("random", "evenshard"), None)
    assert calibration("earlier", ("evenshard", "dreamshard"), folder) == alone
    widened = calibration("own", ("random", "evenshard"), folder)
    assert widened.factor > 2 * alone.factor and widened.floor == alone.floor


def test_costs_of_two_optimizers_are_refused_before_a_training(stage: Stage) -> None:
    adam = replace(PROVENANCE, optimizer="adam")
    later = [replace(one, provenance=adam) for one in placements(round_number=2)]
    with pytest.raises(
        BadInput, match=r"mix optimizers \(adam, sgd\), whose backward passes differ. Use a single optimizer"
    ):
        stage.run("both", placements(), later)
    assert not (stage.folder / "both").exists()


@dataclass(frozen=True)
class MoreSettings(TrainCostConfig):
    made_up: float = knob(0.5, "share of nothing, at most 100 %", flag="--made-up", range=SHARE)


def test_a_setting_is_a_key_of_params_yaml_that_a_flag_overrides() -> None:
    stage = replace(TRAIN_COST, config=MoreSettings)
    parser = ArgumentParser()
    add_flags(parser, MoreSettings, "train_cost")
    given, none = (
        {"train_cost": flag_values(parser.parse_args(words), MoreSettings, "train_cost")}
        for words in (["--made-up", "0.75"], [])
    )
    params = {"train_cost": {"made_up": 0.25}}
    found = [stage.settings(*one)["train_cost"].made_up for one in (({}, none), (params, none), (params, given))]
    assert found == [0.5, 0.25, 0.75]
    with pytest.raises(BadConfig, match=r"params section train_cost: made_up is 1.5, not a number from 0 to 1"):
        stage.settings({"train_cost": {"made_up": 1.5}}, none)
