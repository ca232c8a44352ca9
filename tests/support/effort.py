"""Lengths of searches in tests: most are about requests, refusals and words, which a short search shows too."""

from __future__ import annotations

from evenshard.search.search import EFFORTS, LONG, NORMAL, QUICK, PlanSearchEffort

FULL = PlanSearchEffort()
LITTLE = PlanSearchEffort(400)


def search_with(effort: PlanSearchEffort) -> None:
    """Make it the normal effort of this process; a quick search has a quarter of its changes, a long one five times."""
    changes = {QUICK: effort.changes // 4, NORMAL: effort.changes, LONG: 5 * effort.changes}
    EFFORTS.update({name: PlanSearchEffort(own) for name, own in changes.items()})
