"""evenshard decides where to place the embedding tables of a recommender model.

::

    import evenshard

    answer = evenshard.place("tables.yaml", num_devices=8, memory_cap_gb=64)
    answer.parts             # table parts (rows and columns) with their devices
    answer.predicted_ms      # predicted step time of the embedding tables
    evenshard.save_answer(answer, "placement.json")

The core packages place tables; each package imports only from those before it (import-linter)::

    base         errors, messages, atomic files, readers of untrusted files, settings, S3
    tables       embedding tables, table files, public sets, traffic
    placement    tasks, sharding types, table parts, memory, and legal placements
    price        step time of a placement: device models, links, cost records
    search       search for the cheapest placement, and its lower bound
    sharders     random and greedy sharders, DreamShard, AutoShard, evenshard's cost model
    planner      placement requests, answers, and comparisons of answers
    report       an answer in the terminal, in Markdown and as an HTML page
    torchrec     drop-in planner, plans, running jobs, TorchRec's planner as a baseline

The operational packages measure costs and train models::

    measure      kernels, ranks, journals, calibration, traces, cost datasets
    tracking     MLflow, and the team's cost datasets
    loop         stages of the training loop, and the decisions after it
    kubeflow     the loop on Kubeflow Pipelines
    cli          command line

``api`` has ``place`` and ``what_if``. It may import ``measure``, because it can measure candidates.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenshard.base.providers import PROVIDERS
from evenshard.version import __version__

if sys.platform == "win32":
    raise ImportError("evenshard is for Linux: it locks files with fcntl. Use WSL on Windows.")

if TYPE_CHECKING:
    from evenshard.api import place, what_if
    from evenshard.base.errors import BadInput, EvenshardError, InfeasibleTask
    from evenshard.placement.parts import TablePart
    from evenshard.placement.placement import Placement
    from evenshard.planner.file import save_answer
    from evenshard.planner.knobs import (
        InUse,
        Machine,
        Memory,
        Search,
        Sharding,
        TableRules,
        TableSources,
        Training,
    )
    from evenshard.report.answer import PlacementAnswer, load_answer
    from evenshard.tables.table import Table

# Imported on first use, because importing torch takes more than a second, and `evenshard --help` does not need it.
_HOMES = {
    "BadInput": "evenshard.base.errors",
    "EvenshardError": "evenshard.base.errors",
    "InUse": "evenshard.planner.knobs",
    "InfeasibleTask": "evenshard.base.errors",
    "Machine": "evenshard.planner.knobs",
    "Memory": "evenshard.planner.knobs",
    "Placement": "evenshard.placement.placement",
    "PlacementAnswer": "evenshard.report.answer",
    "Search": "evenshard.planner.knobs",
    "Sharding": "evenshard.planner.knobs",
    "Table": "evenshard.tables.table",
    "TablePart": "evenshard.placement.parts",
    "TableRules": "evenshard.planner.knobs",
    "TableSources": "evenshard.planner.knobs",
    "Training": "evenshard.planner.knobs",
    "load_answer": "evenshard.report.answer",
    "place": "evenshard.api",
    "save_answer": "evenshard.planner.file",
    "what_if": "evenshard.api",
}

# Functions of later packages that the core calls by name; see ``base.providers``.
PROVIDERS |= {
    "load_registered": "evenshard.tracking.registry:load_registered",
    "torchrec_candidates": "evenshard.torchrec.baseline.candidates:torchrec_candidates",
    "torchrec_planner": "evenshard.torchrec.baseline.candidates:torchrec_planner",
    "torchrec_sharder": "evenshard.torchrec.baseline.candidates:torchrec_sharder",
}

__all__ = [
    "BadInput", "EvenshardError", "InUse", "InfeasibleTask", "Machine", "Memory", "Placement", "PlacementAnswer",
    "Search", "Sharding", "Table", "TablePart", "TableRules", "TableSources", "Training", "__version__",
    "load_answer", "place", "save_answer", "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenshard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
