"""The reasons why a pod does not start or has failed, from Kubernetes where a kubeconfig or a pod's account allows it.

Kubeflow Pipelines itself tells neither: a pod that fits no node is PENDING to it, like one whose image is on its way.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.utils.messages import cut, one_line

TIMEOUT_S = 5.0
_MAX_REASON = 300  # characters of what Kubernetes says
STARTING = ("ContainerCreating", "PodInitializing")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pod:
    """What Kubernetes says of a pod.

    Attributes:
        reason: why it does not start, or has failed; "" where nothing is wrong.
        evicted: whether the cluster has ended it, and not what ran in it.
    """

    name: str
    phase: str
    reason: str
    evicted: bool = False


def pods_of(namespace: str, workflow: str) -> dict[str, Pod]:
    """The pods of a run by the number that their names end with; none where Kubernetes cannot be asked, or has none.

    Args:
        workflow: name of the Argo workflow, with which it labels all its pods.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _api().list_namespaced_pod(
                namespace,
                label_selector=f"workflows.argoproj.io/workflow={workflow}",
                _request_timeout=TIMEOUT_S,
            )
    except Exception as error:  # no kubeconfig, a cluster that is away, no right: dozens of kinds
        log.debug("Kubernetes cannot be asked (%s)", error)
        return {}
    named = ((str(one.metadata.name), one.status) for one in found.items)
    return {
        name.rpartition("-")[2]: Pod(name, str(status.phase), _reason(status), _is_evicted(status))
        for name, status in named
    }


def _api() -> Any:
    from kubernetes import client, config

    settings = client.Configuration()
    settings.retries = False
    named = os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    if any(Path(one).is_file() for one in named.split(os.pathsep)):
        config.load_kube_config(config_file=named, client_configuration=settings)
    else:
        config.load_incluster_config(client_configuration=settings)
    return client.CoreV1Api(client.ApiClient(settings))


def _is_evicted(status: Any) -> bool:
    """Kubernetes says it by a condition, whether the node ran out of something, was shut down or went away."""
    disrupted = any(one.type == "DisruptionTarget" and one.status == "True" for one in status.conditions or ())
    return bool(status.phase == "Failed" and (disrupted or status.reason == "Evicted"))


def _reason(status: Any) -> str:
    said = [_reason_text(status.reason, status.message)]  # such as Evicted, DeadlineExceeded
    said += [
        _reason_text(one.reason, one.message)  # such as Unschedulable
        for one in status.conditions or ()
        if one.type == "PodScheduled" and one.status == "False"
    ]
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if one.state.waiting and one.state.waiting.reason not in STARTING:
            said.append(_reason_text(one.state.waiting.reason, one.state.waiting.message))  # such as ImagePullBackOff
        if one.state.terminated and one.state.terminated.exit_code:
            said.append(f"{one.state.terminated.reason}, exit code {one.state.terminated.exit_code}")  # OOMKilled
    return next((cut(one_line(one), _MAX_REASON).rstrip(".") for one in said if one), "")


def _reason_text(reason: str | None, message: str | None) -> str:
    return ": ".join(one for one in (reason, message) if one)
