"""AutoShard, trained in short on random shards, measured on the simulated devices: whole tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from benchmarks.shardbench.cases import BenchMachine
from benchmarks.shardbench.planners.dreamshard import POOL, SETTING, TRAIN_TASKS
from benchmarks.studies.settings import Ground
from benchmarks.studies.trainings import AutoShardConfig, measure_random_shards, train_autoshard
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.parts import TablePart
from evenshard.sharders.autoshard.fit import ImpalaConfig
from evenshard.sharders.autoshard.sharder import AutoShardSharder
from evenshard.sharders.training import FitConfig
from evenshard.tables.table import Table

OWN_ORACLE = "device"
TRAINING = AutoShardConfig(FitConfig(600, 256, 3e-3), ImpalaConfig(num_updates=60))
SHARDS = 500


@cache
def _train(hardware: str) -> AutoShardSharder:
    """Train once for all cells of a GPU."""
    measure = MeasureConfig(hardware)
    tasks = Ground(POOL, measure, TRAIN_TASKS, 1).split(SETTING).train
    measured = measure_random_shards(SimulatedHardware(measure), tasks, SHARDS, 0)
    return train_autoshard(tasks, measured, TRAINING, 0)


def plan(tables: Sequence[Table], machine: BenchMachine) -> Sequence[TablePart]:
    """Return its most probable placement."""
    task = machine.task(tables)
    return _train(machine.hardware).place(task.as_whole).parts(task.tables)
