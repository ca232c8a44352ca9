"""What MLflow's pages say of experiment, runs and models, and that the same weights are one version."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.tracking.descriptions import NOTE, model_description
from evenshard.tracking.pyfunc import build_serving_code
from support.tracking_builders import parts_of, runs_of, write_costs, write_model

PARAMS = {"loop": {"num_rounds": 1}}


def evaluated(folder: Path, seed: int = 0, commit: str = "abc") -> Path:
    """A loop's run of evaluate, which registers its model."""
    costs = write_costs(folder / "round_1" / "costs.parquet")
    model = write_model(folder / f"model_{seed}_{commit}", (costs,), seed, commit)
    with tracking.stage_run("evaluate", PARAMS, {}, "Measures every sharder.") as run:
        run.costs([costs], "training")
        run.register(parts_of(model), build_serving_code(), {"evenshard.mean_measured_ms": 1.5})
        run.conclude({"evenshard.mean_measured_ms": 1.5})
    return model


def links(text: str) -> dict[str, str]:
    """Where the links lead, all of them to MLflow's pages for models: those for chats know no runs."""
    found = re.findall(r"\[([^\]]+)\]\((#[^)]+)[?&]workflowType=machine_learning\)", text)
    assert len(found) == text.count("](#")
    return dict(found)


@pytest.mark.slow
def test_all_that_belongs_together_is_linked(client: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated(workdir)
    runs = runs_of(client)
    child = runs.pop("evaluate")
    (loop,), experiment = runs.values(), child.info.experiment_id
    page = f"#/experiments/{experiment}"
    described = client.get_experiment(experiment).tags
    assert links(described[NOTE])["runs"] == f"{page}/runs"
    assert links(described[NOTE])["evenshard-cost"] == "#/models/evenshard-cost"

    of_child = child.data.tags[NOTE]
    assert of_child.startswith("**evenshard**: stage `evaluate` of [its loop]")
    assert "Measures every sharder." in of_child
    assert links(of_child)["its loop"] == f"{page}/runs/{loop.info.run_id}"
    sha256 = child.data.tags["evenshard.costs_sha256"]
    assert loop.data.tags[NOTE].startswith("**evenshard**: a loop. ")

    assert client.get_registered_model("evenshard-cost").description == model_description("evenshard-cost")
    monkeypatch.setenv("EVENSHARD_DOCS", "https://docs.example.com/evenshard/")
    assert "(https://docs.example.com/evenshard/mlflow.html)" in model_description("evenshard-cost")
    version = client.get_model_version("evenshard-policy", "1")
    of_version = links(version.description)
    assert of_version["evaluate"] == f"{page}/runs/{child.info.run_id}"
    assert of_version["its loop"] == f"{page}/runs/{loop.info.run_id}"
    assert of_version[version.tags["evenshard.model_id"]].startswith(f"{page}/models/m-")
    assert f"{page}/runs?searchFilter=" in of_version[sha256[:12]] and sha256 in of_version[sha256[:12]]


def test_an_experiment_of_another_program_is_described_and_what_somebody_wrote_stays(client: Any) -> None:
    made = client.create_experiment("evenshard")
    with tracking.stage_run("train_cost_1", PARAMS, {}):
        pass
    tags = client.get_experiment(made).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development" and "#/models/evenshard-cost" in tags[NOTE]
    [loop] = (run.info.run_id for name, run in runs_of(client).items() if name.startswith("loop-"))
    client.set_tag(loop, NOTE, "Ours, of Monday")
    client.set_experiment_tag(made, NOTE, "Team ads")
    with tracking.stage_run("train_cost_2", PARAMS, {}):
        pass
    assert client.get_run(loop).data.tags[NOTE] == "Ours, of Monday"
    assert client.get_experiment(made).tags[NOTE] == "Team ads"


@pytest.mark.slow
def test_the_same_weights_are_registered_once(client: Any, workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluated(workdir)
    (first,) = client.search_model_versions("name = 'evenshard-cost'")
    with caplog.at_level(logging.INFO, "evenshard"):
        evaluated(workdir, commit="def")
    assert "models:/evenshard-cost/1 already has these weights" in caplog.text
    assert len(client.search_model_versions()) == 2
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    newest, oldest = client.search_runs([experiment], "attributes.run_name = 'evaluate'")
    assert first.run_id == oldest.info.run_id
    assert newest.data.tags["evenshard.registered"] == "models:/evenshard-cost/1, models:/evenshard-policy/1"
    newest, oldest = ({one.model_id for one in run.outputs.model_outputs} for run in (newest, oldest))
    assert newest == oldest
    evaluated(workdir, seed=1)
    assert len(client.search_model_versions("name = 'evenshard-cost'")) == 2
