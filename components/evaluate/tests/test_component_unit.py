"""The body, called as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
