"""The old request with today's tables, placed again."""

from __future__ import annotations

from dataclasses import replace

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.tables.assumptions import TableSet


def replan(
    old: PlacementAnswer,
    tables: TableSet,
    model: Model,
    batch_size: int,
    config: PlaceConfig | None = None,
    tables_from: str | None = None,
) -> PlacementAnswer:
    """Places today's tables on the devices, and by the rules, of an old answer.

    Args:
        batch_size: today's global batch, samples.

    Raises:
        InfeasibleTask: if they do not fit there any more.
    """
    return place_request(request_now(old.request, tables, batch_size), model, config, tables_from=tables_from)


def request_now(old: PlacementRequest, tables: TableSet, batch_size: int) -> PlacementRequest:
    """The old request with today's tables; rules about tables that are gone go with them."""
    names = {table.name for table in tables.tables}
    return replace(
        old,
        tables=tables.tables,
        assumptions=tables.assumptions,
        rules=old.rules.of_tables(names),
        batch_size=batch_size,
        table_optimizers={name: optimizer for name, optimizer in old.table_optimizers.items() if name in names},
    )
