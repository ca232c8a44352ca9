"""ShardBench: its journal, its oracles, planners of others, and the page that is made of its CSV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.shardbench import cases, linear
from benchmarks.shardbench.cases import BenchMachine, Cell, tables_called
from benchmarks.shardbench.page import comparable, page, table
from benchmarks.shardbench.planners import NAMES, autoshard, dreamshard, load_planner
from benchmarks.shardbench.results import (
    FITS,
    ILLEGAL,
    NO_PLAN,
    OVER_MEMORY,
    parts_of,
    read_csv,
    read_journal,
    results_of,
    write_csv,
)
from benchmarks.studies.trainings import AutoShardConfig, DreamShardConfig
from evenshard.placement.parts import whole_part
from evenshard.placement.placement import check_sharding
from evenshard.sharders.autoshard.fit import ImpalaConfig
from evenshard.sharders.training import FitConfig
from evenshard.tables.table import Table
from support.repository import ROOT

PAGE = ROOT / "benchmarks" / "shardbench_202611.md"
# A planner of others: every table on the device that is named first.
FIRST_DEVICE = """
from evenshard.placement.parts import whole_part

def plan(tables, machine):
    return [whole_part(table, (0,)) for table in tables]
"""
LOSES_A_TABLE = FIRST_DEVICE.replace("in tables]", "in tables[1:]]")
GIVES_UP = """
from evenshard.base.errors import InfeasibleTask

def plan(tables, machine):
    raise InfeasibleTask(f"{len(tables)} tables are too many for {machine.nodes.num_devices} devices")
"""


def write_planner(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return str(folder / f"{name}.py")


def test_the_command_plans_what_is_missing_and_writes_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "work" / "journal.jsonl", tmp_path / "bench"
    asked = ["shardbench", "--models", "mixed_3", "--hardware", "v100", "--devices", "2", "--journal", str(journal)]
    asked += ["--out", str(out), "--planners"]
    main([*asked, "evenshard,greedy,torchrec_default"])
    before = read_journal(journal)
    main([*asked, f"evenshard,greedy,torchrec_default,{write_planner(tmp_path, 'first_device', FIRST_DEVICE)}"])
    results = read_journal(journal)
    assert results[:-1] == before and results[-1].planner == "first_device"
    assert [one.planner for one in before] == ["evenshard", *["greedy"] * 4, "torchrec_default"]
    cell = Cell("mixed_3", "v100", 2)
    for one in results:
        assert one.status == FITS and one.cell == cell
        check_sharding(cell.machine.task(cell.tables), parts_of(one))
    assert results[0].ms("device") == min(one.ms("device") for one in results) < results[-1].ms("device")
    main([*asked, "evenshard", "--again"])
    assert read_journal(journal) == results
    assert [one.planner for one in read_csv(out.with_suffix(".csv"))] == ["evenshard"]
    assert out.with_suffix(".svg").read_text().count("2 x v100") == 1
    schema = (tmp_path / "bench_schema.csv").read_text().splitlines()
    columns = out.with_suffix(".csv").read_text().partition("\n")[0].split(",")
    assert [line.partition(",")[0] for line in schema] == ["column", *columns]
    assert out.with_suffix(".md").read_text() == page(comparable(list(read_csv(out.with_suffix(".csv")))), "bench")
    assert "mixed_3, 2 x v100: first_device, 1 plans" in capsys.readouterr().out


def test_plans_that_may_not_be_used_are_told_and_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(table.size_bytes for table in tables_called("mixed_5"))
    monkeypatch.setattr(cases, "TABLES_SHARE", 0.99 * total / cases.gpu_profile("v100").memory_bytes)
    cell, rows = Cell("mixed_5", "v100", 2), []
    for name, text in (("first_device", FIRST_DEVICE), ("loses_a_table", LOSES_A_TABLE), ("gives_up", GIVES_UP)):
        rows += results_of(cell, load_planner(write_planner(tmp_path, name, text)))
    assert [one.status for one in rows] == [OVER_MEMORY, ILLEGAL, NO_PLAN]
    assert "device 0 needs" in rows[0].note and rows[0].device_ms and rows[0].memory_share == pytest.approx(1.01)
    assert "5 tables are too many for 2 devices" in rows[2].note
    assert all("| - | - |" in line for line in [*table(rows)][2:])
    write_csv(tmp_path / "rows.csv", rows)
    assert [one.ms("device") for one in read_csv(tmp_path / "rows.csv")] == [float("inf")] * 3


def test_every_planner_finds_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dreamshard, "TRAINING", DreamShardConfig(1, 2, 2, 2, 1, 1))
    monkeypatch.setattr(autoshard, "TRAINING", AutoShardConfig(FitConfig(1, 4, 1e-3), ImpalaConfig(1, 2, 4)))
    monkeypatch.setattr(autoshard, "SHARDS", 8)
    for name in NAMES:
        if name not in ("evenshard_long", "torchrec_swept"):  # which take a while
            results = results_of(Cell("mixed_4", "v100", 2), load_planner(name))
            assert {one.status for one in results} == {FITS}, name


def test_the_linear_model_is_that_of_its_constants() -> None:
    """1,000 lookups of as many rows of 16 bytes, each alone in a sector of 32; then two such tables on two devices."""
    table = Table("a", 10**6, 4, 1.0, reuse_bins=(1.0, *[0.0] * 16))
    ns, gpu = linear.constants()["ns"], linear.constants()["gpus"]["h100"]
    alone = BenchMachine.of("h100", 1, 1000).task([table])
    kernels_ns = ns["calls"] + 1000 * (ns["bags"] + ns["lookups"] + ns["uniques"])
    kernels_ns += 32_000 * ns["row_bytes"] + 16_000 * ns["output_bytes"] + ns["hottest"]
    kernels_ms = kernels_ns * 1e-6 * gpu["scale"]
    assert linear.LinearModel("h100").step_ms(alone, [whole_part(table, (0,))]) == pytest.approx(kernels_ms)
    both = (table, Table("b", 10**6, 4, 1.0, reuse_bins=(1.0, *[0.0] * 16)))
    task = BenchMachine.of("h100", 2, 1000).task(both)
    parts = [whole_part(one, (at,)) for at, one in enumerate(both)]
    # The values of 500 samples there and back, and indices of 8 bytes with lengths of 4.
    transfer_ms = 500 * (16 + 16 + 8 + 4) / gpu["intra_gb_s"] * 1e-6
    latency_ms = 4 * gpu["latency_us"] / 1000
    assert linear.LinearModel("h100").step_ms(task, parts) == pytest.approx(kernels_ms + transfer_ms + latency_ms)
    # A replica of as many rows again: gradients of 4,000,000 values more, through memory four times and exchanged.
    times = []
    for one in (table, replace(table, num_rows=2 * table.num_rows)):
        replicated = BenchMachine.of("h100", 2, 1000).task((one,))
        times.append(linear.LinearModel("h100").step_ms(replicated, [whole_part(one, (0, 1))]))
    gradients_ms = 16_000_000 * (4 / cases.gpu_profile("h100").hbm_gb_s + 1 / gpu["intra_gb_s"]) * 1e-6
    assert times[1] - times[0] == pytest.approx(gradients_ms)


def test_the_page_is_that_of_its_csv() -> None:
    assert page(comparable(list(read_csv(PAGE.with_suffix(".csv")))), PAGE.stem) == PAGE.read_text()
    assert PAGE.with_suffix(".csv").stat().st_size < 300_000
