"""What a compiled pipeline holds: the stages of dvc.yaml, and what each task gets of the cluster."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.errors import BadConfig
from evenshard.cli import main
from evenshard.kubeflow.component import DEFAULT_IMAGE
from evenshard.kubeflow.package import hash_source, pipeline_documents, require_fits
from evenshard.tracking import LOOP_ID
from evenshard_pipelines.build import PIPELINES, default_cluster
from evenshard_pipelines.dvc_rounds import paths, unroll
from support.documented import snippet
from support.kubeflow_builders import SMALL_PARAMS, Task, compiled, edges_of, tasks_of
from support.repository import ROOT

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


def test_the_picture_shows_these_stages() -> None:
    stages = dict.fromkeys(re.sub(r"_\d+$", "", name) for name in stages_of_pods())
    assert " -> ".join(stages) in (ROOT / "docs/loop.md").read_text()


@pytest.mark.parametrize("name", ["train", "retrain"])
def test_each_stage_gets_its_own_section(packages: dict[str, Path], name: str) -> None:
    for task in pods(packages[name]):
        stage = task.name.rpartition("/")[2].rstrip("_12").replace("-", "_")
        given = {key: one.get("componentInputParameter", "") for key, one in task.spec["inputs"]["parameters"].items()}
        if "config" in given:
            assert given["config"].endswith(f"--{stage}_config")
        if "measure" in given:
            assert given["measure"].endswith("--measure_config")


def test_rounds_are_unrolled(packages: dict[str, Path]) -> None:
    names = {task.name.rpartition("/")[2] for task in tasks_of(packages["train"])}
    for stage in ("benchmark", "merge_costs", "train_cost", "train_policy"):
        assert {name for name in names if name.startswith(f"{stage}_")} == {f"{stage}_1", f"{stage}_2"}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pod_has_image_resources_retries_and_a_timeout(packages: dict[str, Path], name: str) -> None:
    for task in pods(packages[name]):
        container = task.executor["container"]
        assert container["image"] == DEFAULT_IMAGE
        for bound in ("Request", "Limit"):
            assert container["resources"][f"resourceCpu{bound}"] and container["resources"][f"resourceMemory{bound}"]
        retried = task.spec["retryPolicy"]
        assert retried["maxRetryCount"] == 2 and retried["backoffFactor"] == 2 and retried["backoffDuration"] == "5s"
        longest_s = int(task.platform["activeDeadlineSeconds"])
        # from the start of the first pod: the last one may begin after two that were lost at their ends
        assert int(retried["backoffMaxDuration"].removesuffix("s")) > 3 * longest_s + 5 + 10
        assert {"name": "EVENSHARD_RETRY_PAUSES", "value": "60 120"} in container["env"]
        minutes = {one.timeout_minutes for one in default_cluster().stages.values()}
        assert int(task.platform["activeDeadlineSeconds"]) in {60 * one for one in minutes}
        assert "pip install" not in json.dumps(container)


@pytest.mark.parametrize(("name", "must"), [("train", False), ("retrain", True)])
def test_the_last_stage_waits_for_mlflow_and_of_a_retrain_must_register_its_model(
    packages: dict[str, Path], name: str, must: bool
) -> None:
    told = {
        task.name: {one["name"]: one["value"] for one in task.executor["container"]["env"]}
        for task in pods(packages[name])
    }
    patient = {task: env for task, env in told.items() if "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in env}
    [(task, env)] = patient.items()
    assert task.endswith("evaluate") and env["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "10"
    assert {task for task, env in told.items() if "EVENSHARD_MUST_REGISTER" in env} == ({task} if must else set())


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pod_gets_its_keys_is_not_root_and_knows_its_run(packages: dict[str, Path], name: str) -> None:
    for task in pods(packages[name]):
        found = {one["secretName"]: {key["envVar"] for key in one["keyToEnv"]} for one in task.platform["secretAsEnv"]}
        assert found == {
            "evenshard-s3": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"},
            "evenshard-mlflow-client": {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"},
        }
        (endpoints,) = task.platform["configMapAsEnv"]
        assert "MLFLOW_TRACKING_URI" in {one["envVar"] for one in endpoints["keyToEnv"]}
        assert task.platform["securityContext"] == {"runAsNonRoot": True}
        (field,) = task.platform["fieldPathAsEnv"]
        assert field["name"] == LOOP_ID and "workflows.argoproj.io/workflow" in field["fieldPath"]
        # unasked, it neither waits in a queue nor has a volume
        assert "pvcMount" not in task.platform
        assert not any("kueue" in key for key in task.platform["podMetadata"]["labels"])


def test_only_what_measures_on_gpus_asks_for_them(packages: dict[str, Path]) -> None:
    for task in pods(packages["train"]):
        measures = "/benchmark_" in task.name or task.name.endswith("/evaluate")
        accelerator = task.executor["container"]["resources"].get("accelerator")
        assert (accelerator is not None) == measures
        assert ("tolerations" in task.platform and "nodeSelector" in task.platform) == measures
        if accelerator:
            assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "2")
            assert task.spec["inputs"]["parameters"]["num_gpus"]["runtimeValue"]["constant"] == 2.0
        mounts = task.platform.get("emptyDirMounts", [])
        assert bool(mounts) == measures
        assert all((one["medium"], one["mountPath"]) == ("Memory", "/dev/shm") for one in mounts)


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


MEASURED = ("benchmark_1", "benchmark_2", "evaluate")


def cached(package: Path) -> dict[str, bool]:
    return {
        task.name.rpartition("/")[2]: task.spec["cachingOptions"].get("enableCache", False) for task in pods(package)
    }


@pytest.mark.slow
def test_nothing_is_measured_from_memory_unless_asked(folder: Path, packages: dict[str, Path]) -> None:
    of_train = cached(packages["train"])
    assert {name for name, yes in of_train.items() if not yes} == {*MEASURED, "record-outcome"}
    asked = default_cluster().with_measure_settings(cache=True)
    again = cached(compiled("train", folder / "params.yaml", folder / "again.yaml", asked))
    assert {name for name, yes in again.items() if not yes} == {"record-outcome"}
    assert "cacheKey" not in packages["train"].read_text()


def test_the_outcome_is_recorded_whatever_happens(packages: dict[str, Path]) -> None:
    for name in ("train", "retrain"):  # place logs nothing to MLflow that could be reported
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
    assert not {"drift", "generate-tables"} & {name for name, yes in cached(packages["retrain"]).items() if yes}


@pytest.mark.slow
def test_own_tables_are_read_by_the_task_and_their_hash_is_part_of_the_key(folder: Path) -> None:
    own = folder / "own.csv"
    own.write_text("name,num_rows,embedding_dim,pooling_factor\na,10,4,1.0\n")
    params = folder / "own.yaml"
    generate = {**SMALL_PARAMS["generate_tables"], "source": str(own)}
    params.write_text(yaml.safe_dump({**SMALL_PARAMS, "generate_tables": generate}))
    package = compiled("train", params, folder / "own_train.yaml")
    (generates,) = [task for task in tasks_of(package) if task.name == "loop/generate-tables"]
    given = generates.spec["inputs"]["parameters"]
    assert given["source_address"] == {"componentInputParameter": "pipelinechannel--source"}
    assert given["data_hash"] == {"componentInputParameter": "pipelinechannel--data_hash"}
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
    theirs, ours = ({"tables": address} for address in ("minio://b/t.csv", "s3://b/t.csv"))
    for given, other, why in (
        (ours, theirs, "was not compiled to import"),
        (theirs, ours, "was compiled to import tables"),
    ):
        package = compiled("place", folder / "params.yaml", folder / "given.yaml", **given)
        require_fits(package, {**given, "model_uri": "models:/m/1"})
        with pytest.raises(BadConfig, match=why):
            require_fits(package, other)
    with pytest.raises(BadConfig, match=r"'https://b/t.csv': pipelines read s3://"):
        compiled("place", folder / "params.yaml", folder / "given.yaml", tables="https://b/t.csv")


@pytest.mark.parametrize(
    ("name", "parameter", "section"),
    [("place", "request", "place"), ("retrain", "drift_request", "drift"), ("train", "measure_config", "measure")],
)
def test_a_typo_in_a_request_is_found_before_the_pod(folder: Path, name: str, parameter: str, section: str) -> None:
    for value in ({"num_device": 4}, "four"):
        with pytest.raises(BadConfig, match=f"section {section}"):
            compiled(name, folder / "params.yaml", folder / "typo.yaml", **{parameter: value})


def test_a_typo_for_a_compiled_pipeline_is_found(packages: dict[str, Path]) -> None:
    with pytest.raises(BadConfig, match=r"'num_device' is unknown \(did you mean num_devices\?\)"):
        require_fits(packages["place"], {"request": {"num_device": 4}})
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
    assert "gets 3 GPUs, but generate_tables.num_devices is 2" in refused(
        folder, default_cluster().with_measure_settings(gpus=3)
    )


def test_the_command_writes_package_and_platform_in_one_file(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--pipeline", "place", "-o", "pipeline.json"], "a compiled pipeline is YAML"),
        (["-o", "p.yaml", "--cluster", "none.yaml"], "none.yaml: no such file"),
        (["--pipeline", "place", "-o", "p.yaml", "--set", "tabels=x"], "the pipeline has no parameter 'tabels'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    workdir: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["pipeline", "compile", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


@pytest.mark.nightly
def test_h100_here_and_a100_there_in_a_queue_with_a_volume(folder: Path) -> None:
    """The settings that docs/kubeflow.md shows, in the compiled package: selectors, labels and mounts of each pod."""
    settings = yaml.safe_load(snippet("docs/kubeflow.md", "gpu_product:"))
    everything = yaml.safe_load((ROOT / "pipelines/cluster.yaml").read_text())
    for name, block in settings.pop("stages").items():
        everything["stages"][name] = {**everything["stages"].get(name, {}), **block}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**everything, **settings}))
    words = ["pipeline", "compile", "--params", str(folder / "params.yaml"), "--cluster", str(folder / "mine.yaml")]
    assert main([*words, "-o", str(folder / "where.yaml")]) == 0
    tasks = {task.name.rpartition("/")[2]: task for task in pods(folder / "where.yaml")}
    product = "nvidia.com/gpu.product"
    wanted = {"benchmark": "NVIDIA-H100-80GB-HBM3", "evaluate": "NVIDIA-A100-SXM4-80GB", "train-cost": None}
    for stage, gpu in wanted.items():
        name = next(one for one in tasks if one.replace("_", "-").startswith(stage))
        platform = tasks[name].platform
        assert platform.get("nodeSelector", {}).get("labels", {}).get(product) == gpu
        assert platform["podMetadata"]["labels"]["kueue.x-k8s.io/queue-name"] == ("gpus" if gpu else "team-ads")
        (mount,) = platform["pvcMount"]
        assert mount["pvcNameParameter"]["runtimeValue"]["constant"] == "evenshard-shared"
        assert mount["mountPath"] == "/data"
        env = {one["name"]: one.get("value") for one in tasks[name].executor["container"]["env"]}
        assert env["XDG_CACHE_HOME"] == "/data/caches/home" and env["TRITON_CACHE_DIR"] == "/data/caches/triton"
        assert env.get("EVENSHARD_JOURNAL_FOLDER") == ("/data/journals" if gpu else None)  # of what measures
        assert env["EVENSHARD_BACKLOG"] == "/data/mlflow_backlog"
