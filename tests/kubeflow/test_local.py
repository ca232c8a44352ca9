"""The pipelines on this machine, each task a process: what they leave, and what happens when a stage fails.

Files tell, not what the runner says about itself.
"""

from __future__ import annotations

import gc
import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from evenshard.cli import main
from evenshard.kubeflow import local
from evenshard.measure.cost_rows import read_rows
from evenshard.planner.file import load_answer
from evenshard.sharders.models import load_model
from support.http_server import answering
from support.kubeflow_builders import SMALL_PARAMS
from support.learned import LEARNED


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    rows = [{"name": f"t{n}", "num_rows": 200 * (n + 1), "embedding_dim": 16, "pooling_factor": 2.0} for n in range(12)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    return tmp_path


def the_run(workdir: Path, pipeline: str) -> Path:
    (folder,) = (workdir / "work/kubeflow").glob(f"evenshard-{pipeline}-*")
    return folder


@pytest.mark.slow
def test_the_loop_and_a_placement_with_its_model(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", "--num-parts", "1"]) == 0
    out, said = capsys.readouterr()
    folder = the_run(workdir, "train")
    assert "Task 'evaluate' finished with status SUCCESS" in said and "executor_input" not in said
    assert "executor_input" in (folder / "log.txt").read_text()
    assert "single_cost_greedy *" in out
    assert out.endswith(f"\nsaved: work/kubeflow/{folder.name}/evaluate/report/metrics.json\n")
    rounds = [read_rows(path) for path in sorted((folder / "benchmark-2/costs").iterdir())]
    assert [{row["round"] for row in one} for one in rounds] == [{1}, {2}]
    assert "evenshard" in {row["proposed_by"] for row in rounds[1]}
    model = load_model(folder / "evaluate/model", "simulated:h200")
    assert model.trained_on.num_measured == 8 and len(model.trained_on.costs_sha256) == 2
    assert json.loads((folder / "record-outcome/outcome").read_text())["state"] == "SUCCEEDED"
    request = "request={num_devices: 2, memory_cap_gb: 0.01, batch_size: 32}"
    words = ["pipeline", "run", "--pipeline", "place", "--set", "tables=own.csv", "--set", request]
    assert main([*words, "--set", f"model={folder / 'evaluate/model'}"]) == 0
    assert "/place/placement/placement.json" in capsys.readouterr().out
    answer = load_answer(next(the_run(workdir, "place").glob("place/placement/placement.json")))
    assert answer.num_devices == 2 and len(answer.request.tables) == 12
    assert answer.lineage["model"]["sha256"] == model.digest


@pytest.mark.slow
def test_a_stage_that_fails_stops_the_run_and_is_recorded(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"source": str(workdir / "own.csv"), "memory_cap_gb": 1e-9}  # no task can fit, which only benchmark sees
    params = {**SMALL_PARAMS, "generate_tables": {**SMALL_PARAMS["generate_tables"], **own}}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    assert main(["pipeline", "run"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if line.startswith("evenshard pipeline failed: ")]
    assert "Inner task failed: 'benchmark'" in line and "\x1b" not in captured.err
    folder = the_run(workdir, "train")
    assert f"{folder.name}/log.txt." in line and (folder / "log.txt").exists()
    assert "No train task fits its devices." in captured.err and '"executor_input"' not in captured.err
    assert (folder / "generate-tables/tasks").exists() and not (folder / "evaluate").exists()
    assert json.loads((folder / "record-outcome/outcome").read_text())["state"] == "FAILED"


@pytest.mark.slow
def test_a_retrain_begins_where_the_model_does_not_cover_the_tables(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "run", "--pipeline", "retrain", "--set", "tables=own.csv", "--set", f"model_uri={LEARNED}"]
    assert main([*words, "--out", "covered"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"The 12 tables are covered by {LEARNED}.\n") and "saved: covered/" in out
    (folder,) = Path("covered").iterdir()
    assert (folder / "drift/summary").exists() and not (folder / "generate-tables").exists()

    too_few = {**SMALL_PARAMS["generate_tables"], "tables_per_task": 100}  # the loop itself is that of train
    words += ["--set", "drift_request={batch_size: 1000000}", "--set", f"generate_tables_config={json.dumps(too_few)}"]
    assert main([*words, "--out", "due"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "Inner task failed: 'generate-tables'" in captured.err
    (folder,) = Path("due").iterdir()
    assert f"Retrain: {LEARNED} does not cover" in (folder / "drift/summary").read_text()
    assert json.loads((folder / "record-outcome/outcome").read_text())["state"] == "FAILED"


def test_files_of_this_machine_must_be_named(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("traces").mkdir()
    for words, why in (
        (["watch", "--set", "traces=none"], "none: no such file"),
        (["watch", "--set", "traces=traces"], "--set in_use=FILE"),
        (["place"], "--set tables=FILE"),
        (["place", "--set", "tables=none.csv"], "none.csv: no such file"),
    ):
        assert main(["pipeline", "run", "--pipeline", *words]) == 2
        assert why in capsys.readouterr().err


def test_containers_need_a_docker_api(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{workdir}/nobody.sock")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker leaves a socket without a listener open
        assert main(["pipeline", "run", "--runner", "container"]) == 2
        gc.collect()
    assert "found no Docker API" in capsys.readouterr().err


def test_containers_see_the_files_that_the_user_has_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    with answering(lambda request: (200, {"ApiVersion": "1.44", "Id": "1"})) as url:  # a Docker API that has the image
        monkeypatch.setenv("DOCKER_HOST", url.replace("http", "tcp"))
        given = local.make_container_runner([str(tmp_path)]).container_run_args
    assert given["mounts"] == [{"Target": str(tmp_path), "Source": str(tmp_path), "Type": "bind", "ReadOnly": True}]
    assert given["user"] == f"{os.getuid()}:{os.getgid()}" and given["environment"]["AWS_ACCESS_KEY_ID"] == "key"


def test_a_run_that_leaves_nothing_has_failed(workdir: Path) -> None:
    def pipeline(**values: Any) -> None:
        (workdir / "out/evenshard-train-1/evaluate").mkdir(parents=True)

    with pytest.raises(local.PipelineFailed, match="lacks evaluate/report/metrics"):
        local.run_locally(pipeline, {}, "subprocess", workdir / "out", "evaluate/report/metrics.json")


PRINTED = """15:01:50.256 - INFO - Executing task \x1b[96m'place'\x1b[0m
15:01:50.256 - INFO - Streamed logs:

    [KFP Executor 2026-11-23 15:01:50,399 INFO]: Got executor_input:
    {
        "inputs": {
            "parameterValues": {}
        }
    }
    15:01:52 round 1: timing 16 placements
    ValueError: what went wrong
15:01:55.156 - WARNING - a disk is full
15:01:55.156 - INFO - Task \x1b[96m'place'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m
15:01:55.157 - INFO - Task \x1b[96m'place'\x1b[0m outputs:
    page: HTML( name='page',
--------------------------------------------------------------------------------
"""


def logged(text: str, step: int = 7) -> tuple[local.RunLog, str, str]:
    file, shown = io.StringIO(), io.StringIO()
    log = local.RunLog(file, shown)
    for start in range(0, len(text), step):
        print(text[start : start + step], end="", file=log)
    return log, file.getvalue(), shown.getvalue()


def test_tasks_and_what_they_log_are_shown_and_everything_is_in_the_file() -> None:
    log, file, shown = logged(PRINTED)
    assert shown.splitlines() == [
        "15:01:50 Executing task 'place'",
        "    15:01:52 round 1: timing 16 placements",
        "15:01:55 a disk is full",
        "15:01:55 Task 'place' finished with status SUCCESS",
    ]
    assert len(file.splitlines()) == len(PRINTED.splitlines()) and "parameterValues" in file and "\x1b" not in file
    assert "ValueError: what went wrong" in log.last_lines() and "parameterValues" not in log.last_lines()
    many, _, _ = logged("".join(f"line {number}\n" for number in range(100)))
    assert many.last_lines().splitlines() == [f"line {number}" for number in range(100 - local.LAST_LINES, 100)]
