"""The statistics of a study, on numbers small enough for a pocket calculator."""

from __future__ import annotations

import math

import pytest

from benchmarks.studies.networks import own_placements, sample_accuracy
from benchmarks.studies.summary import Measured, comparison
from evenshard.loop.sharder_comparison import common_tasks

INF = math.inf
T_2 = 4.302652729749464  # Student's t of 2 degrees of freedom, 97.5 %


def of(*seeds: tuple[float, ...]) -> Measured:
    return Measured(seeds)


def test_mean_interval_and_speedup_by_hand() -> None:
    found = comparison({"random": of((2.0, 4.0, 6.0)), "dim_greedy": of((1.0, 2.0, 3.0))})["sharders"]
    row = found["dim_greedy"]
    assert row["mean_ms"] == 2.0
    half = T_2 * 1.0 / math.sqrt(3)
    assert row["ci95_ms"] == pytest.approx([2 - half, 2 + half])
    assert row["speedup_over_random_pct"] == pytest.approx(100.0)
    assert found["random"]["speedup_over_random_pct"] == 0.0
    assert row["seed_deviation_ms"] is None


def test_a_trained_sharder_counts_with_its_mean_over_the_seeds() -> None:
    found = comparison({"dim_greedy": of((4.0, 4.0)), "dreamshard": of((1.0, 3.0), (3.0, 7.0))})["sharders"]
    row = found["dreamshard"]
    assert (row["mean_ms"], row["num_seeds"]) == (3.5, 2)
    assert row["seed_deviation_ms"] == pytest.approx(3 / math.sqrt(2))  # of 2 and 5
    assert row["difference_to_best_heuristic_pct"] == pytest.approx(-12.5)
    # Paired, by task: 2 and 5 against 4, which is -50 and +25 %.
    t_1 = 12.706204736432095
    assert row["difference_ci95_pct"] == pytest.approx([-12.5 - 37.5 * t_1, -12.5 + 37.5 * t_1])


def test_means_are_over_the_tasks_that_all_seeds_of_all_sharders_placed() -> None:
    measured = {
        "random": of((1.0, 10.0, 100.0, 5.0)),
        "size_greedy": of((1.0, 10.0, INF, 5.0)),
        "dreamshard": of((1.0, 20.0, 100.0, 5.0), (1.0, INF, 100.0, 5.0)),
    }
    assert common_tasks({name: one.task_ms for name, one in measured.items()}) == [0, 3]
    found = comparison(measured)
    assert found["num_common_tasks"] == 2
    assert [row["mean_ms"] for row in found["sharders"].values()] == [3.0, 3.0, 3.0]
    assert [row["infeasible"] for row in found["sharders"].values()] == [0, 1, 1]


def test_without_a_common_task_nothing_is_compared_but_the_infeasible_ones_are_counted() -> None:
    found = comparison({"random": of((INF, 1.0)), "dim_greedy": of((1.0, INF))})
    assert (found["num_common_tasks"], found["best_heuristic"]) == (0, None)
    row = found["sharders"]["dim_greedy"]
    assert row["infeasible"] == 1
    assert row["mean_ms"] is row["ci95_ms"] is row["speedup_over_random_pct"] is None
    assert row["difference_to_best_heuristic_pct"] is None


def test_the_best_heuristic_is_the_best_expert_and_never_random_or_a_privileged_one() -> None:
    measured = {
        "random": of((1.0, 1.0)),
        "size_greedy": of((4.0, 4.0)),
        "lookup_greedy": of((3.0, 4.0)),
        "single_cost_greedy": of((2.0, 2.0)),
    }
    found = comparison(measured)
    assert found["best_heuristic"] == "lookup_greedy"
    assert [row["privileged"] for row in found["sharders"].values()] == [False, False, False, True]
    assert found["sharders"]["lookup_greedy"]["difference_to_best_heuristic_pct"] == 0.0


def test_the_drop_of_transferred_networks_is_paired_with_those_trained_for_the_size() -> None:
    measured = {"evenshard": of((4.0, 6.0, 8.0)), "evenshard_transferred": of((5.0, 6.0, 10.0))}
    row = comparison(measured)["sharders"]["evenshard_transferred"]
    assert row["drop_ms"] == pytest.approx(1.0)
    assert row["drop_pct"] == pytest.approx(100 / 6)
    half = T_2 / math.sqrt(3)  # the differences 1, 0, 2 deviate by 1
    assert row["drop_ci95_ms"] == pytest.approx([1 - half, 1 + half])
    assert "drop_ms" not in comparison(measured)["sharders"]["evenshard"]


def test_accuracy_of_networks_and_of_own_placements_by_hand() -> None:
    samples = [[{"ms": 1.0}, {"ms": 2.0}, {"ms": None}, {"ms": 4.0}], [{"ms": 10.0}, {"ms": 20.0}]]
    placing = {
        "predictions": [
            {  # errors 10, 50 and 25 %; the order of the last two is wrong
                "dreamshard": [1.1, 3.0, 9.0, 3.0 - 1e-9],
                "convex": [1.0, 2.0, 9.0, 4.0],
                "convex_low": [0.9, 2.1, 0.0, 3.9],
                "convex_high": [1.1, 2.2, 1.0, 4.0],
            },
            {"dreamshard": [10.0, 20.0], "convex": [10.0, 20.0], "convex_low": [9.0, 9.0], "convex_high": [11.0, 19.0]},
        ]
    }
    found = sample_accuracy(samples, [placing, placing])
    assert found["dreamshard"]["num_placements"] == 10
    assert found["dreamshard"]["median_abs_pct_error"] == pytest.approx(10.0)  # of 0, 0, 10, 25, 50 %
    assert found["dreamshard"]["kendall_tau"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["convex"]["kendall_tau"] == pytest.approx(1.0)
    assert found["convex"]["share_in_90_pct_interval"] == pytest.approx(3 / 5)
    said = {"predicted_ms": 11.0, "low_ms": 9.0, "high_ms": 12.0, "lower_bound_ms": 10.0}
    found = own_placements([[said, said, {"infeasible": "full"}], [said, said, said]], [[10.0, 13.0, INF]] * 2)
    assert found["share_in_90_pct_interval"] == 0.5
    assert found["predicted_above_bound_pct"] == pytest.approx(10.0)
    assert found["median_abs_pct_error"] == pytest.approx((10 + 200 / 13) / 2)
