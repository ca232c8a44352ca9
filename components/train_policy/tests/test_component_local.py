"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard_components.conftest import CONFIG
from evenshard_components.train_policy.component import train_policy


def test_a_task_leaves_its_policy(run_task: Callable[..., Path], small_round: Path) -> None:
    files = {name: small_round / name for name in ("tables", "tasks", "cost_net")}
    folder = run_task(train_policy, files, config=CONFIG["train_policy"], round_number=1, num_rounds=1)
    assert (folder / "policy/state.pt").is_file()
