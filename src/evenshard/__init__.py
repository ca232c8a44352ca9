"""evenshard learns where to put a recommender model's embedding tables.

::

    import evenshard

    answer = evenshard.place("tables.yaml", num_devices=8, memory_cap_gb=64)
    answer.table_shards      # which columns of which table live on which device
    answer.predicted_ms      # what a step waits for
    evenshard.save_answer(answer, "placement.json")

The data flows one way, and the modules are floors of one house (a module imports only
from lower floors; import-linter holds it)::

    tables -> tasks -> placements to try -> measured costs -> cost network -> policy -> placement -> report
                          ^                                                     |
                          +------------------- next round ----------------------+
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenshard.version import __version__

if TYPE_CHECKING:
    from evenshard.placement.parts import TableShard
    from evenshard.placement.placement import Placement
    from evenshard.planner.answer import PlacementAnswer
    from evenshard.planner.api import place
    from evenshard.planner.file import load_answer, save_answer
    from evenshard.tables.table import Table
    from evenshard.utils.errors import BadInput, EvenshardError, InfeasibleTask

# Looked up when they are first used: torch takes more than a second to import, and `evenshard --help` needs none of it.
_HOMES = {
    "BadInput": "evenshard.utils.errors",
    "EvenshardError": "evenshard.utils.errors",
    "InfeasibleTask": "evenshard.utils.errors",
    "Placement": "evenshard.placement.placement",
    "PlacementAnswer": "evenshard.planner.answer",
    "Table": "evenshard.tables.table",
    "TableShard": "evenshard.placement.parts",
    "load_answer": "evenshard.planner.file",
    "place": "evenshard.planner.api",
    "save_answer": "evenshard.planner.file",
}

__all__ = [
    "BadInput",
    "EvenshardError",
    "InfeasibleTask",
    "Placement",
    "PlacementAnswer",
    "Table",
    "TableShard",
    "__version__",
    "load_answer",
    "place",
    "save_answer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenshard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
