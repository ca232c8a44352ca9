"""An answer with other names for its devices, as a diff proposes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evenshard.placement.parts import Span, TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs
from evenshard.sharders.models import PlacementModel
from evenshard.utils.errors import BadConfig
from evenshard.utils.process import one_thread


@one_thread()
def renamed(answer: PlacementAnswer, names: Sequence[int], model: PlacementModel) -> PlacementAnswer:
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
    costs = part_costs(answer.request, model)
    found = costs.predict(parts)
    alone_ms, adds_ms = costs.part_ms(parts)
    old_names = sorted(range(len(names)), key=lambda device: names[device])
    measured = answer.measured
    if measured is not None:
        measured = replace(measured, devices=tuple(measured.devices[device] for device in old_names))
    return replace(
        answer,
        parts=parts,
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=found.devices,
        predicted_ms=found.predicted_ms,
        model_low_ms=found.low_ms,
        model_high_ms=found.high_ms,
        lower_bound_ms=min(answer.lower_bound_ms, found.predicted_ms),
        measured=measured,
    )


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
