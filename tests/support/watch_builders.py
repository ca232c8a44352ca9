"""A training of two ranks to watch: traces written event by event, and the placement that it runs with."""

from __future__ import annotations

from pathlib import Path

import evenshard
from evenshard.placement.parts import whole_part
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.planner.pricing import reprice_answer
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table
from support.trace_builders import TraceBuilder, step

BATCH, MODEL = 65536, "simulated:h200"
TABLES = (
    Table("wide", 1_000_000, 16, 40.0),
    Table("deep", 1_000_000, 8, 40.0),
    Table("id", 1_000_000, 16, 1.0),
    Table("day", 1_000_000, 8, 1.0),
)


def traced_job(folder: Path) -> PlacementAnswer:
    """Writes ``traces/`` and ``in_use/placement.json``; both tables with many lookups are on device 0."""
    best = evenshard.place(TABLES, 2, 64.0, model=MODEL, batch_size=BATCH, optimizer="rowwise_adagrad")
    parts = [whole_part(table, (n // 2,)) for n, table in enumerate(TABLES)]
    answer = reprice_answer(best, parts, DeviceModel(MODEL))
    for name in ("in_use", "traces"):
        (folder / name).mkdir()
    save_answer(answer, folder / "in_use/placement.json")
    for rank, (forward, backward) in enumerate(((150, 200), (20, 30))):
        trace = TraceBuilder(rank, 2)
        for number in (1, 2, 3):
            step(trace, number, 0.0, forward, backward, batch=BATCH, lookups=(80, 2)[rank] * BATCH)
        trace.save(folder / f"traces/rank{rank}.json.gz")
    return answer
