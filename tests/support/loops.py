"""Whole loops: the commands of dvc.yaml, one after the other, on a simulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from evenshard.cli import main
from support.repository import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import unroll

# Seconds for each stage, on a simulated GPU.
TINY: dict[str, dict[str, Any]] = {
    "loop": {"num_rounds": 1},
    "generate_tables": {
        **{"source": "dlrm_2021", "num_tables": 80, "embedding_dims": [4, 16, 64], "max_rows": 100_000},
        **{"num_train_tasks": 4, "num_test_tasks": 4, "tables_per_task": 20},
        **{"num_devices": 4, "memory_cap_gb": 0.5, "batch_size": 4096},
    },
    "measure": {"hardware": "simulated:h200", "num_batches": 1, "warmup": 0, "repeats": 1, "visits": 2},
    "benchmark": {"placements_per_round": 8, "searched_share": 0.25},
    "train_cost": {"num_updates": 20, "minibatch_size": 8, "convex_updates": 20},
    "train_policy": {"num_updates": 6, "num_episodes": 4, "entropy_weight": 0.001},
    "evaluate": {"num_rollouts": 8, "scores_per_table": 60},
}


def params_with(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**section, **changes.get(name, {})} for name, section in TINY.items()}


def run_loop(changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Runs all stages in the working directory, with some settings of ``TINY`` changed."""
    params = params_with(changes)
    Path("params.yaml").write_text(yaml.safe_dump(params))
    for name, stage in unroll(params)["stages"].items():
        command, *arguments = stage["cmd"].split()
        assert command == "evenshard"
        assert main(arguments) == 0, f"{name} failed"
