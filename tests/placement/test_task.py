"""Placement tasks: drawn from disjoint halves of a pool, kept as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.task import TableLimits, may_be_cut_by_columns
from evenshard.placement.tasks import TaskSampling, TaskSplit, load_tasks, sample_tasks, save_tasks
from evenshard.tables.table import Table
from support.builders import some_tables, table, task

POOL = some_tables(20)
SAMPLING = TaskSampling(
    num_train_tasks=30, num_test_tasks=20, tables_per_task=6, num_devices=3, memory_cap_gb=1.5, batch_size=512
)


def names(tasks: tuple[Any, ...]) -> set[str]:
    return {one.name for each in tasks for one in each.tables}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_tasks_are_those_of_their_seed_with_the_settings_and_no_table_on_both_sides(seed: int) -> None:
    split = sample_tasks(POOL, SAMPLING, seed)
    assert not names(split.train) & names(split.test)
    assert (len(split.train), len(split.test)) == (30, 20)
    assert len({each.task_id for each in split.train + split.test}) == 50
    for each in split.train + split.test:
        assert len(set(each.tables)) == 6
        assert (each.num_devices, each.memory_cap_bytes, each.batch_size) == (3, 3 * BYTES_PER_GB // 2, 512)
    assert sample_tasks(POOL, SAMPLING, seed) == split
    assert len({tuple(sorted(names(sample_tasks(POOL, SAMPLING, number).test))) for number in range(4)}) > 1


def test_a_half_that_is_smaller_than_a_task_is_refused_with_both_numbers() -> None:
    sample_tasks(POOL[:12], SAMPLING, 0)
    with pytest.raises(
        BadConfig, match=r"tables_per_task is 6, but train and test tasks each use half of the pool, 5 tables"
    ):
        sample_tasks(POOL[:11], SAMPLING, 0)


@settings(max_examples=25, deadline=None)
@given(cap=st.integers(1, 2**45))
def test_tasks_come_back_from_disk_unchanged_to_the_byte(tmp_path_factory: pytest.TempPathFactory, cap: int) -> None:
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    split = TaskSplit(train=(task(POOL[3:0:-1], 4, cap, "a"),), test=(task(POOL[5:9], 1, 10**9, "b", 65536),))
    save_tasks(split, path)
    assert load_tasks(path, POOL) == split


GOOD = {"task_id": "train-000", "num_devices": 2, "memory_cap_gb": 1.0, "batch_size": 8, "tables": ["ads", "users"]}
ADS_AND_USERS = (table("ads"), table("users"))


def test_a_bad_record_is_named_with_file_and_number(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tables": ["ads", "clicks"]}, r"train\[1\]: .*'clicks' is not in the table file"),
        ({"tables": ["ads", "ads"]}, r"train\[1\]: .*ads"),
        ({"tables": []}, r"train\[1\]: tables is empty"),
        ({"batch_size": 0}, "batch_size is 0, not a whole number from 1"),
        ({"memory_cap_gb": 0}, "memory_cap_gb is 0.0, not a number above 0 and at most 1,048,576"),
        ({"num_devices": 10**6}, "num_devices is 1000000, not a whole number from 1 to 4,096"),
        ({"task_id": "train-999"}, "train-999"),
    ]
    for change, words in wrong:
        content = {"train": [GOOD | {"task_id": "train-999"}, GOOD | change], "test": []}
        (tmp_path / "tasks.json").write_text(json.dumps(content))
        with pytest.raises(BadFile, match=rf"tasks\.json.*{words}"):
            load_tasks(tmp_path / "tasks.json", ADS_AND_USERS)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    with pytest.raises(BadFile, match=r"no such file.*generate-tables"):
        load_tasks(path, POOL)
    for text, words in (
        ("{", "it is not JSON"),
        ('{"train": [{"memory_cap_gb": NaN}], "test": []}', "'NaN' is not a valid number"),
        ("[]", r"is \[\], not a mapping"),
        ('{"train": []}', "test"),
        ('{"train": 3, "test": []}', "train"),
    ):
        path.write_text(text)
        with pytest.raises(BadFile, match=rf"tasks\.json.*{words}"):
            load_tasks(path, POOL)


def test_tables_are_found_by_name_so_the_pool_may_be_reordered(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    split = TaskSplit(train=(task(POOL[:4]),), test=())
    save_tasks(split, path)
    assert load_tasks(path, POOL[::-1]) == split
    wider = tuple(replace(one, embedding_dim=8) for one in POOL)
    assert load_tasks(path, wider).train[0].tables == wider[:4]


@pytest.mark.parametrize(
    ("columns", "parts", "min_columns", "may"),
    [(8, 2, 4, True), (4, 2, 4, False), (8, 3, 4, False), (10, 2, 4, False), (8, 2, 8, False), (16, 2, 8, True)],
)
def test_columns_are_cut_in_fours_of_the_minimum_width(columns: int, parts: int, min_columns: int, may: bool) -> None:
    assert may_be_cut_by_columns(Table("t", 10, columns, 1.0), TableLimits(min_columns=min_columns), parts) is may
