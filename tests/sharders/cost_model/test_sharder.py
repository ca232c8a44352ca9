"""The search sharder: never worse than its starts, legal, measured where asked; and what its answer carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig, drop_duplicates
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from evenshard.sharders.simple import expert_sharders
from support import builders
from support.builders import ROOMY, some_tables, table, task
from support.convex_builders import NORMALIZER, best_ms, bound_ms, predicted_ms, random_model

pytestmark = pytest.mark.full_search

QUICK = SearchConfig(num_rollouts=8, scores_per_table=500)
MODEL = random_model()


def policy() -> DreamShardSharder:
    return DreamShardSharder(builders.cost_net(), builders.policy(), NORMALIZER)


def test_even_without_any_search_experts_and_known_placements_are_candidates_and_the_best_is_the_answer() -> None:
    of_task, known = task(some_tables(14, 1), 3), Placement((0,) * 14, 3)
    nothing = replace(QUICK, num_rollouts=0, scores_per_table=0, time_limit_s=0.0)
    starts = [known, *(expert.place(of_task) for expert in expert_sharders())]
    found = EvenshardSharder(MODEL, None, nothing).search(of_task, [known])
    assert found.best.predicted_ms <= min(predicted_ms(MODEL, of_task, one) for one in starts) * (1 + 1e-6)
    splits = [set(one.shards()) for one in found.candidates]
    assert all(set(one.shards()) in splits for one in starts)


def test_candidates_are_distinct_and_ordered_by_prediction() -> None:
    of_task = task(some_tables(14, 0), 3)
    found = EvenshardSharder(MODEL, policy(), QUICK).search(of_task)
    assert len(found.candidates) == len(drop_duplicates(found.candidates)) > 10
    assert found.candidates[0].parts(of_task.tables) == found.best.parts
    found_ms = [predicted_ms(MODEL, of_task, one) for one in found.candidates]
    assert found_ms == pytest.approx(sorted(found_ms), rel=1e-5)


def test_where_nobody_finds_room_the_reason_has_the_numbers() -> None:
    """Three tables of 6 rows on two devices of 10 fit together, no two fit one device: proven, not a dead end."""
    tables = [table(f"t{n}", 6, 1) for n in range(3)]
    with pytest.raises(InfeasibleTask, match=r"no placement fits: the tables need"):
        EvenshardSharder(MODEL, policy(), QUICK).place(task(tables, 2, cap=40))
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        EvenshardSharder(MODEL, None, QUICK).place(task(tables, 2, cap=20))


@pytest.mark.parametrize(("num_tables", "devices"), [(1, 1), (1, 3), (2, 3), (5, 1), (6, 3)])
def test_small_tasks_are_solved_and_the_bound_holds(num_tables: int, devices: int) -> None:
    of_task = task(some_tables(num_tables, 2), devices, ROOMY)
    found, best = EvenshardSharder(MODEL, policy()).search(of_task), best_ms(MODEL, of_task)
    check_placement(of_task, found.candidates[0])
    assert found.best.predicted_ms == pytest.approx(best, rel=1e-5)
    assert found.lower_bound_ms == pytest.approx(bound_ms(MODEL, of_task), rel=5e-3) and found.lower_bound_ms <= best


def test_placements_that_differ_in_names_of_devices_only_are_one() -> None:
    same = [Placement((0, 1, 1), 3), Placement((2, 0, 0), 3), Placement((1, 2, 2), 3)]
    other = Placement((0, 1, 0), 3)
    assert drop_duplicates([*same, other, same[1]]) == [same[0], other]
