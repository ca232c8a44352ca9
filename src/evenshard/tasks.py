"""What has to be placed? A placement task: tables, devices, their memory, and the training batch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from evenshard.atomic import atomic_path
from evenshard.constraints import UNCONSTRAINED, Constraints
from evenshard.errors import BadConfig, BadFile
from evenshard.tables import Table
from evenshard.units import bytes_to_gb, gb_to_bytes

MAX_SHARD_TABLES = 64


@dataclass(frozen=True)
class PlacementTask:
    """Tables to spread over equally fast devices.

    Attributes:
        task_id: unique within a task file.
        tables: the tables to place, in no particular order.
        num_devices: devices that hold tables.
        memory_cap_bytes: bytes that one device may hold.
        batch_size: samples of one training step over all devices together (the global batch):
            with table-wise sharding every device looks its tables up for all of them.
        constraints: what else a placement must respect. They change no cost, and so they are no part of ``repr``,
            which tells apart what is measured.
    """

    task_id: str
    tables: tuple[Table, ...]
    num_devices: int
    memory_cap_bytes: int
    batch_size: int
    constraints: Constraints = field(default=UNCONSTRAINED, repr=False)

    @cached_property
    def caps_bytes(self) -> tuple[int, ...]:
        """What each device may hold, by device id."""
        return self.constraints.device_caps_bytes or (self.memory_cap_bytes,) * self.num_devices

    @cached_property
    def table_bytes(self) -> tuple[int, ...]:
        """What each table takes of a device's memory: its weights, and optimizer state where that is counted."""
        state = self.constraints.state_bytes or (0,) * len(self.tables)
        return tuple(table.size_bytes + more for table, more in zip(self.tables, state, strict=True))


@dataclass(frozen=True)
class TaskSampling:
    """How tasks are drawn from a pool.

    Attributes:
        num_train_tasks: tasks the networks learn from.
        num_test_tasks: tasks held out, made only of tables that no train task holds.
        tables_per_task: tables in each task, drawn without replacement.
        num_devices: devices of each task.
        memory_cap_gb: GB of weights per device.
        batch_size: global batch, samples.
    """

    num_train_tasks: int
    num_test_tasks: int
    tables_per_task: int
    num_devices: int
    memory_cap_gb: float
    batch_size: int


@dataclass(frozen=True)
class TaskSplit:
    """Train and test tasks; no table occurs on both sides."""

    train: tuple[PlacementTask, ...]
    test: tuple[PlacementTask, ...]


def sample_tasks(pool: Sequence[Table], sampling: TaskSampling, seed: int) -> TaskSplit:
    """Splits the pool into disjoint halves at random and draws train and test tasks from them.

    Raises:
        BadConfig: if half of the pool has fewer tables than a task needs.
    """
    half = len(pool) // 2
    if half < sampling.tables_per_task:
        raise BadConfig(
            f"tables_per_task is {sampling.tables_per_task}, but half of the pool (train and test tables are kept "
            f"apart) is {half} tables. Lower tables_per_task or use a larger pool."
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(pool))

    def draw(side: str, members: np.ndarray, count: int) -> tuple[PlacementTask, ...]:
        return tuple(
            PlacementTask(
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


def distinct_tables(tasks: Sequence[PlacementTask]) -> tuple[Table, ...]:
    """The tables of all tasks, each once: what to normalise features over and to draw shards from."""
    return tuple(dict.fromkeys(table for task in tasks for table in task.tables))


def single_table_task(table: Table, batch_size: int) -> PlacementTask:
    """The task of measuring one table alone on one device."""
    return PlacementTask(f"alone-{table.name}", (table,), 1, table.size_bytes, batch_size)


def sample_shards(
    pool: Sequence[Table], count: int, batch_size: int, memory_cap_bytes: int, rng: np.random.Generator
) -> tuple[PlacementTask, ...]:
    """Random shards to measure alone: tasks of one device that hold 1 to 64 tables of the pool.

    The number of tables is log-uniform, so that few and many tables are seen alike; tables beyond the memory cap are
    left out.

    Raises:
        BadConfig: if no table fits the memory cap.
    """
    candidates = [table for table in pool if table.size_bytes <= memory_cap_bytes]
    if not candidates:
        raise BadConfig(f"memory_cap_gb is {bytes_to_gb(memory_cap_bytes):.2f}: no table of the pool fits. Raise it.")
    most = min(MAX_SHARD_TABLES, len(candidates))
    shards = []
    for number in range(count):
        size = min(most, int(np.exp(rng.uniform(0, np.log(most + 1)))))
        drawn = [candidates[i] for i in rng.choice(len(candidates), size=size, replace=False)]
        room = np.cumsum([table.size_bytes for table in drawn]) <= memory_cap_bytes
        tables = tuple(table for table, fits in zip(drawn, room, strict=True) if fits)
        shards.append(PlacementTask(f"shard-{number:05d}", tables, 1, memory_cap_bytes, batch_size))
    return tuple(shards)


def save_tasks(split: TaskSplit, path: Path) -> None:
    """Writes tasks as JSON that refers to tables by name."""

    def record(task: PlacementTask) -> dict[str, object]:
        return {
            "task_id": task.task_id,
            "num_devices": task.num_devices,
            "memory_cap_gb": bytes_to_gb(task.memory_cap_bytes),
            "batch_size": task.batch_size,
            "tables": [table.name for table in task.tables],
        }

    sides = {"train": [record(task) for task in split.train], "test": [record(task) for task in split.test]}
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(sides, indent=1) + "\n")


def load_tasks(path: Path, pool: Sequence[Table]) -> TaskSplit:
    """Reads tasks that refer to the tables of ``pool``.

    Raises:
        BadFile: if the file is missing, is no task file, or names a table the pool does not hold.
    """
    by_name = {table.name: table for table in pool}
    remedy = "Write it with `evenshard generate-tables`."
    try:
        sides = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except (ValueError, OSError) as error:
        raise BadFile(path, f"not readable as JSON ({error})", remedy) from None
    if not isinstance(sides, dict) or not all(isinstance(sides.get(side), list) for side in ("train", "test")):
        raise BadFile(path, "has no lists of train and test tasks", remedy)

    def tasks(side: str) -> tuple[PlacementTask, ...]:
        return tuple(_task(path, f"{side} task {number}", record, by_name) for number, record in enumerate(sides[side]))

    split = TaskSplit(train=tasks("train"), test=tasks("test"))
    ids = Counter(task.task_id for task in (*split.train, *split.test))
    twice = next((task_id for task_id, count in ids.items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"two tasks have the task_id {twice!r}", "Give each its own.")
    return split


def _task(path: Path, where: str, record: object, by_name: dict[str, Table]) -> PlacementTask:
    try:
        assert isinstance(record, dict)
        names = [str(name) for name in record["tables"]]
        task_id, num_devices = str(record["task_id"]), int(record["num_devices"])
        cap_gb, batch_size = float(record["memory_cap_gb"]), int(record["batch_size"])
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadFile(
            path,
            f"a task needs task_id, tables, num_devices, memory_cap_gb and batch_size ({error!r})",
            "Complete it.",
            where,
        ) from None
    unknown = next((name for name in names if name not in by_name), None)
    if unknown is not None:
        raise BadFile(path, f"table {unknown!r} is not in the table file", "Use the tables it was made with.", where)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"table {twice!r} is named twice", "Name each table once.", where)
    if num_devices < 1 or batch_size < 1 or not 0 < cap_gb < math.inf or not names:
        problem = "num_devices, batch_size, memory_cap_gb and the number of tables must be above 0 and finite"
        raise BadFile(path, problem, "Repair it.", where)
    return PlacementTask(task_id, tuple(by_name[name] for name in names), num_devices, gb_to_bytes(cap_gb), batch_size)
