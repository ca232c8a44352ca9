"""How long searches look in tests: most are about what is asked, refused and said, which a short search shows too."""

from __future__ import annotations

from evenshard.sharders.search.search import EFFORTS, NORMAL, PlanSearchEffort

FULL = PlanSearchEffort()
LITTLE = PlanSearchEffort(changes=20, idle_kicks=1, kicked=2)


def search_with(effort: PlanSearchEffort) -> None:
    """Makes it that of all searches in this process that are not told another."""
    EFFORTS[NORMAL] = effort
