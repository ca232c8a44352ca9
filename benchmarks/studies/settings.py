"""Settings, pools and training budgets of a study, as in DreamShard's section 4.1.

The tables come from the DLRM 2021 generator. All settings of a study share one pool and its two halves, so that a model
that was trained at one size has seen no table of the test tasks of any size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache

from benchmarks.studies.trainings import AutoShardConfig, DreamShardConfig, EvenshardConfig
from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.measure.config import MeasureConfig
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, TaskSplit, sample_tasks
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table


@dataclass(frozen=True)
class Setting:
    """Tables and devices of each task."""

    num_tables: int
    num_devices: int

    @property
    def name(self) -> str:
        """Return the name, such as ``40x4``."""
        return f"{self.num_tables}x{self.num_devices}"

    @staticmethod
    def of(text: str) -> Setting:
        """Parse a setting such as ``40x4``."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip())
        if match is None:
            raise BadConfig(
                f"--settings: {brief(text)} is not a valid setting. Write tables x devices, such as 40x4,80x8."
            )
        return Setting(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class PoolConfig:
    """Tables of a study, and the common settings of its tasks.

    Attributes:
        generator: generator of the tables.
        memory_cap_gb: GB of weights per device.
        batch_size: global batch, samples.
        seed: seed of the tables and of the tasks.
    """

    generator: GeneratorConfig
    memory_cap_gb: float
    batch_size: int
    seed: int = 0


@dataclass(frozen=True)
class Ground:
    """Pool, hardware and numbers of tasks that all sharders of a study share.

    Attributes:
        pool: pool that the tables come from.
        measure: the hardware, and how it measures.
        train_tasks, test_tasks: tasks of each setting.
    """

    pool: PoolConfig
    measure: MeasureConfig
    train_tasks: int
    test_tasks: int

    @property
    def is_simulated(self) -> bool:
        """Return True if measuring takes little time and does not disturb other processes."""
        return self.measure.hardware_name.kind.times == "simulated"

    def split(self, setting: Setting) -> TaskSplit:
        """Return the train and test tasks of a setting, always the same."""
        return _split(self.pool, setting, self.train_tasks, self.test_tasks)

    def test(self, setting: Setting) -> tuple[ShardingTask, ...]:
        """Return the held-out tasks of a setting."""
        return self.split(setting).test


@lru_cache(maxsize=4)
def _tables(pool: PoolConfig) -> tuple[Table, ...]:
    return generate_tables(pool.generator, pool.batch_size, pool.seed)


@lru_cache(maxsize=32)
def _split(pool: PoolConfig, setting: Setting, train_tasks: int, test_tasks: int) -> TaskSplit:
    sampling = TaskSampling(
        train_tasks, test_tasks, setting.num_tables, setting.num_devices, pool.memory_cap_gb, pool.batch_size
    )
    return sample_tasks(_tables(pool), sampling, pool.seed)


@dataclass(frozen=True)
class Study:
    """Settings in which the studies differ.

    Attributes:
        settings: the settings under test.
        dims: dims of the tables on GPUs, real or simulated.
        cpu_dims: dims of the tables on a CPU.
        num_tables: tables of the pool on GPUs.
        memory_cap_gb: memory of a device on GPUs.
        train_tasks, test_tasks: tasks of each setting.
        transferred_from: the setting whose networks are tested at all others too, without fine-tuning, beside those
            trained for the size; None if there is none.
        trained_at: settings without a training of their own: where their networks come from, by name.
        few_tests: settings with fewer test tasks, by name.
    """

    settings: tuple[Setting, ...]
    dims: tuple[int, ...] = (16,)
    cpu_dims: tuple[int, ...] = (16,)
    num_tables: int = 856
    memory_cap_gb: float = 5.0
    train_tasks: int = 50
    test_tasks: int = 50
    transferred_from: Setting | None = None
    trained_at: dict[str, Setting] = field(default_factory=dict)
    few_tests: dict[str, int] = field(default_factory=dict)


def _settings(text: str) -> tuple[Setting, ...]:
    return tuple(Setting.of(part) for part in text.split(","))


STUDIES = {
    "dlrm": Study(_settings("20x4,40x4,60x4,80x4,100x4,40x8,80x8,120x8,160x8,200x8")),
    "mixed": Study(
        _settings("20x2,40x4,80x8"),
        dims=(4, 8, 16, 32, 64, 128, 256),
        cpu_dims=(4, 8, 16, 32, 64, 128),
        memory_cap_gb=10.0,
    ),
    "generalize": Study(
        _settings("20x4,50x4,100x4,40x8,80x8,200x8,40x2,80x16,200x16"), transferred_from=Setting(50, 4)
    ),
    "autoshard": Study(
        _settings("80x8,800x80"),
        dims=(16, 32),
        cpu_dims=(16, 32),
        num_tables=3000,
        train_tasks=90,
        test_tasks=10,
        trained_at={"800x80": Setting(80, 8)},
        few_tests={"800x80": 3},
    ),
}


@dataclass(frozen=True)
class Budgets:
    """Budgets of the sharders for measuring, training and searching.

    Attributes:
        dreamshard: its loop.
        evenshard: additional measurements and fits of evenshard's training.
        autoshard: its two trainings.
        num_shards: random shards measured for AutoShard's cost network.
        search: evenshard's; its seed is the training's.
    """

    dreamshard: DreamShardConfig = field(default_factory=DreamShardConfig)
    evenshard: EvenshardConfig = field(default_factory=EvenshardConfig)
    autoshard: AutoShardConfig = field(default_factory=AutoShardConfig)
    num_shards: int = 2000
    search: SearchConfig = field(default_factory=SearchConfig)

    def measured_placements(self, num_devices: int) -> int:
        """Return the number of placements that training measures, with DreamShard's; shards count pro rata."""
        rounds = self.dreamshard.num_rounds * self.dreamshard.placements_per_round
        return rounds + self.evenshard.own_placements + math.ceil(self.evenshard.num_shards / num_devices)


# A CPU is slow and noisy: fewer rounds of more placements, and more training on each (params.yaml).
CPU_BUDGETS = Budgets(
    DreamShardConfig(num_rounds=3, placements_per_round=120, cost_updates=600, policy_updates=300), num_shards=400
)


def ground_of(
    study: Study, hardware: str, train_tasks: int | None = None, test_tasks: int | None = None
) -> tuple[Ground, Budgets]:
    """Return the study's pool and budgets on this hardware; None keeps the study's number of tasks."""
    measure = MeasureConfig(hardware)
    if measure.hardware_name.kind.times == "measured":  # as in params.yaml
        measure = MeasureConfig(hardware, num_batches=2, warmup=1, repeats=4, visits=3)
    if on_cpu := _on_cpu(hardware):
        pool = PoolConfig(GeneratorConfig(3000, study.cpu_dims, 300_000, 32), 0.6, 512)
    else:
        pool = PoolConfig(GeneratorConfig(study.num_tables, study.dims, weight_bits=16), study.memory_cap_gb, 65536)
    ground = Ground(pool, measure, train_tasks or study.train_tasks, test_tasks or study.test_tasks)
    return ground, CPU_BUDGETS if on_cpu else Budgets()


def _on_cpu(hardware: str) -> bool:
    import torch

    return hardware == "cpu" or (hardware == "auto" and not torch.cuda.is_available())
