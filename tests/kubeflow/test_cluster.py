"""What stages get of a cluster, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kfp import dsl

from evenshard.base.errors import BadConfig
from evenshard.kubeflow.cluster import COMPONENTS, QUEUE_LABEL, Cluster, Volume, configure_task, load_cluster
from evenshard.kubeflow.component import DEFAULT_IMAGE
from evenshard.kubeflow.package import compile_to
from evenshard.tracking import LOOP_ID
from evenshard_pipelines.build import default_cluster
from support.kubeflow_builders import Task, tasks_of


def test_a_stage_takes_from_default_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    stages = {"default": {"cpu": 1, "memory": "2Gi", "retries": 5}, "benchmark": {"gpus": 1, "memory": "9Gi"}}
    path.write_text(yaml.safe_dump({"num_parts": 3, "stages": stages}))
    cluster = load_cluster(path)
    assert cluster.stages.keys() == set(COMPONENTS) and cluster.num_parts == 3
    found = cluster.stages["benchmark"]
    assert (found.cpu, found.memory, found.gpus, found.retries) == ("1", "9Gi", 1, 5)
    assert found.pauses_s == (60, 120, 240, 480, 600)
    assert cluster.stages["train_cost"].gpus == 0
    here = cluster.for_one_machine()
    assert here.num_parts == 1 and {(one.gpus, one.retries) for one in here.stages.values()} == {(0, 0)}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Cluster], Task]:
    """A task of a compiled pipeline with the settings of a stage."""
    folder = tmp_path_factory.mktemp("compiled")

    @dsl.container_component
    def anything():  # type: ignore[no-untyped-def]  # kfp reads no annotation that is a text
        return dsl.ContainerSpec(image="any")

    def compile_one(stage: str, cluster: Cluster) -> Task:
        @dsl.pipeline(name="one")
        def pipeline():  # type: ignore[no-untyped-def]
            configure_task(anything(), stage, cluster)

        compile_to(pipeline, folder / "one.yaml", {})
        (task,) = tasks_of(folder / "one.yaml")
        return task

    return compile_one


def env_of(task: Task) -> dict[str, str]:
    return {one["name"]: one["value"] for one in task.executor["container"].get("env", ())}


def test_a_pod_gets_what_its_stage_asks_for(configured: Callable[[str, Cluster], Task]) -> None:
    task = configured("benchmark", default_cluster().with_measure_settings(gpus=2))
    container, platform = task.executor["container"], task.platform
    assert container["image"] == DEFAULT_IMAGE and platform["securityContext"] == {"runAsNonRoot": True}
    resources = container["resources"]
    assert [resources[f"resource{kind}"] for kind in ("CpuRequest", "CpuLimit")] == ["4", "4"]
    assert [resources[f"resource{kind}"] for kind in ("MemoryRequest", "MemoryLimit")] == ["32Gi", "32Gi"]
    gpus = resources["accelerator"]
    assert (gpus["resourceType"], gpus["resourceCount"]) == ("nvidia.com/gpu", "2")
    assert platform["nodeSelector"] == {"labels": {"nvidia.com/gpu.present": "true"}}
    assert platform["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    (mount,) = platform["emptyDirMounts"]
    assert (mount["medium"], mount["mountPath"], mount["sizeLimit"]) == ("Memory", "/dev/shm", "8Gi")
    assert int(platform["activeDeadlineSeconds"]) == 360 * 60
    retried = task.spec["retryPolicy"]
    assert (retried["maxRetryCount"], retried["backoffFactor"], retried["backoffDuration"]) == (2, 2, "5s")
    # from the start of the first pod: the last one may begin after two that were lost at their ends
    assert int(retried["backoffMaxDuration"].removesuffix("s")) > 3 * 360 * 60 + 5 + 10
    assert env_of(task) == {"EVENSHARD_RETRY_PAUSES": "60 120"}
    (field,) = platform["fieldPathAsEnv"]
    assert field["name"] == LOOP_ID and "workflows.argoproj.io/workflow" in field["fieldPath"]
    assert {one["secretName"]: {key["envVar"] for key in one["keyToEnv"]} for one in platform["secretAsEnv"]} == {
        "evenshard-s3": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"},
        "evenshard-mlflow-client": {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"},
    }
    (endpoints,) = platform["configMapAsEnv"]
    assert "MLFLOW_TRACKING_URI" in {one["envVar"] for one in endpoints["keyToEnv"]}
    assert not task.spec["cachingOptions"].get("enableCache") and not {"pvcMount", "imagePullSecret"} & set(platform)
    assert not any("kueue" in key for key in platform["podMetadata"]["labels"])
    learns = configured("train_cost", default_cluster().with_measure_settings(gpus=2))
    assert learns.spec["cachingOptions"]["enableCache"]
    assert not {"nodeSelector", "tolerations", "emptyDirMounts"} & set(learns.platform)


@pytest.mark.parametrize(("stage", "gpus"), [("benchmark", 1), ("benchmark", 0), ("train_cost", 0)])
def test_a_pod_waits_in_its_queue_for_its_gpu_and_mounts_the_volume(
    configured: Callable[[str, Cluster], Task], stage: str, gpus: int
) -> None:
    cluster = default_cluster().with_measure_settings(gpus=gpus, gpu_product="H100", queue="gpus", timeout_minutes=0)
    more = {"volume": Volume("shared", "/data/"), "node_selector": {"zone": "a"}, "image_pull_secrets": ("pull",)}
    task = configured(stage, replace(cluster, **more))
    wanted = {"zone": "a", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "H100"}
    assert task.platform["nodeSelector"]["labels"] == (wanted if gpus else {"zone": "a"})
    measures = stage == "benchmark"
    assert task.platform["podMetadata"]["labels"].get(QUEUE_LABEL) == ("gpus" if measures else None)
    assert ("activeDeadlineSeconds" in task.platform) != measures
    (mount,) = task.platform["pvcMount"]
    assert (mount["pvcNameParameter"]["runtimeValue"]["constant"], mount["mountPath"]) == ("shared", "/data/")
    env = env_of(task)
    assert (env["XDG_CACHE_HOME"], env["TRITON_CACHE_DIR"]) == ("/data/caches/home", "/data/caches/triton")
    assert env.get("EVENSHARD_JOURNAL_FOLDER") == ("/data/journals" if measures else None)
    assert "imagePullSecret" in task.platform
    bare = configured(stage, replace(cluster, volume=Volume("shared", caches="", journals="")))
    assert not {"XDG_CACHE_HOME", "EVENSHARD_JOURNAL_FOLDER"} & set(env_of(bare))
    assert env_of(bare)["EVENSHARD_BACKLOG"] == "/data/mlflow_backlog"


def test_the_settings_that_come_along_do_not_measure_from_memory() -> None:
    measured = {"benchmark", "evaluate", "drift", "place", "watch", "record_outcome"}
    for small in (False, True):
        assert {name for name, one in default_cluster(small).stages.items() if not one.cache} == measured


ONE = {"stages": {"default": {"cpu": 1, "memory": "2Gi"}}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"stages": {"benhcmark": {"cpu": 1}}}, "'benhcmark' is not a stage"),
        ({"stages": {"default": {"cpu": 1, "memory": "two"}}}, "memory is 'two'"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "backoff": "1 min"}}}, "backoff is '1 min'"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "gpu_product": "an H100"}}}, "gpu_product is 'an H100'"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "queue": "Team A"}}}, "queue is 'Team A'"),
        ({**ONE, "volume": {"claim": "a", "path": "data"}}, "path is"),
        ({**ONE, "volume": {"claim": "a", "caches": "../x"}}, "caches is"),
        ({**ONE, "volume": {"claim": "a", "journals": "/j"}}, "journals is"),
        ({"hosts": [{"devices": 8}], "intra": "nvlink_h100"}, "is a machine file"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: dict[str, object], why: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"num_parts": 1, **content}))
    with pytest.raises(BadConfig, match=why) as caught:
        load_cluster(path)
    assert str(path) in str(caught.value)
