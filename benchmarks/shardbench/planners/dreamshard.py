"""DreamShard, trained in short by its own loop on the simulated devices: whole tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from benchmarks.shardbench.cases import BATCH_SIZE, RECORDED_DIMS, BenchMachine
from benchmarks.studies.settings import Ground, PoolConfig, Setting
from benchmarks.studies.trainings import DreamShardConfig, train_dreamshard
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.parts import TablePart
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from evenshard.tables.generator import GeneratorConfig
from evenshard.tables.table import Table

OWN_ORACLE = "device"
# Generated tables, 40 on 8 devices; the published rounds, half as many.
SETTING, POOL = Setting(40, 8), PoolConfig(GeneratorConfig(400, RECORDED_DIMS), 60.0, BATCH_SIZE)
TRAINING, TRAIN_TASKS, ROLLOUTS = DreamShardConfig(num_rounds=5), 20, 16


@cache
def _train(hardware: str) -> DreamShardSharder:
    """Train once for all cells of a GPU."""
    measure = MeasureConfig(hardware)
    tasks, simulated = Ground(POOL, measure, TRAIN_TASKS, 1).split(SETTING).train, SimulatedHardware(measure)
    return train_dreamshard(tasks, simulated.measure_many, simulated.provenance, TRAINING, 0).sharder(ROLLOUTS)


def plan(tables: Sequence[Table], machine: BenchMachine) -> Sequence[TablePart]:
    """Return the best of its rollouts by its own cost network."""
    task = machine.task(tables)
    return _train(machine.hardware).place(task.as_whole).parts(task.tables)
