"""TorchRec's planner with default settings: no pooling factors, its own bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.shardbench.cases import BenchMachine
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import DEFAULT_SETTING

OWN_ORACLE = "torchrec"
# TorchRec's ``timeout_seconds``: its best plan by then counts. Reached with hundreds of tables alone.
TIMEOUT_S = 30


def plan(tables: Sequence[Table], machine: BenchMachine) -> Sequence[TablePart]:
    """Return the plan that TorchRec rates best."""
    return TorchRecPlanner(machine.task(tables), machine.bandwidths, TIMEOUT_S).plan(DEFAULT_SETTING).parts
