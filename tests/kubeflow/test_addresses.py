"""The pipelines read tables and models on a real S3 that is not Amazon's, each task in a process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from evenshard.base.errors import BadFile
from evenshard.base.s3 import Address, content_hash, s3_client, upload
from evenshard.cli import main
from evenshard.planner.file import load_answer
from evenshard_components.drift.component import drift
from evenshard_components.watch.component import watch
from evenshard_pipelines.build import build, default_cluster
from support.kubeflow_builders import SMALL_PARAMS
from support.learned import LEARNED
from support.servers import S3
from support.watch_builders import traced_job


@pytest.fixture
def at(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder on S3 with tables.csv; the environment of a pod that knows the endpoint and the keys."""
    for name, value in s3.settings().items():
        monkeypatch.setenv(name, value)
    s3_client.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    address = f"s3://{s3.bucket}/{request.node.name}"
    put_tables(address)
    generate = {**SMALL_PARAMS["generate_tables"], "source": f"{address}/tables.csv"}
    Path("params.yaml").write_text(yaml.safe_dump({**SMALL_PARAMS, "generate_tables": generate}))
    return address


def put_tables(address: str, num_tables: int = 12) -> None:
    like = {"embedding_dim": 16, "pooling_factor": 2.0}
    rows = [{"name": f"t{n}", "num_rows": 200 * (n + 1), **like} for n in range(num_tables)]
    pd.DataFrame(rows).to_csv("tables.csv", index=False)
    upload(Path("tables.csv"), f"{address}/tables.csv")
    Path("tables.csv").unlink()


def the_run() -> Path:
    (folder,) = Path("work/kubeflow").iterdir()
    return folder


@pytest.mark.slow
def test_place_reads_tables_and_a_model(at: str, s3: S3) -> None:
    put_one_by_one(s3, LEARNED, f"{at}/model")
    words = ["pipeline", "run", "--pipeline", "place", "--set", f"tables={at}/tables.csv"]
    assert main([*words, "--set", f"model={at}/model", "--set", "request={num_devices: 2, batch_size: 32}"]) == 0
    answer = load_answer(the_run() / "place/placement/placement.json")
    assert len(answer.request.tables) == 12
    assert answer.lineage["model"]["source"] == f"{at}/model"
    assert f"{at}/tables.csv" in json.dumps(answer.lineage)


def artifact(name: str) -> SimpleNamespace:
    """An output of a component, as Kubeflow's executor hands it over."""
    metadata: dict[str, float] = {}
    Path(name).mkdir()
    return SimpleNamespace(path=str(Path(name, name)), metadata=metadata, log_metric=metadata.__setitem__)


@pytest.mark.slow
def test_drift_watches_tables(at: str) -> None:
    outputs = {"summary": artifact("summary"), "metrics": artifact("metrics")}
    given = {"request": {}, "model_uri": str(LEARNED)}
    assert drift.python_func(**outputs, **given, tables_address=f"{at}/tables.csv") is False
    assert f"The 12 tables are covered by {LEARNED}." in Path(outputs["summary"].path).read_text()
    with pytest.raises(BadFile, match="no such file or folder"):
        drift.python_func(**outputs, **given, tables_address=f"{at}/none.csv")


def put_one_by_one(s3: S3, folder: Path, address: str) -> None:
    """As a job writes its files to S3, or ``aws s3 cp --recursive``."""
    for path in (one for one in folder.rglob("*") if one.is_file()):
        key = f"{Address.of(address).key}/{path.relative_to(folder).as_posix()}"
        s3.client().upload_file(str(path), s3.bucket, key)


@pytest.mark.slow
def test_watch_reads_what_a_job_wrote_there_file_by_file(at: str, s3: S3) -> None:
    traced_job(Path.cwd())
    for name in ("traces", "in_use"):
        put_one_by_one(s3, Path(name), f"{at}/job/{name}")
    outputs = {name: artifact(name) for name in ("summary", "observation", "placement", "plan", "page", "metrics")}
    addresses = {"traces_address": f"{at}/job/traces", "in_use_address": f"{at}/job/in_use"}
    assert watch.python_func(**outputs, **addresses, request={"steps": 10**7, "restart_minutes": 1.0})
    assert "Replan: the move pays back within 10,000,000 steps.\n" in Path(outputs["summary"].path).read_text()


def generating(runs_now: bool = True) -> dict[str, Any]:
    """The task that reads the tables, and what it is given as their hash."""
    pipeline, _ = build("train", Path("params.yaml"), default_cluster(), runs_now=runs_now)
    spec = pipeline.pipeline_spec
    task = spec.components["comp-exit-handler-1"].dag.tasks["generate-tables"]
    given = spec.root.input_definitions.parameters["data_hash"].default_value.string_value
    return {"cached": task.caching_options.enable_cache, "hash": given}


@pytest.mark.slow
def test_the_content_decides_whether_an_earlier_result_will_do(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = generating()
    assert before == {"cached": True, "hash": content_hash(f"{at}/tables.csv")} and before == generating()
    put_tables(at, num_tables=13)
    assert generating()["hash"] not in ("", before["hash"])
    assert generating(runs_now=False) == {"cached": False, "hash": ""}  # another file may be there by then
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    s3_client.cache_clear()
    assert generating() == {"cached": False, "hash": ""}
