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

if TYPE_CHECKING:
    from evenshard.api import place
    from evenshard.columns import TableShard
    from evenshard.errors import BadInput, EvenshardError, InfeasibleTask
    from evenshard.placement import Placement
    from evenshard.placing.answer import PlacementAnswer
    from evenshard.placing.file import load_answer, save_answer
    from evenshard.tables import Table

__version__ = "0.1.0"

# Looked up when they are first used: torch takes more than a second to import, and `evenshard --help` needs none of it.
_HOMES = {
    "BadInput": "evenshard.errors",
    "EvenshardError": "evenshard.errors",
    "InfeasibleTask": "evenshard.errors",
    "Placement": "evenshard.placement",
    "PlacementAnswer": "evenshard.placing.answer",
    "Table": "evenshard.tables",
    "TableShard": "evenshard.columns",
    "load_answer": "evenshard.placing.file",
    "place": "evenshard.api",
    "save_answer": "evenshard.placing.file",
}

__all__ = [
    "BadInput",
    "EvenshardError",
    "InfeasibleTask",
    "Placement",
    "PlacementAnswer",
    "Table",
    "TableShard",
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
