"""Tables, shards and placements over wide ranges, to train a model that serves any user's tables.

Each *world* is one imaginary recommender: a batch size, a habit of dims and precisions, and some tables. A user's
tables lie somewhere between the worlds. Rows, lookups and batch sizes are log-uniform, because their order of magnitude
is not known in advance; common choices (a batch of 65,536, one lookup per sample, no reuse histogram) come more often.

None of the public sets of the catalogue is among the worlds: they stay an honest test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenshard.measure.costs import RANDOM_SHARD
from evenshard.placement.placement import Placement, alone
from evenshard.placement.task import ShardingTask
from evenshard.sharders.greedy import expert_sharders
from evenshard.tables.reuse import (
    DLRM_2021_REUSE,
    DLRM_2022_REUSE,
    ReuseBins,
    feasible_reuse_bins,
    power_law_reuse_bins,
)
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

BATCH_SIZES = (1024, 262_144)
USUAL_BATCH, USUAL_BATCH_SHARE = 65_536, 0.35
ROW_RANGES, ROW_SHARES = ((1, 1e3), (1e3, 1e6), (1e6, 2e7), (2e7, 5e8)), (0.25, 0.35, 0.25, 0.15)
DIMS = (4, 8, 16, 32, 64, 128, 256, 512)
DIM_STEP = 4  # dims of column splits are multiples of it
POOLING = (0.01, 300.0)
ONE_HOT_SHARE = 0.4
SPLIT_SHARE = 0.1  # tables that are split by columns
COUNTED_SHARE = 0.4  # worlds whose tables have reuse histograms
LARGEST_TABLE_SHARE = 0.6  # of a device's memory: a larger table gets fewer dims
_MAX_DEVICES, MAX_DEVICE_TABLES, _MAX_SHARD_TABLES = 64, 30, 64

_Job = tuple[str, ShardingTask, Placement]
"""Who proposes it (``MeasuredPlacement.proposed_by``), the task, and the placement."""


@dataclass(frozen=True)
class BroadConfig:
    """How much there is.

    Attributes:
        num_worlds: imaginary recommenders.
        max_tables: largest number of tables of a world; the number is log-uniform from 8.
        shards_per_world: random shards, each alone on a device; every fourth is a single table.
        tasks_per_world: placement tasks, each with its own tables and number of devices.
        placements_per_task: random, uneven, and the experts'.
    """

    num_worlds: int = 400
    max_tables: int = 200
    shards_per_world: int = 16
    tasks_per_world: int = 2
    placements_per_task: int = 3


@dataclass(frozen=True)
class World:
    """One imaginary recommender.

    Attributes:
        name: unique.
        tables: the tables, with distinct names.
        batch_size: global batch, samples.
        memory_bytes: memory of a device.
    """

    name: str
    tables: tuple[Table, ...]
    batch_size: int
    memory_bytes: int


def draw_world(
    name: str, config: BroadConfig, memory_bytes: int, rng: np.random.Generator, batch_size: int | None = None
) -> World:
    """A world.

    Args:
        memory_bytes: memory of a device; no table is larger.
        batch_size: None draws one.
    """
    if batch_size is None:
        usual = rng.random() < USUAL_BATCH_SHARE
        batch_size = USUAL_BATCH if usual else int(_log_uniform(rng, *BATCH_SIZES))
    num_tables = int(_log_uniform(rng, 8, config.max_tables + 1))
    dims = _dims(num_tables, rng)
    bits = _weight_bits(num_tables, rng)
    counted = rng.random() < COUNTED_SHARE
    tables = []
    for number in range(num_tables):
        rows = int(_log_uniform(rng, *ROW_RANGES[rng.choice(len(ROW_RANGES), p=ROW_SHARES)]))
        pooling = 1.0 if rng.random() < ONE_HOT_SHARE else _log_uniform(rng, *POOLING)
        pooling = min(pooling, float(rows))  # a sample does not look up three rows a hundred times
        table = Table(f"{name}-{number:03d}", rows, dims[number], pooling, weight_bits=bits[number])
        while table.size_bytes > LARGEST_TABLE_SHARE * memory_bytes and table.embedding_dim > DIM_STEP:
            table = replace(table, embedding_dim=max(DIM_STEP, table.embedding_dim // 2 // DIM_STEP * DIM_STEP))
        if table.size_bytes > LARGEST_TABLE_SHARE * memory_bytes:
            table = replace(table, num_rows=int(table.num_rows * LARGEST_TABLE_SHARE * memory_bytes / table.size_bytes))
        if counted and rng.random() < 0.9:
            table = replace(table, reuse_bins=_reuse_bins(table, batch_size, rng))
        tables.extend(
            split_in_half(table)
            if rng.random() < SPLIT_SHARE and table.embedding_dim % (2 * DIM_STEP) == 0
            else [table]
        )
    return World(name, tuple(tables), batch_size, memory_bytes)


def world_shard_jobs(world: World, count: int, rng: np.random.Generator) -> list[_Job]:
    """Random shards of a world, each alone on a device."""
    jobs = []
    for number in range(count):
        most = min(_MAX_SHARD_TABLES, len(world.tables))
        size = 1 if number % 4 == 0 else int(_log_uniform(rng, 1, most + 1))
        tables = _drawn(world.tables, size, rng)
        task = ShardingTask.whole(f"{world.name}-shard-{number}", tables, 1, world.memory_bytes, world.batch_size)
        jobs.append((RANDOM_SHARD, task, alone(task)))
    return jobs


def draw_task(world: World, name: str, rng: np.random.Generator, max_devices: int = _MAX_DEVICES) -> ShardingTask:
    """Some of a world's tables on some devices, as many as their memory needs at least."""
    devices = int(_log_uniform(rng, 1, max_devices + 1))
    per_device = _log_uniform(rng, 1, MAX_DEVICE_TABLES)
    tables = _drawn(world.tables, max(2, int(devices * per_device)), rng)
    need = sum(table.size_bytes for table in tables) / world.memory_bytes
    return ShardingTask.whole(
        f"{world.name}-{name}", tables, max(devices, int(1.3 * need) + 1), world.memory_bytes, world.batch_size
    )


def world_placement_jobs(task: ShardingTask, count: int, rng: np.random.Generator) -> list[_Job]:
    """Placements of a task by turns: even at random, uneven at random, an expert's."""
    jobs = []
    experts = expert_sharders()
    for number in range(count):
        if number % 3 == 2:
            expert = experts[int(rng.integers(len(experts)))]
            try:
                jobs.append((expert.name, task, expert.place(task)))
            except InfeasibleTask:  # another one teaches as much
                continue
        else:
            # Memory is left to chance: what does not fit a device is not measured there, the other devices teach.
            weights_D = rng.gamma(0.5 if number % 3 else 5.0, size=task.num_devices) + 1e-9
            where = rng.choice(task.num_devices, size=len(task.tables), p=weights_D / weights_D.sum())
            jobs.append(("random", task, Placement(tuple(where.tolist()), task.num_devices)))
    return jobs


def split_in_half(table: Table) -> list[Table]:
    """What a split by columns leaves: the same rows and lookups twice, each with half of the dims."""
    half = table.embedding_dim // 2
    return [replace(table, name=f"{table.name}[{part}]", embedding_dim=half) for part in range(2)]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _drawn(tables: Sequence[Table], count: int, rng: np.random.Generator) -> tuple[Table, ...]:
    return tuple(tables[i] for i in rng.choice(len(tables), size=min(count, len(tables)), replace=False))


def _dims(count: int, rng: np.random.Generator) -> list[int]:
    """One dim for all, or a few powers of two, or anything that is a multiple of four."""
    habit = rng.random()
    if habit < 0.35:
        return [int(rng.choice(DIMS))] * count
    if habit < 0.75:
        first = int(rng.integers(len(DIMS) - 1))
        return [int(dim) for dim in rng.choice(DIMS[first : first + int(rng.integers(2, 6))], size=count)]
    return [DIM_STEP * int(_log_uniform(rng, 1, DIMS[-1] / DIM_STEP + 1)) for _ in range(count)]


def _weight_bits(count: int, rng: np.random.Generator) -> list[int]:
    habit = rng.random()
    if habit < 0.1:
        return [int(bits) for bits in rng.choice((8, 16, 32), size=count)]
    return [32 if habit < 0.55 else 16 if habit < 0.92 else 8] * count


def _reuse_bins(table: Table, batch_size: int, rng: np.random.Generator) -> ReuseBins:
    lookups = table.pooling_factor * batch_size
    if rng.random() < 0.5:
        return power_law_reuse_bins(table.num_rows, lookups, float(rng.uniform(0.5, 1.4)))
    base = DLRM_2021_REUSE if rng.random() < 0.5 else DLRM_2022_REUSE
    return feasible_reuse_bins(table.num_rows, lookups, float(rng.normal(0, 0.4)), base)
