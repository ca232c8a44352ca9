"""The files of one small round, which the components' tests share; as tasks they run in test_local.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)

CONFIG: dict[str, dict[str, Any]] = {
    "generate_tables": {
        "source": "dlrm_2021",
        "num_tables": 24,
        "embedding_dims": [4, 16],
        "max_rows": 2000,
        "num_train_tasks": 4,
        "num_test_tasks": 2,
        "tables_per_task": 6,
        "num_devices": 2,
        "memory_cap_gb": 0.01,
        "batch_size": 32,
    },
    "measure": {"hardware": "simulated:h200", "visits": 1, "controls": 1, "control_repeats": 2},
    "benchmark": {"placements_per_round": 4, "searched_share": 0.5},
    "train_cost": {"num_updates": 5, "convex_updates": 5},
    "train_policy": {"num_updates": 2, "num_episodes": 3},
    "evaluate": {"num_rollouts": 4, "scores_per_table": 50},
}


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MLflow."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def small_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each stage of round 1 leaves, made by the stages themselves.

    tables/tables.parquet, tasks, part_1, part_2, costs/round_001.parquet, cost_net/, cost_model/, policy/
    """
    from evenshard.loop import benchmark, generate_tables, loop, train_cost, train_policy
    from evenshard.loop.import_costs import merge_parts
    from evenshard.measure.config import MeasureConfig

    folder = tmp_path_factory.mktemp("round")
    tables, tasks = folder / "tables/tables.parquet", folder / "tasks"
    generate_tables.run(
        loop.GenerateTablesConfig(**CONFIG["generate_tables"]),
        loop.GenerateTablesInputs(),
        loop.GenerateTablesOutputs(tables, tasks),
    )
    parts = (folder / "part_1/round_001.parquet", folder / "part_2/round_001.parquet")
    for number, part in enumerate(parts, start=1):
        benchmark.run(
            loop.BenchmarkConfig(**CONFIG["benchmark"]),
            MeasureConfig(**CONFIG["measure"]),
            loop.BenchmarkInputs(tables, tasks, 1, part=number, num_parts=2),
            loop.BenchmarkOutputs(part),
        )
    costs = folder / "costs/round_001.parquet"
    merge_parts(parts, costs)
    train_cost.run(
        loop.TrainCostConfig(**CONFIG["train_cost"]),
        loop.TrainCostInputs(tables, (costs,), tasks, 1, 1),
        loop.TrainCostOutputs(folder / "cost_net", folder / "cost_model"),
    )
    train_policy.run(
        loop.TrainPolicyConfig(**CONFIG["train_policy"]),
        loop.TrainPolicyInputs(tables, tasks, folder / "cost_net", 1, 1),
        loop.TrainPolicyOutputs(folder / "policy"),
    )
    return folder


@pytest.fixture
def given(small_round: Path) -> Callable[..., dict[str, Any]]:
    """Input artifacts by name: ``given("tables", previous_policy="policy")``."""
    from kfp import dsl

    def artifacts(*names: str, **renamed: str) -> dict[str, Any]:
        files = {**{name: name for name in names}, **renamed}
        return {name: dsl.Artifact(name=name, uri=str(small_round / file)) for name, file in files.items()}

    return artifacts


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Output artifacts by name, each in a new place; ``metrics`` is a Metrics."""
    from kfp import dsl

    def artifacts(*names: str) -> dict[str, Any]:
        kinds = {"metrics": dsl.Metrics}
        return {name: kinds.get(name, dsl.Artifact)(name=name, uri=str(tmp_path / name)) for name in names}

    return artifacts
