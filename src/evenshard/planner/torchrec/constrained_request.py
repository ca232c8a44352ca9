"""A request of ``evenshard.place`` under TorchRec's constraints, as ``EvenshardPlanner`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from evenshard.measure.hardware import HardwareName
from evenshard.placement.storage import COMPUTE_KERNELS
from evenshard.planner.request import PlacementRequest, memory_problem
from evenshard.planner.torchrec.constraints import CARRIED, OF_KERNELS, constrained_model, is_default, left_aside
from evenshard.planner.torchrec.model_request import whole_where_too_narrow
from evenshard.tables.assumptions import TableSet
from evenshard.utils.messages import cut

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

    from evenshard.planner.torchrec.modules import Collections


def constrained_request(
    request: PlacementRequest, collections: Collections, constraints: Mapping[str, ParameterConstraints]
) -> tuple[PlacementRequest, tuple[str, ...]]:
    """The request under constraints, and what of them changes nothing, in sentences.

    Args:
        request: of the tables of the collections.
        collections: as ``tables_of`` takes them.
        constraints: TorchRec's, by the names of tables.

    Raises:
        BadConfig: if a constraint makes no sense, or contradicts a rule of the request.
    """
    found = constrained_model(
        collections,
        constraints,
        TableSet(request.tables, request.assumptions),
        request.types,
        HardwareName.parse(request.hardware).kind.compute_device,
        tuple(one for one in COMPUTE_KERNELS if memory_problem(one, request.nodes) is None),
        request.batch_size / request.num_devices,
    )
    rules, _ = whole_where_too_narrow(request.rules + found.rules, found.known, request.types)
    changed = replace(request, tables=found.known.tables, rules=rules, assumptions=found.known.assumptions)
    return changed, (*found.notes, *_left_to_plans(constraints))


def _left_to_plans(constraints: Mapping[str, ParameterConstraints]) -> tuple[str, ...]:
    """What of constraints only a plan of ``EvenshardPlanner`` hands on, in a sentence, if anything is."""
    found: dict[str, list[str]] = {}
    for name, own in constraints.items():
        words = [one.name for one in fields(own) if one.name in CARRIED and not is_default(one, own)]
        words += [left for word in OF_KERNELS for left in left_aside(word, getattr(own, word, None), is_kept=False)]
        for word in words:
            found.setdefault(word, []).append(name)
    text = cut(", ".join(f"{word} ({cut(', '.join(names), 40)})" for word, names in found.items()), 400)
    if not text:
        return ()
    return (
        f"These of TorchRec's constraints change nothing here; EvenshardPlanner hands them on to its plan: {text}.",
    )
