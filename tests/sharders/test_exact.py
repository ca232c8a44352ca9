"""The exact sharder: the optimum of the sums, never worse than greedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.exact import GAP_LIMIT, ExactSharder
from evenshard.sharders.greedy import single_cost_sharder
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.units import BYTES_PER_GB
from support.builders import every_placement, sized, split_by, table, task

# A time limit in which the solver does nothing.
INSTANT = 1e-9


def named(costs_ms: Sequence[float]) -> dict[str, float]:
    return {f"s{number}": cost_ms for number, cost_ms in enumerate(costs_ms)}


def load_ms(placement: Placement, costs_ms: Sequence[float]) -> float:
    return max(sum(costs_ms[position] for position in shard) for shard in placement.shards())


def fits(of_task: ShardingTask, placement: Placement) -> bool:
    try:
        check_placement(of_task, placement)
    except InfeasibleTask:
        return False
    return True


def like_real_tables(count: int, devices: int, seed: int, room: float) -> tuple[ShardingTask, list[float]]:
    """Sizes and costs apart, each over orders of magnitude; the devices hold ``room`` times the tables."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(8, 1, count).astype(int) + 1
    costs_ms = rng.lognormal(-2, 1, count).tolist()
    cap = max(int(room * 4 * sizes.sum() / devices), 4 * int(sizes.max()))
    return task(sized(*sizes.tolist()), devices=devices, cap=cap), costs_ms


# The optimum ---------------------------------------------------------------------------------------------------------


def test_it_finds_the_optimum_that_greedy_misses() -> None:
    """Greedy: 5 3 3 | 5 3 | 4 4. Best: 5 4 | 5 4 | 3 3 3."""
    costs_ms = [5.0, 3.0, 4.0, 3.0, 5.0, 3.0, 4.0]
    of_task = task(sized(*[1] * 7), devices=3)
    assert load_ms(single_cost_sharder(named(costs_ms)).place(of_task), costs_ms) == 11
    placement = ExactSharder(named(costs_ms)).place(of_task)
    assert load_ms(placement, costs_ms) == 9
    assert (1, 3, 5) in split_by(placement)


def test_memory_decides_where_costs_would_not() -> None:
    """Costs alone say 4 3 | 5 2; but only the largest table fits beside nothing: 5 | 4 3 2."""
    costs_ms, of_task = [5.0, 4.0, 3.0, 2.0], task(sized(9, 3, 3, 3), cap=4 * 9)
    assert split_by(ExactSharder(named(costs_ms)).place(of_task)) == {(0,), (1, 2, 3)}


def test_a_dead_end_of_greedy_is_no_dead_end() -> None:
    """Costliest first fills both devices with small tables, and the large one finds no room."""
    of_task = task(sized(8, 2, 2, 2, 2), cap=4 * 8)
    assert split_by(ExactSharder(named([1.0, 2.0, 3.0, 4.0, 5.0])).place(of_task)) == {(0,), (1, 2, 3, 4)}


def test_tables_that_cost_nothing_still_need_memory() -> None:
    """By size, greedy fills 3 2 | 3 2 and has no room for the last; 3 3 | 2 2 2 fits."""
    placement = ExactSharder(named([0.0] * 5)).place(task(sized(3, 3, 2, 2, 2), cap=4 * 6))
    assert split_by(placement) == {(0, 1), (2, 3, 4)}


@settings(max_examples=60, deadline=None)
@given(
    tables=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 100)), min_size=1, max_size=6),
    devices=st.integers(1, 3),
    cap=st.integers(5, 40),
)
def test_against_every_placement(tables: list[tuple[int, float]], devices: int, cap: int) -> None:
    costs_ms = [cost_ms for _, cost_ms in tables]
    of_task = task(sized(*[size for size, _ in tables]), devices=devices, cap=4 * cap)
    legal = [placement for placement in every_placement(of_task) if fits(of_task, placement)]
    sharder = ExactSharder(named(costs_ms))
    if not legal:
        with pytest.raises(InfeasibleTask):
            sharder.place(of_task)
        return
    best_ms = min(load_ms(placement, costs_ms) for placement in legal)
    placement = sharder.place(of_task)
    assert fits(of_task, placement)
    assert best_ms <= load_ms(placement, costs_ms) * (1 + 1e-6)
    assert load_ms(placement, costs_ms) <= best_ms * (1 + GAP_LIMIT)


def test_the_order_of_tables_does_not_change_how_good_it_is() -> None:
    of_task, costs_ms = like_real_tables(12, 3, seed=1, room=1.2)
    turned = task(of_task.tables[::-1], devices=3, cap=of_task.memory_cap_bytes)
    one, other = (ExactSharder(named(costs_ms)).place(each) for each in (of_task, turned))
    assert load_ms(one, costs_ms) == pytest.approx(load_ms(other, costs_ms[::-1]), rel=GAP_LIMIT)


def test_costs_come_from_a_function_as_well() -> None:
    of_task, costs_ms = task(sized(1, 2, 3, 4)), [1.0, 2.0, 3.0, 4.0]
    of_function = ExactSharder(lambda one: float(one.num_rows)).place(of_task)
    assert of_function == ExactSharder(named(costs_ms)).place(of_task)
    assert load_ms(of_function, costs_ms) == 5


# Time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "devices", "room"), [(200, 8, 100.0), (160, 8, 1.05)])
def test_a_large_task_is_next_to_solved_in_a_second_of_the_solver(count: int, devices: int, room: float) -> None:
    of_task, costs_ms = like_real_tables(count, devices, seed=0, room=room)
    placement = ExactSharder(named(costs_ms), time_limit_s=1.0).place(of_task)
    assert fits(of_task, placement)
    assert load_ms(placement, costs_ms) < max(sum(costs_ms) / devices, max(costs_ms)) * (1 + 2e-3)
    assert load_ms(placement, costs_ms) < load_ms(single_cost_sharder(named(costs_ms)).place(of_task), costs_ms)


def test_the_same_task_gets_the_same_answer_even_when_time_runs_out() -> None:
    of_task, costs_ms = like_real_tables(60, 8, seed=3, room=1.2)
    answers = [ExactSharder(named(costs_ms), time_limit_s=0.05).place(of_task) for _ in range(2)]
    assert answers[0] == answers[1]
    more = ExactSharder(named(costs_ms), time_limit_s=0.5).place(of_task)
    assert load_ms(more, costs_ms) < load_ms(answers[0], costs_ms)


def test_out_of_time_it_is_greedys_placement() -> None:
    of_task, costs_ms = like_real_tables(40, 4, seed=2, room=2.0)
    greedy = single_cost_sharder(named(costs_ms)).place(of_task)
    assert ExactSharder(named(costs_ms), time_limit_s=INSTANT).place(of_task) == greedy


def test_a_better_placement_than_greedys_is_kept_when_time_runs_out() -> None:
    for seed in range(5):
        of_task, costs_ms = like_real_tables(50, 8, seed, room=3.0)
        greedy_ms = load_ms(single_cost_sharder(named(costs_ms)).place(of_task), costs_ms)
        placement = ExactSharder(named(costs_ms), time_limit_s=0.02).place(of_task)
        assert load_ms(placement, costs_ms) <= greedy_ms


# What cannot be placed -----------------------------------------------------------------------------------------------


def test_tables_that_fit_in_bytes_but_not_in_pieces_are_proved_infeasible_with_numbers() -> None:
    """Three tables of 3 GB are 9 of 10 GB, but each of the two devices takes only one."""
    tables = [table(f"s{number}", 3 * BYTES_PER_GB // 16) for number in range(3)]
    with pytest.raises(InfeasibleTask, match=r"no placement fits: .* 9\.00 GB .* 2 devices' 10\.00 GB .*\(s0\) 3\.00"):
        ExactSharder(named([1.0, 1.0, 1.0])).place(task(tables, cap=5 * BYTES_PER_GB))


def test_too_large_a_table_is_infeasible() -> None:
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        ExactSharder(named([1.0])).place(task(sized(9), cap=8))


def test_no_placement_in_time_says_so() -> None:
    of_task = task(sized(8, 2, 2, 2, 2), cap=4 * 8)
    with pytest.raises(InfeasibleTask, match=r"found none in its 1e-09 s: .*Raise memory_cap_gb or num_devices"):
        ExactSharder(named([1.0, 2.0, 3.0, 4.0, 5.0]), time_limit_s=INSTANT).place(of_task)


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_an_impossible_cost_is_refused_by_name(bad: float) -> None:
    with pytest.raises(BadConfig, match=r"table s1 costs .* on its own"):
        ExactSharder(named([1.0, bad])).place(task(sized(1, 1)))


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_time_limit_of_nothing_is_refused(limit: float) -> None:
    with pytest.raises(BadConfig, match="time_limit_s"):
        ExactSharder({}, time_limit_s=limit)
