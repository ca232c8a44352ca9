"""Whole studies, as small as they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies import runner, study
from benchmarks.studies.answers import placement_of, rows_of
from benchmarks.studies.measuring import compute_speedup, figures, measured_balance
from benchmarks.studies.plan import plan_setting
from benchmarks.studies.rows import ROWS, rows
from benchmarks.studies.settings import STUDIES, Setting, ground_of
from benchmarks.studies.study import run_study
from benchmarks.studies.table import study_text
from benchmarks.studies.units import Store
from evenshard.placement.placement import check_placement
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.sharders.simple import EXPERTS
from support.builders import cost
from support.study_builders import SMALL, TINY, config

PAPER_KEYS = {"mean_ms", "ci95_ms", "speedup_over_random_pct", "infeasible", "privileged",
              "difference_to_best_heuristic_pct", "difference_ci95_pct", "seed_deviation_ms"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def mixed(folder: Path) -> dict[str, Any]:
    return run_study(config(folder, num_seeds=2))


def test_the_json_has_all_rows_with_the_keys_of_the_contract(mixed: dict[str, Any]) -> None:
    assert (mixed["study"], mixed["hardware"], mixed["num_seeds"]) == ("mixed", "simulated:h200", 2)
    assert (mixed["num_test_tasks"], mixed["num_train_tasks"]) == (6, 3)
    assert mixed["provenance"]["hardware"] == "simulated: h200"
    found = mixed["settings"]["6x2"]
    assert list(found["sharders"]) == [name for name in ROWS["mixed"] if name not in mixed["left_out"]]
    for row in found["sharders"].values():
        assert row.keys() >= PAPER_KEYS
        assert row["ci95_ms"][0] < row["mean_ms"] < row["ci95_ms"][1]
        assert row["infeasible"] == 0
    assert found["best_heuristic"] in EXPERTS
    assert found["sharders"]["dreamshard"]["seed_deviation_ms"] is not None
    assert found["sharders"]["dim_greedy"]["seed_deviation_ms"] is None
    assert mixed["commits_of_units"] == [mixed["commit"]]
    json.dumps(mixed, allow_nan=False)
    assert found["sharders"]["evenshard_measured"]["mean_ms"] <= found["sharders"]["evenshard"]["mean_ms"]
    networks = found["cost_networks"]
    assert networks["dreamshard"].keys() >= {"median_abs_pct_error", "kendall_tau"}
    assert 0 <= networks["convex"]["share_in_90_pct_interval"] <= 1
    assert networks["convex"]["own_placements"]["predicted_above_bound_pct"] >= 0
    # random placements of each of 6 tasks, by the networks of 2 seeds: 6 as dreamshard, 2 and 4 / 2 as evenshard
    assert networks["convex"]["num_placements"] == 10 * 6 * 2
    assert found["seconds"]["training"].keys() == {"dreamshard", "evenshard", "autoshard"}


def test_all_sharders_answer_the_same_tasks_and_equal_placements_cost_the_same(
    mixed: dict[str, Any], folder: Path
) -> None:
    ground, _ = ground_of(STUDIES["mixed"], "simulated:h200", 3, 6)
    plan = plan_setting(STUDIES["mixed"], rows("mixed", mixed["left_out"]), ground, TINY, SMALL, 2)
    tasks = ground.test(SMALL)
    trained = {table.name for task in ground.split(SMALL).train for table in task.tables}
    assert not trained & {table.name for task in tasks for table in task.tables}
    store = Store(folder)
    answers = {(row.sharder, row.seed): row.answers for row in rows_of(plan.answers, store)}
    costs = {(row["sharder"], row["seed"]): row["ms"] for row in store.result(plan.measuring)["rows"]}
    assert answers.keys() == costs.keys()
    assert {seed for name, seed in answers if name == "evenshard"} == {0, 1}
    cost_of: dict[Any, float] = {}
    for key, of_sharder in answers.items():
        for task, answer, ms in zip(tasks, of_sharder, costs[key], strict=True):
            placement = placement_of(answer, task)
            assert placement is not None
            check_placement(task, placement)
            assert cost_of.setdefault((task.task_id, placement), ms) == ms


def test_started_again_it_does_nothing_and_says_the_same(
    mixed: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(runner, "_do", lambda unit, *more: done.append(unit.name))
    assert run_study(config(folder, num_seeds=2)) == mixed
    assert done == []
    with pytest.raises(Exception, match="not readable"):  # nothing was done
        run_study(config(folder, num_seeds=3))
    assert sorted(name for name in done if "training" in name) == [
        "6x2 autoshard training seed 2", "6x2 dreamshard training seed 2"
    ]  # fmt: skip


def test_tasks_that_do_not_fit_are_counted_for_each_sharder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices where some tasks fit and some do not, the table is about the former and counts the latter."""
    found, budgets = ground_of(STUDIES["mixed"], "simulated:h200", 8, 8)
    tight = replace(found, pool=replace(found.pool, memory_cap_gb=2.2))
    monkeypatch.setattr(study, "ground_of", lambda *args: (tight, budgets))
    skip = tuple(name for name in ROWS["mixed"] if name not in ("random", *EXPERTS, "dreamshard"))
    result = run_study(config(tmp_path, skip=skip))["settings"]["6x2"]
    infeasible = {name: row["infeasible"] for name, row in result["sharders"].items()}
    assert 0 < result["num_common_tasks"] < 8
    assert all(0 < count <= 8 - result["num_common_tasks"] for count in infeasible.values())
    assert result["num_tasks_not_placed_by_all"] == 8 - result["num_common_tasks"]
    assert study_text({**run_study(config(tmp_path, skip=skip))})


def test_figures_of_one_sharder_by_hand() -> None:
    found = figures([cost(4.0, 2.0), None, cost(4.0)], [cost(8.0, 1.0), cost(1.0), None])
    assert found == {"ms": [4.0, None, 4.0], "balance": [0.5, None, 1.0], "compute_speedup": [2.0, None, None]}


def compute(*times_ms: float) -> PlacementCost:
    """Devices that compute for the given times, a quarter of it forward, and exchange for a long time."""
    return PlacementCost(tuple(DeviceCost(ms / 4, 100.0, 200.0, 3 * ms / 4) for ms in times_ms), "modelled")


def test_measured_balance_and_speedup_look_at_compute_alone() -> None:
    assert measured_balance(compute(2.0, 8.0)) == 0.25
    assert measured_balance(compute(4.0)) == 1.0
    assert measured_balance(compute(0.0, 0.0)) == 1.0
    assert compute_speedup(compute(2.0, 4.0), reference=compute(1.0, 6.0)) == 1.5


def test_a_measuring_that_was_cut_off_goes_on_from_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evenshard.measure.one_device import SequentialHardware

    measured, limit = [0], 4
    whole = SequentialHardware.measure

    def measure(self: SequentialHardware, *job: Any) -> Any:
        measured[0] += 1
        if measured[0] > limit:
            raise KeyboardInterrupt
        return whole(self, *job)

    monkeypatch.setattr(SequentialHardware, "measure", measure)
    skip = tuple(name for name in ROWS["mixed"] if name not in ("random", "random_search"))
    chosen = config(tmp_path, hardware="cpu", train_tasks=1, test_tasks=1, skip=skip, settings=(Setting(3, 2),))
    with pytest.raises(KeyboardInterrupt):
        run_study(chosen)
    assert list(tmp_path.glob("*.journal"))
    measured[0], limit = 0, 10**9
    run_study(chosen)
    # 10 random placements, of which 4 are on record, and then the 2 answers and the controls
    cut_off, all_at_once = measured[0], 0
    measured[0] = 0
    run_study(replace(chosen, fresh=True))
    all_at_once = measured[0]
    assert cut_off == all_at_once - 4
