"""An answer with other names for its devices, as a diff proposes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evenshard.placement.parts import Span, TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.priced import repriced
from evenshard.sharders.model import Model
from evenshard.utils.errors import BadConfig


def renamed(answer: PlacementAnswer, names: Sequence[int], model: Model) -> PlacementAnswer:
    """The answer on renamed devices, with the times that it has there.

    Tables that are cut by rows keep the order of their rows over devices, as TorchRec needs it.

    Args:
        answer: the answer.
        names: the name that each of its devices gets.
        model: predicts the times.

    Raises:
        BadConfig: if a name is none of the answer's devices.
    """
    if sorted(names) != list(range(answer.num_devices)):
        raise BadConfig(
            f"the names {', '.join(map(str, names))} are not those of the {answer.num_devices} devices of the new "
            f"placement: they are names of the old one's. Map the ranks when the job starts."
        )
    parts = tuple(part for of_table in answer.parts_of_table.values() for part in _renamed(of_table, names))
    old_names = sorted(range(len(names)), key=lambda device: names[device])
    measured = answer.measured
    if measured is not None:
        measured = replace(measured, devices=tuple(measured.devices[device] for device in old_names))
    return replace(repriced(answer, parts, model), measured=measured)


def _renamed(parts: Sequence[TablePart], names: Sequence[int]) -> Iterator[TablePart]:
    """The parts of one table."""
    by_columns: dict[Span, list[TablePart]] = {}
    for part in parts:
        by_columns.setdefault(part.columns, []).append(part)
    for of_columns in by_columns.values():
        homes = [tuple(sorted(names[device] for device in part.devices)) for part in of_columns]
        if len(of_columns) > 1:
            homes.sort()
        for part, devices in zip(of_columns, homes, strict=True):
            yield replace(part, devices=devices)
