"""``evenshard observe``: a real TorchRec training of two ranks, beside its placement and as measured costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.api import place
from evenshard.cli import main
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.cost_rows import read_rows
from evenshard.measure.traces.collectives import find_collectives
from evenshard.measure.traces.kineto import read_traces
from evenshard.measure.traces.ranks import observe
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.report.step_facts import device_error_text
from evenshard.tables.files import load_tables, save_tables
from evenshard.tables.table import Table
from evenshard.torchrec import save_plan
from support.trace_builders import TraceBuilder, step
from support.traced_training import LOCAL_BATCH, LOOKUPS, PLAN, TABLES, WORLD_SIZE, record

DEVICE = "simulated:h200"
OURS = [Table(name, rows, dim, float(LOOKUPS)) for name, (rows, dim) in TABLES.items()]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a placement, its plan, its tables, and the traces of a training with them."""
    folder = tmp_path_factory.mktemp("training")
    save_tables(OURS, folder / "tables.json")
    answer = answer_of(OURS)
    save_answer(answer, folder / "placement.json")
    save_plan(answer, folder / PLAN, compute_device="cpu")
    record(folder)
    return folder


def answer_of(tables: Sequence[Table], batch_size: int = WORLD_SIZE * LOCAL_BATCH) -> PlacementAnswer:
    return place(tables, WORLD_SIZE, 1.0, model=DEVICE, batch_size=batch_size, pinned={"wide": 1, "id": 0, "clicks": 0})


def traces(folder: Path) -> list[str]:
    return [str(folder / f"trace_rank{rank}.json.gz") for rank in range(WORLD_SIZE)]


def observed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["observe", *argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["observe", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_each_rank_and_the_one_that_a_step_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2)
        step(trace, 5, 300.0 * rank, 100 * (rank + 1), 200 * (rank + 1))
        paths.append(str(trace.save(tmp_path / f"rank{rank}.json.gz")))
    found = observed(capsys, *paths)
    assert [one["forward_ms"] for one in found["ranks"]] == pytest.approx([0.1, 0.2])
    assert found["waits_for"] == 1 and found["comparison"] is None
    assert main(["observe", *paths]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 ranks on NVIDIA H200" in printed and "The step waits for rank 1" in printed
    seen = observe([Path(path) for path in paths])
    rest_ms = seen.rest_ms()
    assert rest_ms is not None and 0 < rest_ms < seen.step_ms and f"--dense-ms {rest_ms:.4g}" in printed
    assert main(["observe", paths[1]]) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 ranks" in printed and "communication includes waiting" in printed
    assert "The step waits" not in printed and "Balance" not in printed
    assert "which rank holds which tables" in refused(capsys, *paths, "--costs-out", str(tmp_path / "costs.parquet"))


@pytest.mark.slow
def test_the_placement_s_prediction_stands_beside_what_happened(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = observed(capsys, *traces(training), "--placement", str(training / "placement.json"))["comparison"]
    answer = answer_of(OURS)
    assert compared["predicted_ms"] == pytest.approx(answer.predicted_ms)
    assert [one["predicted_fwd_compute_ms"] for one in compared["devices"]] == pytest.approx(
        [one.predicted_fwd_compute_ms for one in answer.devices]
    )
    assert (compared["low_ms"], compared["high_ms"]) == (answer.low_ms, answer.high_ms), "with the device's error"
    assert compared["device"] == device_error_text(answer) != ""


@pytest.mark.slow
def test_what_was_observed_is_a_cost_dataset(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.parquet"
    argv = [*traces(training), "--placement", str(training / "placement.json")]
    written = ["--costs-out", str(costs), "--tables-out", str(tmp_path / "tables.json")]
    ranks = observed(capsys, *argv, *written)["ranks"]
    (measured,) = load_costs(costs, load_tables(tmp_path / "tables.json"))
    assert [*map(list, measured.placement.shards())] == [[0, 1], [2]]
    for one, device in zip(ranks, measured.cost.devices, strict=True):
        assert device.fwd_compute_ms == one["forward_ms"] and device.bwd_compute_ms == one["backward_ms"]
        assert device.fwd_all_to_all_ms == one["exchange_ms"]["forward"]
        assert device.fwd_wait_ms == one["waiting_ms"]["forward"]
    row = read_rows(costs)[0]
    assert (row["hardware"], row["link"], row["repeats"], row["all_to_all"]) == ("cpu: unknown", "gloo", 3, "measured")
    assert row["optimizer"] == "sgd"
    assert main(["describe", str(costs)]) == 0


@pytest.mark.slow
def test_every_sharding_type_is_compared_with_the_prediction_of_the_same_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are reduced and scattered, columns are exchanged all to all; replicas are on neither side."""
    types = {"id": ["row_wise"], "clicks": ["data_parallel"], "wide": ["column_wise"]}
    batch_size = WORLD_SIZE * LOCAL_BATCH
    answer = place(OURS, WORLD_SIZE, 1.0, model=DEVICE, batch_size=batch_size, table_types=types)
    save_answer(answer, tmp_path / "placement.json")
    save_plan(answer, tmp_path / PLAN, compute_device="cpu")
    record(tmp_path)
    found = observed(capsys, *traces(tmp_path), "--placement", str(tmp_path / "placement.json"))
    kinds = [[one.kind for one in find_collectives(next(read_traces(Path(path))))] for path in traces(tmp_path)]
    for one, of_rank in zip(found["ranks"], kinds, strict=True):
        assert (one["num_tables"], one["sum_of_dims"]) == (2, 8 + 12)
        assert (of_rank.count("forward"), of_rank.count("backward")) == (6, 6)  # of rows and of columns, in three steps
        assert one["all_waiting_ms"] <= one["step_ms"]
    without = [table for table in OURS if table.name != "clicks"]
    del types["clicks"]
    expected = place(without, WORLD_SIZE, 1.0, model=DEVICE, batch_size=batch_size, table_types=types)
    compared = found["comparison"]
    assert compared["predicted_ms"] == pytest.approx(expected.predicted_ms)
    assert compared["predicted_ms"] < answer.predicted_ms
    assert (compared["low_ms"], compared["high_ms"]) == pytest.approx((expected.low_ms, expected.high_ms))
    assert [note[-9:] for note in compared["notes"]] == ["'clicks'."]


@pytest.mark.slow
def test_what_is_missing_is_said_in_a_line(training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both, placement = traces(training), str(training / "placement.json")
    costs = ["--costs-out", str(tmp_path / "costs.parquet")]
    assert "Add ranks 0" in refused(capsys, both[1], "--placement", placement, *costs)
    assert "Add the table file with --tables" in refused(capsys, *both, "--placement", str(training / PLAN))
    of_tables = ["--placement", str(training / "tables.json")]
    assert "Name a model with --model" in refused(capsys, *both, *of_tables)
    assert "it does not show which rank holds" in refused(capsys, *both, *of_tables, "--model", DEVICE, *costs)
    save_answer(answer_of(OURS, batch_size=64), tmp_path / "batch.json")
    assert "--batch-size 32" in refused(capsys, *both, "--placement", str(tmp_path / "batch.json"))
    save_answer(place(OURS, 4, 1.0, model=DEVICE, batch_size=32), tmp_path / "four.json")
    assert "but the training run has 2 ranks" in refused(capsys, *both, "--placement", str(tmp_path / "four.json"))
    save_answer(place(OURS, 2, 1.0, model=DEVICE, batch_size=32, sharding_types=["row_wise"]), tmp_path / "rows.json")
    rows = ["--placement", str(tmp_path / "rows.json")]
    assert "costs support whole and column-wise tables" in refused(capsys, *both, *rows, *costs)
    wider = [replace(table, embedding_dim=32) if table.name == "wide" else table for table in OURS]
    save_answer(answer_of(wider), tmp_path / "wider.json")
    assert "sum of dims on rank 1 is 24" in refused(capsys, *both, "--placement", str(tmp_path / "wider.json"), *costs)
    compared = observed(capsys, *both, "--placement", str(tmp_path / "wider.json"))["comparison"]
    assert "may have used another placement" in compared["notes"][0]
    assert not (tmp_path / "costs.parquet").exists()
