"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard_components.conftest import CONFIG
from evenshard_components.evaluate.component import evaluate


def test_a_task_leaves_its_report(run_task: Callable[..., Path], small_round: Path) -> None:
    files = {name: small_round / name for name in ("tables", "tasks", "costs", "cost_net", "policy", "cost_model")}
    folder = run_task(evaluate, files, config=CONFIG["evaluate"], measure=CONFIG["measure"])
    assert (folder / "report/evaluation.csv").is_file()
    assert (folder / "page").read_text().startswith("<!doctype html>")
