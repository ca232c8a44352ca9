"""TorchRec's planner with pooling factors and the machine's bandwidths, at several settings.

Each oracle takes the best of its plans, in hindsight; by TorchRec's own rating that is the plan its user would choose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks.shardbench.cases import BenchMachine
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import PlannerSetting

OWN_ORACLE = "torchrec"
SETTINGS = (
    PlannerSetting(),
    PlannerSetting(dynamic=True),  # the quickest
    PlannerSetting(rows=False),
    PlannerSetting(replicas=False),
    PlannerSetting(sort_by="perf"),
    *(PlannerSetting(width, order) for width, order in product((64, 32, 8), ("perf", "storage"))),
    PlannerSetting(grid_shard=True),
)
# TorchRec's ``timeout_seconds`` per setting, and the total seconds after which no further setting is tried.
TIMEOUT_S, SWEEP_S = 15, 120


def plans(tables: Sequence[Table], machine: BenchMachine) -> Iterator[tuple[str, Sequence[TablePart]]]:
    """Yield the distinct plans of all settings for which TorchRec finds a plan."""
    planner, began = TorchRecPlanner(machine.task(tables), machine.bandwidths, TIMEOUT_S), time.process_time()
    seen = set()
    for setting in SETTINGS:
        if time.process_time() - began < SWEEP_S:
            for found in planner.plans([setting]):
                if found.parts not in seen:
                    yield str(setting), found.parts
                seen.add(found.parts)
