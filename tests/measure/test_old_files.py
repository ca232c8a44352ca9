"""Files of earlier versions are read: tasks, plans, journals and cost datasets, of whole tables and of parts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from evenshard.measure.campaign import Job, from_journal, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs, load_shardings
from evenshard.measure.costs import PlacementCost
from evenshard.measure.hardware import open_hardware
from evenshard.measure.journal import Journal
from evenshard.measure.plan import load_measure_plan
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, load_tasks, sample_tasks
from evenshard.tables.files import load_tables

OLD = Path(__file__).parent / "old_files"
POOL = load_tables(OLD / "tables.parquet")
CONFIG = MeasureConfig(hardware="simulated:h100", noise=0.02, visits=2, seed=5)


def opened(tmp_path: Path, name: str) -> Journal:
    """A copy of an old journal: opening one writes it."""
    (tmp_path / name).write_bytes((OLD / name).read_bytes())
    return Journal(tmp_path / name)


# Of the links' times as they are today.
EXCHANGES = ("fwd_all_to_all_ms", "bwd_all_to_all_ms", "fwd_wait_ms")


def assert_same_but_for_rounding(cost: PlacementCost, other: PlacementCost, leave_out: tuple[str, ...] = ()) -> None:
    """The mathematical functions of another CPU may differ in the last digits."""
    found, expected = asdict(cost), asdict(other)
    for device, other_device in zip(found.pop("devices"), expected.pop("devices"), strict=True):
        for name, value in device.items():
            if name in leave_out:
                continue
            is_time = isinstance(value, float)
            assert value == (pytest.approx(other_device[name], rel=1e-12) if is_time else other_device[name]), name
    assert found == expected


def test_tasks() -> None:
    assert load_tasks(OLD / "tasks.json", POOL) == sample_tasks(POOL[:8], TaskSampling(2, 1, 3, 2, 0.5, 64), 0)


def test_a_journal_of_whole_tables_resumes_and_kernels_are_simulated_as_then(tmp_path: Path) -> None:
    jobs, config = load_measure_plan(OLD / "plan.json")
    assert config == CONFIG
    with opened(tmp_path, "whole.jsonl") as journal:
        kept = from_journal(jobs, config, journal)
    assert [one.measurement_id for one in kept] == [job.measurement_id for job in jobs]
    with Journal(tmp_path / "new.jsonl") as journal:
        again = measure_jobs(open_hardware(config), jobs, config, journal)
    for now, before in zip(again, kept, strict=True):
        assert_same_but_for_rounding(now.cost, before.cost, leave_out=EXCHANGES)
    (first, second, alone) = load_costs(OLD / "whole.parquet", POOL)
    assert [one.cost for one in (first, second, alone)] == [one.cost for one in kept]
    assert alone.task.num_devices == 1 and [table.name for table in alone.task.tables] == ["t0"]
    assert {table.name for table in first.task.tables} == {table.name for table in jobs[0].task.tables}


def test_a_journal_of_parts_resumes(tmp_path: Path) -> None:
    by_name = {table.name: table for table in POOL}
    tables = (by_name["wide"], by_name["t0"], by_name["t1"])
    machine = Machine(4, 2, intra="measured", inter="measured")
    task = ShardingTask(tables, machine, (10**6,) * 4, 64, "rowwise_adagrad", task_id="train-000")
    _, long, small = tables
    rows, columns = long.num_rows, Span(0, long.embedding_dim)
    parts = (
        TablePart("wide", Span(0, 40), Span(0, 4), (0,)),
        TablePart("wide", Span(0, 40), Span(4, 8), (3,)),
        TablePart("t0", Span(0, rows // 2), columns, (2,)),
        TablePart("t0", Span(rows // 2, rows), columns, (3,)),
        TablePart("t1", Span(0, small.num_rows), Span(0, small.embedding_dim), (0, 1, 2, 3)),
    )
    job = Job("round1-sharded-00000", task, parts, 1, "random", "s")
    with opened(tmp_path, "parts.jsonl") as journal:
        (kept,) = from_journal([job], MeasureConfig(visits=1), journal)
    (loaded,) = load_shardings(OLD / "parts.parquet", POOL)
    assert (loaded.cost, loaded.task.task_id, loaded.provenance) == (kept.cost, "train-000", kept.provenance)
    assert set(loaded.parts) == set(parts) and kept.parts == parts
    assert [one.input_dist_ms for one in loaded.cost.devices] == [0.5] * 4
