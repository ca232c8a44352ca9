"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard_components.conftest import CONFIG
from evenshard_components.generate_tables.component import generate_tables


def test_a_task_leaves_its_files(run_task: Callable[..., Path]) -> None:
    folder = run_task(generate_tables, {}, config=CONFIG["generate_tables"])
    assert (folder / "tables/tables.parquet").is_file()
    assert (folder / "tasks").is_file()
