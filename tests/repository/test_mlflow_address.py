"""The end of `make run`: the command and the address that show the loop's run in MLflow."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from evenshard import tracking
from evenshard.tracking.client import connect
from support.repository import ROOT
from support.tracking_builders import empty_file
from tools.mlflow_address import PORT, lines


def test_without_a_run_that_is_said(workdir: Path) -> None:
    assert lines() == ["No stage of the loop has run in this folder, so MLflow has no run to show."]


@pytest.mark.slow
def test_the_command_and_the_address_are_of_the_loop(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{empty_file(workdir)}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with tracking.stage_run("generate_tables", {"loop": {"num_rounds": 2}}, {}):
        pass
    _, command, address = lines()
    assert shlex.split(command) == [".venv/bin/mlflow", "ui", "--port", str(PORT), "--backend-store-uri", uri]
    found = re.fullmatch(rf"    http://127.0.0.1:{PORT}/#/experiments/(\w+)/runs/([0-9a-f]{{32}})", address)
    assert found is not None
    run = connect().get_run(found[2])
    assert run.info.experiment_id == found[1] and run.info.run_name.startswith("loop-")


def test_make_run_ends_with_it_and_installs_no_tests() -> None:
    command = ["make", "-n", "--no-print-directory", "--always-make", "run"]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert recipe.splitlines()[-1] == ".venv/bin/python tools/mlflow_address.py"
    extras = re.findall(r"--editable '\.\[([\w,]+)\]'", recipe)
    assert extras == ["cpu,loop,tracking"]
