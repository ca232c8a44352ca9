"""Answers made by hand, and a model with known times: for the tests of what explains and compares placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evenshard.placement.parts import TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs, price_parts
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.network import LOOKUPS, EnsembleSizes
from evenshard.sharders.models import PlacementModel
from support.builders import parts_of, table
from support.convex_builders import NORMALIZER
from support.request_builders import untrained

ROOM = 2**36


def additive(overhead_ms: float = 0.0) -> PlacementModel:
    """Each table takes its pooling factor in ms (batches of one sample), a device that holds any ``overhead_ms``."""
    sizes = EnsembleSizes(num_members=1, table_hidden=1, factors_per_quantity=1, head_hidden=1, pieces=1)
    model = CostModel(sizes, NORMALIZER, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in (model.net.piece_weight, model.net.linear_weight, model.net.pass_weight, model.net.overhead):
            weight.zero_()
        model.net.piece_bias.fill_(-1.0)
        model.net.linear_weight[LOOKUPS, 0] = 1.0
        model.net.overhead[0] = overhead_ms
    return replace(untrained(), cost_model=model, source="additive")


def asked(
    works: Mapping[str, float], num_devices: int, *, rows: int = 10, dim: int = 8, **more: Any
) -> PlacementRequest:
    """Tables by name, with their pooling factors."""
    tables = tuple(table(name, rows, dim, work) for name, work in works.items())
    return PlacementRequest(**{"tables": tables, "caps_bytes": (ROOM,) * num_devices, "batch_size": 1, **more})


def answered(
    request: PlacementRequest,
    devices: Sequence[int | Sequence[int]],
    cuts: Mapping[str, tuple[int, ...]] | None = None,
    model: PlacementModel | None = None,
    lineage: Mapping[str, Any] | None = None,
    parts: Sequence[TablePart] | None = None,
) -> PlacementAnswer:
    """The parts on these devices, legal or not, with the model's predictions.

    Args:
        devices: of the tables, or of the parts that ``cuts`` makes; several for a replica.
        parts: in place of these: placed already.
    """
    model = model or additive()
    homes = [(one,) if isinstance(one, int) else tuple(one) for one in devices]
    if parts is None:
        parts = [replace(part, devices=home) for part, home in zip(parts_of(request.tables, cuts), homes, strict=True)]
    costs = part_costs(request, model)
    now, _ = price_parts(request, model, costs, costs.predict(parts))
    return PlacementAnswer(
        request=request,
        **vars(now),
        lower_bound_ms=now.predicted_ms / 2,
        warnings=(),
        comparison=(),
        measured=None,
        lineage=lineage or {"model": {"source": model.source, "sha256": model.digest}},
    )
