"""A model that MLflow has registered: by alias, by version, and what is said where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenshard.base.errors import BadConfig, TrackingFailed
from evenshard.sharders.models import load_model
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tracking import download_model, model_version
from support.builders import cost, cost_net, measured, policy, table, task
from support.convex_builders import NORMALIZER, bound_ms, random_model
from support.model_builders import save_model
from support.tracking_builders import empty_mlflow


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two versions of evenshard-cost in an MLflow of its own; the champion is the first."""
    trained_on = TrainingDomain.of([measured(task([table()], 1), (0,), cost(1.0))])
    root = tmp_path_factory.mktemp("registry")
    client = empty_mlflow(root)
    client.create_registered_model("evenshard-cost")
    for seed in (0, 1):
        folder = root / f"round_{seed}"
        save_model(folder, random_model(seed), trained_on, (cost_net(), policy(), NORMALIZER))
        client.create_model_version("evenshard-cost", source=folder.as_uri())
    client.set_registered_model_alias("evenshard-cost", "champion", "1")
    return root


@pytest.fixture
def registered(registry: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry, and MLflow's settings name it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{registry}/mlflow.db")
    return registry


@pytest.mark.parametrize(("uri", "folder"), [("@champion", "round_0"), ("/1", "round_0"), ("/2", "round_1")])
def test_an_alias_or_a_version_is_the_folder_that_was_registered(registered: Path, uri: str, folder: str) -> None:
    before = dict(os.environ)
    with download_model(f"models:/evenshard-cost{uri}") as downloaded:
        fetched = load_model(downloaded)
    assert fetched.digest == load_model(registered / folder).digest
    assert fetched.policy is not None
    assert bound_ms(fetched.cost_model, task([table()], 2)) > 0
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("models:/evenshard-cost@nobody", "alias nobody not found"),
        ("models:/evenshard-cost/7", "version=7"),
        ("models:/other/1", "name=other"),
        ("models:/", "is not a valid model URI"),
    ],
)
def test_what_is_not_registered_is_one_line(registered: Path, uri: str, reason: str) -> None:
    with pytest.raises(BadConfig):
        model_version(uri)
    with pytest.raises(BadConfig, match="is not a valid model URI"):
        model_version(uri.removeprefix("models:/"))
    with pytest.raises(BadConfig, match=reason) as caught, download_model(uri):
        pass
    assert str(caught.value).startswith(uri) and "\n" not in str(caught.value)


CHAMPION = "models:/evenshard-cost@champion"


def test_without_any_mlflow_none_is_made(workdir: Path) -> None:
    with (
        pytest.raises(BadConfig, match=r"no mlflow\.db in this folder"),
        download_model(CHAMPION),
    ):
        pass
    assert not (workdir / "mlflow.db").exists()


def test_a_server_that_is_away_is_one_line_within_seconds(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(TrackingFailed, match=r"http://127\.0\.0\.1:9 did not return this model") as caught,
        download_model(CHAMPION),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_no_password_of_a_database_is_shown(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@127.0.0.1:9/mlflow")
    with pytest.raises(TrackingFailed) as caught, download_model(CHAMPION):
        pass
    assert "***@127.0.0.1:9" in str(caught.value) and "secret" not in str(caught.value)
