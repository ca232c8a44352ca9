"""Settings of a Kubernetes cluster for each stage, from one YAML file into Kubeflow Pipelines' platform spec.

``pipelines/cluster.yaml`` explains every line.
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
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUANTITY, _SECONDS = r"\d+(\.\d+)?(m|[kMGTP]i?)?", r"\d+s"
_FOLDER = r"(?!/)(?!(.*/)?\.\.(/|$)).*"
# Patterns of settings by name, each with the remedy for another value.
_FORMS = {
    **dict.fromkeys(("cpu", "memory", "shared_memory"), (_QUANTITY, "Write it as 4, 250m or 32Gi")),
    **dict.fromkeys(("backoff", "max_backoff"), (_SECONDS, "Write seconds, such as 60s")),
    "gpu_product": (_LABEL, "Name one of `kubectl get nodes -L nvidia.com/gpu.product`"),
    "queue": (_NAME, "Name one of `kubectl get localqueues`"),
    "claim": (_NAME, "Name one of `kubectl get pvc`"),
    "path": (r"/.*[^/].*", "Name a folder such as /data"),
    **dict.fromkeys(("caches", "journals"), (_FOLDER, "Name a folder of the volume, such as caches")),
}
# Cache folders by their environment variable: matplotlib and others, compiled kernels, compiled graphs.
CACHES = {"XDG_CACHE_HOME": "home", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
# Argo waits this long before it replaces a deleted pod. It waits before it decides on a retry at all, so a task with
# bad input is shown as running for this time.
FIRST_PAUSE = "5s"
# Longer than the life of any pod: Argo counts from the start of the first pod, and neither creates nor keeps another
# one after it (kubeflow/pipelines#14245; kfp calls it the longest pause).
RETRIED_WITHIN = f"{30 * 24 * 3600}s"
# The label that tells Kueue to admit a pod.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Keys of the other kind of file, a machine's; see ``planner.hosts``.
OF_A_MACHINE = ("hosts", "intra", "inter", "nodes_per_domain")


@dataclass(frozen=True)
class StageResources:
    """Resources of the pods of one stage."""

    cpu: str = knob(REQUIRED, "cores, as Kubernetes writes them: 4 or 250m")
    memory: str = knob(REQUIRED, "memory, as Kubernetes writes it: 32Gi")
    gpus: int = knob(0, "GPUs of each pod", range=COUNT_OR_NONE)
    shared_memory: str | None = knob(None, "size of /dev/shm; None keeps the node's own")
    timeout_minutes: int = knob(120, "time after which a pod is stopped; 0 for none", range=COUNT_OR_NONE)
    retries: int = knob(
        2,
        "retries of a pod that was deleted, as where its node was drained or lost; and within it, of temporary "
        "failures. After an eviction, retries of the whole run by who waits for it",
        range=COUNT_OR_NONE,
    )
    backoff: str = knob("60s", "time before the first retry within a pod, doubled before each further one")
    max_backoff: str = knob("600s", "longest time before a retry")
    cache: bool = knob(True, "take an earlier result of the same inputs")
    gpu_product: str | None = knob(
        None, "GPU of pods with GPUs, as the label of nodes names it, such as NVIDIA-H100-80GB-HBM3; None takes any"
    )
    queue: str | None = knob(None, "Kueue's local queue for its pods; None starts them at once")

    @property
    def pauses_s(self) -> tuple[int, ...]:
        """Return the seconds to wait before each retry within a pod."""
        first, most = (int(one.removesuffix("s")) for one in (self.backoff, self.max_backoff))
        return tuple(min(first * BACKOFF_FACTOR**number, most) for number in range(self.retries))


@dataclass(frozen=True)
class Toleration:
    """A taint that pods with a GPU tolerate, in Kubernetes' format."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


@dataclass(frozen=True)
class Gpu:
    """Resource name of GPUs, the node label with the GPU's name, and the nodes for pods with a GPU."""

    resource: str = "nvidia.com/gpu"
    product_label: str = "nvidia.com/gpu.product"
    node_selector: dict[str, str] = knob({}, "labels of nodes for pods with a GPU")
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Volume:
    """Volume of all pods, a PersistentVolumeClaim, for datasets, caches, journals and runs that MLflow missed."""

    claim: str = knob(REQUIRED, "name of the claim")
    path: str = knob("/data", "path in pods; tables on it are named by that path, such as /data/tables.parquet")
    caches: str = knob("caches", "folder of it for the caches of libraries (CACHES); empty for none")
    journals: str = knob(
        "journals",
        "folder of it for the journals of stages that measure, from which the next try of a task goes on; "
        "empty for none",
    )

    def folder(self, name: str) -> str:
        """Return the path of a folder of the volume in pods."""
        return f"{self.path.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Cluster:
    """Settings of a cluster."""

    num_parts: int = knob(REQUIRED, "pods that measure a round side by side", range=COUNT)
    stages: dict[str, StageResources] = knob(REQUIRED, "settings by name of the stage, for each of COMPONENTS")
    gpu: Gpu = knob(Gpu(), "kind of GPU of pods that ask for one")
    node_selector: dict[str, str] = knob({}, "labels of nodes for all pods")
    labels: dict[str, str] = knob({}, "labels of all pods")
    service_account: str = knob("", "account that runs are submitted with; empty for the cluster's own default")
    image_pull_secrets: tuple[str, ...] = knob((), "names of secrets")
    config_map: str = knob("", "ConfigMap of environment variables; empty for none")
    config_keys: tuple[str, ...] = knob((), "keys of it")
    secrets: dict[str, tuple[str, ...]] = knob({}, "environment variables from secrets: keys by name of the secret")
    volume: Volume | None = knob(None, "volume for datasets, caches and journals")

    def with_measure_settings(self, **settings: Any) -> Cluster:
        """Return the cluster with other settings of the stages that measure, such as ``gpus=2``."""
        measuring = {name: replace(self.stages[name], **settings) for name in MEASURING}
        return replace(self, stages={**self.stages, **measuring})

    def for_one_machine(self) -> Cluster:
        """Return the cluster without its settings for parts, retries and GPUs."""
        here = {name: replace(one, retries=0, gpus=0) for name, one in self.stages.items()}
        return replace(self, num_parts=1, stages=here)


def configure_task(task: Any, stage: str, cluster: Cluster) -> Any:
    """Set image, resources, retries, timeout, cache and secrets of a pipeline task by its stage, and return it."""
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
    # Argo labels every pod of a run with it, so that all stages of a loop find the same parent run in MLflow
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
    # all optional: a cluster without MLflow, or with S3 rights from its service account, lacks them
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
    if "stages" not in content and any(key in content for key in OF_A_MACHINE):
        raise BadConfig(
            f"{path} describes a machine to place tables on, which `evenshard place --hosts` takes. A pipeline's "
            "file says what its pods get: see pipelines/cluster.yaml."
        )
    by_stage = read_record(dict[str, dict[str, Any]], content.pop("stages", {}), path, "Write settings for each stage.")
    for name in by_stage:
        is_stage = name == "default" or name in COMPONENTS
        require(is_stage, f"{path}: stages has no {brief(name)}. Choose one of {', '.join(COMPONENTS)}.")
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
