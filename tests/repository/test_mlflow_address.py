"""The end of `make run`: the command and the address that show the loop's run in MLflow."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from evenshard import tracking
from evenshard.tracking.client import connect
from support import servers
from support.repository import ROOT
from support.tracking_builders import empty_file
from tools.mlflow_address import PORT, lines

ADDRESS = re.compile(r"    (http://[\w.]+:\d+)/#/experiments/(\w+)/runs/([0-9a-f]{32})")


@pytest.fixture
def database(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a file with one stage of a loop."""
    empty_file(workdir)
    uri = f"sqlite:///{workdir}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with tracking.stage_run("generate_tables", {"loop": {"num_rounds": 2}}, {}):
        pass
    return uri


@pytest.mark.slow
def test_the_command_and_the_address_are_of_the_loop(
    workdir: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, command, address = lines()
    words = shlex.split(command)
    assert words[1:] == ["ui", "--port", str(PORT), "--backend-store-uri", database]
    assert words[0] == ".venv/bin/mlflow"
    found = ADDRESS.fullmatch(address)
    assert found is not None and found[1] == f"http://127.0.0.1:{PORT}"
    run = connect().get_run(found[3])
    assert run.info.experiment_id == found[2] and run.info.run_name.startswith("loop-")
    other = workdir / "other"
    other.mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty_file(other)}")
    (line,) = lines()
    assert line.startswith("MLflow has no run of this loop, because")
    (workdir / "work" / "mlflow_parent.json").unlink()
    assert lines() == ["No stage of the loop has run in this folder, so MLflow has no run to show."]


@pytest.mark.slow
def test_a_server_has_the_run_at_its_own_address(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, experiment, run_id = ADDRESS.fullmatch(lines()[2]).groups()  # type: ignore[union-attr]
    with servers.mlflow_server(database) as server:
        # The same loop, whose stages log to the server: work/mlflow_parent.json has its key.
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        title, address = lines()
        assert connect().get_run(run_id).info.experiment_id == experiment
    assert title == "The run in MLflow:"
    assert ADDRESS.fullmatch(address).groups() == (server.url, experiment, run_id)  # type: ignore[union-attr]


def test_make_run_ends_with_it_and_installs_no_tests() -> None:
    command = ["make", "-n", "--no-print-directory", "--always-make", "run"]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert recipe.splitlines()[-1] == ".venv/bin/python tools/mlflow_address.py"
    extras = re.findall(r"--editable '\.\[([\w,]+)\]'", recipe)
    assert extras == ["cpu,loop,tracking"]
