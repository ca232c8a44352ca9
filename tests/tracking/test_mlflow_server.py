"""A real MLflow server with an S3 behind it: whole loops arrive, outages cost nothing, and its pages show both.

With SCREENSHOTS=docs/images the pictures of the documentation are taken again, in a real Chromium.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.cli import main
from evenshard.tracking import records, run_files
from evenshard.tracking.client import connect
from evenshard.tracking.descriptions import NOTE, experiment_id
from evenshard.tracking.pyfunc import build_serving_code
from support import servers
from support.loops import params_with, run_loop
from support.patience import PATIENCE_S
from support.tracking_builders import parts_of, runs_of, write_costs, write_model

pytestmark = pytest.mark.slow

PARAMS = {"loop": {"num_rounds": 1}}
LOSSES = [4.0, 3.0, 2.5, 2.25]
# Loops to compare: what each changes, by its name.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "1 round": {},
    "more entropy": {"train_policy": {"entropy_weight": 0.01}},
    "2 rounds": {"loop": {"num_rounds": 2}, "train_cost": {"minibatch_size": 32}},
}
CHANGED = ["loop.num_rounds", "train_cost.minibatch_size", "train_policy.entropy_weight"]
COMPARED = ["evenshard.mean_measured_ms", "dreamshard.mean_measured_ms"]


@pytest.fixture
def at(workdir: Path, mlflow_server: servers.MLflow, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files to log, and an experiment of its own. A server that is away is not waited for."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)  # only the server has keys to the S3
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.url)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"fault-{secrets.token_hex(4)}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    costs = write_costs(workdir / "measured" / "costs.parquet")
    write_model(workdir / "round_1", (costs,), seed=secrets.randbits(31))  # weights that no other test has registered
    return workdir


@pytest.mark.parametrize("away", ["server", "s3"])
def test_an_outage_costs_nothing_and_mlflow_gets_all_of_it_once_later(
    at: Path, mlflow_server: servers.MLflow, s3: servers.S3, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    dies = s3 if away == "s3" else mlflow_server
    try:
        with tracking.stage_run("train_cost_1", PARAMS, {"seed": 0}) as run:
            dies.kill()
            run.series("loss_per_update", LOSSES)
            run.costs([Path("measured/costs.parquet")], "training")
            run.artifact(Path("measured/costs.parquet"))
            run.register(parts_of(Path("round_1")), build_serving_code(), {"evenshard.mean_measured_ms": 1.5})
            run.conclude({"evenshard.mean_measured_ms": 1.5})
    finally:
        dies.start()
    said = [one.getMessage() for one in caplog.records if one.name.startswith("evenshard")]
    assert len(said) == 2 and "The stage continues" in said[0]
    shutil.rmtree("round_1")
    assert tracking.log_backlog(build_serving_code) == 1

    client, name = connect(), os.environ["MLFLOW_EXPERIMENT_NAME"]
    runs = runs_of(client, name)
    stage, [parent] = runs.pop("train_cost_1"), runs.values()
    losses = client.get_metric_history(stage.info.run_id, "loss_per_update")
    assert [one.value for one in losses] == LOSSES
    assert stage.info.status == parent.info.status == "FINISHED"
    assert stage.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [one.path for one in client.list_artifacts(stage.info.run_id)] == ["costs.parquet"]
    assert len(stage.inputs.dataset_inputs) == 1 and len(stage.outputs.model_outputs) == 2
    models = client.search_logged_models([stage.info.experiment_id])
    assert [str(one.status) for one in models] == ["READY", "READY"]
    assert len(client.search_model_versions(f"run_id = '{stage.info.run_id}'")) == 2


def test_pods_of_one_loop_that_run_at_once_are_all_logged(
    at: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # MLflow's search answers 500 now and then while runs are written: it is asked again, as outside of tests
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    together = threading.Barrier(6)

    def pod(number: int) -> records.Record:
        together.wait()
        settings = {"shared": {str(key): key for key in range(20)}, f"of_{number}": {"seed": number}}
        client, loop = connect(), records.parent_of(settings, new_loop=False)
        run_files.ensure_loop(client, experiment_id(client), loop, f"pod {number}")
        with tracking.stage_run(f"benchmark_{number}", settings, {}):
            pass
        return loop

    with ThreadPoolExecutor(6) as threads:
        loops = list(threads.map(pod, range(6)))
    for number, loop in enumerate(loops):  # as at the end of a stage
        run_files.ensure_loop(connect(), experiment_id(connect()), loop, f"pod {number}")
    runs = runs_of(connect(), os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert not [one for one in caplog.records if one.name.startswith("evenshard")]
    assert set(runs) == {"loop-wf-1", *(f"benchmark_{number}" for number in range(6))}
    expected = {f"shared.{key}": str(key) for key in range(20)} | {f"of_{pod}.seed": str(pod) for pod in range(6)}
    assert runs["loop-wf-1"].data.params == expected and NOTE in runs["loop-wf-1"].data.tags
    described = connect().get_experiment(runs["loop-wf-1"].info.experiment_id).tags
    assert {NOTE, "mlflow.experimentKind"} <= set(described)


@dataclass(frozen=True)
class Loop:
    """A loop that has run: its key in ``CHANGES``, where, and the id of its parent run."""

    name: str
    folder: Path
    run_id: str


@pytest.fixture(scope="module")
def loops(mlflow_server: servers.MLflow, tmp_path_factory: pytest.TempPathFactory) -> list[Loop]:
    """The loops of ``CHANGES``, with names as a user gives them in MLflow's pages."""
    from mlflow import MlflowClient

    client, done = MlflowClient(mlflow_server.url), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", mlflow_server.url)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        patch.setattr(sys, "argv", ["evenshard"])  # MLflow shows the program
        for name, changes in CHANGES.items():
            patch.chdir(tmp_path_factory.mktemp("loop"))
            run_loop(changes)
            parent = records.current_parent()
            assert parent is not None
            experiment = client.get_experiment_by_name("evenshard").experiment_id
            [found] = run_files.find_runs(client, experiment, parent.tag, parent.key)
            client.update_run(found.info.run_id, name=name)
            done.append(Loop(name, Path.cwd(), found.info.run_id))
    return done


def stages_of(client: Any, loop: Loop) -> dict[str, Any]:
    experiment = client.get_run(loop.run_id).info.experiment_id
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{loop.run_id}'")
    return {run.info.run_name: run for run in found}


def test_whole_loops_arrive_with_their_files_and_a_model_that_can_be_used(
    at: Path,
    mlflow_server: servers.MLflow,
    s3: servers.S3,
    loops: list[Loop],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = connect()
    for loop in loops:
        parent, params, stages = client.get_run(loop.run_id), params_with(CHANGES[loop.name]), stages_of(client, loop)
        rounds = range(1, params["loop"]["num_rounds"] + 1)
        of_rounds = {f"{stage}_{k}" for stage in ("benchmark", "train_cost", "train_policy") for k in rounds}
        assert set(stages) == {*of_rounds, "generate_tables", "evaluate"}
        assert {run.info.status for run in stages.values()} == {"FINISHED"}
        metric = "evenshard.mean_measured_ms"
        assert stages["evaluate"].data.metrics[metric] == parent.data.metrics[metric]
        run_id = stages["evaluate"].info.run_id
        assert any(key.endswith(f"{run_id}/artifacts/reports/evaluation.csv") for key in s3.keys("mlflow/"))
    uri = stages["evaluate"].data.tags["evenshard.registered"].split(", ")[0]
    tables = loop.folder / "work" / "tables.parquet"
    place = ["place", str(tables), "--devices", "2", "--memory-cap-gb", "64", "--batch-size", "4096"]
    assert main([*place, "--model", uri, "-o", "placement.json"]) == 0, capsys.readouterr().err


FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
# Without the panel of MLflow's assistant, and with the switch at "Model training", which MLflow remembers.
TIDY = """
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
localStorage.setItem('mlflow.workflowType_v1', '"machine_learning"');
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a real browser."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1500, "height": 1000})
        opened.set_default_timeout(1000 * PATIENCE_S)
        opened.add_init_script(TIDY)
        yield opened
        browser.close()


def take_picture(page: Any, name: str, height: int, folder: Path) -> None:
    """Takes a picture of the page, once nothing moves any more."""
    page.set_viewport_size({"width": 1500, "height": height})
    page.wait_for_timeout(1000)
    path = Path(os.environ.get("SCREENSHOTS", folder)) / f"mlflow_{name}.png"
    page.screenshot(path=path)
    page.set_viewport_size({"width": 1500, "height": 1000})
    assert path.stat().st_size > 20_000  # an empty page has 10 kB


@pytest.fixture
def runs_page(page: Any, loops: list[Loop], at: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    return f"{os.environ['MLFLOW_TRACKING_URI']}/#/experiments/{experiment_id(connect())}/runs"


def test_loops_are_ticked_and_compared(page: Any, runs_page: str, loops: list[Loop], tmp_path: Path) -> None:
    page.goto(f"{runs_page}?compareRunsMode=TABLE")
    page.get_by_role("columnheader", name="Run Name").first.wait_for()
    # with what the loops differ in, as the button "Columns" would
    key = f'MLflowLocalStorage-1.1-ExperimentPage-["{runs_page.split("/")[-2]}"]-ReactComponentState'
    page.wait_for_function("key => localStorage.getItem(key)", arg=key)
    state = json.loads(page.evaluate("key => localStorage.getItem(key)", key))
    state["selectedColumns"] = [*(f"params.`{name}`" for name in CHANGED), *(f"metrics.`{name}`" for name in COMPARED)]
    page.evaluate("([key, value]) => localStorage.setItem(key, value)", [key, json.dumps(state)])
    page.goto("about:blank")
    page.goto(f"{runs_page}?compareRunsMode=TABLE")
    for loop in loops:
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=loop.name, exact=True))
        row_id = row.first.get_attribute("row-index")
        page.locator(f'[row-index="{row_id}"] input[aria-label^="Press Space to toggle row selection"]').first.check()
    take_picture(page, "runs", 460, tmp_path)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text(f"Comparing {len(loops)} Runs from 1 Experiment").wait_for()
    parameters, metrics = page.get_by_role("combobox").nth(0), page.get_by_role("combobox").nth(1)
    for name in CHANGED:  # chosen by MLflow: they are all that differs
        assert name in (parameters.get_attribute("aria-description") or "")
    metrics.press("Backspace")
    for name in COMPARED:
        metrics.fill(name)
        page.get_by_role("option", name=name, exact=True).wait_for(state="attached")
        metrics.press("Enter")
    page.keyboard.press("Escape")
    page.locator(".js-plotly-plot").first.get_by_text(COMPARED[-1]).wait_for()
    take_picture(page, "compare", 940, tmp_path)
    for loop in loops:
        page.get_by_text(loop.name).first.wait_for()


def test_descriptions_lead_from_page_to_page(page: Any, runs_page: str, loops: list[Loop], tmp_path: Path) -> None:
    """From a version of a model to its loop, and to the runs that wrote and read the costs that it learned from."""
    loop, server, client = loops[-1], runs_page.partition("/#")[0], connect()
    page.goto(f"{runs_page}/{loop.run_id}")
    page.get_by_text("docs/mlflow.md").first.wait_for()
    take_picture(page, "loop", 560, tmp_path)
    stages = stages_of(client, loop)
    version = stages["evaluate"].data.tags["evenshard.registered"].split(", ")[0].rpartition("/")[2]
    page.goto(f"{server}/#/models/evenshard-cost/versions/{version}")
    page.get_by_text("trained on cost datasets").wait_for()
    sha256 = stages["benchmark_2"].data.tags["evenshard.costs_sha256"]
    links = (
        page.locator(f'a[href*="/runs/{loop.run_id}"]').first,
        page.locator("a[target=_blank]").get_by_text(sha256[:12], exact=True).first,
    )
    to_loop, to_costs = (f"{server}/{link.get_attribute('href')}" for link in links)
    page.goto(to_loop)
    page.get_by_role("heading", name=loop.name, exact=True).wait_for()
    page.goto(to_costs)  # which the second round wrote, and later stages read
    some = client.search_runs([runs_page.split("/")[-2]], f"tags.`evenshard.costs_sha256` LIKE '%{sha256}%'")
    page.get_by_text(f"{len(some)} matching runs").wait_for()
    page.goto(f"{server}/#/models/evenshard-cost")
    page.get_by_text("names the version to use").first.wait_for()
