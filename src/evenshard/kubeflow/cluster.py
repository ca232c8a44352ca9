"""Settings of a cluster for each stage, in one YAML file; ``pipelines/cluster.yaml`` says what every line means.

``evenshard place --cluster`` takes another kind of file, of the machine that tables are placed on
(``planner.cluster_file``); who gives the one for the other is told so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from evenshard.stages.loop import STAGES
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.utils.params import CORRECT_IT, load_params, require, section

COMPONENTS = (*(stage.name for stage in STAGES), "merge_costs", "drift", "place", "watch", "record_outcome")
MEASURING = tuple(stage.name for stage in STAGES if stage.measures)
BACKOFF_FACTOR = 2
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = (re.compile(r"\d+(\.\d+)?(m|[kMGTP]i?)?"), "Write it as 4, 250m or 32Gi")
_SECONDS = (re.compile(r"\d+s"), "Write seconds, such as 60s")
# How settings of a stage are written, and what to do where one is not.
_FORMS = {
    **dict.fromkeys(("cpu", "memory", "shared_memory"), _QUANTITY),
    **dict.fromkeys(("backoff", "max_backoff"), _SECONDS),
    "gpu_product": (_LABEL, "Name one of `kubectl get nodes -L nvidia.com/gpu.product`"),
    "queue": (_NAME, "Name one of `kubectl get localqueues`"),
}
# Folders for caches by the variable that names them: matplotlib's and others', compiled kernels, compiled graphs.
CACHES = {"XDG_CACHE_HOME": "home", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
_Settings = TypeVar("_Settings")
# Keys of the other kind of file; see ``planner.cluster_file``.
OF_A_MACHINE = ("hosts", "intra", "inter", "nodes_per_domain")


@dataclass(frozen=True)
class StageResources:
    """What the pods of one stage get.

    Attributes:
        cpu: cores, as Kubernetes writes them: 4 or 250m.
        memory: memory as Kubernetes writes it: 32Gi.
        gpus: GPUs of each pod; 0 for none.
        shared_memory: size of /dev/shm; None keeps the node's own.
        timeout_minutes: time after which a pod is stopped; 0 for none.
        retries: retries of a pod that was deleted, as where its node was drained or lost; and within it, of temporary
            failures (``retry``). After an eviction, retries of the whole run by who waits for it.
        backoff, max_backoff: seconds before the first retry within a pod, doubled before each further one, and the
            most of them.
        cache: whether an earlier result of the same inputs will do.
        gpu_product: the GPU that its pods need, as the label of nodes names it, such as NVIDIA-H100-80GB-HBM3; None
            takes any. Of stages without GPUs it says nothing.
        queue: Kueue's local queue for its pods; None starts them at once.
    """

    cpu: str
    memory: str
    gpus: int = 0
    shared_memory: str | None = None
    timeout_minutes: int = 120
    retries: int = 2
    backoff: str = "60s"
    max_backoff: str = "600s"
    cache: bool = True
    gpu_product: str | None = None
    queue: str | None = None

    @property
    def pauses_s(self) -> tuple[int, ...]:
        """Seconds to wait before each retry within a pod."""
        first, most = (int(one.removesuffix("s")) for one in (self.backoff, self.max_backoff))
        return tuple(min(first * BACKOFF_FACTOR**number, most) for number in range(self.retries))


@dataclass(frozen=True)
class Toleration:
    """A taint that pods with a GPU tolerate, as Kubernetes writes it."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


@dataclass(frozen=True)
class Gpu:
    """What a GPU is called on this cluster, which label of a node names its GPU, and where pods with one may run."""

    resource: str = "nvidia.com/gpu"
    product_label: str = "nvidia.com/gpu.product"
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Volume:
    """A volume that all pods see: a PersistentVolumeClaim, for datasets, caches, journals and what MLflow misses.

    Attributes:
        claim: its name.
        path: where pods see it; tables on it are named by that path, such as /data/tables.parquet.
        caches: folder of it for the caches of libraries (``CACHES``); "" for none.
        journals: folder of it for the journals of stages that measure, from which the next try of a task goes on
            (``pod_journal``); "" for none.
    """

    claim: str
    path: str = "/data"
    caches: str = "caches"
    journals: str = "journals"

    def problem(self) -> str | None:
        """Says in one clause what makes it impossible, or None."""
        if not _NAME.fullmatch(self.claim):
            return f"claim is {brief(self.claim)}, which no PersistentVolumeClaim is called"
        if not self.path.startswith("/") or self.path.rstrip("/") == "":
            return f"path is {brief(self.path)}, not a folder such as /data"
        for name in ("caches", "journals"):
            folder = getattr(self, name)
            if folder.startswith("/") or ".." in Path(folder).parts:
                return f"{name} is {brief(folder)}, not a folder of the volume such as {name}"
        return None

    @property
    def cache_folders(self) -> dict[str, str]:
        """Where libraries keep what they have compiled or downloaded: folders by environment variable."""
        if not self.caches:
            return {}
        return {name: f"{self._folder(self.caches)}/{folder}" for name, folder in CACHES.items()}

    @property
    def journal_folder(self) -> str:
        """Where stages that measure keep their journals; "" for nowhere."""
        return self.journals and self._folder(self.journals)

    def _folder(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Cluster:
    """The settings of a cluster.

    Attributes:
        num_parts: pods that measure a round side by side.
        stages: settings by name of the stage, for each of ``COMPONENTS``.
        gpu: kind of GPU of pods that ask for one.
        node_selector, labels: selector and labels of all pods.
        service_account: account that runs are submitted with; "" for the cluster's own default.
        image_pull_secrets: names.
        config_map, config_keys: environment variables from a ConfigMap; "" for none.
        secrets: environment variables from secrets: keys by name of the secret.
        volume: for datasets, caches and journals; None for none.
    """

    num_parts: int
    stages: dict[str, StageResources]
    gpu: Gpu = field(default_factory=Gpu)
    node_selector: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    service_account: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    config_map: str = ""
    config_keys: tuple[str, ...] = ()
    secrets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    volume: Volume | None = None

    def with_measure_settings(self, **settings: Any) -> Cluster:
        """The cluster with other settings of the stages that measure, such as ``gpus=2``."""
        measuring = {name: replace(self.stages[name], **settings) for name in MEASURING}
        return replace(self, stages={**self.stages, **measuring})

    def for_one_machine(self) -> Cluster:
        """The cluster without what one machine lacks: parts, retries after a wait, and pods to limit."""
        here = {name: replace(one, retries=0, gpus=0) for name, one in self.stages.items()}
        return replace(self, num_parts=1, stages=here)


def load_cluster(path: Path) -> Cluster:
    """The settings in a YAML file.

    Raises:
        BadFile: if it is missing or no YAML mapping.
        BadConfig: if a setting is unknown, missing or impossible; the message names it.
    """
    content = load_params(path)
    if "stages" not in content and any(key in content for key in OF_A_MACHINE):
        raise BadConfig(
            f"{path} describes a machine to place tables on, which `evenshard place --cluster` takes. A pipeline's "
            "file says what its pods get: see pipelines/cluster.yaml."
        )
    by_stage = content.pop("stages", {})
    require(isinstance(by_stage, dict), f"{path}: stages is not a mapping. Write one block for each stage under it.")
    for name in by_stage:
        is_stage = name == "default" or name in COMPONENTS
        require(is_stage, f"{path}: stages has no {brief(name)}. Choose one of {', '.join(COMPONENTS)}.")
        block = by_stage[name]
        require(isinstance(block, dict), f"{path}: stages.{name} is {brief(block)}. Write `key: value` lines under it.")
    default = by_stage.get("default", {})
    stages = {name: _resources(path, name, {**default, **by_stage.get(name, {})}) for name in COMPONENTS}
    cluster = _read_settings(str(path), {**content, "stages": {}}, Cluster)
    require(cluster.num_parts >= 1, f"{path}: num_parts is {cluster.num_parts}. Make it at least 1.")
    if cluster.volume is not None and (problem := cluster.volume.problem()):
        raise BadConfig(f"{path}: volume.{problem}. Correct it.")
    return replace(cluster, stages=stages)


def _resources(path: Path, name: str, values: dict[str, Any]) -> StageResources:
    where = f"{path}: stages.{name}"
    as_text = {key: str(value) if key in ("cpu", "memory") else value for key, value in values.items()}
    found = _read_settings(where, as_text, StageResources)
    for key, (form, remedy) in _FORMS.items():
        value = getattr(found, key)
        require(value is None or bool(form.fullmatch(value)), f"{where}.{key} is {brief(value)}. {remedy}.")
    for key in ("gpus", "timeout_minutes", "retries"):
        value = getattr(found, key)
        require(value >= 0, f"{where}.{key} is {value}. Make it at least 0.")
    return found


def _read_settings(where: str, values: dict[str, Any], kind: type[_Settings]) -> _Settings:
    """Settings as their dataclass; what is wrong is said of ``where``, which is no section of params.yaml."""
    try:
        return section({"": values}, "", kind)
    except BadConfig as error:
        raise BadConfig(str(error).replace("params section ", where).replace(CORRECT_IT, "Correct it.")) from None
