"""A last pass over an answer that makes small cut tables whole where their cuts gain next to nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evenshard.measure.price.step import PartCosts, PredictedParts
from evenshard.measure.step_time import without_last_digits
from evenshard.placement.parts import whole_part
from evenshard.placement.plan import check_sharding, parts_by_table
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, InfeasibleTask

# Largest weights of a small table. A reader of a plan expects such tables whole.
MOST_BYTES = 2**16
# Most that whole tables may add to a step: this share of it, or two launches of a kernel, which models hardly resolve.
MOST_SLOWER, RESOLUTION_MS = 0.01, 0.01


def make_small_tables_whole(costs: PartCosts, found: PredictedParts) -> PredictedParts:
    """Return the placement with small cut tables whole, as far as the step takes hardly longer.

    All of them become whole, or else each by itself that costs next to nothing.
    """
    task, by_table = costs.task, parts_by_table(costs.task, found.parts)
    cut = [one for one in task.tables if one.size_bytes <= MOST_BYTES and len(by_table[one.name]) > 1]
    most_ms = found.predicted_ms + max(MOST_SLOWER * found.predicted_ms, RESOLUTION_MS)
    if not cut:
        return found
    if (whole := _with_whole(costs, found, cut)) is not None and whole.predicted_ms <= most_ms:
        return whole
    for table in cut:
        alone = _with_whole(costs, found, [table])
        found = alone if alone is not None and alone.predicted_ms <= most_ms else found
    return found


def _with_whole(costs: PartCosts, found: PredictedParts, tables: Sequence[Table]) -> PredictedParts | None:
    """Put these tables, one after the other, on the device with the least work; return None if that is not legal."""
    for table in tables:
        own = [part for part in found.parts if part.table == table.name]
        rest = [part for part in found.parts if part.table != table.name]
        num_parts = Counter(device for part in found.parts for device in part.devices)
        work = [(without_last_digits(one.predicted_total_ms), num_parts[at]) for at, one in enumerate(found.devices)]
        device = work.index(min(work))
        found = costs.predict((*rest, whole_part(table, (device,), own[0].storage)))
    try:
        check_sharding(costs.task, found.parts)
    except (BadConfig, InfeasibleTask):
        return None
    return found
