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

from benchmarks.shardbench import device_errors, results, time_loads, timed
from benchmarks.shardbench.cases import BenchMachine, Cell, tables_called
from benchmarks.shardbench.loads import key_of, loads_of, read_loads, write_loads
from benchmarks.shardbench.page import summary
from benchmarks.shardbench.results import parts_of, write_journal
from benchmarks.shardbench.time_loads import Timer, dense_error, repeats_in_time
from benchmarks.shardbench.timed import KernelTimes
from evenshard.placement.parts import Span, TablePart, replica_table, whole_part
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import exchange_times, volumes_of
from evenshard.tables.table import SEQUENCE, Table

CELL = Cell("mixed_4", "h100", 2)


def column_parts(table: Table, *devices: int) -> list[TablePart]:
    width, rows = table.embedding_dim // len(devices), Span(0, table.num_rows)
    return [
        TablePart(table.name, rows, Span(at * width, (at + 1) * width), (device,)) for at, device in enumerate(devices)
    ]


def row_parts(table: Table, num_devices: int) -> list[TablePart]:
    block = -(-table.num_rows // num_devices)
    spans = [Span(at * block, min((at + 1) * block, table.num_rows)) for at in range(num_devices)]
    return [TablePart(table.name, rows, Span(0, table.embedding_dim), (at,)) for at, rows in enumerate(spans)]


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
    found = [*column_parts(wide, one, other), *row_parts(long, 2), whole_part(small, (0, 1))]
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


def test_equal_loads_are_one_whatever_they_are_called(task: ShardingTask, tmp_path: Path) -> None:
    others = tuple(replace(table, name=f"other {table.name}") for table in task.tables)
    renamed = replace(task, tables=others)
    loads = [*loads_of(task, plan(task.tables)), *loads_of(renamed, plan(others, swapped=True)[::-1])]
    assert {key_of(one) for one in loads[:2]} == {key_of(one) for one in loads[2:]} and loads[0] == loads[3]
    assert write_loads(tmp_path / "loads.jsonl.gz", loads) == 2
    assert read_loads(tmp_path / "loads.jsonl.gz") == loads[:2]


def test_features_of_a_table_are_drawn_each(task: ShardingTask) -> None:
    two = Table("two", 100, 8, 5.0, feature_names=("a", "b"), feature_pooling_factors=(2.0, 3.0))
    sequence = replace(two, name="sequence", pooling=SEQUENCE)
    (load, nothing) = loads_of(
        replace(task, tables=(two, sequence)), [whole_part(one, (0,)) for one in (two, sequence)]
    )
    assert nothing == ()
    pooled, unpooled = sorted(load, key=lambda call: call.pooling == SEQUENCE)
    assert [one[:3] for one in pooled.lookups] == [(0, 1, 2.0), (0, 1, 3.0)] and pooled.num_columns == 16
    assert [one[:3] for one in unpooled.lookups] == [(0, 2, 2.5)] and unpooled.num_columns == 8
    assert [bags for _, bags in unpooled.drawn_tables()] == [128]


def test_loads_are_timed_by_real_kernels(task: ShardingTask, tmp_path: Path) -> None:
    loads = loads_of(task, plan(task.tables))
    with closing(Timer(torch.device("cpu"), tmp_path)) as timer:
        time_loads.time_loads(timer, loads, 60.0, 0)
    first, *lines = map(json.loads, (tmp_path / "kernel_times.jsonl").read_text().splitlines())
    assert "fbgemm_gpu" in str(first["versions"]) and [line["key"] for line in lines] == [key_of(one) for one in loads]
    for line in lines:
        for name in ("forward_ms", "backward_ms", "dense_ms"):
            assert len(line[name]) == time_loads.REPEATS and min(line[name]) > 0


def test_only_repeats_count_that_were_launched_in_time() -> None:
    asked = []

    def step(number: int, spin_ms: float, slow_ms: float = 12.0) -> tuple[float, ...]:
        asked.append(spin_ms)
        return float(number), slow_ms if number % 3 else 4.0

    assert repeats_in_time(step, 7.0) == [(2.0, 12.0), (3.0, 4.0), (4.0, 12.0), (5.0, 12.0), (6.0, 4.0)]
    assert asked == [7.0] * 7 + [14.0] * 7  # two of five are too few
    assert repeats_in_time(lambda number, spin_ms: step(number % 2, spin_ms), 7.0) == [(0.0, 4.0)] * 3
    assert repeats_in_time(lambda number, spin_ms: step(1, spin_ms, 1e3), 7.0) == []


def test_dense_calls_compute_what_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert dense_error(device) < 1e-5
    right = torch.nn.functional.embedding_bag
    monkeypatch.setattr(torch.nn.functional, "embedding_bag", lambda *of, **more: -right(*of, **more))
    assert dense_error(device) > 1.0


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


def test_kernels_of_the_backward_pass_are_told_from_all_else() -> None:
    kernels_us = {
        "aten::fill_": [1, 500.0],
        "void split_embedding_codegen_forward_unweighted_kernel<float>": [1, 300.0],
        "void bounds_check_indices_kernel_v1<int>": [1, 200.0],
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<signed char>>": [1, 100.0],
        "void split_embedding_backward_codegen_sgd_unweighted_kernel_warp_per_row_1<float>": [1, 70.0],
        "Memset (Device)": [6, 6.0],
    }
    assert KernelTimes([{"key": "a", "kernels_us": kernels_us}]).kernels_ms == {"a": pytest.approx(0.076)}


def test_the_bench_prices_by_what_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a plan are written, timed here, and then an oracle of the bench and the judge of the device model."""
    monkeypatch.setattr(results, "_raters", results._raters.__wrapped__)
    monkeypatch.setattr(timed, "KERNEL_TIMES", tmp_path)
    task, journal = CELL.machine.task(tables_called("mixed_4")), tmp_path / "journal.jsonl"
    small = replace(task, tables=tuple(replace(table, num_rows=min(table.num_rows, 1000)) for table in task.tables))
    assert [one.batch_size for one in (task, small)] == [65_536] * 2
    found = results.results_of(CELL, results.Planner("greedy", lambda *of: [("", half(task))], ""))
    assert found[0].kernels_ms is None
    write_journal(journal, found)
    lines = [
        {"key": key_of(load), "forward_ms": [1.0], "backward_ms": [2.0 + number], "dense_ms": [0.0]}
        for number, load in enumerate(loads_of(task, parts_of(found[0])))
    ]
    with gzip.open(tmp_path / "shardbench_h100.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, lines)))
    timed.kernel_times_of.cache_clear()
    (priced,) = [results.with_costs(one) for one in found]
    assert priced.kernels_ms is not None and priced.kernels_ms > 4.0
    assert any(line.startswith("| kernels, timed | 0 |") for line in summary([priced]))
    text = "\n".join(device_errors.errors([priced]))
    assert text.startswith("| loads | count | forward: ratio") and "| all | 2 |" in text and "| mixed_4 | 2 |" in text
    timed.kernel_times_of.cache_clear()


def half(task: ShardingTask) -> list[TablePart]:
    return [whole_part(table, (at % 2,)) for at, table in enumerate(task.tables)]
