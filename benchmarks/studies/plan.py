"""Units of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.studies.autoshard import PlaceAutoShard, TrainAutoShard
from benchmarks.studies.measuring import MeasureAnswers
from benchmarks.studies.rows import (
    AUTOSHARD,
    EXTERNAL,
    LEARNED,
    SEARCH,
    SINGLE_COSTS,
    SUFFIX,
    TRANSFERRED,
)
from benchmarks.studies.settings import Budgets, Ground, Setting, Study
from benchmarks.studies.trained_sharders import PlaceLearned, TrainNetworks
from benchmarks.studies.units import Unit
from benchmarks.studies.untrained_sharders import NUM_REAL_SAMPLES, NUM_SAMPLES, Peers, RandomSearch, SingleCosts
from evenshard.sharders.catalog import HEURISTICS


@dataclass(frozen=True)
class SettingPlan:
    """The units of one setting.

    Attributes:
        setting: the setting under test.
        ground: pool and tasks, with the number of its test tasks.
        trained_at: setting that the networks come from.
        answers: all units with answers.
        random_search: the samples on which the cost networks are evaluated.
        measuring: the last unit, which needs all others.
    """

    setting: Setting
    ground: Ground
    trained_at: Setting
    answers: tuple[Unit, ...]
    random_search: RandomSearch
    measuring: MeasureAnswers

    @property
    def placings(self) -> tuple[PlaceLearned, ...]:
        """Return the units of DreamShard and evenshard."""
        return tuple(unit for unit in self.answers if isinstance(unit, PlaceLearned))

    @property
    def trainings(self) -> tuple[TrainNetworks | TrainAutoShard, ...]:
        """Return the distinct units that train."""
        learned = [unit.trained for unit in self.answers if isinstance(unit, PlaceLearned | PlaceAutoShard)]
        return tuple(dict.fromkeys(learned))


def plan_setting(
    study: Study, rows: Sequence[str], ground: Ground, budgets: Budgets, setting: Setting, num_seeds: int
) -> SettingPlan:
    """Return all units of a setting."""
    few = study.few_tests.get(setting.name, ground.test_tasks)
    own = replace(ground, test_tasks=min(ground.test_tasks, few))
    teaching = replace(ground, test_tasks=0)  # the train tasks are the same, however many are tested
    trained_at = study.trained_at.get(setting.name, setting)

    def among(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in rows)

    def train_networks(source: Setting, seed: int) -> TrainNetworks:
        return TrainNetworks(teaching, source, seed, budgets.dreamshard, budgets.evenshard)

    samples = NUM_SAMPLES if ground.is_simulated else NUM_REAL_SAMPLES
    as_many = budgets.measured_placements(setting.num_devices)
    search = RandomSearch(own, setting, as_many if SEARCH in rows else samples, SEARCH in rows)
    answers: list[Unit] = [search]
    if heuristics := among(*HEURISTICS):
        answers.append(Peers(own, setting, heuristics))
    answers += [Peers(own, setting, (name,)) for name in among(*EXTERNAL)]
    for name in among(*SINGLE_COSTS):
        answers.append(Peers(own, setting, (name,), SingleCosts(own, setting)))
    for seed in range(num_seeds):
        if learned := among(*LEARNED):
            answers.append(
                PlaceLearned(own, setting, train_networks(trained_at, seed), learned, search, budgets.search)
            )
        if (transferred := among(*TRANSFERRED)) and study.transferred_from is not None:
            source = train_networks(study.transferred_from, seed)
            names = tuple(name.removesuffix(SUFFIX) for name in transferred)
            answers.append(PlaceLearned(own, setting, source, names, search, budgets.search, SUFFIX))
        if balanced := among(*AUTOSHARD):
            taught = TrainAutoShard(teaching, trained_at, seed, budgets.autoshard, budgets.num_shards)
            answers.append(PlaceAutoShard(own, setting, taught, balanced))
    return SettingPlan(setting, own, trained_at, tuple(answers), search, MeasureAnswers(own, setting, tuple(answers)))


def all_units(last: Sequence[Unit]) -> list[Unit]:
    """Return the units and all units that they need, each once, in order of dependency."""
    ordered: dict[str, Unit] = {}

    def visit(unit: Unit) -> None:
        if unit.key not in ordered:
            for needed in unit.needs:
                visit(needed)
            ordered[unit.key] = unit

    for unit in last:
        visit(unit)
    return list(ordered.values())
