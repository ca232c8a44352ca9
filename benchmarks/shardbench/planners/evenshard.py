"""The answer of ``evenshard place``, which searches by the device model."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.shardbench.cases import BenchMachine
from evenshard.placement.parts import TablePart
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.search.search import NORMAL, get_effort
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table

OWN_ORACLE = "device"


def plan(tables: Sequence[Table], machine: BenchMachine, effort: str = NORMAL) -> Sequence[TablePart]:
    """Place tables with all sharding types."""
    config = PlaceConfig(get_effort(effort))
    return place_request(machine.request(tables), DeviceModel(machine.hardware), config).parts
