"""The four human-expert strategies of DreamShard's paper: whole tables, the heaviest first, to the lightest device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from benchmarks.shardbench.cases import BenchMachine
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.parts import TablePart
from evenshard.sharders.simple import expert_sharders
from evenshard.tables.table import Table


def plans(tables: Sequence[Table], machine: BenchMachine) -> Iterator[tuple[str, Sequence[TablePart]]]:
    """Yield a plan for each strategy with a feasible placement."""
    task = machine.task(tables).as_whole
    for expert in expert_sharders():
        with suppress(InfeasibleTask):
            yield expert.name, expert.place(task).parts(task.tables)
