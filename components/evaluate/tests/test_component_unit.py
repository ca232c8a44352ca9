"""The body, called as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from evenshard.base.errors import MeasurementFailed
from evenshard.measure.campaign import Job
from evenshard.measure.hardware import Hardware
from evenshard.price.costs import PlacementCost
from evenshard.sharders.models import load_model
from evenshard_components.conftest import CONFIG
from evenshard_components.evaluate.component import evaluate

Artifacts = Callable[..., dict[str, Any]]


def test_it_reports_what_it_measured_and_packs_the_model(given: Artifacts, made: Artifacts) -> None:
    outputs = made("report", "model", "page", "summary", "metrics")
    inputs = given("tables", "tasks", "costs", "cost_net", "policy", "cost_model")
    evaluate.python_func(**inputs, **outputs, config=CONFIG["evaluate"], measure=CONFIG["measure"])
    found = json.loads(Path(outputs["report"].path, "metrics.json").read_text())
    assert found["num_test_tasks"] == 2
    mean = found["sharders"]["evenshard"]["mean_measured_ms"]
    assert outputs["metrics"].metadata["evenshard.mean_measured_ms"] == mean
    page = Path(outputs["page"].path).read_text()
    assert page.count('src="data:image/png;base64,') == 3 and "http" not in page
    assert "single_cost_greedy" in Path(outputs["summary"].path).read_text()
    model = load_model(outputs["model"].path, "simulated:h200")
    assert model.policy is not None


def test_another_pod_goes_on_from_the_journal_on_the_volume(
    given: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a folder of its own; the device fails the first after 20 measurements."""
    monkeypatch.setenv("EVENSHARD_JOURNAL_FOLDER", str(tmp_path / "journals"))
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    measured: list[str] = []
    measure_on = Job.measure_on

    def fails_once(job: Job, hardware: Hardware) -> PlacementCost:
        if len(measured) == 20:
            measured.append("fails")
            raise MeasurementFailed("the device is away")
        measured.append(job.key)
        return measure_on(job, hardware)

    monkeypatch.setattr(Job, "measure_on", fails_once)
    inputs = given("tables", "tasks", "costs", "cost_net", "policy", "cost_model")
    settings = {"config": CONFIG["evaluate"], "measure": CONFIG["measure"]}

    def run(pod: str) -> dict[str, Any]:
        names = ("report", "model", "page", "summary")
        outputs = {name: dsl.Artifact(name=name, uri=str(tmp_path / pod / name)) for name in names}
        metrics = dsl.Metrics(name="metrics", uri=str(tmp_path / pod / "metrics"))
        evaluate.python_func(**inputs, **outputs, metrics=metrics, **settings)
        return metrics.metadata

    with pytest.raises(MeasurementFailed):
        run("first")
    assert list((tmp_path / "journals/wf-1/evaluate").iterdir())
    found = run("second")
    assert len(set(measured)) == len(measured) and not (tmp_path / "journals/wf-1/evaluate").exists()
    assert found == run("at once")
