"""Run of a whole study: plan, run, compare; called by ``python -m benchmarks study``."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.answers import rows_of
from benchmarks.studies.networks import own_placements, sample_accuracy
from benchmarks.studies.plan import SettingPlan, all_units, plan_setting
from benchmarks.studies.rows import SUFFIX, left_out, rows
from benchmarks.studies.runner import run_units
from benchmarks.studies.settings import STUDIES, Budgets, Setting, Study, ground_of
from benchmarks.studies.summary import Measured, comparison
from benchmarks.studies.units import Store
from evenshard.base.errors import BadConfig, require
from evenshard.base.messages import brief
from evenshard.base.provenance import git_commit
from evenshard.measure.distributed import collective
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.noise import Noise
from evenshard.version import __version__

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchConfig:
    """Settings of a run.

    Attributes:
        study: dlrm, mixed, generalize or autoshard.
        hardware: cpu, cuda, auto, or simulated:<profile>.
        num_seeds: trainings of each learned sharder.
        folder: folder of the units' results.
        settings: the settings under test; None for those of the study.
        train_tasks, test_tasks: tasks of each setting; None for those of the study.
        num_jobs: parallel processes; None for one per core. Real hardware uses one.
        skip: rows to omit.
        fresh: True to repeat all units.
        budgets: None for the papers' settings, on a CPU those of params.yaml.
    """

    study: str
    hardware: str
    num_seeds: int
    folder: Path
    settings: tuple[Setting, ...] | None = None
    train_tasks: int | None = None
    test_tasks: int | None = None
    num_jobs: int | None = None
    skip: tuple[str, ...] = ()
    fresh: bool = False
    budgets: Budgets | None = None


def run_study(config: BenchConfig) -> dict[str, Any]:
    """Run the missing units and return the study's JSON."""
    require(config.study in STUDIES, f"{brief(config.study)} is not a study. The studies are {', '.join(STUDIES)}.")
    for name in ("num_seeds", "train_tasks", "test_tasks", "num_jobs"):
        value = getattr(config, name)
        require(value is None or value >= 1, f"{name} is {value}. Set it to at least 1.")
    if collective.world_size() > 1:
        raise BadConfig("A study runs in a single process. Start it without torchrun.")
    study = STUDIES[config.study]
    ground, budgets = ground_of(study, config.hardware, config.train_tasks, config.test_tasks)
    budgets = config.budgets or budgets
    open_hardware(ground.measure).close()
    out = left_out(config.study, config.skip)
    for name, reason in out.items():
        if reason != "skipped":
            log.warning("row %s is omitted: %s", name, reason)
    names = rows(config.study, out)
    require(bool(names), "--skip omits all rows. Skip fewer rows.")
    settings = tuple(dict.fromkeys(config.settings or study.settings))
    plans = [plan_setting(study, names, ground, budgets, setting, config.num_seeds) for setting in settings]
    for plan in plans:
        plan.ground.split(plan.setting)  # fails early if the pool is too small
    units = all_units([plan.measuring for plan in plans])
    store, commit = Store(config.folder), git_commit(Path(__file__).parent)
    if config.fresh:
        for unit in units:
            store.forget(unit)
    num_jobs = (config.num_jobs or os.cpu_count() or 1) if ground.is_simulated else 1
    run_units(units, config.folder, commit, num_jobs, f"bench {config.study}")
    commits = sorted({store.record(unit).commit for unit in units})
    if commits != [commit]:
        log.warning("Some results are from other commits (%s); --fresh repeats all units", ", ".join(commits))
    elif commit.endswith("-dirty"):
        log.warning("The code has uncommitted changes; results may be from before them. --fresh repeats all units")
    return {
        "study": config.study,
        "hardware": config.hardware,
        "provenance": store.result(plans[0].measuring)["provenance"],
        "num_seeds": config.num_seeds,
        "num_train_tasks": ground.train_tasks,
        "num_test_tasks": ground.test_tasks,
        "version": __version__,
        "commit": commit,
        "commits_of_units": commits,
        "left_out": out,
        "unit_seconds": round(sum(store.record(unit).wall_s for unit in units), 1),
        "settings": {plan.setting.name: _comparison(config.study, study, plan, names, store) for plan in plans},
    }


def _comparison(name: str, study: Study, plan: SettingPlan, names: Sequence[str], store: Store) -> dict[str, Any]:
    """Return the JSON of one setting."""
    measuring = store.result(plan.measuring)
    of_sharder: dict[str, list[dict[str, Any]]] = {}
    for row in measuring["rows"]:
        of_sharder.setdefault(row["sharder"], []).append(row)
    measured = {one: Measured.of(of_sharder[one]) for one in names}
    found = comparison(measured, balance=name == "autoshard")
    noise_pct = measuring["relative_noise_pct"]
    if noise_pct is not None:  # as in evaluate: a smaller mean difference may be noise
        noise = Noise(noise_pct, None, None, 0, 1)
        found["noise_of_a_difference_pct"] = noise.difference_pct(found["num_common_tasks"])
    at_home = [store.result(unit) for unit in plan.placings if unit.suffix != SUFFIX]
    transferred = [store.result(unit) for unit in plan.placings if unit.suffix == SUFFIX]
    samples = store.result(plan.random_search)["samples"]
    networks = sample_accuracy(samples, at_home) if at_home else {}
    rows_at_home = rows_of([unit for unit in plan.placings if unit.suffix != SUFFIX], store)
    own = [[answer for answer in row.answers] for row in rows_at_home if row.sharder == "evenshard"]
    if own:
        networks["convex"]["own_placements"] = own_placements(own, measured["evenshard"].ms)
    return {
        **found,
        "num_test_tasks": plan.ground.test_tasks,
        "num_tasks_not_placed_by_all": plan.ground.test_tasks - found["num_common_tasks"],
        "trained_at": plan.trained_at.name,
        "transferred_from": study.transferred_from.name if study.transferred_from else None,
        "cost_networks": networks,
        "cost_networks_transferred": sample_accuracy(samples, transferred) if transferred else None,
        "seconds": _seconds(plan, store),
    }


def _seconds(plan: SettingPlan, store: Store) -> dict[str, Any]:
    """Return mean seconds of each training, over the seeds, and of placing one task, by sharder."""
    training: dict[str, list[float]] = {}
    for unit in plan.trainings:
        for name, seconds in store.result(unit)["seconds"].items():
            training.setdefault(name, []).append(seconds)
    placing: dict[str, list[float]] = {}
    for answering in plan.answers:
        for name, seconds in store.result(answering)["seconds"].items():
            placing.setdefault(name, []).append(seconds)

    def means(of: dict[str, list[float]]) -> dict[str, float]:
        return {name: round(fmean(seconds), 4) for name, seconds in of.items() if not math.isnan(fmean(seconds))}

    return {"training": means(training), "placing_one_task": means(placing)}
