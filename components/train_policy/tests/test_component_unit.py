"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenshard.sharders.checkpoint import load_checkpoint
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy
from evenshard_components.conftest import CONFIG
from evenshard_components.train_cost.component import train_cost
from evenshard_components.train_policy.component import train_policy
from support.tracking_builders import loops

Artifacts = Callable[..., dict[str, Any]]


def test_the_policy_goes_on_from_the_previous_round(given: Artifacts, made: Artifacts) -> None:
    outputs = made("policy", "metrics")
    inputs = given("tables", "tasks", "cost_net", previous_policy="policy")
    train_policy.python_func(**inputs, **outputs, config=CONFIG["train_policy"], round_number=2, num_rounds=2)
    assert load_checkpoint(Path(outputs["policy"].path), DreamShardPolicy).round == 2
    assert outputs["metrics"].metadata["predicted_ms"] > 0


def test_what_mlflow_has_missed_goes_with_the_artifacts_to_the_next_pod(
    given: Artifacts, made: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")

    def gone() -> None:
        raise ConnectionResetError("the server is gone")

    trained, rounds = made("cost_net", "cost_model", "metrics"), {"round_number": 1, "num_rounds": 1}
    with monkeypatch.context() as patch:
        patch.setattr("evenshard.tracking.run_files.connect", gone)
        train_cost.python_func(**given("tables", "tasks", "costs"), **trained, config=CONFIG["train_cost"], **rounds)
    backlog = Path(trained["cost_net"].path, "mlflow_backlog")
    assert len(list(backlog.iterdir())) == 1
    inputs = {**given("tables", "tasks"), "cost_net": trained["cost_net"]}
    train_policy.python_func(**inputs, **made("policy", "metrics"), config=CONFIG["train_policy"], **rounds)
    [loop] = loops()
    assert sorted(one.info.run_name for one in loop.children) == ["train_cost_1", "train_policy_1"]
    assert not backlog.exists() and not list(tmp_path.rglob("mlflow_backlog"))
