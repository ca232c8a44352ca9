"""Settings of the pods on a cluster: read from a YAML file, and applied to the tasks of a pipeline.

``pipelines/cluster.yaml`` explains each setting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from evenshard.base.documents import load_params
from evenshard.base.errors import BadConfig, blame_file, require
from evenshard.base.knobs import COUNT, COUNT_OR_NONE, REQUIRED, knob
from evenshard.base.messages import brief
from evenshard.base.retry import PAUSES
from evenshard.base.typed import read_record, settings_of
from evenshard.kubeflow.component import image
from evenshard.kubeflow.pod_journal import FOLDER as JOURNAL_FOLDER
from evenshard.loop.loop import STAGES
from evenshard.tracking import BACKLOG, BACKLOG_NAME, LOOP_ID

COMPONENTS = (*(stage.name for stage in STAGES), "merge_costs", "drift", "place", "watch", "record_outcome")
MEASURING = tuple(stage.name for stage in STAGES if stage.measures)
BACKOFF_FACTOR = 2
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # a DNS subdomain name of Kubernetes, at most 253 characters
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"  # a label value of Kubernetes, at most 63 characters
_QUANTITY, _SECONDS = r"\d+(\.\d+)?(m|[kMGTP]i?)?", r"\d+s"
_FOLDER = r"(?!/)(?!(.*/)?\.\.(/|$)).*"  # a relative path without ".."
# Pattern of each setting, and the remedy for a value that does not match.
_FORMS = {
    **dict.fromkeys(("cpu", "memory", "shared_memory"), (_QUANTITY, "Write it as 4, 250m or 32Gi")),
    **dict.fromkeys(("backoff", "max_backoff"), (_SECONDS, "Write seconds, such as 60s")),
    "gpu_product": (_LABEL, "Choose one that `kubectl get nodes -L nvidia.com/gpu.product` lists"),
    "queue": (_NAME, "Choose one that `kubectl get localqueues` lists"),
    "claim": (_NAME, "Choose one that `kubectl get pvc` lists"),
    "path": (r"/.*[^/].*", "Name a folder such as /data"),
    **dict.fromkeys(("caches", "journals"), (_FOLDER, "Name a folder of the volume, such as caches")),
}
# Cache folders by environment variable: matplotlib and others, compiled kernels, compiled graphs.
CACHES = {"XDG_CACHE_HOME": "home", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
# Argo waits this long before it replaces a deleted pod. It waits before it decides whether to retry, so a task with
# bad input is shown as running for this time.
FIRST_PAUSE = "5s"
# 30 days, longer than the life of any pod: Argo counts from the start of the first pod, and ends all pods after this
# time (kubeflow/pipelines#14245; kfp calls it the longest pause).
RETRIED_WITHIN = f"{30 * 24 * 3600}s"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # tells Kueue to admit a pod
MACHINE_KEYS = ("hosts", "intra", "inter", "nodes_per_domain")  # keys of a machine file; see ``planner.hosts``


@dataclass(frozen=True)
class StageResources:
    """Resources of the pods of one stage."""

    cpu: str = knob(REQUIRED, "CPU cores in Kubernetes notation, such as 4 or 250m")
    memory: str = knob(REQUIRED, "memory in Kubernetes notation, such as 32Gi")
    gpus: int = knob(0, "GPUs of each pod", range=COUNT_OR_NONE)
    shared_memory: str | None = knob(None, "size of /dev/shm; None keeps the node's default")
    timeout_minutes: int = knob(120, "time after which a pod is stopped; 0 for none", range=COUNT_OR_NONE)
    retries: int = knob(
        2,
        "number of retries of a deleted pod (node drained or lost), of transient failures within a pod and, with "
        "`submit --wait`, of a run whose pods were evicted",
        range=COUNT_OR_NONE,
    )
    backoff: str = knob("60s", "pause before the first retry within a pod, doubled for each further retry")
    max_backoff: str = knob("600s", "longest pause before a retry")
    cache: bool = knob(True, "reuse the result of an earlier task with the same inputs")
    gpu_product: str | None = knob(
        None, "required GPU model, as in the node label, such as NVIDIA-H100-80GB-HBM3; None: any"
    )
    queue: str | None = knob(None, "Kueue local queue of the pods; None: no queue")

    @property
    def pauses_s(self) -> tuple[int, ...]:
        """Return the pauses before each retry within a pod, seconds."""
        first, most = (int(pause.removesuffix("s")) for pause in (self.backoff, self.max_backoff))
        return tuple(min(first * BACKOFF_FACTOR**number, most) for number in range(self.retries))


@dataclass(frozen=True)
class Toleration:
    """A Kubernetes toleration of pods with a GPU."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


@dataclass(frozen=True)
class Gpu:
    """Settings of pods that request GPUs."""

    resource: str = "nvidia.com/gpu"  # resource name of the device plugin
    product_label: str = "nvidia.com/gpu.product"  # node label that ``gpu_product`` selects
    node_selector: dict[str, str] = knob({}, "node selector of pods with GPUs")
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Volume:
    """PersistentVolumeClaim that all pods mount, for datasets, caches, journals and runs not yet logged to MLflow."""

    claim: str = knob(REQUIRED, "name of the claim")
    path: str = knob("/data", "mount path in pods, such as /data for /data/tables.parquet")
    caches: str = knob("caches", "folder on the volume for library caches (CACHES); empty: none")
    journals: str = knob(
        "journals", "folder on the volume for journals, from which a retried measurement resumes; empty: none"
    )

    def folder(self, name: str) -> str:
        """Return the path of a folder of the volume in pods."""
        return f"{self.path.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Cluster:
    """Contents of a cluster file, such as pipelines/cluster.yaml."""

    num_parts: int = knob(REQUIRED, "pods that measure a round in parallel", range=COUNT)
    stages: dict[str, StageResources] = knob(REQUIRED, "settings by stage name, for each of COMPONENTS")
    gpu: Gpu = knob(Gpu(), "settings of pods that request GPUs")
    node_selector: dict[str, str] = knob({}, "node selector of all pods")
    labels: dict[str, str] = knob({}, "labels of all pods")
    service_account: str = knob("", "service account of runs; empty: the cluster's default")
    image_pull_secrets: tuple[str, ...] = knob((), "names of image pull secrets")
    config_map: str = knob("", "ConfigMap of environment variables; empty: none")
    config_keys: tuple[str, ...] = knob((), "keys of the ConfigMap to set as environment variables")
    secrets: dict[str, tuple[str, ...]] = knob({}, "keys of each secret to set as environment variables")
    volume: Volume | None = knob(None, "volume for datasets, caches and journals")

    def with_measure_settings(self, **settings: Any) -> Cluster:
        """Return a copy with other settings for all stages that measure, such as ``gpus=2``."""
        measuring = {name: replace(self.stages[name], **settings) for name in MEASURING}
        return replace(self, stages={**self.stages, **measuring})

    def for_one_machine(self) -> Cluster:
        """Return a copy for a run on this machine: without parallel parts, retries and GPU requests."""
        stages = {name: replace(resources, retries=0, gpus=0) for name, resources in self.stages.items()}
        return replace(self, num_parts=1, stages=stages)


def configure_task(task: Any, stage: str, cluster: Cluster) -> Any:
    """Set image, resources, retries, timeout, cache and secrets of a pipeline task, and return the task."""
    from kfp import kubernetes

    has = cluster.stages[stage]
    task.set_container_image(image())
    task.set_cpu_request(has.cpu).set_cpu_limit(has.cpu)
    task.set_memory_request(has.memory).set_memory_limit(has.memory)
    task.set_caching_options(has.cache)
    task.set_retry(
        num_retries=has.retries,
        backoff_duration=FIRST_PAUSE,
        backoff_factor=BACKOFF_FACTOR,
        backoff_max_duration=RETRIED_WITHIN,
    )
    if has.retries:
        task.set_env_variable(PAUSES, " ".join(map(str, has.pauses_s)))
    if has.timeout_minutes:
        kubernetes.set_timeout(task, 60 * has.timeout_minutes)
    if has.shared_memory is not None:
        kubernetes.empty_dir_mount(
            task, volume_name="shared-memory", mount_path="/dev/shm", medium="Memory", size_limit=has.shared_memory
        )
    # Argo labels every pod of a run with the workflow's name, so all stages of a loop find the same MLflow parent run
    kubernetes.use_field_path_as_env(task, LOOP_ID, "metadata.labels['workflows.argoproj.io/workflow']")
    kubernetes.set_security_context(task, run_as_non_root=True)
    labels = {**cluster.labels, **({QUEUE_LABEL: has.queue} if has.queue else {})}
    for key, value in labels.items():
        kubernetes.add_pod_label(task, key, value)
    selectors = dict(cluster.node_selector)
    if has.gpus:
        task.set_accelerator_type(cluster.gpu.resource).set_accelerator_limit(has.gpus)
        selectors |= cluster.gpu.node_selector
        if has.gpu_product:
            selectors[cluster.gpu.product_label] = has.gpu_product
        for one in cluster.gpu.tolerations:
            kubernetes.add_toleration(task, key=one.key, operator=one.operator, value=one.value, effect=one.effect)
    for key, value in selectors.items():
        kubernetes.add_node_selector(task, key, value)
    if cluster.volume is not None:
        kubernetes.mount_pvc(task, pvc_name=cluster.volume.claim, mount_path=cluster.volume.path)
        task.set_env_variable(BACKLOG, f"{cluster.volume.path}/{BACKLOG_NAME}")
        for name, folder in CACHES.items() if cluster.volume.caches else ():
            task.set_env_variable(name, f"{cluster.volume.folder(cluster.volume.caches)}/{folder}")
        if stage in MEASURING and cluster.volume.journals:
            task.set_env_variable(JOURNAL_FOLDER, cluster.volume.folder(cluster.volume.journals))
    # optional, because a cluster without MLflow, or with S3 rights from its service account, lacks some of them
    if cluster.config_map:
        kubernetes.use_config_map_as_env(
            task, cluster.config_map, {key: key for key in cluster.config_keys}, optional=True
        )
    for name, keys in cluster.secrets.items():
        kubernetes.use_secret_as_env(task, name, {key: key for key in keys}, optional=True)
    if cluster.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(cluster.image_pull_secrets))
    return task


@blame_file
def load_cluster(path: Path) -> Cluster:
    """Load the settings from a YAML file.

    Raises:
        BadConfig: if a setting is unknown, missing or impossible; the message names it.
    """
    content = load_params(path)
    if "stages" not in content and any(key in content for key in MACHINE_KEYS):
        raise BadConfig(
            f"{path} is a machine file for `evenshard place --hosts`. Name a cluster file, such as "
            "pipelines/cluster.yaml."
        )
    by_stage = read_record(dict[str, dict[str, Any]], content.pop("stages", {}), path, "Write settings for each stage.")
    for name in by_stage:
        is_stage = name == "default" or name in COMPONENTS
        require(is_stage, f"{path}: {brief(name)} is not a stage. Choose one of {', '.join(COMPONENTS)}.")
    default = by_stage.get("default", {})
    stages = {}
    for name in COMPONENTS:
        values = {**default, **by_stage.get(name, {})}
        as_text = {key: str(value) if key in ("cpu", "memory") else value for key, value in values.items()}
        where = f"{path}: stages.{name}"
        stages[name] = settings_of(StageResources, as_text, where, "Correct it.")
        _check_forms(where, stages[name])
    cluster = settings_of(Cluster, {**content, "stages": {}}, str(path), "Correct it.")
    _check_forms(str(path), cluster)
    if cluster.volume is not None:
        _check_forms(f"{path}: volume", cluster.volume)
    return replace(cluster, stages=stages)


def _check_forms(where: str, settings: Any) -> None:
    for key, (form, remedy) in _FORMS.items():
        value = getattr(settings, key, None)
        fits = value is None or re.fullmatch(form, str(value)) is not None
        require(fits, f"{where}.{key} is {brief(value)}. {remedy}.")
