"""Loads of plans: what devices run, timed by real kernels, and the oracle made of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.references.rows import read_rows, run_script
from benchmarks.shardbench import time_loads, timed
from benchmarks.shardbench.cases import BenchMachine
from benchmarks.shardbench.loads import key_of, loads_of
from benchmarks.shardbench.time_loads import Timer
from benchmarks.shardbench.timed import KernelTimes
from evenshard.base.errors import BadFile
from evenshard.placement.parts import TablePart, cut_rows, replica_table, whole_part
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import exchange_times, volumes_of
from evenshard.tables.table import SEQUENCE, Table
from support.builders import column_parts


@pytest.fixture
def tables() -> tuple[Table, ...]:
    return (
        Table("wide", 1000, 64, 4.0),
        Table("long", 5000, 16, 2.5),
        Table("small", 50, 8, 1.0),
        Table("history", 300, 32, 6.0, pooling=SEQUENCE),
        Table("whole", 700, 16, 3.0),
    )


@pytest.fixture
def task(tables: tuple[Table, ...]) -> ShardingTask:
    return replace(BenchMachine.of("h100", 2, 64).task(tables), batch_size=64)


def plan(tables: Sequence[Table], swapped: bool = False) -> list[TablePart]:
    wide, long, small, history, whole = tables
    one, other = (1, 0) if swapped else (0, 1)
    halves = [replace(part, devices=(at,)) for at, part in zip((one, other), column_parts(wide, (32,)), strict=True)]
    found = [*halves, *cut_rows(long, range(2)), whole_part(small, (0, 1))]
    return [*found, whole_part(history, (other,)), whole_part(whole, (one,))]


def test_a_load_has_the_calls_of_a_device(task: ShardingTask) -> None:
    first, second = loads_of(task, plan(task.tables))
    dense, rows, columns = sorted(first, key=lambda call: (not call.is_dense, -call.tables[0][0]))
    assert dense.is_dense and dense.tables == ((50, 8, 32),) and dense.batch_size == 32
    assert replica_table(task.tables[2], 2).pooling_factor == dense.lookups[0][2]
    assert rows.tables == ((2500, 16, 32),) and rows.lookups[0][:3] == (0, 1, 1.25) and rows.batch_size == 64
    assert columns.tables == ((1000, 32, 32), (700, 16, 32)) and columns.num_columns == 48
    assert [one[:3] for one in columns.lookups] == [(0, 1, 4.0), (1, 1, 3.0)]
    assert [call.pooling for call in second].count(SEQUENCE) == 1 and len(second) == 4
    assert dense in second


def test_loads_are_timed_by_real_kernels(task: ShardingTask, tmp_path: Path) -> None:
    loads = loads_of(task, plan(task.tables))
    with closing(Timer(torch.device("cpu"), tmp_path)) as timer:
        time_loads.time_loads(timer, loads, 60.0, 0)
    first, *lines = map(json.loads, (tmp_path / "kernel_times.jsonl").read_text().splitlines())
    assert "fbgemm_gpu" in str(first["versions"]) and [line["key"] for line in lines] == [key_of(one) for one in loads]
    for line in lines:
        for name in ("forward_ms", "backward_ms", "dense_ms"):
            assert len(line[name]) == time_loads.REPEATS and min(line[name]) > 0


def test_a_step_is_the_slowest_devices_with_exchanges(task: ShardingTask) -> None:
    parts = plan(task.tables)
    loads, links = loads_of(task, parts), BenchMachine.of("h100", 2, 64).links
    times = ((1.0, 3.0), (2.0, 1.0))
    lines = [
        {"key": key_of(load), "forward_ms": [9.0, fwd, 0.0], "backward_ms": [bwd - 0.5], "dense_ms": [0.5]}
        for load, (fwd, bwd) in zip(loads, times, strict=True)
    ]
    exchanges = exchange_times(task, volumes_of(task, parts_by_table(task, parts)), links)
    expected = exchanges.forward.max() + np.add(exchanges.backward, [4.0, 3.0]).max()
    found = KernelTimes(lines).step_ms(task, parts, links)
    assert found == pytest.approx(expected, abs=1e-4) and exchanges.input_dist.max() < 3.0
    assert KernelTimes(lines[:1]).step_ms(task, parts, links) is None
    slower = [{**line, "backward_ms": [line["backward_ms"][0] + 2.0]} for line in lines]  # type: ignore[index]
    assert KernelTimes([*lines, *slower]).step_ms(task, parts, links) == pytest.approx(expected + 1.0, abs=1e-4)


def test_a_script_stops_without_rows_that_it_should_have(tmp_path: Path) -> None:
    path, content = tmp_path / "shardbench_h100.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": 2}\n')
    with pytest.raises(SystemExit, match=r"error: .*0 of at least 2,342 rows: no such file"):
        run_script(lambda: print(read_rows(path)))
    for written, why in ((content, r"2 of at least 2,342 rows\. "), (content[:-12], "rows: damaged")):
        path.write_bytes(written)
        with pytest.raises(BadFile, match=why):
            read_rows(path)


def test_a_gpu_without_a_file_of_times_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "KERNEL_TIMES", tmp_path)
    assert not timed.kernel_times_of.__wrapped__("v100").runs
    with pytest.raises(BadFile, match="0 of at least"):
        timed.kernel_times_of.__wrapped__("h100")
