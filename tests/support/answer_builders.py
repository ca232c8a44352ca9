"""Answers made by hand, with known numbers: no model, no search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.convex_search.prediction import PredictedDevice
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, parts_of, table

GB = 2**30
SPREAD = (0.25, 0.125, 0.125, 0.5)
"""The four times' shares of a device's total."""
LINEAGE = {
    "evenshard_version": "9.9",
    "tables": "mine.yaml",
    "model": {
        "source": "bundled:h200",
        "sha256": "ab" * 32,
        "trained_on": {"hardware": "simulated: h200", "num_measured": 1234, "num_rows": [10, 5000]},
    },
}


def answer(
    device_of_part: Sequence[int] = (0, 1, 1),
    totals_ms: Sequence[float] = (4.0, 2.0),
    tables: Sequence[Table] | None = None,
    cuts: Mapping[str, tuple[int, ...]] | None = None,
    caps: Sequence[int] | None = None,
    asked: Mapping[str, Any] | None = None,
    **more: Any,
) -> PlacementAnswer:
    """Tables a, b and c on two devices that take 4 and 2 ms; ``asked`` goes to the request, ``more`` to the answer.

    A part takes 1 ms alone and adds half a ms, unless ``more`` says otherwise.
    """
    tables = tables or [table(name, 2**20, 64) for name in "abc"]
    request = PlacementRequest(tuple(tables), tuple(caps or [GB] * len(totals_ms)), BATCH_SIZE, **(asked or {}))
    parts = parts_of(tables, cuts)
    slowest_ms = max(totals_ms)
    known: dict[str, Any] = {
        "device_of_table": tuple(device_of_part),
        "num_devices": request.num_devices,
        "request": request,
        "parts": parts,
        "alone_ms": (1.0,) * len(parts),
        "adds_ms": (0.5,) * len(parts),
        "devices": tuple(PredictedDevice(*(total * share for share in SPREAD)) for total in totals_ms),
        "predicted_ms": slowest_ms,
        "model_low_ms": slowest_ms * 0.9,
        "model_high_ms": slowest_ms * 1.1,
        "lower_bound_ms": slowest_ms * 0.8,
        "warnings": (),
        "comparison": (),
        "measured": None,
        "lineage": LINEAGE,
    }
    return PlacementAnswer(**{**known, **more})
