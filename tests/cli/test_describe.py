"""Descriptions of placements, models and journals: what each is, and where it comes from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import evenshard
from evenshard.base.provenance import Lineage
from evenshard.cli import main
from evenshard.measure.journal import Journal, Origin, Visit
from evenshard.planner.file import save_answer
from evenshard.tables.files import save_tables
from support.builders import PROVENANCE, cost, some_tables
from support.tracking_builders import write_costs, write_model

TABLES = some_tables(4)


def place(model: str | Path | None) -> None:
    hardware = "simulated:h200" if model is None else "auto"
    save_answer(evenshard.place(TABLES, 2, 1.0, batch_size=64, model=model, hardware=hardware), "placement.json")


def described(capsys: pytest.CaptureFixture[str], path: str) -> dict[str, str]:
    assert main(["describe", path, "--json"]) == 0
    [facts] = json.loads(capsys.readouterr().out)["files"]
    assert facts.pop("file") == path
    return facts


@pytest.fixture
def model(workdir: Path) -> Path:
    """A model of the working directory that learned from work/round_1/costs.parquet."""
    costs = write_costs(Path("work/round_1/costs.parquet"), Lineage("c0ffee"))
    return write_model(Path("work/model"), (costs,), commit="c0ffee-dirty")


def test_a_placement_of_a_device_model(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(None)
    facts = described(capsys, "placement.json")
    assert facts["kind"] == "placement" and facts["tables"] == "4 from Python" and facts["devices"].startswith("2 x ")
    assert facts["model"].startswith("simulated:h200 (sha256 ") and "costs" not in facts
    assert main(["describe", "placement.json"]) == 0
    assert capsys.readouterr().out.startswith("placement.json\n  kind           placement\n  tables ")


def test_a_placement_says_whether_its_model_has_changed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(model)
    facts = described(capsys, "placement.json")
    assert facts["model"].endswith("), unchanged") and facts["git commit"] == "c0ffee-dirty"
    assert facts["costs"].startswith("work/round_1/costs.parquet (sha256 ")
    write_model(model, seed=3)
    assert "CHANGED since" in described(capsys, "placement.json")["model"]
    shutil.rmtree(model)
    assert described(capsys, "placement.json")["model"].endswith("folder not found")


def test_a_placement_of_a_registered_model_names_version_run_and_policy(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = evenshard.place(TABLES, 2, 1.0, batch_size=64, hardware="simulated:h200")
    policy = {"name": "evenshard-policy", "version": "1"}
    registered = {"name": "evenshard-cost", "version": "2", "run_id": "abc", "policy": policy}
    model = {"source": "models:/evenshard-cost/2", "sha256": "0" * 64, "mlflow": registered}
    save_answer(replace(answer, lineage={**answer.lineage, "model": model}), "placement.json")
    facts = described(capsys, "placement.json")
    assert facts["MLflow"] == "models:/evenshard-cost/2, run abc"
    assert facts["MLflow policy"] == "models:/evenshard-policy/1"


def test_a_model_and_its_datasets_in_data(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    shutil.move("work/round_1/costs.parquet", "data/costs.parquet")
    facts = described(capsys, str(model))
    assert facts["kind"] == "model (cost_model, cost_net, policy)" and len(facts["sha256"]) == 64
    assert facts["learned from"] == "1 measured placements" and facts["hardware"] == "simulated: adds up"
    assert facts["costs"].startswith("data/costs.parquet")
    write_costs(Path("data/costs.parquet"), Lineage("other"))
    assert described(capsys, str(model))["costs"].startswith("not in data/ or work/ (try dvc pull) (sha256 ")


def test_a_journal_that_another_process_writes(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("journal.jsonl")
    with Journal(path) as journal:
        for number in (0, 1):
            journal.append(Visit("job", number, cost(1.0, 2.0), 3600.0 * number, Origin(PROVENANCE, {})))
        content = path.read_bytes()
        facts = described(capsys, str(path))
    assert facts["visits"] == "2 of 1 jobs" and facts["hardware"] == PROVENANCE.hardware
    assert facts["measured"] == "1970-01-01T00:00:00+00:00 to 1970-01-01T01:00:00+00:00"
    assert path.read_bytes() == content


def test_tables_of_any_file(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tables(TABLES, "tables.json")
    facts = described(capsys, "tables.json")
    assert facts["kind"] == "a table file" and facts["tables"] == "4 for 4 features" and "notes" not in facts
    Path("sizes.txt").write_text("1048576-1048576")
    assert main(["describe", "sizes.txt", "--dim", "128"]) == 0
    text = capsys.readouterr().out
    assert "a list of sizes" in text and "weights        1 GB" in text and "pooling_factor of 2 tables: 1, the" in text


def test_bad_input_is_exit_code_2(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("odd.txt").write_text("odd")
    for path, said in (
        ("none.json", "no such file"),
        ("empty", "has no cost_model"),
        ("odd.txt", "is neither a list of tables"),
    ):
        assert main(["describe", path]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
