"""The end of a run, asked of Kubeflow Pipelines' API by a pod of that run, whose exit handler is not told enough.

A Kubeflow with users wants a token for its own audience: that of a volume where something projects one into pods
(Kubeflow's PodDefault does), else Kubernetes gives one to the pod's account, which may ask for it
(k8s/base/accounts.yaml).
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evenshard.kubeflow.pods import kubernetes_api
from evenshard.kubeflow.remote import pod_token_file
from evenshard.kubeflow.run_status import FAILED, SUCCEEDED, TaskStatus, tasks_of
from evenshard.stages.record_outcome import UNKNOWN_STATE, Seen
from evenshard.tracking import LOCAL, LOOP_ID
from evenshard.utils.messages import reason_of

# The variable with the address of the API as pods reach it.
API = "KF_PIPELINES_API"
DEFAULT_API = "http://ml-pipeline.kubeflow:8888"
AUDIENCE = "pipelines.kubeflow.org"
# Shortest life that Kubernetes gives a token.
TOKEN_S = 600
TIMEOUT_S = 10.0
# Pauses before each further look: the API notes what the workflow does a second or two later, and may be away.
PAUSES_S = (2.0, 5.0, 10.0)
_HANDLED = re.compile(r"exit-handler-\d+")
_HANDLER = "record-outcome"


def look(run_id: str, pauses_s: Sequence[float] = PAUSES_S) -> Seen:
    """Return what the API says of a run whose exit handler this is; nothing where the pipeline runs on this machine."""
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
        return _summarize_run(_get_run(address, run_id))
    except Exception as error:  # away, or no such API; kfp_server_api's errors are exceptions of its own
        status = getattr(error, "status", None)
        said = f"{status} {getattr(error, 'reason', '')}" if status else reason_of(error)
    return Seen(problem=f"{address} could not be asked for the run: {said}")


def _get_run(address: str, run_id: str) -> Any:
    from kfp_server_api import ApiClient, Configuration, RunServiceApi

    settings = Configuration(host=address.rstrip("/"))
    settings.retries = False
    if token := _token():
        settings.api_key, settings.api_key_prefix = {"authorization": token}, {"authorization": "Bearer"}
    return RunServiceApi(ApiClient(settings)).run_service_get_run(run_id, _request_timeout=TIMEOUT_S)


def _summarize_run(run: Any) -> Seen:
    if run.state is None:
        raise ValueError("no state in the answer")
    details = run.run_details.task_details or () if run.run_details else ()
    tasks = [one for one in tasks_of(details) if not one.name.startswith(_HANDLER) and not one.prepares_a_group]
    ended = [one.state for one in details if _HANDLED.fullmatch(one.display_name or "")]
    state = "CANCELED" if run.state in ("CANCELING", "CANCELED") else str(next(iter(ended), UNKNOWN_STATE))
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


def _token() -> str | None:
    """Return a token for Kubeflow Pipelines; None where neither a volume nor Kubernetes gives one: some need none."""
    if (path := pod_token_file()) is not None:
        return path.read_text().strip()
    with suppress(Exception):  # no rights, no Kubernetes: dozens of kinds
        from kubernetes.client import AuthenticationV1TokenRequest, V1TokenRequestSpec

        api = kubernetes_api()
        claims = api.api_client.configuration.api_key["authorization"].split(".")[1]
        account = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"]
        wanted = AuthenticationV1TokenRequest(spec=V1TokenRequestSpec([AUDIENCE], expiration_seconds=TOKEN_S))
        where = account["serviceaccount"]["name"], account["namespace"]
        answer = api.create_namespaced_service_account_token(*where, wanted, _request_timeout=TIMEOUT_S)
        return str(answer.status.token)
    return None
