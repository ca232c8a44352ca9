"""Settings of stages: a made-up one is in params.yaml, flags and components once a dataclass has it."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass, replace

import pytest

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import SHARE, knob
from evenshard.cli.arguments import add_flags, flag_values
from evenshard.loop.loop import TRAIN_COST, TrainCostConfig, TrainCostInputs
from evenshard_components.generate import component_of


@dataclass(frozen=True)
class MoreSettings(TrainCostConfig):
    made_up: float = knob(0.5, "share of nothing, at most 100 %", flag="--made-up", range=SHARE)


@dataclass(frozen=True)
class MoreInputs(TrainCostInputs):
    made_up_count: int = knob(2, "number of nothing", parameter="made_up_count")


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
    component = component_of(replace(TRAIN_COST, inputs=MoreInputs))
    assert "    made_up_count: int = 2,\n" in component and "        made_up_count: number of nothing.\n" in component
