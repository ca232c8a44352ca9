"""Studies as small as they can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.studies.settings import Budgets, Setting
from benchmarks.studies.study import BenchConfig
from benchmarks.studies.trainings import AutoShardConfig, DreamShardConfig, EvenshardConfig
from evenshard.sharders.autoshard.impala import ImpalaConfig
from evenshard.sharders.cost_model.fit import CostModelFitConfig
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.sharders.training import FitConfig

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
