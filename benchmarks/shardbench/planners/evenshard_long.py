"""The answer of ``evenshard place --effort long``."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.shardbench.cases import BenchMachine
from benchmarks.shardbench.planners import evenshard
from evenshard.placement.parts import TablePart
from evenshard.search.search import LONG
from evenshard.tables.table import Table

OWN_ORACLE = evenshard.OWN_ORACLE


def plan(tables: Sequence[Table], machine: BenchMachine) -> Sequence[TablePart]:
    """Place tables with all sharding types."""
    return evenshard.plan(tables, machine, LONG)
