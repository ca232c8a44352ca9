"""One small loop for all tests that need its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

# Tests run side by side, one process per core: more threads would only wait for each other.
torch.set_num_threads(1)

SMALL = {
    "loop": {"num_rounds": 2},
    "generate_tables": {
        "source": "dlrm_2021",
        "num_tables": 24,
        "embedding_dims": [4, 16],
        "max_rows": 2000,
        "num_train_tasks": 3,
        "num_test_tasks": 3,
        "tables_per_task": 6,
        "num_devices": 2,
        "memory_cap_gb": 0.01,
        "batch_size": 32,
    },
    "measure": {"hardware": "cpu", "num_batches": 2, "warmup": 1, "repeats": 2, "visits": 2},
    "benchmark": {"placements_per_round": 4, "searched_share": 0.5},
    "train_cost": {"num_updates": 5, "convex_updates": 5},
    "train_policy": {"num_updates": 2, "num_episodes": 3},
    "evaluate": {"scores_per_table": 100},
}


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with small settings and MLflow in its own sqlite file."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path
