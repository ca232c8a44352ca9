"""Tasks of whole tables for training and evaluation, sampled from a pool of tables or read from a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.knobs import RANGES
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.base.typed import read_record
from evenshard.base.units import bytes_to_gb, gb_to_bytes
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table

_MAX_SHARD_TABLES = 64  # tables of the largest shard that is measured alone


@dataclass(frozen=True)
class TaskSampling:
    """Settings for sampling tasks from a pool; for their meanings, see ``GenerateTablesConfig``."""

    num_train_tasks: int
    num_test_tasks: int
    tables_per_task: int
    num_devices: int
    memory_cap_gb: float
    batch_size: int


@dataclass(frozen=True)
class TaskSplit:
    """Train and test tasks, which have no table in common."""

    train: tuple[ShardingTask, ...]
    test: tuple[ShardingTask, ...]


def sample_tasks(pool: Sequence[Table], sampling: TaskSampling, seed: int) -> TaskSplit:
    """Split the pool into random halves, and draw train tasks from one half and test tasks from the other."""
    half = len(pool) // 2
    if half < sampling.tables_per_task:
        raise BadConfig(
            f"tables_per_task is {sampling.tables_per_task}, but train and test tasks each use half of the pool, "
            f"{half} tables. Lower tables_per_task or use a larger pool."
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(pool))

    def draw(side: str, members: np.ndarray, count: int) -> tuple[ShardingTask, ...]:
        return tuple(
            ShardingTask.whole(
                task_id=f"{side}-{number:03d}",
                tables=tuple(pool[i] for i in rng.choice(members, size=sampling.tables_per_task, replace=False)),
                num_devices=sampling.num_devices,
                memory_cap_bytes=gb_to_bytes(sampling.memory_cap_gb),
                batch_size=sampling.batch_size,
            )
            for number in range(count)
        )

    return TaskSplit(
        train=draw("train", shuffled[:half], sampling.num_train_tasks),
        test=draw("test", shuffled[half:], sampling.num_test_tasks),
    )


def single_table_task(table: Table, batch_size: int) -> ShardingTask:
    """Return a task with one table on one device, to measure the table alone."""
    return ShardingTask.whole(f"alone-{table.name}", (table,), 1, table.size_bytes, batch_size)


def sample_shards(
    pool: Sequence[Table], count: int, batch_size: int, memory_cap_bytes: int, rng: np.random.Generator
) -> tuple[ShardingTask, ...]:
    """Sample tasks with one device and 1 to 64 tables of the pool, for measuring single shards.

    The number of tables is log-uniform, so that small and large shards are equally frequent. Tables that no longer
    fit the memory cap are left out.

    Raises:
        BadConfig: if no table fits the memory cap.
    """
    candidates = [table for table in pool if table.size_bytes <= memory_cap_bytes]
    if not candidates:
        raise BadConfig(f"memory_cap_gb is {bytes_to_gb(memory_cap_bytes):.2f}: no table of the pool fits. Raise it.")
    most = min(_MAX_SHARD_TABLES, len(candidates))
    shards = []
    for number in range(count):
        size = min(most, int(np.exp(rng.uniform(0, np.log(most + 1)))))
        drawn = [candidates[i] for i in rng.choice(len(candidates), size=size, replace=False)]
        room = np.cumsum([table.size_bytes for table in drawn]) <= memory_cap_bytes
        tables = tuple(table for table, fits in zip(drawn, room, strict=True) if fits)
        shards.append(ShardingTask.whole(f"shard-{number:05d}", tables, 1, memory_cap_bytes, batch_size))
    return tuple(shards)


def save_tasks(split: TaskSplit, path: Path) -> None:
    """Write tasks as JSON that refers to tables by name."""

    def record(task: ShardingTask) -> dict[str, object]:
        return {
            "task_id": task.task_id,
            "num_devices": task.num_devices,
            "memory_cap_gb": bytes_to_gb(task.memory_cap_bytes),
            "batch_size": task.batch_size,
            "tables": [table.name for table in task.tables],
        }

    sides = {"train": [record(task) for task in split.train], "test": [record(task) for task in split.test]}
    write_text(path, json.dumps(sides, indent=1) + "\n")


@blame_file
def load_tasks(path: Path, pool: Sequence[Table]) -> TaskSplit:
    """Load tasks that refer to the tables of ``pool``.

    Raises:
        BadFile: if the file is missing, is not a task file, or names a table that is not in the pool.
    """
    by_name = {table.name: table for table in pool}
    remedy = "Write it with `evenshard generate-tables`."
    stated = read_record(_TaskFile, read_json(path, "a task file", remedy), path, remedy)

    def tasks(side: str) -> tuple[ShardingTask, ...]:
        records = getattr(stated, side)
        return tuple(_task(path, f"{side}[{number}]", record, by_name) for number, record in enumerate(records))

    split = TaskSplit(train=tasks("train"), test=tasks("test"))
    ids = Counter(task.task_id for task in (*split.train, *split.test))
    twice = next((task_id for task_id, count in ids.items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"two tasks have the task_id {brief(twice)}", "Give each a different task_id.")
    return split


@dataclass(frozen=True)
class _TaskRecord:
    task_id: str
    tables: tuple[str, ...]
    num_devices: int
    memory_cap_gb: float
    batch_size: int


@dataclass(frozen=True)
class _TaskFile:
    train: tuple[_TaskRecord, ...]
    test: tuple[_TaskRecord, ...]


def _task(path: Path, where: str, stated: _TaskRecord, by_name: dict[str, Table]) -> ShardingTask:
    for name in ("num_devices", "memory_cap_gb", "batch_size"):
        if problem := RANGES[name].problem(getattr(stated, name)):
            raise BadFile(path, f"{name} {problem}", "Correct it.", where)
    names = stated.tables
    if not names:
        raise BadFile(path, "tables is empty", "Name at least one table.", where)
    unknown = next((name for name in names if name not in by_name), None)
    if unknown is not None:
        problem = f"table {brief(unknown)} is not in the table file"
        raise BadFile(path, problem, "Use the table file from which the tasks were generated.", where)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"table {brief(twice)} is named twice", "Name each table once.", where)
    tables, cap_bytes = tuple(by_name[name] for name in names), gb_to_bytes(stated.memory_cap_gb)
    try:
        return ShardingTask.whole(stated.task_id, tables, stated.num_devices, cap_bytes, stated.batch_size)
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), "Correct it.", where) from None
