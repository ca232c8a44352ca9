"""Answers made by hand, with known numbers: no model, no search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.request import PlacementRequest
from evenshard.price.step import PredictedDevice
from evenshard.report.answer import PlacementAnswer
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, parts_of, table

GB = 2**30
# Shares of a device's total: forward, its exchange, the backward exchange, backward, input exchange.
SPREAD = (0.25, 0.125, 0.0625, 0.5, 0.0625)
LINEAGE = {
    "evenshard_version": "9.9",
    "tables": "mine.yaml",
    "model": {
        "source": "simulated:h200",
        "sha256": "ab" * 32,
        "trained_on": {"hardware": "simulated: h200", "num_measured": 1234, "num_rows": [10, 5000]},
    },
}


def answer(
    device_of_part: Sequence[int | tuple[int, ...]] = (0, 1, 1),
    totals_ms: Sequence[float] = (4.0, 2.0),
    tables: Sequence[Table] | None = None,
    cuts: Mapping[str, tuple[int, ...]] | None = None,
    caps: Sequence[int] | None = None,
    asked: Mapping[str, Any] | None = None,
    **more: Any,
) -> PlacementAnswer:
    """Tables a, b and c on two devices that take 4 and 2 ms; ``asked`` goes to the request, ``more`` to the answer.

    Tables are whole unless ``asked`` allows more; a part with several devices has a replica on each. A part takes 1 ms
    alone and adds half a ms, unless ``more`` says otherwise.
    """
    tables = tables or [table(name, 2**20, 64) for name in "abc"]
    known_of_request = {"sharding_types": (TABLE_WISE,), **(asked or {})}
    request = PlacementRequest(tuple(tables), tuple(caps or [GB] * len(totals_ms)), BATCH_SIZE, **known_of_request)
    homes = [(one,) if isinstance(one, int) else one for one in device_of_part]
    parts = more.pop("parts", None) or tuple(
        replace(part, devices=devices) for part, devices in zip(parts_of(tables, cuts), homes, strict=True)
    )
    slowest_ms = max(totals_ms)
    known: dict[str, Any] = {
        "request": request,
        "parts": parts,
        "alone_ms": (1.0,) * len(parts),
        "adds_ms": (0.5,) * len(parts),
        "devices": tuple(
            PredictedDevice(*(total * share for share in SPREAD), predicted_wait_ms=slowest_ms - total)
            for total in totals_ms
        ),
        "predicted_ms": slowest_ms,
        "model_low_ms": slowest_ms * 0.9,
        "model_high_ms": slowest_ms * 1.1,
        "lower_bound_ms": slowest_ms * 0.8,
        "warnings": (),
        "comparison": (),
        "measured": None,
        "lineage": LINEAGE,
    }
    measured = more.get("measured")
    known["measured_ms"] = None if measured is None else measured.step_ms(request.training_pipeline)
    return PlacementAnswer(**{**known, **more})
