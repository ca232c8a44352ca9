"""MLflow's pages for a user who compares loops: our names and values, in a real Chromium.

With SCREENSHOTS=docs/images the pictures of the documentation are taken again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from evenshard.tracking.descriptions import NOTE
from evenshard.tracking.tags import PARENT_TAG
from support import servers
from support.loops import Loop
from support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
CHANGED = ["loop.num_rounds", "train_cost.minibatch_size", "train_policy.entropy_weight"]
COMPARED = ["evenshard.mean_measured_ms", "dreamshard.mean_measured_ms"]
# Without the panel of MLflow's assistant, and with the switch at "Model training", which MLflow remembers.
TIDY = """
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
localStorage.setItem('mlflow.workflowType_v1', '"machine_learning"');
"""


@pytest.fixture(scope="module")
def page(mlflow_server: servers.MLflow) -> Iterator[Any]:
    """A page of a real browser."""
    if reason := servers.missing_chromium():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=servers.chromium(), args=FLAGS.split())
        opened = browser.new_page(viewport={"width": 1500, "height": 1000})
        opened.set_default_timeout(1000 * PATIENCE_S)
        opened.add_init_script(TIDY)
        yield opened
        browser.close()


@pytest.fixture
def picture(page: Any, tmp_path: Path) -> Any:
    """Takes a picture of the page, once nothing moves any more."""

    def take(name: str, height: int) -> None:
        page.set_viewport_size({"width": 1500, "height": height})
        page.wait_for_timeout(1000)
        path = Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"mlflow_{name}.png"
        page.screenshot(path=path)
        page.set_viewport_size({"width": 1500, "height": 1000})
        assert path.stat().st_size > 20_000  # an empty page has 10 kB

    return take


@pytest.fixture
def runs_page(mlflow_server: servers.MLflow, three_loops: list[Loop]) -> str:
    from mlflow import MlflowClient

    experiment = MlflowClient(mlflow_server.url).get_experiment_by_name("evenshard")
    assert experiment is not None
    return f"{mlflow_server.url}/#/experiments/{experiment.experiment_id}/runs"


def shows(what: Any) -> Any:
    """What a part of the page shows, once it does."""
    from playwright.sync_api import expect

    expect.set_options(timeout=1000 * PATIENCE_S)
    return expect(what)


def metric_of(server: servers.MLflow, loop: Loop, name: str) -> float:
    from mlflow import MlflowClient

    return float(MlflowClient(server.url).get_run(loop.run_id).data.metrics[name])


def test_each_link_opens_what_it_names_in_a_browser_that_has_not_been_there(
    page: Any, three_loops: list[Loop], mlflow_server: servers.MLflow
) -> None:
    """MLflow opens with its menu for chats, in which an experiment has no runs and "Traces 0"."""
    from mlflow import MlflowClient

    client, loop = MlflowClient(mlflow_server.url), three_loops[0]
    run = client.get_run(loop.run_id)
    experiment = client.get_experiment(run.info.experiment_id)
    versions = client.search_model_versions("name = 'evenshard-cost'")  # of all loops, and of other tests
    version = next(one for one in versions if client.get_run(one.run_id).data.tags.get(PARENT_TAG) == loop.run_id)
    seen = {}
    for note, link, expected in (
        (experiment.tags[NOTE], "runs", loop.name),
        (experiment.tags[NOTE], "charts", loop.name),
        (experiment.tags[NOTE], "evenshard-cost", "names the version to use"),
        (version.description, "evaluate", "Compare all sharders on the held-out tasks"),
    ):
        (address,) = re.findall(rf"\[{link}\]\((#[^)]+)\)", note)
        with page.context.browser.new_context() as context:
            opened = context.new_page()
            opened.goto(f"{mlflow_server.url}/{address}")
            opened.set_default_timeout(1000 * PATIENCE_S)
            opened.get_by_text(expected).first.wait_for()
            opened.get_by_text("Model registry").first.wait_for()
            seen[link, address] = opened.inner_text("body")
    for where, text in seen.items():
        assert "Observability" not in text, where


def test_loops_are_ticked_and_compared(
    page: Any, picture: Any, runs_page: str, three_loops: list[Loop], mlflow_server: servers.MLflow
) -> None:
    _show_columns(page, runs_page)
    for loop in three_loops:
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=loop.name, exact=True))
        row_id = row.first.get_attribute("row-index")
        page.locator(f'[row-index="{row_id}"] input[aria-label^="Press Space to toggle row selection"]').first.check()
    picture("runs", 460)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Comparing 3 Runs from 1 Experiment").wait_for()

    parameters, metrics = page.get_by_role("combobox").nth(0), page.get_by_role("combobox").nth(1)
    for name in CHANGED:  # chosen by MLflow: they are all that differs
        assert name in (parameters.get_attribute("aria-description") or "")
    metrics.press("Backspace")
    for name in COMPARED:
        metrics.fill(name)
        page.get_by_role("option", name=name, exact=True).wait_for(state="attached")
        metrics.press("Enter")
    page.keyboard.press("Escape")
    plot = page.locator(".js-plotly-plot").first
    plot.get_by_text(COMPARED[-1]).wait_for()
    shows(plot.locator(".axis-title")).to_have_text([*CHANGED, *COMPARED])
    for name in COMPARED:
        values = [metric_of(mlflow_server, loop, name) for loop in three_loops]
        if min(values) < max(values):  # an axis of equal values has labels around them
            for end in (min(values), max(values)):
                shows(plot).to_contain_text(f"{end:.5f}")
    picture("compare", 940)
    for loop in three_loops:
        shows(page.locator("body")).to_contain_text(loop.name)


def test_metrics_are_charts_with_names_and_values(
    page: Any, picture: Any, runs_page: str, three_loops: list[Loop], mlflow_server: servers.MLflow
) -> None:
    page.goto(f"{runs_page}?compareRunsMode=CHART")
    page.reload()
    page.get_by_placeholder("Search metric charts").fill("evenshard|dreamshard|kendall|median|single_cost")
    chart = page.locator(".js-plotly-plot").filter(has_text="0.").first
    chart.wait_for()
    page.get_by_text("evenshard.mean_measured_ms").first.wait_for()
    for loop in three_loops:
        shows(page.locator("body")).to_contain_text(loop.name)
    for name in ("kendall_tau", "cost_model.median_abs_pct_error"):
        for loop in three_loops:
            shows(page.locator("body")).to_contain_text(f"{metric_of(mlflow_server, loop, name):.2f}")
    picture("charts", 960)


def test_losses_of_all_rounds_are_curves(
    page: Any, picture: Any, runs_page: str, three_loops: list[Loop], mlflow_server: servers.MLflow
) -> None:
    from mlflow import MlflowClient

    client, experiment = MlflowClient(mlflow_server.url), runs_page.split("/")[-2]
    of_loop = f"tags.mlflow.parentRunId = '{three_loops[-1].run_id}' AND attributes.run_name LIKE 'train_cost%'"
    found = sorted(client.search_runs([experiment], of_loop), key=lambda run: str(run.info.run_name))
    assert [run.info.run_name for run in found] == ["train_cost_1", "train_cost_2"]
    asked = {
        "runs": json.dumps([run.info.run_id for run in found]),
        "metric": '"loss_per_update"',
        "experiments": json.dumps([experiment]),
        "plot_metric_keys": '["loss_per_update"]',
        "plot_layout": '{"autosize":true,"xaxis":{},"yaxis":{"type":"log"}}',
        "x_axis": "step",
        "y_axis_scale": "log",
        "line_smoothness": "1",
        "show_point": "false",
        "deselected_curves": "[]",
        "last_linear_y_axis_range": "[]",
    }
    page.goto(f"{mlflow_server.url}/#/metric?{'&'.join(f'{key}={quote(value)}' for key, value in asked.items())}")
    page.get_by_role("link", name="train_cost_2", exact=True).wait_for()
    page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(state="attached")
    for run in found:
        points = client.get_metric_history(run.info.run_id, "loss_per_update")
        shows(page.locator("body")).to_contain_text(f"{run.info.run_name} (loss_per_update)")
        shows(page.locator("body")).to_contain_text(f"{points[-1].value} (step={len(points) - 1})")
    picture("losses", 720)


def children_of(loop: Loop, server: servers.MLflow, experiment: str) -> list[Any]:
    from mlflow import MlflowClient

    return list(MlflowClient(server.url).search_runs([experiment], f"tags.mlflow.parentRunId = '{loop.run_id}'"))


def test_descriptions_lead_from_page_to_page(
    page: Any, picture: Any, runs_page: str, three_loops: list[Loop], mlflow_server: servers.MLflow
) -> None:
    """From a version of a model to its loop, and to the runs that wrote and read the costs that it learned from."""
    from mlflow import MlflowClient

    loop = three_loops[-1]

    page.goto(f"{runs_page}/{loop.run_id}")
    page.get_by_text("docs/mlflow.md").first.wait_for()
    picture("loop", 560)
    client, experiment = MlflowClient(mlflow_server.url), runs_page.split("/")[-2]
    (made,) = (run for run in children_of(loop, mlflow_server, experiment) if run.info.run_name == "evaluate")
    version = made.data.tags["evenshard.registered"].split(", ")[0].rpartition("/")[2]
    page.goto(f"{mlflow_server.url}/#/models/evenshard-cost/versions/{version}")
    page.get_by_text("trained on cost datasets").wait_for()
    picture("version", 560)
    (wrote,) = (run for run in children_of(loop, mlflow_server, experiment) if run.info.run_name == "benchmark_2")
    sha256 = wrote.data.tags["evenshard.costs_sha256"]
    to_loop, to_costs = (
        f"{mlflow_server.url}/{link.get_attribute('href')}"
        for link in (
            page.locator(f'a[href*="/runs/{loop.run_id}"]').first,
            page.locator("a[target=_blank]").get_by_text(sha256[:12], exact=True).first,
        )
    )
    page.goto(to_loop)
    page.get_by_role("heading", name=loop.name, exact=True).wait_for()
    page.goto(to_costs)  # which the second round wrote, and later stages read
    some = client.search_runs([experiment], f"tags.`evenshard.costs_sha256` LIKE '%{sha256}%'")
    assert {"benchmark_2", "train_cost_2"} <= {run.info.run_name for run in some}
    page.get_by_text(f"{len(some)} matching runs").wait_for()
    page.goto(f"{mlflow_server.url}/#/models/evenshard-cost")
    page.get_by_text("names the version to use").first.wait_for()
    picture("model", 560)


def _show_columns(page: Any, runs_page: str) -> None:
    """Opens the table of runs with what the loops differ in, as its button "Columns" would."""
    page.goto(f"{runs_page}?compareRunsMode=TABLE")
    page.get_by_role("columnheader", name="Run Name").first.wait_for()
    key = f'MLflowLocalStorage-1.1-ExperimentPage-["{runs_page.split("/")[-2]}"]-ReactComponentState'
    page.wait_for_function("key => localStorage.getItem(key)", arg=key)
    state = json.loads(page.evaluate("key => localStorage.getItem(key)", key))
    state["selectedColumns"] = [*(f"params.`{name}`" for name in CHANGED), *(f"metrics.`{name}`" for name in COMPARED)]
    page.evaluate("([key, value]) => localStorage.setItem(key, value)", [key, json.dumps(state)])
    page.goto("about:blank")
    page.goto(f"{runs_page}?compareRunsMode=TABLE")
    page.get_by_role("columnheader", name="Run Name").first.wait_for()
