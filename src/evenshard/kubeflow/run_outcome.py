"""Outcome of a run, read by the exit handler from Kubeflow Pipelines' API, because its arguments lack details.

A multi-user Kubeflow requires a token for its own audience. The token comes from a projected volume (Kubeflow's
PodDefault), or from Kubernetes if the pod's account may request one (k8s/base/accounts.yaml).
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenshard import tracking
from evenshard.base.messages import reason_of
from evenshard.base.outputs import write_text
from evenshard.kubeflow.remote import ENDPOINT, pod_token_file, run_page
from evenshard.kubeflow.run_status import FAILED, SUCCEEDED, TaskStatus, kubernetes_api, tasks_of
from evenshard.tracking import LOCAL, LOOP_ID
from evenshard.tracking.pyfunc import build_serving_code

API = "KF_PIPELINES_API"  # environment variable: address of the API for pods
DEFAULT_API = "http://ml-pipeline.kubeflow:8888"
AUDIENCE = "pipelines.kubeflow.org"
TOKEN_S = 600  # the shortest lifetime that Kubernetes gives a token
TIMEOUT_S = 10.0  # per request; a slow API must not hold up the end of the run
# Pauses before each further request: the API lags the workflow by a second or two, and may be down.
PAUSES_S = (2.0, 5.0, 10.0)
_HANDLER_GROUP = re.compile(r"exit-handler-\d+")
_HANDLER = "record-outcome"
CANCELED, UNKNOWN = "CANCELED", "UNKNOWN"
# States of ML Metadata and kfp.local; RUNNING, NEW and UNKNOWN are ambiguous (kubeflow/pipelines#11979).
ENDED_AS = {
    **dict.fromkeys(("COMPLETE", "CACHED", "SUCCEEDED"), SUCCEEDED),
    "FAILED": FAILED,
    **dict.fromkeys(("CANCELED", "CANCELLED"), CANCELED),
}


@dataclass(frozen=True)
class RunReport:
    """The API's report on a run, with the names of its tasks by outcome."""

    state: str = UNKNOWN
    failed: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    problem: str = ""  # reason for an unknown state; "" for a run on this machine, which has no API


def query_run(run_id: str) -> RunReport:
    """Query the API about the run of this pod; return an empty report if the pipeline runs on this machine."""
    if os.environ.get(LOOP_ID, LOCAL).startswith(LOCAL):
        return RunReport()
    for pause_s in PAUSES_S:
        if not (report := _query_once(run_id)).problem:
            return report
        time.sleep(pause_s)
    return _query_once(run_id)


def find_run_page(run_id: str) -> str:
    """Return the address of a run's page if KF_PIPELINES_ENDPOINT is set in the pod, else its id."""
    endpoint = os.environ.get(ENDPOINT)
    return run_page(endpoint, run_id) if endpoint else run_id


def write_outcome(said: str, run: str, page: str, seen: RunReport, outcome: Path, summary: Path) -> None:
    """Write the outcome as JSON and as one line of Markdown; log it to MLflow if MLFLOW_TRACKING_URI names a server.

    Args:
        said: state of the run from the exit handler's arguments, used if the API reports none.
        run: name of the run.
    """
    state = ENDED_AS.get(said, UNKNOWN) if seen.state == UNKNOWN else seen.state
    ended = {"state": state, "said": said, "run": run, "page": page, "seen": asdict(seen)}
    ended["ended_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    line = f"**{state}**: {run}{_explain(state, said, seen)}. See {page}"
    for path, text in ((outcome, json.dumps(ended, indent=1)), (summary, line)):
        write_text(path, text + "\n")
    log_outcome(state, page, seen)


def log_outcome(state: str, page: str, seen: RunReport) -> None:
    """Log MLflow runs that could not be logged earlier, and end the loop's MLflow run."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        tracking.log_backlog(build_serving_code)
        ended = "stopped" if state == CANCELED else "failed"
        tracking.end_loop(state, page, {ended: seen.failed, "cached": seen.cached, "ran": seen.ran})


def _explain(state: str, said: str, seen: RunReport) -> str:
    told = f"the exit handler received {said}"
    told += ", which it also receives from successful runs" if state == UNKNOWN else ""
    if seen.problem or state == UNKNOWN:
        return f" ({'; '.join(filter(None, (seen.problem, told)))})"
    ended = "was stopped" if state == CANCELED else "failed"
    parts = [f"{', '.join(seen.failed)} {ended}"] if seen.failed else []
    parts += [f"from the cache: {', '.join(seen.cached)}"] if seen.cached else []
    return f" ({'; '.join(parts)})" if parts else ""


def _query_once(run_id: str) -> RunReport:
    address = os.environ.get(API) or DEFAULT_API
    try:
        from kfp_server_api import ApiClient, Configuration, RunServiceApi

        settings = Configuration(host=address.rstrip("/"))
        settings.retries = False
        if token := _token():
            settings.api_key, settings.api_key_prefix = {"authorization": token}, {"authorization": "Bearer"}
        run = RunServiceApi(ApiClient(settings)).run_service_get_run(run_id, _request_timeout=TIMEOUT_S)
        if run.state is None:
            raise ValueError("no state in the answer")
        return _summarize_run(run)
    except Exception as error:  # the API is down or missing; kfp_server_api has its own exceptions
        status = getattr(error, "status", None)
        said = f"{status} {getattr(error, 'reason', '')}" if status else reason_of(error)
    return RunReport(problem=f"{address} did not return the state of the run: {said}")


def _summarize_run(run: Any) -> RunReport:
    details = run.run_details.task_details or () if run.run_details else ()
    tasks = [task for task in tasks_of(details) if not task.name.startswith(_HANDLER) and not task.prepares_a_group]
    ended = [node.state for node in details if _HANDLER_GROUP.fullmatch(node.display_name or "")]
    state = CANCELED if run.state in ("CANCELING", CANCELED) else str(next(iter(ended), UNKNOWN))
    known = state in (CANCELED, SUCCEEDED, FAILED)
    return RunReport(
        state=state if known else UNKNOWN,
        failed=_names(tasks, FAILED, cached=False),
        cached=_names(tasks, SUCCEEDED, cached=True),
        ran=_names(tasks, SUCCEEDED, cached=False),
        problem="" if known else "Kubeflow Pipelines has not recorded how the tasks ended",
    )


def _names(tasks: Sequence[TaskStatus], state: str, cached: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(task.name for task in tasks if (task.state, task.cached) == (state, cached)))


def _token() -> str | None:
    """Return a token for Kubeflow Pipelines from a volume or Kubernetes; None if there is none."""
    if (path := pod_token_file()) is not None:
        return path.read_text().strip()
    with suppress(Exception):  # without rights or Kubernetes, the client raises dozens of types
        from kubernetes.client import AuthenticationV1TokenRequest, V1TokenRequestSpec

        api = kubernetes_api()
        claims = api.api_client.configuration.api_key["authorization"].split(".")[1]
        account = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"]
        wanted = AuthenticationV1TokenRequest(spec=V1TokenRequestSpec([AUDIENCE], expiration_seconds=TOKEN_S))
        where = account["serviceaccount"]["name"], account["namespace"]
        answer = api.create_namespaced_service_account_token(*where, wanted, _request_timeout=TIMEOUT_S)
        return str(answer.status.token)
    return None
