"""More types answer no worse, nor do rules of thumb answer better; more memory answers hardly worse."""

from __future__ import annotations

import pytest

from benchmarks.scripts.more_freedom import KINDS, TOLERANCE, slowdowns

# What a search may miss in more memory: it knows nothing of what less of it answers.
SEARCHED = 0.03
MOST_TABLES = 24


@pytest.mark.slow
@pytest.mark.full_search
@pytest.mark.parametrize("seed", range(6))
def test_more_memory_and_more_types_answer_no_worse(seed: int) -> None:
    *freedom, memory, rules = slowdowns(seed, MOST_TABLES)
    assert all(slower <= TOLERANCE for slower in (*freedom, rules))
    assert memory <= SEARCHED
    assert len(KINDS) == len(freedom) + 2
