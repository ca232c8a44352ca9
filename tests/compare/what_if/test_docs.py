"""What docs/what_if.md shows runs as it stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenshard.cli import main
from support.documented import ROOT, command, snippet

pytestmark = pytest.mark.full_search

PAGE = "docs/what_if.md"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_machines_beside_each_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(PAGE, "evenshard what-if examples/tables.yaml --hardware h100,h200,a100")) == 0
    said = " ".join(capsys.readouterr().out.split())
    record = json.loads((here / "what_if.json").read_text())
    assert [one["num_devices"] for one in record["options"]] == [4, 8] * 3
    assert (here / "what_if.png").read_bytes().startswith(b"\x89PNG")
    page = " ".join((ROOT / PAGE).read_text(encoding="utf-8").split())
    for line in said.split("A question mark")[0].split("cheapest: ")[1:]:
        assert f"cheapest: {line.strip()}" in page, line
    cheapest = record["options"][record["cheapest"]["option"]]
    assert f"{cheapest['cost']['value']:.4f} (" in said and "device models, not GPUs" in said


@pytest.mark.slow
def test_weak_scaling_with_a_dense_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(PAGE, "evenshard what-if examples/tables.yaml --hardware h100,a100 --devices 8,16")) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["batch_size"] for one in record["options"]] == [8 * 4096, 16 * 4096] * 2
    assert [one["dense_ms"] for one in record["options"]] == [3.0, 3.0, 7.0, 7.0]


@pytest.mark.slow
def test_in_python() -> None:
    known: dict[str, Any] = {}
    exec(snippet(PAGE, "best = found.cheapest"), known)
    assert known["best"].option in known["found"].options


@pytest.mark.slow
def test_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve searches, on up to 64 devices, take half a minute: they find what the page shows."""
    assert main(command(PAGE, "evenshard what-if mlperf_dlrm_v2 --hardware h100 --devices 64")) == 0
    said = " ".join(capsys.readouterr().out.split())
    shown = snippet(PAGE, "64 x h100      8     16").partition("\n\n")[2]
    for piece in shown.split("\n...\n"):
        assert " ".join(piece.split()) in said
    assert "arXiv 2508.03854" in said


@pytest.mark.slow
def test_the_plan_of_a_group(here: Path) -> None:
    known: dict[str, Any] = {}
    exec(snippet(PAGE, 'save_plan(best.answer, "plan.json")'), known)
    plan = json.loads((here / "plan.json").read_text())
    assert plan["world_size"] == known["best"].group_size


def test_a_picture_of_no_known_kind_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "examples/tables.yaml", "--plot", "picture.doc"]) == 2
    assert "a picture ends in .png, .svg or .pdf" in capsys.readouterr().err


def test_an_output_is_replaced_but_no_input(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "what_if.json").write_text("{}")
    (here / "link.yaml").write_text("{}")
    flags = ["--hardware", "h100", "--devices", "1", "--batch-size", "4096", "-o"]
    assert main(["what-if", "examples/tables.yaml", *flags, "what_if.json"]) == 0
    assert json.loads((here / "what_if.json").read_text())["options"]
    assert main(["what-if", "examples/tables.yaml", "--intra", "h100=link.yaml", *flags, "link.yaml"]) == 2
    assert "is what --intra reads" in capsys.readouterr().err


def test_flags_that_are_no_values_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--dense-ms", "h100=1,h100=2"], ["--dense-ms", "h100=x"], ["--devices", "8,x"]):
        with pytest.raises(SystemExit) as raised:
            main(["what-if", "examples/tables.yaml", *flags])
        assert raised.value.code == 2 and capsys.readouterr().err.count("\n") == 1
