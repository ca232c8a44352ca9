"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard.measure.cost_dataset import read_rows
from evenshard_components.benchmark.component import benchmark
from evenshard_components.conftest import CONFIG


def test_a_task_leaves_its_costs(run_task: Callable[..., Path], small_round: Path) -> None:
    files = {name: small_round / name for name in ("tables", "tasks")}
    folder = run_task(benchmark, files, config=CONFIG["benchmark"], measure=CONFIG["measure"], round_number=1)
    assert len({row["measurement_id"] for row in read_rows(folder / "costs/round_001.parquet").rows}) == 6 + 2
