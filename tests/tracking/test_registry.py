"""Registered models: versions that MLflow serves, that our own classes read again, and that carry their lineage."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evenshard
from evenshard import tracking
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.units import bytes_to_gb
from evenshard.sharders.models import load_model
from evenshard.tables.files import save_tables
from evenshard.tables.sources import tables_in_python
from evenshard.tables.table import Table
from evenshard.tracking.pyfunc import build_serving_code
from evenshard.tracking.registry import copy_parts, ensure_models, register_folder
from support.builders import some_tables
from support.tracking_builders import empty_mlflow, register_model, write_model

TABLES = some_tables(6)
PARAMS = {"num_devices": 2, "memory_cap_gb": 1.0, "batch_size": 64}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow with two versions of evenshard-cost and one of evenshard-policy."""
    folder = tmp_path_factory.mktemp("registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.chdir(folder)
        empty_mlflow(folder)
        for seed in (0, 1):
            write_model(folder / f"round_{seed}", seed=seed, hardware="simulated: h100")
            (folder / f"round_{seed}" / "costs.parquet").write_text("is not of the model")
            register_model(
                folder / f"round_{seed}",
                build_serving_code(),
                {"evenshard.git_commit": "abc"},
                {"evenshard.mean_ms": 1 / 3},
            )
        register_model(folder / "round_0", build_serving_code(), {}, name=tracking.REGISTERED_POLICY)
    return folder


@pytest.fixture
def registry(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return root


def rows() -> pd.DataFrame:
    """As a table file holds them."""
    save_tables(TABLES, "tables.parquet")
    return pd.read_parquet("tables.parquet")


def served(uri: str, tables: pd.DataFrame, **params: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's about its own modules
        import mlflow.pyfunc

        answer: pd.DataFrame = mlflow.pyfunc.load_model(uri).predict(tables, params={**PARAMS, **params})
    return answer


def test_mlflow_serves_what_evenshard_places(registry: Path) -> None:
    answer = evenshard.place(TABLES, 2, 1.0, batch_size=64, model=registry / "round_0", hardware="auto")
    expected = [
        {
            "table": part.table,
            "device": device,
            "row_start": part.rows.start,
            "row_stop": part.rows.stop,
            "column_start": part.columns.start,
            "column_stop": part.columns.stop,
        }
        for part in answer.parts
        for device in part.devices
    ]
    assert served("models:/evenshard-cost/1", rows()).to_dict("records") == expected
    assert list(dict.fromkeys(one["table"] for one in expected)) == [table.name for table in TABLES]


@pytest.mark.slow
def test_the_columns_may_be_as_few_as_a_table_file_needs(registry: Path) -> None:
    few = rows()[["name", "num_rows", "embedding_dim", "pooling_factor"]]
    with_few, with_all = (
        one.assign(device=pd.factorize(one["device"])[0])  # devices are alike, and their names are nothing
        for one in (served("models:/evenshard-cost/1", few), served("models:/evenshard-cost/1", rows()))
    )
    pd.testing.assert_frame_equal(with_few, with_all)
    with pytest.raises(Exception, match="pooling_factor"):
        served("models:/evenshard-cost/1", few.drop(columns="pooling_factor"))
    with pytest.raises(BadFile, match="records 1, 2, 3, 4, 5, 6: num_rows is 0"):
        served("models:/evenshard-cost/1", few.assign(num_rows=0))


@pytest.mark.slow
def test_weight_bits_and_memory_count(registry: Path) -> None:
    size_gb = bytes_to_gb(sum(table.size_bytes for table in TABLES))
    own = {"memory_cap_gb": size_gb / 3, "reserved_gb": 0.0, "training_pipeline": ""}
    with pytest.raises(Exception, match="memory_cap_gb"):
        served("models:/evenshard-cost/1", rows(), **own)
    with pytest.raises(Exception, match="memory_cap_gb"):  # 32 bits where nothing is said
        served("models:/evenshard-cost/1", rows().drop(columns="weight_bits"), **own)
    half = served("models:/evenshard-cost/1", rows().assign(weight_bits=16), **own)
    assert set(half["device"]) == {0, 1}


def test_rows_of_tables_hold_everything_that_a_table_file_does(tmp_path: Path) -> None:
    shared = Table("s", 9, 4, 3.0, feature_names=("a", "b"), feature_pooling_factors=(1.0, 2.0), pooling="none")
    tables = (*TABLES, shared, Table("w", 9, 4, 3.0, None, 16, "bf16", is_weighted=True, row_shares=(0.5, 0.5)))
    save_tables(tables, tmp_path / "t.parquet")
    read = tables_in_python(pd.read_parquet(tmp_path / "t.parquet"), 8)
    assert read is not None and read.tables == tables


def test_the_policy_places_by_itself(registry: Path) -> None:
    policy = load_model(registry / "round_0").policy
    assert policy is not None
    answer = served("models:/evenshard-policy/1", rows())
    assert list(answer["table"]) == [table.name for table in TABLES]
    assert list(answer["column_stop"]) == [table.embedding_dim for table in TABLES]
    assert set(answer["device"]) <= {0, 1}
    with pytest.raises(BadConfig, match="does not support allow_column_split"):
        served("models:/evenshard-policy/1", rows(), allow_column_split=True)


def test_a_version_holds_code_as_text_and_what_it_needs(registry: Path) -> None:
    from mlflow.models import get_model_info

    info = get_model_info("models:/evenshard-cost/1")
    assert info.signature.inputs.input_names()[:4] == ["name", "num_rows", "embedding_dim", "pooling_factor"]
    assert {one.name: one.default for one in info.signature.params} == build_serving_code().parameters
    spans = ["row_start", "row_stop", "column_start", "column_stop"]
    assert info.signature.outputs.input_names() == ["table", "device", *spans]
    with tracking.download_model("models:/evenshard-cost/1") as model:
        folder = model.parents[1]
        assert not list(folder.rglob("*.pkl")) and not list(folder.rglob("*.parquet"))
        assert (folder / "mlflow_model.py").read_text() == (
            Path(evenshard.__file__).parent / "tracking" / "mlflow_model.py"
        ).read_text()
        needed = (folder / "requirements.txt").read_text().split()
    assert f"evenshard=={evenshard.__version__}" in needed and any(one.startswith("torch==") for one in needed)


def test_our_own_classes_read_a_version_again(registry: Path) -> None:
    for version, folder in (("1", "round_0"), ("2", "round_1")):
        with tracking.download_model(f"models:/evenshard-cost/{version}") as downloaded:
            fetched = load_model(downloaded)
        assert not downloaded.exists(), "it is in memory"
        assert fetched.digest == load_model(registry / folder).digest
        assert fetched.policy is not None
    with tracking.download_model("models:/evenshard-policy/1") as downloaded:
        parts = {path.name for path in downloaded.iterdir()}
    assert parts == {"cost_net", "policy"}


def test_a_version_says_where_it_comes_from(registry: Path) -> None:
    version = tracking.model_version("models:/evenshard-cost/1")
    assert (version.name, version.version, version.uri) == ("evenshard-cost", "1", "models:/evenshard-cost/1")
    assert version.tags["evenshard.git_commit"] == "abc"
    assert version.tags["evenshard.model_sha256"] == load_model(registry / "round_0").digest
    assert version.metrics == {"evenshard.mean_ms": 0.333333}
    assert version.model_id.startswith("m-")


def test_a_missing_champion_names_the_command_that_makes_one(registry: Path) -> None:
    wanted = "`evenshard promote` makes the newest version .* `evenshard promote --candidate FOLDER` registers"
    for name in (tracking.REGISTERED_POLICY, "evenshard-nothing"):
        with pytest.raises(BadConfig, match=wanted):
            tracking.model_version(f"models:/{name}@champion")
    with pytest.raises(BadConfig, match="Name a registered model") as other:
        tracking.model_version("models:/evenshard-cost@challenger")
    assert "promote" not in str(other.value)


def test_the_champion_is_who_was_named_last(registry: Path) -> None:
    assert tracking.champion(tracking.REGISTERED_POLICY) is None
    assert tracking.champion("evenshard-nothing") is None
    for version in ("1", "2"):
        tracking.set_champion(tracking.REGISTERED_COST, version)
        champion = tracking.champion()
        assert champion is not None
        assert (champion.version, champion.aliases) == (version, ("champion",))
        assert tracking.model_version("models:/evenshard-cost@champion") == champion
    with pytest.raises(BadConfig, match="version=7"):
        tracking.set_champion(tracking.REGISTERED_COST, "7")
    still = tracking.champion()
    assert still is not None and still.version == "2"


def test_a_folder_that_is_registered_is_not_registered_again(registry: Path) -> None:
    known = tracking.model_version("models:/evenshard-cost/1")
    version, policy = register_folder(registry / "round_0", build_serving_code())
    assert (version.tags["evenshard.model_sha256"], policy) == (
        known.tags["evenshard.model_sha256"],
        tracking.model_version("models:/evenshard-policy/1"),
    )


def test_the_same_model_of_two_runs_is_two_versions(registry: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    runs = [client.create_run(experiment).info.run_id for _ in range(2)]
    versions = [register_model(registry / "round_0", build_serving_code(), {}, run_id=run) for run in runs]
    assert [one.run_id for one in versions] == runs and versions[0].version != versions[1].version
    for run, version in zip(runs, versions, strict=True):
        assert tracking.find_by_weights(tracking.REGISTERED_COST, registry / "round_0", run) == version
    assert tracking.find_by_weights(tracking.REGISTERED_COST, registry / "round_0") == versions[1], "the last one"
    other = register_model(registry / "round_1", build_serving_code(), {}, run_id=runs[0])
    assert other.model_id != versions[0].model_id, "another model of the same run has files of its own"


def test_what_was_not_finished_is_no_version_and_is_finished_by_another_try(
    registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{registry}/mlflow.db")
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    run_id = client.create_run(experiment).info.run_id
    model = write_model(tmp_path / "model", seed=5)

    def torn(model_id: str, local_dir: str) -> None:
        raise ConnectionResetError("the server is gone")

    before = len(client.search_model_versions())
    with monkeypatch.context() as patch:
        patch.setattr(client, "log_model_artifacts", torn)
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
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{registry}/mlflow.db")
    before = {(one.name, one.version) for one in client.search_model_versions()}
    model = write_model(tmp_path / "model", seed=11)
    make = client.create_model_version

    def refused(name: str, *args: Any, **named: Any) -> Any:
        if name == tracking.REGISTERED_COST:
            raise ConnectionResetError("the server is gone")
        return make(name, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(client, "create_model_version", refused)
        with pytest.raises(ConnectionResetError):
            ensure_models(model, build_serving_code(), {}, client=client)
    assert {(one.name, one.version) for one in client.search_model_versions()} == before
    cost, policy = ensure_models(model, build_serving_code(), {}, client=client)
    assert (cost.name, policy.name) == (tracking.REGISTERED_COST, tracking.REGISTERED_POLICY)
    assert ensure_models(model, build_serving_code(), {}, client=client) == (cost, policy)


def test_mlflow_does_not_tell_that_it_tries_the_example(
    registry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_model(write_model(tmp_path / "other", seed=7), build_serving_code(), {})
    assert "input example" not in capsys.readouterr().err


def test_half_a_model_is_none(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "cost_net").mkdir(parents=True)
    with pytest.raises(BadFile, match="cost_model is missing"):
        register_model(tmp_path / "model", build_serving_code(), {})
    with pytest.raises(BadFile, match="policy is missing"):
        copy_parts(tmp_path / "model", tmp_path / "copy", tracking.REGISTERED_POLICY)
