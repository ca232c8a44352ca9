"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenshard.sharders.checkpoint import load_checkpoint
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet
from evenshard.sharders.training_domain import TrainingDomain
from evenshard_components.conftest import CONFIG
from evenshard_components.train_cost.component import train_cost

Artifacts = Callable[..., dict[str, Any]]


def test_both_networks_go_on_from_the_previous_round(given: Artifacts, made: Artifacts) -> None:
    outputs = made("cost_net", "cost_model", "metrics")
    inputs = given("tables", "tasks", "costs", previous_cost_net="cost_net", previous_cost_model="cost_model")
    train_cost.python_func(**inputs, **outputs, config=CONFIG["train_cost"], round_number=2, num_rounds=2)
    assert load_checkpoint(Path(outputs["cost_net"].path), DreamShardCostNet).round == 2
    assert TrainingDomain.load(Path(outputs["cost_model"].path, "trained_on.json")).num_measured == 6
    assert outputs["metrics"].metadata["num_placements"] == 6
