"""What a compiled pipeline holds: the stages of dvc.yaml, and what each task gets of the cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.errors import BadConfig
from evenshard.base.s3 import content_hash, s3_client, upload
from evenshard.cli import main
from evenshard.kubeflow.component import DEFAULT_IMAGE
from evenshard.kubeflow.package import hash_source, pipeline_documents, require_fits
from evenshard_pipelines.build import PIPELINES, default_cluster
from evenshard_pipelines.dvc_rounds import paths, unroll
from support.kubeflow_builders import SMALL_PARAMS, Task, compiled, edges_of, tasks_of
from support.servers import S3

Edges = set[tuple[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("compiled")
    (made / "params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    return made


@pytest.fixture(scope="module")
def packages(folder: Path) -> dict[str, Path]:
    cluster = default_cluster().with_measure_settings(gpus=2)
    return {name: compiled(name, folder / "params.yaml", folder / f"{name}.yaml", cluster) for name in PIPELINES}


def pods(package: Path) -> list[Task]:
    return [task for task in tasks_of(package) if not task.imports]


def stages_of_pods() -> dict[str, Any]:
    """The stages of dvc.yaml but for that which says what it runs on; the cluster is told where pods run."""
    return {name: one for name, one in unroll(SMALL_PARAMS)["stages"].items() if name != "hardware"}


def closure(edges: Edges) -> Edges:
    """Everything that comes before something, however far."""
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


@pytest.fixture(scope="module")
def whole_rounds(folder: Path) -> Path:
    """The loop with rounds that are measured in one part, for a small cluster."""
    return compiled("train", folder / "params.yaml", folder / "whole.yaml", default_cluster(small=True))


@pytest.mark.parametrize("in_parts", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_stages_are_those_of_dvc_yaml(request: pytest.FixtureRequest, in_parts: bool) -> None:
    package = request.getfixturevalue("packages")["train"] if in_parts else request.getfixturevalue("whole_rounds")

    def stage(task: str) -> str:
        return task.replace("merge_costs", "benchmark").replace("generate-tables", "generate_tables")

    stages = stages_of_pods()
    made_by = {path: name for name, one in stages.items() for path in paths(one["outs"])}
    of_dvc = {(made_by[dep], name) for name, one in stages.items() for dep in one.get("deps", []) if dep in made_by}
    of_kubeflow = {(stage(a), stage(b)) for a, b in edges_of(package) if stage(a) != stage(b)}
    assert closure(of_kubeflow) == closure(of_dvc)
    names = {task.name.rpartition("/")[2] for task in pods(package)}
    assert {stage(name) for name in names} == {*stages, "record-outcome"}
    assert any(name.startswith("merge") for name in names) == in_parts


@pytest.mark.parametrize("name", ["train", "retrain"])
def test_each_stage_gets_its_own_section(packages: dict[str, Path], name: str) -> None:
    for task in pods(packages[name]):
        stage = task.name.rpartition("/")[2].rstrip("_12").replace("-", "_")
        given = {key: one.get("componentInputParameter", "") for key, one in task.spec["inputs"]["parameters"].items()}
        if "config" in given:
            assert given["config"].endswith(f"--{stage}_config")
        if "measure" in given:
            assert given["measure"].endswith("--measure_config")


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pod_is_that_of_its_stage(packages: dict[str, Path], name: str) -> None:
    """What a stage's pod gets of the cluster: test_cluster.py."""
    for task in pods(packages[name]):
        assert task.executor["container"]["image"] == DEFAULT_IMAGE and "activeDeadlineSeconds" in task.platform
        measures = "/benchmark_" in task.name or task.name.endswith("/evaluate")
        assert ("accelerator" in task.executor["container"]["resources"]) == measures
        if measures:
            assert task.spec["inputs"]["parameters"]["num_gpus"]["runtimeValue"]["constant"] == 2.0


@pytest.mark.parametrize(("name", "must"), [("train", False), ("retrain", True)])
def test_the_last_stage_waits_for_mlflow_and_of_a_retrain_must_register_its_model(
    packages: dict[str, Path], name: str, must: bool
) -> None:
    env = {task.name: task.executor["container"]["env"] for task in pods(packages[name])}
    told = {task: {one["name"]: one["value"] for one in given} for task, given in env.items()}
    patient = {task: env for task, env in told.items() if "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in env}
    [(task, env)] = patient.items()
    assert task.endswith("evaluate") and env["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "10"
    assert {task for task, env in told.items() if "EVENSHARD_MUST_REGISTER" in env} == ({task} if must else set())


@pytest.mark.slow
def test_the_settings_for_a_small_cluster_leave_half_of_four_cpus_to_others(whole_rounds: Path) -> None:
    """A task may run beside every other that neither waits for it nor is waited for, as often as there are parts."""
    cluster, package = default_cluster(small=True), whole_rounds
    order = closure({(a, b) for a, b in edges_of(package)})
    tasks = {task.name.rpartition("/")[2]: task.executor["container"]["resources"] for task in pods(package)}
    tasks.pop("record-outcome", None)  # after all others
    for one in tasks:
        beside = [other for other in tasks if not {(one, other), (other, one)} & order]
        asked = [tasks[other] for other in beside for _ in range(cluster.num_parts if "benchmark" in other else 1)]
        assert sum(float(each["resourceCpuRequest"]) for each in asked) <= 2
        assert sum(float(each["resourceMemoryRequest"].removesuffix("Gi")) for each in asked) <= 4


def cached(package: Path) -> dict[str, bool]:
    return {task.name.rpartition("/")[2]: "enableCache" in task.spec["cachingOptions"] for task in pods(package)}


def test_nothing_is_measured_from_memory(packages: dict[str, Path]) -> None:
    """Unless asked for, which is a setting of the stage: test_cluster.py."""
    fresh = {name for name, yes in cached(packages["train"]).items() if not yes}
    assert fresh == {"benchmark_1", "benchmark_2", "evaluate", "record-outcome"}
    assert {"drift", "generate-tables"} <= {name for name, yes in cached(packages["retrain"]).items() if not yes}


@pytest.mark.parametrize("name", ["train", "retrain"])  # place logs nothing to MLflow that could be reported
def test_the_outcome_is_recorded_whatever_happens(packages: dict[str, Path], name: str) -> None:
    (outcome,) = [task for task in pods(packages[name]) if task.name == "record-outcome"]
    assert outcome.spec["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert outcome.spec["inputs"]["parameters"]["run_id"]["runtimeValue"]["constant"] == "{{$.pipeline_job_uuid}}"


def test_a_retrain_is_the_loop_on_todays_tables_if_drift_says_so(packages: dict[str, Path]) -> None:
    def names(package: Path, prefix: str) -> set[str]:
        return {task.name.removeprefix(prefix) for task in pods(package) if task.name.startswith(prefix)}

    assert names(packages["retrain"], "watch/retrain-due/") == names(packages["train"], "loop/")
    edges = edges_of(packages["retrain"])
    assert edges == edges_of(packages["train"])
    today = {
        task.name.rpartition("/")[2]: one["componentInputParameter"].removeprefix("pipelinechannel--")
        for task in pods(packages["retrain"])
        for name, one in task.spec["inputs"]["parameters"].items()
        if name in ("tables_address", "source_address")
    }
    assert today == {"drift": "tables", "generate-tables": "tables"}
    components = pipeline_documents(packages["retrain"])[0]["components"].values()
    tasks = [task for one in components for task in one.get("dag", {}).get("tasks", {}).values()]
    (branch,) = [task["triggerPolicy"]["condition"] for task in tasks if "condition" in task.get("triggerPolicy", {})]
    assert branch == "inputs.parameter_values['pipelinechannel--drift-Output'] == true"


@pytest.mark.slow
def test_own_tables_are_read_by_the_task_and_their_hash_is_part_of_the_key(folder: Path) -> None:
    own = folder / "own.csv"
    own.write_text("name,num_rows,embedding_dim,pooling_factor\na,10,4,1.0\n")
    params = folder / "own.yaml"
    generate = {**SMALL_PARAMS["generate_tables"], "source": str(own)}
    params.write_text(yaml.safe_dump({**SMALL_PARAMS, "generate_tables": generate}))
    package = compiled("train", params, folder / "own_train.yaml")
    (generates,) = [task for task in tasks_of(package) if task.name == "loop/generate-tables"]
    for name, channel in (("source_address", "source"), ("data_hash", "data_hash")):
        given = generates.spec["inputs"]["parameters"][name]
        assert given == {"componentInputParameter": f"pipelinechannel--{channel}"}
    defaults = pipeline_documents(package)[0]["root"]["inputDefinitions"]["parameters"]
    assert defaults["data_hash"]["defaultValue"] == hash_source(str(own))
    assert defaults["source"]["defaultValue"] == str(own)
    assert cached(package)["generate-tables"]
    generate["source"] = "s3://bucket/tables.parquet"  # its content today is unknown here
    params.write_text(yaml.safe_dump({**SMALL_PARAMS, "generate_tables": generate}))
    assert not cached(compiled("train", params, folder / "far.yaml"))["generate-tables"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "brings"),
    [
        ("place", {"tables": "s3://b/t.csv", "model": "gs://b/m"}, {("importer", "place")}),
        ("place", {"tables": "s3://b/t.csv", "model": "s3://b/m"}, set()),
        ("retrain", {"tables": "minio://b/t.csv"}, {("importer", "drift"), ("importer", "generate-tables")}),
    ],
)
def test_kubeflow_brings_what_pods_cannot_read_themselves(
    folder: Path, name: str, values: dict[str, Any], brings: Edges
) -> None:
    package = compiled(name, folder / "params.yaml", folder / "brought.yaml", **values)
    assert {edge for edge in edges_of(package) if "importer" in edge[0]} == brings


def test_an_address_that_a_compiled_pipeline_cannot_take_is_refused(folder: Path) -> None:
    theirs, ours = {"tables": "minio://b/t.csv"}, {"tables": "s3://b/t.csv"}
    for given, other, why in (
        (ours, theirs, "not compiled to import"),
        (theirs, ours, "was compiled to import tables"),
    ):
        package = compiled("place", folder / "params.yaml", folder / "given.yaml", **given)
        require_fits(package, {**given, "model_uri": "models:/m/1"})
        with pytest.raises(BadConfig, match=why):
            require_fits(package, other)
    with pytest.raises(BadConfig, match=r"'https://b/t.csv': pipelines read s3://"):
        compiled("place", folder / "params.yaml", folder / "given.yaml", tables="https://b/t.csv")


def test_a_typo_in_a_request_is_found_before_the_pod(folder: Path, packages: dict[str, Path]) -> None:
    for name, parameter, section in (("place", "request", "place"), ("retrain", "drift_request", "drift")):
        for value in ({"num_device": 4}, "four"):
            with pytest.raises(BadConfig, match=f"section {section}"):
                compiled(name, folder / "params.yaml", folder / "typo.yaml", **{parameter: value})
        with pytest.raises(BadConfig, match=r"'num_device' is unknown \(did you mean num_devices\?\)"):
            require_fits(packages[name], {parameter: {"num_device": 4}})
    with pytest.raises(BadConfig, match="no parameter 'tabels'"):
        require_fits(packages["place"], {"tabels": "s3://b/t.csv"})


def test_the_hash_of_data_is_that_of_dvc_where_there_is_one(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("one")
    first = hash_source(str(own))
    own.write_text("two")
    assert first.startswith("sha256:") and hash_source(str(own)) != first
    (tmp_path / "own.csv.dvc").write_text("outs:\n- md5: abc\n  path: own.csv\n")
    assert hash_source(str(own)) == "md5:abc"
    assert hash_source("minio://bucket/own.csv") == ""


def test_the_command_tells_bad_input_and_writes_one_file(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in (
        (["-o", "pipeline.json"], "a compiled pipeline is YAML"),
        (["-o", "p.yaml", "--cluster", "none.yaml"], "none.yaml: no such file"),
        (["-o", "p.yaml", "--set", "tabels=x"], "the pipeline has no parameter 'tabels'"),
    ):
        assert main(["pipeline", "compile", "--pipeline", "place", *words]) == 2
        assert why in capsys.readouterr().err
    assert main(["pipeline", "compile", "--pipeline", "train", "-o", "out/pipeline.yaml", "--gpus", "1"]) == 0
    assert capsys.readouterr().out == "saved: out/pipeline.yaml\n"
    package = Path("out/pipeline.yaml")
    documents = list(yaml.safe_load_all(package.read_text()))
    assert [sorted(one)[0] for one in documents] == ["components", "platforms"]
    asks = [task.name for task in pods(package) if "accelerator" in task.executor["container"]["resources"]]
    assert asks == ["loop/evaluate", "loop/parts_1/benchmark_1", "loop/parts_2/benchmark_2"]
    words = ["pipeline", "compile", "--pipeline", "place", "-o", "place.yaml"]
    assert main([*words, "--set", "tables=s3://b/t.csv", "--set", "request={num_devices: 4}"]) == 0
    defaults = pipeline_documents(Path("place.yaml"))[0]["root"]["inputDefinitions"]["parameters"]
    assert defaults["tables"]["defaultValue"] == "s3://b/t.csv"
    assert defaults["request"]["defaultValue"] == {"num_devices": 4.0}


@pytest.mark.slow
def test_the_hash_of_tables_on_s3_is_known_if_the_run_starts_now(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.settings().items():
        monkeypatch.setenv(name, value)
    s3_client.cache_clear()
    address = f"s3://{s3.bucket}/{tmp_path.name}/tables.csv"
    (tmp_path / "own.csv").write_text("one")
    upload(tmp_path / "own.csv", address)
    assert hash_source(address) == content_hash(address) != ""
    assert hash_source(address, runs_now=False) == ""  # another file may be there by then
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    s3_client.cache_clear()
    assert hash_source(address) == ""


def refused(folder: Path, cluster: Any = None, name: str = "train", **changes: Any) -> str:
    params = folder / "bad.yaml"
    params.write_text(yaml.safe_dump({**SMALL_PARAMS, **changes}))
    with pytest.raises(BadConfig) as caught:
        compiled(name, params, folder / "bad.out.yaml", cluster)
    return str(caught.value)


def test_what_could_not_run_is_not_compiled(folder: Path) -> None:
    assert "train_cost: 'num_update' is unknown" in refused(folder, train_cost={"num_update": 3})
    assert "'link.yaml', which pods do not have" in refused(folder, measure={"link": "link.yaml"})
    assert "at most 4" in refused(folder, replace(default_cluster(), num_parts=5))
    assert "num_rounds is 0" in refused(folder, loop={"num_rounds": 0})
    assert "drift: 'device' is unknown" in refused(folder, name="retrain", drift={"device": 4})
    many = default_cluster().with_measure_settings(gpus=3)
    assert "gets 3 GPUs, but generate_tables.num_devices is 2" in refused(folder, many)
