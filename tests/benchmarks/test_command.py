"""``python -m benchmarks study`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.studies.rows import ROWS, left_out, rows
from benchmarks.studies.summary import Measured, comparison
from evenshard.base.errors import BadConfig
from evenshard.tracking import StageRun

STUDY = {
    "study": "mixed",
    "hardware": "simulated:h200",
    "num_seeds": 1,
    "commit": "0" * 40,
    "left_out": {},
    "settings": {
        "6x2": {
            **comparison({"dim_greedy": Measured(((2.0, 4.0),)), "evenshard": Measured(((1.0, 3.0),))}),
            "num_test_tasks": 2,
            "cost_networks": {},
            "seconds": {"training": {}, "placing_one_task": {}},
        }
    },
}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["mixed", "--settings", "40x0"], "'40x0' is not a valid setting"),
        (["mixed", "--settings", "500x4"], "tables_per_task is 500"),
        (["mixed", "--hardware", "tpu"], "hardware is 'tpu'"),
        (["generalize", "--skip", "autoshard"], "'autoshard' is not a row"),
        (["mixed", *[word for name in ROWS["mixed"] for word in ("--skip", name)]], "omits all rows"),
    ],
)
def test_bad_flags_are_one_line(
    flags: list[str], says: str, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())
    assert main(["study", *flags, "--json", "out.json"]) == 2
    message = capsys.readouterr().err
    assert says in message and message.count("python -m benchmarks study:") == 1
    assert not (workdir / "work").exists()


def test_a_row_whose_package_is_missing_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.studies.rows.find_spec", lambda name: None if name == "torchrec" else object())
    out = left_out("dlrm", ["random"])
    missing = "needs torchrec, which is not installed"
    assert out == {"random": "skipped", "torchrec_planner": missing, "torchrec_planner_perf": missing}
    assert "torchrec_planner" not in rows("dlrm", out)
    with pytest.raises(BadConfig, match="not a row"):
        left_out("generalize", ["torchrec_planner"])


def test_the_command_writes_json_and_markdown(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())
    monkeypatch.setattr("benchmarks.__main__.run_study", lambda chosen: STUDY)
    assert main(["study", "mixed", "--json", "deep/out.json"]) == 0
    assert json.loads(Path("deep/out.json").read_text()) == STUDY
    assert Path("deep/out.md").read_text().startswith("# Study mixed on simulated:h200")
    assert "held-out tasks" in capsys.readouterr().out
