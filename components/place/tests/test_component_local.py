"""The component, run as a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evenshard.planner.file import load_answer
from evenshard_components.place.component import place


def test_a_task_places_with_a_model_of_ones_own(run_task: Callable[..., Path], small_round: Path) -> None:
    files = {"tables": small_round / "tables/tables.parquet", "model": small_round}
    folder = run_task(place, files, request={"num_devices": 2, "batch_size": 32})
    assert load_answer(folder / "placement/placement.json").lineage["model"] is not None
