"""Stage 2b, where a round was measured in parts: one cost dataset of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from evenshard.measure.cost_rows import read_lineage, read_rows, save_rows
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief
from evenshard.utils.params import require

log = logging.getLogger(__name__)
# The parts of a round must have these in common: their costs are compared with each other.
_SAME = ("hardware", "versions", "link", "optimizer")


def run(parts: Sequence[Path], costs: Path) -> dict[str, float]:
    """Writes the rows of all parts, in the order of their measurement ids, as one dataset; returns metrics.

    Args:
        parts: the cost datasets that ``benchmark`` wrote with ``part`` 1 to ``num_parts``, in any order.
        costs: the cost dataset of the round to write.

    Raises:
        BadFile: if a part cannot be read, was measured on other hardware or from other settings than the first, or
            repeats a measurement of another part.
    """
    require(bool(parts), "there is no part to merge. Name the cost datasets of the parts.")
    found = [read_rows(path) for path in parts]
    for path, rows in zip(parts, found, strict=True):
        if not rows:
            raise BadFile(path, "holds no measurement", "Measure this part again.")
    first, part_of = read_lineage(parts[0]), dict[str, int]()
    for number, (path, rows) in enumerate(zip(parts, found, strict=True)):
        _check_alike(path, [{name: row[name] for name in _SAME} for row in (found[0][0], *rows)])
        lineage = read_lineage(path)
        for name in ("params_hash", "evenshard_version"):
            if lineage.get(name) != first.get(name):
                problem = f"{name} is {lineage.get(name)}, but {first.get(name)} in {parts[0]}"
                raise BadFile(path, problem, "Measure all parts with the same settings and version.")
        for row in rows:
            other = part_of.setdefault(row["measurement_id"], number)
            if other != number:
                problem = f"{row['measurement_id']} is in {parts[other]} too"
                raise BadFile(path, problem, "Merge each part once, parts of one round alone.")
    merged = sorted((row for rows in found for row in rows), key=lambda row: (row["measurement_id"], row["device_id"]))
    save_rows(merged, first, costs)
    log.info("%d placements from %d parts", len(part_of), len(found))
    return {"num_placements": float(len(part_of)), "num_parts": float(len(found))}


def _check_alike(path: Path, of_rows: list[dict[str, str]]) -> None:
    for found in of_rows:
        for name in _SAME:
            if found[name] != of_rows[0][name]:
                problem = f"{name} is {brief(found[name], 300)}, but {brief(of_rows[0][name], 300)} in the first part"
                raise BadFile(path, problem, "Measure all parts of a round alike, on the same kind of device.")
