"""Unrolls the rounds of params.yaml into dvc.yaml: round k's benchmark reads round k-1's policy.

python pipelines/dvc_rounds.py            writes dvc.yaml
python pipelines/dvc_rounds.py --check    exits 1 if dvc.yaml does not fit params.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from evenshard.measure.config import MeasureConfig
from evenshard.stages.generate_tables import GenerateTablesConfig
from evenshard.stages.loop import LoopConfig
from evenshard.tables.formats import TABLE_SUFFIXES
from evenshard.tables.sources import BATCH_SUFFIXES
from evenshard.utils.params import load_params, section

HEADER = "# Written by `make dvc.yaml` from params.yaml (rounds, input files); do not edit by hand.\n"
TABLES, TASKS = "work/tables.parquet", "work/tasks.json"
POOL = f"--tables {TABLES} --tasks {TASKS}"


def _folder(round_number: int) -> str:
    return f"work/round_{round_number}"


def _metrics(path: str) -> list[dict[str, Any]]:
    """In DVC's cache, as git ignores the file: `dvc exp show` finds those of other experiments there."""
    return [{path: {"cache": True}}]


def _files(*candidates: str | None) -> list[str]:
    """The settings among ``candidates`` that name files, which a stage then depends on."""
    return [name for name in candidates if name and name.endswith((*TABLE_SUFFIXES, *BATCH_SUFFIXES))]


def _networks(k: int) -> dict[str, str]:
    """What round k leaves behind, by the flag that takes it; nothing before round 1."""
    return {name.replace("_", "-"): f"{_folder(k)}/{name}" for name in ("cost_net", "policy", "cost_model") if k > 0}


def _flags(networks: dict[str, str]) -> str:
    return "".join(f" --{flag} {path}" for flag, path in networks.items())


def _benchmark(k: int, measuring_files: list[str]) -> dict[str, Any]:
    previous = _networks(k - 1)
    return {
        "cmd": f"evenshard benchmark {POOL} --round {k}{_flags(previous)} --out {_folder(k)}/costs.parquet"
        f" --metrics {_folder(k)}/benchmark.json",
        "deps": [TABLES, TASKS, *measuring_files, *previous.values()],
        "params": ["measure", "benchmark"],
        "outs": [f"{_folder(k)}/costs.parquet"],
        "metrics": _metrics(f"{_folder(k)}/benchmark.json"),
    }


def _train_cost(k: int) -> dict[str, Any]:
    costs = [f"{_folder(number)}/costs.parquet" for number in range(1, k + 1)]
    previous = {flag: path for flag, path in _networks(k - 1).items() if flag != "policy"}
    return {
        "cmd": f"evenshard train-cost {POOL} --round {k} --costs {' '.join(costs)}{_flags(previous)}"
        f" --out {_folder(k)}/cost_net --model-out {_folder(k)}/cost_model --metrics {_folder(k)}/train_cost.json",
        "deps": [TABLES, TASKS, *costs, *previous.values()],
        "params": ["loop", "train_cost"],
        "outs": [f"{_folder(k)}/cost_net", f"{_folder(k)}/cost_model"],
        "metrics": _metrics(f"{_folder(k)}/train_cost.json"),
    }


def _train_policy(k: int) -> dict[str, Any]:
    previous = [f"{_folder(k - 1)}/policy"] if k > 1 else []
    policy = f" --policy {previous[0]}" if previous else ""
    return {
        "cmd": f"evenshard train-policy {POOL} --round {k} --cost-net {_folder(k)}/cost_net{policy}"
        f" --out {_folder(k)}/policy --metrics {_folder(k)}/train_policy.json",
        "deps": [TABLES, TASKS, f"{_folder(k)}/cost_net", *previous],
        "params": ["loop", "train_policy"],
        "outs": [f"{_folder(k)}/policy"],
        "metrics": _metrics(f"{_folder(k)}/train_policy.json"),
    }


def _evaluate(num_rounds: int, measuring_files: list[str]) -> dict[str, Any]:
    costs = [f"{_folder(number)}/costs.parquet" for number in range(1, num_rounds + 1)]
    networks = _networks(num_rounds)
    return {
        "cmd": f"evenshard evaluate {POOL} --costs {' '.join(costs)}{_flags(networks)} --out reports",
        "deps": [TABLES, TASKS, *measuring_files, *costs, *networks.values()],
        "params": ["measure", "evaluate"],
        "outs": ["reports/evaluation_costs.parquet", "reports/table.txt"],
        "metrics": _metrics("reports/metrics.json"),
        "plots": [
            {
                "reports/evaluation.csv": {
                    "cache": True,
                    "template": "scatter",
                    "x": "predicted_ms",
                    "y": "max_device_ms",
                }
            },
            {"reports/device_costs.png": {"cache": True}},
            {"reports/predicted_vs_measured.png": {"cache": True}},
            {"reports/cost_per_round.png": {"cache": True}},
        ],
    }


def measured_with(params: dict[str, Any]) -> list[str]:
    """The files that the settings of measuring name: a recorded batch, a link, a device profile."""
    measure = section(params, "measure", MeasureConfig)
    return _files(measure.recorded_batch, measure.link, measure.hardware_name.device)


def sources(params: dict[str, Any]) -> list[str]:
    """The file that the tables come from, if they come from one."""
    return _files(section(params, "generate_tables", GenerateTablesConfig).source)


def unrolled(params: dict[str, Any]) -> dict[str, Any]:
    """The stages of the loop that params.yaml describes, as dvc.yaml has them."""
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    measuring_files = measured_with(params)
    stages: dict[str, Any] = {
        "generate_tables": {
            "cmd": f"evenshard generate-tables --tables-out {TABLES} --tasks-out {TASKS}",
            "deps": sources(params),
            "params": ["generate_tables"],
            "outs": [TABLES, TASKS],
        }
    }
    for k in range(1, num_rounds + 1):
        stages[f"benchmark_{k}"] = _benchmark(k, measuring_files)
        stages[f"train_cost_{k}"] = _train_cost(k)
        stages[f"train_policy_{k}"] = _train_policy(k)
    stages["evaluate"] = _evaluate(num_rounds, measuring_files)
    return {"stages": {name: {key: value for key, value in stage.items() if value} for name, stage in stages.items()}}


def main() -> int:
    """Writes or checks dvc.yaml in the working directory."""
    text = HEADER + yaml.safe_dump(unrolled(load_params(Path("params.yaml"))), sort_keys=False, width=110)
    target = Path("dvc.yaml")
    if "--check" in sys.argv[1:]:
        if not target.exists() or target.read_text() != text:
            print("dvc.yaml does not fit params.yaml. Run: make dvc.yaml", file=sys.stderr)
            return 1
        return 0
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
