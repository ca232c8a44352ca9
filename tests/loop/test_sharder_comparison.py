"""Evaluation: who is fastest, how sure that is, and what becomes of tasks that a sharder could not place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import pytest

from evenshard.loop.sharder_comparison import (
    Answer,
    Interval,
    Result,
    Standing,
    ask,
    infeasible_tasks,
    network_accuracy,
    standings,
)
from evenshard.measure.noise import Noise
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.sharders.simple import expert_sharder
from support.builders import cost, measured, some_tables, task

TABLES = some_tables(2)


def result(sharder: str, number: int, measured_ms: float | None, predicted_ms: float = 1.0) -> Result:
    """Task ``number`` placed by ``sharder``; None for an infeasible answer."""
    of_task = task(TABLES, task_id=f"test-{number:03d}")
    if measured_ms is None:
        return Result(Answer(of_task, sharder, None, "no room", math.nan), None)
    one = measured(of_task, (0, 1), cost(measured_ms / 2, measured_ms))
    return Result(Answer(of_task, sharder, one.placement, "", predicted_ms), one)


def results(costs: Mapping[str, Sequence[float | None]]) -> list[Result]:
    return [result(name, number, ms) for name, row in costs.items() for number, ms in enumerate(row)]


def by_name(costs: Mapping[str, Sequence[float | None]]) -> dict[str, Standing]:
    return {one.sharder: one for one in standings(results(costs))}


def test_intervals_by_hand() -> None:
    half = 12.7062 * math.sqrt(2) / math.sqrt(2)  # t(0.975, 1 degree of freedom) = 12.7062
    assert astuple(Interval.of([1.0, 3.0])) == pytest.approx((2.0, 2.0 - half, 2.0 + half), rel=1e-5)
    half = 3.18245 * math.sqrt(8 / 3) / 2  # t(0.975, 3) = 3.18245
    assert astuple(Interval.of([2.0, 4.0, 4.0, 6.0])) == pytest.approx((4.0, 4.0 - half, 4.0 + half), rel=1e-5)
    assert Interval.of([5.0]) == Interval(5.0, -math.inf, math.inf)
    assert Interval.of([5.0, 5.0, 5.0]) == Interval(5.0, 5.0, 5.0)


def test_differences_are_paired_and_in_per_cent_of_the_best_heuristics_mean() -> None:
    """The tasks differ by a factor of 100, yet dreamshard's lead of 10 to 12 of 400 on average is beyond doubt."""
    times = {"random": [30.0, 1200.0, 520.0], "dim_greedy": [20.0, 1000.0, 180.0], "dreamshard": [10.0, 988.0, 169.0]}
    of, lead = by_name(times), Interval.of([-10 / 4, -12 / 4, -11 / 4])
    assert astuple(of["dreamshard"].against_best_pct) == pytest.approx(astuple(lead)) and lead.high < 0
    assert of["dreamshard"].verdict == "faster"
    assert of["dreamshard"].measured_ms == Interval.of([10.0, 988.0, 169.0])
    assert of["dim_greedy"].against_best_pct == Interval(0.0, 0.0, 0.0)


BEST, OPEN = "the best heuristic", "not separable from it"


@pytest.mark.parametrize(
    ("costs", "verdicts"),
    [
        (
            {
                "size_greedy": [10.0, 20.0, 30.0],
                "dreamshard": [9.0, 22.0, 29.5],
                "single_cost_greedy": [12.0, 22.1, 32.0],
                "random": [40.0, 50.0, 61.0],
            },
            [BEST, OPEN, "slower", "slower"],
        ),
        # Neither learned sharders nor those with measurements of the tables are heuristics.
        (
            {"dreamshard": [1.0, 1.1], "single_cost_greedy": [2.0, 2.1], "lookup_greedy": [3.0, 3.1]},
            ["faster", "faster", BEST],
        ),
        ({"random": [9.0, 10.0], "dim_greedy": [5.0, 6.0], "dreamshard": [5.0, 6.0]}, ["slower", BEST, OPEN]),
        ({"dim_greedy": [8.0], "dreamshard": [1.0]}, [BEST, OPEN]),  # a single common task
    ],
)
def test_verdicts(costs: Mapping[str, Sequence[float]], verdicts: list[str]) -> None:
    of = by_name(costs)
    assert [of[name].verdict for name in costs] == verdicts
    assert [name for name in costs if of[name].privileged] == [name for name in costs if name == "single_cost_greedy"]


def test_a_task_that_one_sharder_could_not_place_counts_against_it_and_in_no_mean() -> None:
    answers: dict[str, list[float | None]] = {
        "random": [10.0, 20.0, None],
        "dim_greedy": [8.0, 18.0, 900.0],
        "dreamshard": [7.0, None, 500.0],
    }
    of = by_name(answers)
    assert {name: one.num_infeasible for name, one in of.items()} == {"random": 1, "dim_greedy": 0, "dreamshard": 1}
    assert [of[name].measured_ms.mean for name in answers] == [10.0, 8.0, 7.0]
    everything = results(answers)
    assert infeasible_tasks(everything) == 2
    lost = everything[0]  # what ran out of memory is infeasible too
    assert lost.measured is not None
    full = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1.0, 1.0, 1.0, 1.0)), "modelled")
    everything[0] = replace(lost, measured=replace(lost.measured, cost=full))
    assert [one.num_infeasible for one in standings(everything) if one.sharder == "random"] == [2]
    assert infeasible_tasks(everything) == 3 and math.isfinite(network_accuracy(everything).median_abs_pct_error)
    of = by_name({"random": [None, 20.0], "dreamshard": [7.0, None]})
    assert {name: one.num_infeasible for name, one in of.items()} == {"random": 1, "dreamshard": 1}
    assert all(math.isnan(one.measured_ms.mean) for one in of.values())
    assert not {one.verdict for one in of.values()} & {BEST, OPEN, "faster", "slower"}
    assert [result("random", 0, ms).measured_ms for ms in (None, 6.0)] == [math.inf, 6.0]


def test_that_it_fits_nowhere_is_an_answer_with_its_reason() -> None:
    sharder, full, roomy = expert_sharder("dim_greedy"), task(TABLES, cap=8), task(TABLES)
    refused, placed = ask(sharder, full), ask(sharder, roomy)
    assert refused.placement is None and "more than a whole device" in refused.reason
    assert placed.placement == sharder.place(roomy) and placed.reason == ""
    assert (placed.sharder, placed.task, refused.task) == ("dim_greedy", roomy, full)


def test_accuracy_by_hand() -> None:
    """Task 0: of the three pairs, one is swapped: tau 1/3. Task 1: all in order. Task 2: one placement, no order."""
    answers = [
        result("a", 0, 4.0, predicted_ms=6.0),
        result("b", 0, 8.0, predicted_ms=10.0),
        result("c", 0, 10.0, predicted_ms=9.0),
        result("a", 1, 1.0, predicted_ms=1.0),
        result("b", 1, 2.0, predicted_ms=2.0),
        result("c", 1, None),
        result("a", 2, 100.0, predicted_ms=100.0),
    ]
    accuracy = network_accuracy(answers)
    assert accuracy.median_abs_pct_error == pytest.approx(5.0)
    assert accuracy.kendall_tau == pytest.approx((1 / 3 + 1) / 2)
    nothing = network_accuracy([result("a", 0, None)])
    assert math.isnan(nothing.median_abs_pct_error) and math.isnan(nothing.kendall_tau)


def test_two_sharders_closer_than_the_noise_are_equal() -> None:
    """Every task says 1 % faster; four tasks measured to within 1 % cannot tell less than 1.39 %."""
    costs = {"random": [100.0, 100.0, 100.0, 100.0], "dreamshard": [99.0, 99.0, 99.1, 98.9]}
    noises = {"noisy": Noise(1.0, None, None, 1, 1), "quiet": Noise(0.5, None, None, 1, 1)}
    of = {name: {one.sharder: one for one in standings(results(costs), noise)} for name, noise in noises.items()}
    assert of["noisy"]["dreamshard"].noise_pct == pytest.approx(1.96 * math.sqrt(2 / 4))
    assert of["noisy"]["dreamshard"].verdict == "equal (within the noise)"
    assert of["quiet"]["dreamshard"].verdict == "faster"
    assert by_name(costs)["dreamshard"].verdict == "faster"  # nothing known about the noise
    assert of["noisy"]["random"].verdict == "the best heuristic"
