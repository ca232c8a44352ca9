"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenshard.checkpoint import load_checkpoint
from evenshard.sharders.dreamshard import DreamShardPolicy
from evenshard_components.conftest import CONFIG
from evenshard_components.train_policy.component import train_policy

Artifacts = Callable[..., dict[str, Any]]


def test_the_policy_goes_on_from_the_previous_round(given: Artifacts, made: Artifacts) -> None:
    outputs = made("policy", "metrics")
    inputs = given("tables", "tasks", "cost_net", previous_policy="policy")
    train_policy.python_func(**inputs, **outputs, config=CONFIG["train_policy"], round_number=2, num_rounds=2)
    assert load_checkpoint(Path(outputs["policy"].path), DreamShardPolicy).round == 2
    assert outputs["metrics"].metadata["predicted_ms"] > 0
