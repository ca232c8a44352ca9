"""How a run ends, asked of Kubeflow Pipelines' API by a pod of that run: what its exit handler is told is not enough.

Plain HTTP, as images have kfp's executor without its client. A Kubeflow with users wants a token for its own audience:
that of a volume where something projects one into pods (Kubeflow's PodDefault does), else Kubernetes gives one to the
pod's account, which may ask for it (k8s/base/accounts.yaml).
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from evenshard.kubeflow.remote import pod_token_file
from evenshard.kubeflow.run_status import FAILED, SUCCEEDED, TaskStatus, tasks_of
from evenshard.stages.record_outcome import UNKNOWN_STATE, Seen
from evenshard.tracking import LOCAL, LOOP_ID
from evenshard.utils.messages import reason_of

# The variable with the address of the API as pods reach it.
API = "KF_PIPELINES_API"
DEFAULT_API = "http://ml-pipeline.kubeflow:8888"
AUDIENCE = "pipelines.kubeflow.org"
# Folder of a pod with the token of its account, and the cluster's certificate.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KUBERNETES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
# Shortest life that Kubernetes gives a token.
TOKEN_S = 600
TIMEOUT_S = 10.0
# Pauses before each further look: the API notes what the workflow does a second or two later, and may be away.
PAUSES_S = (2.0, 5.0, 10.0)
_HANDLED = re.compile(r"exit-handler-\d+")
_HANDLER = "record-outcome"


def look(run_id: str, pauses_s: Sequence[float] = PAUSES_S) -> Seen:
    """What the API says of a run whose exit handler this is; nothing where the pipeline runs on this machine."""
    if os.environ.get(LOOP_ID, LOCAL).startswith(LOCAL):
        return Seen()
    seen = _look(run_id)
    for pause_s in pauses_s:
        if not seen.problem:
            break
        time.sleep(pause_s)
        seen = _look(run_id)
    return seen


def _look(run_id: str) -> Seen:
    address = os.environ.get(API) or DEFAULT_API
    try:
        run = _ask(Request(f"{address.rstrip('/')}/apis/v2beta1/runs/{run_id}", headers=_bearer(_token())))
        return _summarize_run(run)
    except HTTPError as error:
        said = f"{error.code} {error.reason}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # away, or no such API
        said = reason_of(error)
    return Seen(problem=f"{address} could not be asked for the run: {said}")


def _summarize_run(run: Mapping[str, Any]) -> Seen:
    details = [_node(one) for one in (run.get("run_details") or {}).get("task_details") or ()]
    tasks = [one for one in tasks_of(details) if not one.name.startswith(_HANDLER) and not one.prepares_a_group]
    ended = [one.state for one in details if _HANDLED.fullmatch(one.display_name or "")]
    state = "CANCELED" if run["state"] in ("CANCELING", "CANCELED") else str(next(iter(ended), UNKNOWN_STATE))
    known = state in ("CANCELED", SUCCEEDED, FAILED)
    return Seen(
        state=state if known else UNKNOWN_STATE,
        failed=_names(tasks, FAILED),
        cached=_names(tasks, SUCCEEDED, cached=True),
        ran=_names(tasks, SUCCEEDED),
        problem="" if known else "Kubeflow Pipelines has not noted how the tasks ended",
    )


def _names(tasks: Sequence[TaskStatus], state: str, cached: bool = False) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for one in tasks if (one.state, one.cached) == (state, cached)))


def _node(said: Mapping[str, Any]) -> Any:
    """A node of the API's JSON, as its SDK reads it."""
    children = [SimpleNamespace(pod_name=one.get("pod_name")) for one in said.get("child_tasks") or ()]
    return SimpleNamespace(
        display_name=said.get("display_name"),
        state=said.get("state"),
        start_time=datetime.fromisoformat(said["start_time"]),
        child_tasks=children,
    )


def _token() -> str | None:
    """A token for Kubeflow Pipelines; None where neither a volume nor Kubernetes gives one: single users need none."""
    if (path := pod_token_file()) is not None:
        return path.read_text().strip()
    host, port = (os.environ.get(name) for name in _KUBERNETES)
    with suppress(OSError, ValueError, KeyError):
        own = (ACCOUNT / "token").read_text().strip()
        claims = own.split(".")[1]
        account = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"]
        namespace, name = account["namespace"], account["serviceaccount"]["name"]
        wanted = {"spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_S}}
        request = Request(
            f"https://{host}:{port}/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            json.dumps(wanted).encode(),
            {**_bearer(own), "Content-Type": "application/json"},
        )
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        return str(_ask(request, trusted)["status"]["token"])
    return None


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _ask(request: Request, trusted: ssl.SSLContext | None = None) -> dict[str, Any]:
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusted))  # both are inside of the cluster
    with opener.open(request, timeout=TIMEOUT_S) as answer:
        found = json.load(answer)
    if not isinstance(found, dict):
        raise ValueError("no JSON object in the answer")
    return found
