"""The cluster's settings for a stage, as Kubeflow Pipelines writes them into its platform spec."""

from __future__ import annotations

from typing import Any

from evenshard.kubeflow.cluster import BACKOFF_FACTOR, CACHES, MEASURING, Cluster
from evenshard.kubeflow.component import image
from evenshard.kubeflow.pod_journal import FOLDER as JOURNAL_FOLDER
from evenshard.kubeflow.retry import PAUSES
from evenshard.tracking import BACKLOG, BACKLOG_NAME, LOOP_ID

# Before another pod takes the place of one that was deleted.
#
# Argo lets it pass before it looks whether it retries at all: so long, a task whose input is bad is shown as running.
FIRST_PAUSE = "5s"
# No pod lives so long: Argo counts from the start of the first one, and neither makes nor keeps another one after it.
#
# (kubeflow/pipelines#14245; kfp's own word for it is the longest pause.)
RETRIED_WITHIN = f"{30 * 24 * 3600}s"
# The label by which Kueue knows a pod that it is to admit.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def on_cluster(task: Any, stage: str, cluster: Cluster) -> Any:
    """Return the pipeline task with image, resources, retries, timeout, cache and secrets of its stage.

    Args:
        task: a ``kfp.dsl.PipelineTask`` of a component of ``components/``.
        stage: one of ``cluster.COMPONENTS``.
    """
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
    # Argo puts it on every pod of a run: all stages of a loop find the same parent run in MLflow by it
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
    # all optional: a cluster without MLflow, or with S3 rights from its service account, has none
    if cluster.config_map:
        kubernetes.use_config_map_as_env(
            task, cluster.config_map, {key: key for key in cluster.config_keys}, optional=True
        )
    for name, keys in cluster.secrets.items():
        kubernetes.use_secret_as_env(task, name, {key: key for key in keys}, optional=True)
    if cluster.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(cluster.image_pull_secrets))
    return task
