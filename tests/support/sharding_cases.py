"""Ways to shard the model of ``torchrec_training``: of each table, and as answers of evenshard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torchrec.distributed.types import ShardingPlan

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import ON_DEVICE, Storage, TablePart
from evenshard.placement.sharding import SEQUENCE_TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest
from evenshard.torchrec import tables_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.explain_builders import ROOM, answered
from support.torchrec_training import Everything, Widths, in_parts

META = torch.device("meta")
TABLES = {table.name: table for table in tables_of(Everything(META))}
TWO_RANKS, TWO_NODES = Nodes(2, 2), Nodes(4, 2)
MEAN_TABLES = ("p_mean", "m_long", "m_short")


@dataclass(frozen=True)
class Case:
    """How to shard the tables: by name, or by the letter that their collection begins with; table_wise where left out.

    Attributes:
        ways: sharding types.
        widths: columns of the parts of a table that is cut by columns.
        machine: of the ranks.
        storages: where weights are kept, where that is not device memory.
        prefetched: whether the training pipeline prefetches rows of caches.
        first: rank of the first table's first part; each further table begins one rank later.
    """

    ways: Mapping[str, str]
    widths: Mapping[str, Widths] = field(default_factory=dict)
    machine: Nodes = TWO_NODES
    storages: Mapping[str, Storage] = field(default_factory=dict)
    prefetched: bool | None = None
    first: int = 0

    def way(self, name: str) -> str:
        return self.ways.get(name, self.ways.get(name[0], "table_wise"))

    @property
    def parts(self) -> tuple[TablePart, ...]:
        return tuple(
            replace(part, storage=self.storages.get(name, ON_DEVICE))
            for number, (name, table) in enumerate(TABLES.items())
            for part in in_parts(table, self.way(name), self.machine, self._first(number), self.widths.get(name, ()))
        )

    def _first(self, number: int) -> int:
        return (self.first + number) % self.machine.num_devices

    def plan(self) -> ShardingPlan:
        """evenshard's plan; types within a node are the only ones that are allowed where they are asked for."""
        allowed = {name: frozenset({self.way(name)}) for name in TABLES if self.way(name) == "table_column_wise"}
        model = Everything(META)
        tables = list(TABLES.values())
        return plan_of_parts(self.parts, tables, model, self.machine, "cpu", allowed, self.prefetched)


def everything(way: str, machine: Nodes = TWO_NODES) -> Case:
    """All tables sharded in a way, as far as TorchRec trains them so on the CPU."""
    ways = dict.fromkeys("pmw", way)
    if way in ("row_wise", "table_row_wise", "grid_shard"):
        ways["p_mean"] = "table_wise"
    if way == "row_wise" and machine == TWO_NODES:
        ways["p_tiny"] = "table_row_wise"
    if way == "grid_shard":
        ways["m"] = "column_wise"
    if way in SEQUENCE_TYPES and way != "data_parallel":
        ways["s"] = way
    return Case(ways, machine=machine)


MIXED = {
    "p_sum": "grid_shard",
    "p_mean": "column_wise",
    "p_shared": "table_row_wise",
    "p_tiny": "data_parallel",
    "m_long": "table_row_wise",
    "m_short": "row_wise",
    "w_long": "table_column_wise",
    "w_short": "row_wise",
    "s_shared": "row_wise",
    "s_own": "column_wise",
}


def answer_of(case: Case, optimizer: str) -> PlacementAnswer:
    """A case as an answer: an own type within a node stays the only one that is allowed."""
    request = PlacementRequest(
        tables=tuple(TABLES.values()),
        caps_bytes=(ROOM,) * case.machine.num_devices,
        batch_size=16,
        optimizer=optimizer,
        machine=replace(case.machine, inter="infiniband_ndr" if case.machine.num_nodes > 1 else ""),
    )
    return answered(request, (), parts=sorted(case.parts, key=lambda part: list(TABLES).index(part.table)))
