"""Whole studies, as small as they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies import runner
from benchmarks.studies.measuring import compute_speedup, figures, measured_balance
from benchmarks.studies.rows import ROWS
from benchmarks.studies.settings import Budgets, Setting
from benchmarks.studies.study import BenchConfig, run_study
from benchmarks.studies.trainings import AutoShardConfig, DreamShardConfig, EvenshardConfig
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.sharders.autoshard.fit import ImpalaConfig
from evenshard.sharders.cost_model.fit import CostModelFitConfig
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.sharders.simple import EXPERTS
from evenshard.sharders.training import FitConfig
from support.builders import cost

QUICK = SearchConfig(num_rollouts=4, scores_per_table=50)
TINY = Budgets(
    dreamshard=DreamShardConfig(num_rounds=2, placements_per_round=3, cost_updates=5, policy_updates=1, num_episodes=2),
    evenshard=EvenshardConfig(num_shards=4, own_placements=2, fit=CostModelFitConfig(num_updates=20), search=QUICK),
    autoshard=AutoShardConfig(FitConfig(5, 8, 1e-3), ImpalaConfig(num_updates=2, num_slots=2, unroll_length=6)),
    num_shards=10,
    search=QUICK,
)
SMALL = Setting(6, 2)


def config(folder: Path, name: str = "mixed", **changes: Any) -> BenchConfig:
    plain = BenchConfig(name, "simulated:h200", 1, folder, (SMALL,), 3, 6, num_jobs=1, budgets=TINY)
    return replace(plain, **changes)


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


def test_figures_of_one_sharder_by_hand_look_at_compute_alone() -> None:
    found = figures([cost(4.0, 2.0), None, cost(4.0)], [cost(8.0, 1.0), cost(1.0), None])
    assert found == {"ms": [4.0, None, 4.0], "balance": [0.5, None, 1.0], "compute_speedup": [2.0, None, None]}
    assert measured_balance(compute(2.0, 8.0)) == 0.25
    assert measured_balance(compute(4.0)) == 1.0
    assert measured_balance(compute(0.0, 0.0)) == 1.0
    assert compute_speedup(compute(2.0, 4.0), reference=compute(1.0, 6.0)) == 1.5


def compute(*times_ms: float) -> PlacementCost:
    """Devices that compute for the given times, a quarter of it forward, and exchange for a long time."""
    return PlacementCost(tuple(DeviceCost(ms / 4, 100.0, 200.0, 3 * ms / 4) for ms in times_ms), "modelled")
