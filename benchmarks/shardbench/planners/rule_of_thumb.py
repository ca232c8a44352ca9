"""The best rule of thumb by the device model: replicates small tables, splits the costliest, distributes the rest."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.shardbench.cases import BenchMachine
from evenshard.placement.parts import TablePart
from evenshard.planner.baselines import place_by_heuristic
from evenshard.planner.pricing import part_costs
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table

OWN_ORACLE = "device"


def plans(tables: Sequence[Table], machine: BenchMachine) -> list[tuple[str, Sequence[TablePart]]]:
    """Return the single plan, named after its rule."""
    baseline, parts = place_by_heuristic(part_costs(machine.request(tables), DeviceModel(machine.hardware)))
    assert parts is not None
    return [(baseline.setting, parts)]
