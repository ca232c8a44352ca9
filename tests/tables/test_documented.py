"""What docs/tables.md shows, as it stands there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.cli import main
from evenshard.tables.files import load_tables
from support.documented import command, snippet

PAGE = "docs/tables.md"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def flat(text: str) -> str:
    return " ".join(text.split())


def paragraph(containing: str) -> str:
    """The lines of a block around this text."""
    block = snippet(PAGE, containing)
    return next(one for one in block.split("\n\n") if containing in one)


def test_a_file_with_a_sequence(tmp_path: Path) -> None:
    Path("tables.yaml").write_text(snippet(PAGE, "item_history"))
    user, items, history = load_tables("tables.yaml")
    assert (user.pooling_factor, items.weight_bits, history.feature_pooling_factors) == (1.0, 16, (180.0, 12.5))


def test_a_file_with_names_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ours.csv").write_text(paragraph("feature,cardinality") + "\n")
    assert main(command(PAGE, "evenshard place ours.csv")) == 0
    assert paragraph("ours.csv: 1 column").strip() in flat(capsys.readouterr().out)


def test_a_file_with_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.csv").write_text("name,num_rows,dim,weight_bits\nuser_id,many,0,\nclicked_items,800000,32,31\n")
    shown, *expected = snippet(PAGE, "place wrong.csv").splitlines()
    assert main(shown.removeprefix("$ evenshard ").split()) == 2
    assert capsys.readouterr().err.splitlines() == expected


def test_configurations_of_torchrec(capsys: pytest.CaptureFixture[str]) -> None:
    exec(snippet(PAGE, "json.dump"), {})
    assert main(command(PAGE, "evenshard place configs.json")) == 0
    printed = flat(capsys.readouterr().out)
    assert "10 for each of its 2 features, the default" in printed and "(item)" in printed
    assert "not used" not in printed


def test_frames_and_records() -> None:
    names: dict[str, object] = {}
    exec(snippet(PAGE, "import pandas as pd"), names)
    answer, same = names["answer"], names["same"]
    assert answer.parts == same.parts and len(answer.request.tables) == 2  # type: ignore[attr-defined]


def test_traffic_with_other_columns(capsys: pytest.CaptureFixture[str]) -> None:
    random, count = np.random.default_rng(0), 3000
    columns = {
        "label": random.integers(0, 2, count),
        "I1": random.integers(0, 99, count),
        "price": random.normal(size=count),
        "ts": np.full(count, "2026-11-23", dtype="datetime64[s]"),
        "C1": random.integers(0, 500, count),
        "C2": random.integers(0, 50, count),
        "C3": pa.array([row.tolist() for row in random.integers(0, 900, (count, 3))]),
    }
    Path("logs").mkdir()
    pq.write_table(pa.table(columns), "logs/part-0.parquet")
    assert main(command(PAGE, "evenshard place logs/")) == 0
    printed = flat(capsys.readouterr().out)
    assert flat(paragraph("logs: columns left out")) in printed
    assert "user_id" in printed and "C3" in printed and "C1" not in printed
