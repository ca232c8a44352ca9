"""``--columns`` of the other commands that read tables of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenshard.cli import main
from support.learned import LEARNED

THEIRS = "feature,cardinality,dim,pooling,owner\na,200000,16,3,x\nb,9000,8,1,x\nc,50000,16,2,x\nd,7000,8,1,x\n"
COLUMNS = ["--columns", "feature=name", "--columns", "cardinality=rows"]


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.csv").write_text(THEIRS)


def test_drift(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["drift", "--tables", "theirs.csv", "--against", str(LEARNED), "--json"]
    assert main(command) == 2
    assert "column 'name' is missing" in capsys.readouterr().err
    assert main([*command, *COLUMNS]) in (0, 3)
    printed = capsys.readouterr()
    assert printed.err == "evenshard drift: theirs.csv: 1 column is not used: 'owner'.\n"
    assert json.loads(printed.out)["model"]["source"] == str(LEARNED)
