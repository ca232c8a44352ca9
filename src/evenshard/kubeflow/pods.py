"""The reasons why a pod does not start or has failed, from Kubernetes where a kubeconfig or a pod's account allows it.

Kubeflow Pipelines itself tells neither: a pod that fits no node is PENDING to it, like one whose image is on its way.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evenshard.utils.messages import cut, one_line

TIMEOUT_S = 5.0
_MAX_REASON = 300  # characters of what Kubernetes says
STARTING = ("ContainerCreating", "PodInitializing")
_LOG_LINES = 200
_GATES = {"kueue.x-k8s.io/admission": "Kueue has not admitted it: `kubectl describe workloads` says why"}
# Messages of commands, and else the exceptions that end Python's tracebacks; Kubeflow's launcher writes more lines.
_COMMAND_ERROR = re.compile(r"^evenshard [a-z-]+(?: failed)?: (.+)", re.MULTILINE)
_EXCEPTION = re.compile(r"^Traceback .*\n(?:[ \t].*\n)+(?:evenshard\.[\w.]+: )?(.+)", re.MULTILINE)
_Answer = TypeVar("_Answer")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pod:
    """The state of a pod, as Kubernetes has it.

    Attributes:
        name: its name; "" for a pod that was never made, or is gone.
        reason: why it does not start, or has failed; "" where nothing is wrong.
        evicted: whether the cluster has ended it, and not what ran in it.
    """

    name: str
    phase: str
    reason: str
    evicted: bool = False


def pods_of(namespace: str, workflow: str, numbers: Collection[str]) -> dict[str, Pod]:
    """Return the pods of a run by the number that their names end with; none where Kubernetes cannot be asked.

    For a pod that a quota has refused, or that is gone, Argo has the reason: the message of its node in the workflow.

    Args:
        workflow: name of the Argo workflow, with which it labels all its pods.
        numbers: of the pods that matter.
    """
    pods = _ask(lambda api: _list_pods(api, namespace, workflow)) or {}
    if pods.keys() >= set(numbers):
        return pods
    return (_ask(lambda api: _read_nodes(api, namespace, workflow)) or {}) | pods


def last_error(namespace: str, pod: str) -> str:
    """Return the error in the log of a stage's pod that has failed, as one line; "" where there is none to read."""
    settings = {"container": "main", "tail_lines": _LOG_LINES, "_request_timeout": TIMEOUT_S, "_preload_content": False}
    text = (
        _ask(lambda api: str(api.read_namespaced_pod_log(pod, namespace, **settings).data.decode(errors="replace")))
        or ""
    )
    found = _COMMAND_ERROR.findall(text) or _EXCEPTION.findall(text)
    return _in_brief(found[-1]) if found else ""


def _ask(question: Callable[[Any], _Answer]) -> _Answer | None:
    """Ask Kubernetes; return None where it cannot be asked."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question(kubernetes_api())
    except Exception as error:  # no kubeconfig, a cluster that is away, no right: dozens of kinds
        log.debug("Kubernetes cannot be asked (%s)", error)
        return None


def _list_pods(api: Any, namespace: str, workflow: str) -> dict[str, Pod]:
    label = f"workflows.argoproj.io/workflow={workflow}"
    found = api.list_namespaced_pod(namespace, label_selector=label, _request_timeout=TIMEOUT_S).items
    pods = (Pod(one.metadata.name, str(one.status.phase), _reason(one), _is_evicted(one.status)) for one in found)
    return {pod.name.rpartition("-")[2]: pod for pod in pods}


def _read_nodes(api: Any, namespace: str, workflow: str) -> dict[str, Pod]:
    from kubernetes.client import CustomObjectsApi

    where = ("argoproj.io", "v1alpha1", namespace, "workflows", workflow)
    status = CustomObjectsApi(api.api_client).get_namespaced_custom_object(*where, _request_timeout=TIMEOUT_S)["status"]
    nodes = status.get("nodes") or json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"])))
    said = {name.rpartition("-")[2]: node["message"] for name, node in nodes.items() if node.get("message")}
    return {number: Pod("", "Pending", _in_brief(message)) for number, message in said.items()}


def kubernetes_api() -> Any:
    """Return Kubernetes' core API, by a kubeconfig or by the account of this pod."""
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


def _reason(pod: Any) -> str:
    status, gates = pod.status, [one.name for one in pod.spec.scheduling_gates or ()]
    said = [_GATES.get(one, f"held by the scheduling gate {one}") for one in gates]
    said += [_reason_text(status.reason, status.message)]  # such as Evicted, DeadlineExceeded
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
    return next((_in_brief(one) for one in said if one), "")


def _in_brief(text: str) -> str:
    return cut(one_line(text), _MAX_REASON).rstrip(".")


def _reason_text(reason: str | None, message: str | None) -> str:
    return ": ".join(one for one in (reason, message) if one)
