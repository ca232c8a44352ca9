"""What docs/place.md shows of an answer's output, as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import evenshard
from evenshard.cli import main
from support.documented import command, shown, snippet, stands_there

pytestmark = [pytest.mark.full_search, pytest.mark.slow]

PAGE = "docs/place.md"


def test_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(PAGE, "evenshard place mlperf_dlrm_v2 --devices 8 --hardware simulated:h100 -o - ")) == 0
    assert json.loads(capsys.readouterr().out)["num_devices"] == 8


def test_an_answer_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"answer": evenshard.place([{"name": "a", "rows": 500_000, "dim": 16, "pooling": 4}], num_devices=2)}
    exec(snippet(PAGE, "answer.to_frame()"), names)
    assert "ms of embedding work per step predicted" in capsys.readouterr().out and Path("placement.html").exists()


def test_torchrec_may_be_as_fast_and_its_settings_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    page = "docs/search.md"
    assert main(command(page, "evenshard place criteo_1tb --devices 8")) == 0
    number = re.compile(r"\d[\d.]*")
    said = number.sub("#", " ".join(capsys.readouterr().out.split()))
    block = snippet(page, "The best of 8 others").partition("\n\n")[2]
    assert "as fast." in block and number.sub("#", " ".join(block.partition("...")[0].split())) in said


def test_tables_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer with tables in host memory, other sizes of memory, and every place for one table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    place = "evenshard place mlperf_dlrm_v2 --devices 4 --memory-cap-gb 24"
    for start in (place, "evenshard explain placement.json --table C1"):
        assert main(command(PAGE, start)) == 0
        stands_there(shown(PAGE, start), capsys.readouterr().out)


def test_a_request_that_cannot_be_met(capsys: pytest.CaptureFixture[str]) -> None:
    start = "$ evenshard place mlperf_dlrm_v2 --devices 2 --memory-cap-gb 30"
    assert main(command(PAGE, start)[2:]) == 2
    stands_there(shown(PAGE, start), capsys.readouterr().err)


def test_a_placement_near_that_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables are the page's; in the old placement item had 8 lookups, and there was no shop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    page, tables = "docs/torchrec.md", snippet("docs/torchrec.md", "{name: clicks, num_rows: 2000000")
    earlier = "\n".join(line for line in tables.splitlines() if "shop" not in line).replace("factor: 60", "factor: 8")
    for text, name in ((earlier, "old.yaml"), (tables, "tables.yaml")):
        Path(name).write_text(text)
    start = "evenshard place tables.yaml --devices 4 --hardware simulated:h100 --allow-column-split --near old.json"
    near = command(page, f"{start} --max-move-gb 0.3")
    flags = near[2 : near.index("--near")]
    assert main(["place", "old.yaml", *flags, "-o", "old.json"]) == 0
    assert main(command(page, f"{start} --max-move-gb 0 ")) == 0
    capsys.readouterr()
    assert main(near) == 0
    stands_there(
        [" ".join(snippet(page, "near     old.json: moves").partition("\n\n")[2].split())], capsys.readouterr().out
    )
    diff = "evenshard diff stay.json near.json --steps 100000"
    assert main(command(page, diff)) == 0
    stands_there([" ".join(snippet(page, "Pays back after").partition("\n\n")[2].split())], capsys.readouterr().out)
