"""Registered models: versions that our own classes read again, that carry their lineage, and are made once or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.base.errors import BadConfig, BadFile, TrackingFailed
from evenshard.sharders.models import load_model
from evenshard.tracking.client import connect
from evenshard.tracking.pyfunc import build_serving_code
from evenshard.tracking.registry import copy_parts, ensure_models, register_folder
from support.tracking_builders import AWAY, new_registry, register_model, write_model

CHAMPION = "models:/evenshard-cost@champion"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow with two versions of evenshard-cost and one of evenshard-policy."""
    with new_registry(tmp_path_factory) as folder:
        for seed in (0, 1):
            write_model(folder / f"round_{seed}", seed=seed, hardware="simulated: h100")
            tags, metrics = {"evenshard.git_commit": "abc"}, {"evenshard.mean_ms": 1 / 3}
            register_model(folder / f"round_{seed}", build_serving_code(), tags, metrics)
        register_model(folder / "round_0", build_serving_code(), {}, name=tracking.REGISTERED_POLICY)
    return folder


def test_our_own_classes_read_a_version_again_that_says_where_it_comes_from(registry: Path) -> None:
    before = dict(os.environ)
    for version, folder in (("1", "round_0"), ("2", "round_1")):
        with tracking.download_model(f"models:/evenshard-cost/{version}") as downloaded:
            fetched = load_model(downloaded)
        assert not downloaded.exists(), "it is in memory"
        assert fetched.digest == load_model(registry / folder).digest and fetched.policy is not None
    with tracking.download_model("models:/evenshard-policy/1") as downloaded:
        assert {path.name for path in downloaded.iterdir()} == {"cost_net", "policy"}
    assert dict(os.environ) == before
    version = tracking.model_version("models:/evenshard-cost/1")
    assert (version.name, version.version, version.uri) == ("evenshard-cost", "1", "models:/evenshard-cost/1")
    assert version.tags["evenshard.git_commit"] == "abc" and version.model_id.startswith("m-")
    assert version.tags["evenshard.model_sha256"] == load_model(registry / "round_0").digest
    assert version.metrics == {"evenshard.mean_ms": 0.333333}


def test_what_is_not_registered_is_one_line(registry: Path) -> None:
    for uri, reason in (
        ("models:/evenshard-cost@nobody", "alias nobody not found"),
        ("models:/evenshard-policy@champion", "`evenshard promote` makes the newest version"),
        ("models:/evenshard-cost/7", "version=7"),
        ("evenshard-cost/1", "is not a valid model URI"),
    ):
        with pytest.raises(BadConfig, match=reason):
            tracking.model_version(uri)
        with pytest.raises(BadConfig, match=reason) as caught, tracking.download_model(uri):
            pass
        assert str(caught.value).startswith(uri) and "\n" not in str(caught.value)


def test_without_an_mlflow_that_is_one_line(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, error, says in (
        ("", BadConfig, "no mlflow.db in this folder"),
        (AWAY, TrackingFailed, f"{AWAY} did not return this model"),
        ("postgresql://me:secret@127.0.0.1:9/mlflow", TrackingFailed, "***@127.0.0.1:9"),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(error) as caught, tracking.download_model(CHAMPION):
            pass
        assert says in str(caught.value) and "secret" not in str(caught.value) and "\n" not in str(caught.value)
        assert not (workdir / "mlflow.db").exists()


def test_the_champion_is_who_was_named_last(registry: Path) -> None:
    assert tracking.champion(tracking.REGISTERED_POLICY) is None
    assert tracking.champion("evenshard-nothing") is None
    for version in ("1", "2"):
        tracking.set_champion(tracking.REGISTERED_COST, version)
        champion = tracking.champion()
        assert champion is not None
        assert (champion.version, champion.aliases) == (version, ("champion",))
        assert tracking.model_version(CHAMPION) == champion
    with pytest.raises(BadConfig, match="version=7"):
        tracking.set_champion(tracking.REGISTERED_COST, "7")
    assert tracking.champion() == champion


def test_a_folder_that_is_registered_is_not_registered_again(registry: Path) -> None:
    version, policy = register_folder(registry / "round_0", build_serving_code())
    sha256 = tracking.model_version("models:/evenshard-cost/1").tags["evenshard.model_sha256"]
    assert version.tags["evenshard.model_sha256"] == sha256
    assert policy == tracking.model_version("models:/evenshard-policy/1")


def test_the_same_model_of_two_runs_is_two_versions(registry: Path) -> None:
    client = connect()
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    runs = [client.create_run(experiment).info.run_id for _ in range(2)]
    versions = [register_model(registry / "round_0", build_serving_code(), {}, run_id=run) for run in runs]
    assert [one.run_id for one in versions] == runs and versions[0].version != versions[1].version
    for run, version in zip(runs, versions, strict=True):
        assert tracking.find_by_weights(tracking.REGISTERED_COST, registry / "round_0", run) == version
    assert tracking.find_by_weights(tracking.REGISTERED_COST, registry / "round_0") == versions[1], "the last one"
    other = register_model(registry / "round_1", build_serving_code(), {}, run_id=runs[0])
    assert other.model_id != versions[0].model_id, "another model of the same run has files of its own"


def gone(*args: Any, **named: Any) -> Any:
    raise ConnectionResetError("the server is gone")


def test_what_was_not_finished_is_no_version_and_is_finished_by_another_try(
    registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = connect()
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    run_id = client.create_run(experiment).info.run_id
    model = write_model(tmp_path / "model", seed=5)

    before = len(client.search_model_versions())
    with monkeypatch.context() as patch:
        patch.setattr(client, "log_model_artifacts", gone)
        with pytest.raises(ConnectionResetError):
            register_model(model, build_serving_code(), {}, run_id=run_id, client=client)
    of_run = f"source_run_id = '{run_id}'"
    [half] = client.search_logged_models([experiment], of_run)
    assert half.status == "FAILED" and len(client.search_model_versions()) == before
    version = register_model(model, build_serving_code(), {}, run_id=run_id, client=client)
    logged = {one.model_id: str(one.status) for one in client.search_logged_models([experiment], of_run)}
    assert logged == {half.model_id: "READY"} == {version.model_id: "READY"}
    with tracking.download_model(version.uri) as downloaded:
        assert load_model(downloaded).digest == load_model(model).digest


def test_both_models_are_registered_or_none(registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = connect()
    before = {(one.name, one.version) for one in client.search_model_versions()}
    model = write_model(tmp_path / "model", seed=11)
    make = client.create_model_version

    def refused(name: str, *args: Any, **named: Any) -> Any:
        return (gone if name == tracking.REGISTERED_COST else make)(name, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(client, "create_model_version", refused)
        with pytest.raises(ConnectionResetError):
            ensure_models(model, build_serving_code(), {}, client=client)
    assert {(one.name, one.version) for one in client.search_model_versions()} == before
    cost, policy = ensure_models(model, build_serving_code(), {}, client=client)
    assert (cost.name, policy.name) == (tracking.REGISTERED_COST, tracking.REGISTERED_POLICY)
    assert ensure_models(model, build_serving_code(), {}, client=client) == (cost, policy)


def test_half_a_model_is_none(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "cost_net").mkdir(parents=True)
    with pytest.raises(BadFile, match="cost_model is missing"):
        register_model(tmp_path / "model", build_serving_code(), {})
    with pytest.raises(BadFile, match="policy is missing"):
        copy_parts(tmp_path / "model", tmp_path / "copy", tracking.REGISTERED_POLICY)
