"""What ``evenshard place`` prints: a summary, JSON, or nothing; progress where stderr is a terminal."""

from __future__ import annotations

import json
import os
import pty
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from evenshard.base import console
from evenshard.cli import main
from evenshard.torchrec.plan.file import load_plan_parts

TABLES = "name,rows,dim,pooling\na,200000,16,3\nb,9000,8,1\nc,1000000,32,12\n"
PLACE = ["place", "tables.csv", "--devices", "2", "--hardware", "simulated:h100"]
WHOLE = [*PLACE, "--sharding-types", "table_wise"]


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tables.csv").write_text(TABLES)


def test_json_and_stdout_are_placement_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHOLE, "-o", "placement.json"]) == 0
    assert "ms of embedding work per step" in capsys.readouterr().out
    written = Path("placement.json").read_text()
    for flags in (["-o", "-"], ["--json", "--quiet"]):
        assert main([*WHOLE, *flags]) == 0
        assert capsys.readouterr().out == written, flags
    assert not Path("-").exists()
    assert main([*WHOLE, "--json", "-o", "again.json"]) == 0
    assert capsys.readouterr().out == Path("again.json").read_text() == written


def test_a_plan_for_torchrec_goes_to_stdout_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHOLE, "--format", "torchrec", "-o", "-"]) == 0
    Path("plan.json").write_text(capsys.readouterr().out)
    parts, world_size = load_plan_parts("plan.json")
    assert world_size == 2 and {one.table for one in parts} == {"a", "b", "c"}


def test_quiet_writes_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHOLE, "--quiet", "-o", "placement.json", "--report", "page.html"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("placement.json").exists() and Path("page.html").exists()
    assert main([*PLACE, "--quiet", "--memory-cap-gb", "0.01"]) == 2
    assert "evenshard place: the tables need at least" in capsys.readouterr().err


def test_stdout_holds_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLACE, "--json", "-o", "-"]) == 2
    printed = capsys.readouterr()
    assert "both write to standard output" in printed.err and printed.out == ""


@pytest.mark.parametrize(("flags", "shows"), [(["--json"], True), (["--json", "--quiet"], False)])
def test_the_best_so_far_is_shown_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], shows: bool
) -> None:
    """stderr is a real terminal here, stdout is not."""
    master, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "SAY_AFTER_S", 0.0)
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main([*PLACE, *flags]) == 0
        os.set_blocking(master, False)
        said = b""
        with suppress(BlockingIOError):
            while True:
                said += os.read(master, 4096)
    os.close(master)
    assert json.loads(capsys.readouterr().out)["num_devices"] == 2
    assert (b"s left, best so far" in said and b"(Ctrl-C returns it)" in said) == shows
    assert shows or said == b""


@pytest.mark.parametrize("words", [["place", "-v"], ["what-if"]])
def test_sizes_are_tables(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "--sizes", "1460-583", "--dim", "16", "--devices", "2"]) == 0
    assert "pooling_factor" in (text := capsys.readouterr().out) or "The lookups per sample of 2 tables" in text


def test_a_flag_that_needs_another_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, said in ((["--hardware", "h1000"], "Did you mean h100?"), (["--max-move-gb", "1"], "near is not set")):
        assert main([*PLACE, *flags]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and said in err, err
