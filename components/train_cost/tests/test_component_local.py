"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard_components.conftest import CONFIG
from evenshard_components.train_cost.component import train_cost


def test_a_task_leaves_both_networks(run_task: Callable[..., Path], small_round: Path) -> None:
    files = {name: small_round / name for name in ("tables", "tasks", "costs")}
    folder = run_task(train_cost, files, config=CONFIG["train_cost"], round_number=1, num_rounds=1)
    assert (folder / "cost_net/state.pt").is_file()
    assert (folder / "cost_model/trained_on.json").is_file()
