"""Planners of ShardBench: one file per planner, with its name; another planner is added as a file.

A file has ``plan(tables, machine)``, which returns the parts of a plan (``list[TablePart]``; ``whole_part`` makes a
part of a whole table) or raises ``InfeasibleTask``. ``tables`` are ``evenshard.tables.table.Table``, ``machine`` is a
``cases.BenchMachine``. Alternatively it has ``plans(tables, machine)``, which yields (variant, parts) pairs, of which
the best by each oracle counts, in hindsight. ``OWN_ORACLE`` names the oracle that it plans by, if any.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardbench.cases import BenchMachine
from evenshard.base.errors import BadConfig
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table

NAMES = tuple(sorted(one.name for one in pkgutil.iter_modules(__path__)))


@dataclass(frozen=True)
class Planner:
    """A planner.

    Attributes:
        name: of its file.
        plans: its plans by variant; one with an empty variant where its file has ``plan``.
        own_oracle: the oracle that it plans by; empty for none.
    """

    name: str
    plans: Callable[[Sequence[Table], BenchMachine], Iterable[tuple[str, Sequence[TablePart]]]]
    own_oracle: str


def load_planner(name: str) -> Planner:
    """Load the planner of a name among ``NAMES``, or of a Python file."""
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif name in NAMES:
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        raise BadConfig(f"planner {name} is unknown. Choose from {', '.join(NAMES)}, or name a Python file.")
    plans = getattr(module, "plans", None) or (lambda tables, machine: [("", module.plan(tables, machine))])
    return Planner(Path(name).stem, plans, getattr(module, "OWN_ORACLE", ""))
