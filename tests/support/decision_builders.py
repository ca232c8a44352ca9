"""A pool, tasks and registered models for the tests of what decides."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from evenshard.placement.tasks import TaskSampling, sample_tasks, save_tasks
from evenshard.tables.files import save_tables
from evenshard.tables.generator import GeneratorConfig, generate_tables
from support.convex_builders import random_model
from support.learned import LEARNED_DEVICE, learned_model
from support.model_builders import save_model

SETTINGS: dict[str, dict[str, Any]] = {
    "measure": {"hardware": f"simulated:{LEARNED_DEVICE}", "visits": 1, "num_batches": 1, "warmup": 0, "repeats": 1},
    "evaluate": {"scores_per_table": 20},
}
BATCH = 65_536


def write_inputs(
    folder: Path, num_test_tasks: int = 8, memory_cap_gb: float = 4.0, tables_per_task: int = 12, **measure: Any
) -> None:
    """params.yaml, work/tables.parquet and work/tasks.json, for the simulated device that ``learned_model`` knows."""
    settings = {**SETTINGS, "measure": {**SETTINGS["measure"], **measure}}
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    (folder / "work").mkdir(exist_ok=True)
    pool = generate_tables(GeneratorConfig(120, (16, 32, 64), 1_000_000, 32), BATCH, 0)
    split = sample_tasks(pool, TaskSampling(2, num_test_tasks, tables_per_task, 4, memory_cap_gb, BATCH), 0)
    save_tables(pool, folder / "work/tables.parquet")
    save_tasks(split, folder / "work/tasks.json")


def good_model(folder: Path, num_measured: int = 1000) -> Path:
    """What comes with evenshard, as if it had learned from so many measurements: intervals differ, and no time."""
    model = learned_model()
    cost_model = deepcopy(model.cost_model)
    cost_model.calibration = replace(cost_model.calibration, floor=0.05 + 1 / num_measured)
    save_model(folder, cost_model, replace(model.trained_on, num_measured=num_measured))
    return folder


def bad_model(folder: Path, num_measured: int = 1000, seed: int = 0) -> Path:
    """One that knows nothing and says the opposite of nothing."""
    model = learned_model()
    save_model(folder, random_model(seed), replace(model.trained_on, num_measured=num_measured))
    return folder
