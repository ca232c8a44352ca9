"""Choices of groups as parts of tables, and parts as choices."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.placement.parts import TablePart, cut_rows, lay_out, whole_part
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import TYPES, sharding_type
from evenshard.search.sharding_option import Choice
from evenshard.search.space import SearchSpace


def parts_of(space: SearchSpace, choices: Sequence[Choice]) -> tuple[TablePart, ...]:
    """Return the parts that choices stand for, in the order of the task's tables."""
    found: dict[int, Sequence[TablePart]] = {}
    for number, choice in enumerate(choices):
        found.update(parts_of_group(space, number, choice))
    return tuple(part for position in range(len(space.task.tables)) for part in found[position])


def parts_of_group(space: SearchSpace, number: int, choice: Choice) -> dict[int, list[TablePart]]:
    """Return the parts of each table of a group, by the table's position, in the order of columns, then rows."""
    task, group = space.task, space.groups[number]
    option = space.option(number, choice.option)
    found: dict[int, list[TablePart]] = {}
    for position in group.tables:
        table = task.tables[position]
        own = found.setdefault(position, [])
        if TYPES[option.sharding_type].is_replicated:
            own.append(whole_part(table, tuple(range(task.num_devices))))
            continue
        widths = option.widths if len(group.tables) == 1 else [table.embedding_dim]
        for place, columns in zip(choice.places, lay_out(widths), strict=True):
            devices = range(place * option.span, (place + 1) * option.span)
            own += cut_rows(table, devices, columns, option.storage)
    return found


def choices_of(space: SearchSpace, parts: Sequence[TablePart]) -> list[Choice] | None:
    """Return the choices that stand for a placement; None if no option of the space shards a table that way.

    Rows that are cut unevenly are taken for even ones.
    """
    by_table = parts_by_table(space.task, parts)
    found = []
    for number, group in enumerate(space.groups):
        choice = choice_like(space, number, by_table[space.task.tables[group.tables[0]].name])
        if choice is None:
            return None
        found.append(choice)
    return found


def choice_like(space: SearchSpace, number: int, of_table: Sequence[TablePart]) -> Choice | None:
    """Return the choice of a group whose first table has these parts; None as in ``choices_of``."""
    task, machine, group = space.task, space.task.machine, space.groups[number]
    option_name = sharding_type(of_table, task.tables[group.tables[0]], machine)
    span = TYPES[option_name].span(machine)
    places = {part.columns: part.devices[0] // span for part in of_table}
    option = space.number_of(number, option_name, [columns.size for columns in places], of_table[0].storage)
    return None if option is None else Choice(option, tuple(places.values()))
