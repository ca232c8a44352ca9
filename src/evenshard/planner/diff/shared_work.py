"""What two placements have in common where it counts, and how alike a cost model errs in both for that.

A cost model's error of a step is its error of the slowest device. Where that does the same work in both placements, the
error is the same, and goes out of the difference; of other work it is another error. benchmarks/savings_202611.md
measures how far that goes: with the correlation here, nine in ten true savings lie in their 90 % intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection

from evenshard.planner.priced import PricedParts

MOST_ALIKE = 0.8
"""Correlation of the errors of two placements whose slowest devices do the same work."""


def shared_work(old: PricedParts, new: PricedParts, tables: Collection[str]) -> float:
    """The part of the slowest devices' work that both placements' do: 0 for none of it, 1 for all.

    Args:
        tables: names of the tables that are looked up alike in both; others have nothing in common.
    """
    one, other = _work(old), _work(new)
    both_ms = sum(min(one[name], other[name]) for name in tables)
    all_ms = math.sqrt(sum(one.values()) * sum(other.values()))
    return both_ms / all_ms if all_ms > 0 else 0.0


def error_correlation(shared: float) -> float:
    """The correlation of a cost model's errors of two placements that have so much of their work in common."""
    return MOST_ALIKE * shared**2


def difference_error(one: float, other: float, correlation: float) -> float:
    """The error of a difference of two values from theirs, in any unit; 0 where both are the same."""
    return math.sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))


def _work(priced: PricedParts) -> defaultdict[str, float]:
    """The work of the slowest device, table by table: ms that its parts take alone."""
    slowest = max(range(len(priced.devices)), key=lambda device: priced.devices[device].predicted_total_ms)
    work: defaultdict[str, float] = defaultdict(float)
    for part, ms in zip(priced.parts, priced.alone_ms, strict=True):
        if slowest in part.devices:
            work[part.table] += ms
    return work
