"""A saved loop goes on: from its costs, their journal, its model and a placement that it made.

``data/earlier_loop`` was made at commit 8d6dd00, before whole tables were parts, by one round on simulated:h200, whose
profile was ``LEARNED_DEVICE``; the optimizers' states, which only another round of training would read, are left out.
The files are in the format of today.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evenshard.cli import main
from evenshard.measure.cost_dataset import load_costs
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.file import load_answer
from evenshard.planner.pricing import model_of, reprice_answer
from evenshard.tables.files import load_tables
from support.learned import LEARNED_DEVICE

EARLIER = Path(__file__).parent / "data" / "earlier_loop"
GIVEN = ["--tables", "tables.parquet", "--tasks", "tasks.json"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, to work in."""
    shutil.copytree(EARLIER, tmp_path / "loop")
    shutil.copy(LEARNED_DEVICE, tmp_path / "loop")
    monkeypatch.chdir(tmp_path / "loop")
    return tmp_path / "loop"


@pytest.mark.slow
def test_a_benchmark_goes_on_from_the_journal_its_costs_train_another_model_and_its_model_places(folder: Path) -> None:
    lines = len((folder / "journal.jsonl").read_text().splitlines())
    assert main(["benchmark", "--round", "1", *GIVEN, "--journal", "journal.jsonl", "--out", "again.parquet"]) == 0
    assert len((folder / "journal.jsonl").read_text().splitlines()) == lines, "nothing is measured again"
    pool = load_tables(folder / "tables.parquet")
    costs, again = (load_costs(folder / name, pool) for name in ("costs.parquet", "again.parquet"))
    assert len(costs) == 16 and [one.cost for one in again] == [one.cost for one in costs]
    assert [one.placement for one in again] == [one.placement for one in costs]
    flags = ["--round", "1", *GIVEN, "--costs", "costs.parquet", "--out", "net", "--model-out", "model"]
    assert main(["train-cost", *flags]) == 0
    flags = ["--devices", "2", "--memory-cap-gb", "40", "--model", ".", "-o", "a.json"]
    assert main(["place", "criteo_kaggle", *flags]) == 0
    assert load_answer(folder / "a.json").request.optimizer == "sgd"  # that of its costs


def test_the_kernels_of_its_placement_take_what_they_did_by_its_model(folder: Path) -> None:
    """Exchanges are those of today's links, and a step waits and hides as it does today."""
    answer, model = load_answer(folder / "placement.json"), model_of(folder)
    assert model.policy is not None and answer.lineage["model"]["sha256"] != model.digest  # without optimizers' states
    again = reprice_answer(answer, answer.parts, model)
    for before, after in zip(answer.devices, again.devices, strict=True):
        assert after.predicted_fwd_compute_ms == pytest.approx(before.predicted_fwd_compute_ms, rel=1e-5)
        assert after.predicted_bwd_compute_ms == pytest.approx(before.predicted_bwd_compute_ms, rel=1e-5)
    assert answer.predicted_ms > 3 and set(answer.type_of_table.values()) == {TABLE_WISE}
