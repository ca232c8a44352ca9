"""Runs of a pipeline on a cluster, through the API of Kubeflow Pipelines (v2beta1), as its SDK speaks it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenshard.kubeflow.api_errors import Busy, ServerTrouble, TokenRefused, error_of
from evenshard.kubeflow.pods import last_error, pods_of
from evenshard.kubeflow.run_status import (
    FAILED,
    FINISHED,
    NOTED_WITHIN,
    PENDING,
    RUNNING,
    RunStatus,
    has_open,
    record_ends,
    tasks_of,
    was_stopped,
)
from evenshard.utils.errors import BadConfig, BadFile, EvenshardError, PipelineFailed
from evenshard.utils.messages import brief, without_credentials

log = logging.getLogger(__name__)
Passing = tuple[type[EvenshardError], ...]
# The variable with the address of the API.
ENDPOINT = "KF_PIPELINES_ENDPOINT"
_TOKEN_PATH = "KF_PIPELINES_SA_TOKEN_PATH"
_TOKEN_IN_CLUSTER = "/var/run/secrets/kubeflow/pipelines/token"
# Seconds until the API lists a run that a recurring run has started.
LISTED_AFTER_S = 10.0
# Failures that pass for who waits for a run: the token was good when the run was started.
_WHILE_WAITING = (PipelineFailed, TokenRefused)


@dataclass(frozen=True)
class Endpoint:
    """The address of the API, and the patience with it.

    Attributes:
        url: such as http://localhost:8080 or https://kubeflow.example.com/pipeline.
        namespace: namespace of experiments and runs; each call names it.
        token_file: read again for every call, as a cluster renews it; None for the pod's own, where there is one.
        timeout_s: limit for one call.
        pauses_s: pauses before each further try of a call that the server was too busy for: two minutes in all.
    """

    url: str
    namespace: str
    token_file: Path | None = None
    timeout_s: float = 30.0
    pauses_s: tuple[float, ...] = (1.0, 4.0, 10.0, 30.0, 75.0)


class Remote:
    """Kubeflow Pipelines at an endpoint.

    All methods raise BadInput if the server refuses a call, and PipelineFailed if it does not answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Open nothing yet.

        Raises:
            BadInput: if the address is none, or the token file cannot be read.
        """
        if not endpoint.url.startswith(("http://", "https://")):
            raise BadConfig(
                f"endpoint {brief(endpoint.url)} is not an address. Write it as https://kubeflow.example.com/pipeline."
            )
        if not endpoint.namespace:
            raise BadConfig("namespace is empty. Name the one that the runs are to be in.")
        self._endpoint = endpoint
        self._token_file = _token_file(endpoint.token_file)
        self._client = _client(endpoint, self._token_file)

    def submit(
        self, package: Path, values: Mapping[str, Any], experiment: str, run_name: str, service_account: str
    ) -> RunStatus:
        """Start a run of a compiled pipeline; make the experiment if there is none of the name."""
        run = self._call(
            f"starting {run_name}",
            self._client.run_pipeline,
            self._experiment(experiment),
            run_name,
            str(package),
            params=dict(values),
            service_account=service_account or None,
            must_have="run_id",
        )
        return self._status(run)

    def schedule(
        self, package: Path, values: Mapping[str, Any], experiment: str, name: str, cron: str, service_account: str
    ) -> str:
        """Make a recurring run, one at a time and without catching up; return its id.

        Args:
            cron: five fields, or six with the seconds first.

        Raises:
            BadConfig: if ``cron`` has not as many fields.
        """
        num_fields = len(cron.split())
        if num_fields not in (5, 6):
            raise BadConfig(
                f"cron {brief(cron)} has {num_fields} fields. Write five, such as '0 3 * * 0', or the seconds before."
            )
        made = self._call(
            f"scheduling {name}",
            self._client.create_recurring_run,
            self._experiment(experiment),
            name,
            cron_expression=cron if num_fields == 6 else f"0 {cron}",
            max_concurrency=1,
            no_catchup=True,
            params=dict(values),
            pipeline_package_path=str(package),
            service_account=service_account or None,
            must_have="recurring_run_id",
        )
        return str(made.recurring_run_id)

    def pause(self, name: str, experiment: str, resume: bool = False) -> str:
        """Let a recurring run start no more runs, or start runs again; those in progress go on. Return its id."""
        number = str(self._recurring_run(name, experiment).recurring_run_id)
        switch = self._client.enable_recurring_run if resume else self._client.disable_recurring_run
        self._call(f"recurring run {name}", switch, number)
        return number

    def unschedule(self, name: str, experiment: str, force: bool = False) -> str:
        """Delete a recurring run, which is paused first, if none of its runs is in progress. Return its id.

        It owns the workflows of its runs: Kubernetes would delete them with it, and their exit handlers would not run.

        Args:
            name: its name or its id.
            experiment: name of the experiment that it is in.
            force: delete it in any case.

        Raises:
            BadConfig: if there is none, or there are several of the name.
            PipelineFailed: if a run is in progress.
        """
        found = self._recurring_run(name, experiment)
        number = self.pause(found.recurring_run_id, experiment)
        if not force:
            if str(found.status) != "DISABLED":
                time.sleep(LISTED_AFTER_S)  # it may have started a run at this moment
            runs = [one for one in self._all("runs", found.experiment_id) if one.recurring_run_id == number]
            going = [one.run_id for one in runs if one.state not in FINISHED]
            if going:
                raise PipelineFailed(
                    f"recurring run {number} is paused, not deleted: its run {', '.join(going)} is in progress, and "
                    "would be killed. Unschedule it again when that has ended, stop that run first, or use --force."
                )
        self._call(f"recurring run {name}", self._client.delete_recurring_run, number)
        return number

    def _recurring_run(self, name: str, experiment: str) -> Any:
        """Find the recurring run of an experiment with this name or id."""
        by_name = {"operation": "EQUALS", "key": "display_name", "stringValue": experiment}
        experiments = self._call(
            f"experiment {experiment}",
            self._client.list_experiments,
            namespace=self._endpoint.namespace,
            filter=json.dumps({"predicates": [by_name]}),
        ).experiments
        known = [run for one in experiments or () for run in self._all("recurring_runs", one.experiment_id)]
        found = [one for one in known if name in (one.recurring_run_id, one.display_name)]
        if not found:
            others = f": {', '.join(sorted({str(one.display_name) for one in known}))}" if known else ""
            raise BadConfig(
                f"no recurring run {brief(name)} in the experiment {experiment}, which has {len(known) or 'none'}"
                f"{others}. Name one of them, or its experiment with --experiment."
            )
        if len(found) > 1:
            ids = ", ".join(sorted(str(one.recurring_run_id) for one in found))
            raise BadConfig(f"{len(found)} recurring runs are called {brief(name)}: {ids}. Name one by its id.")
        return found[0]

    def _all(self, kind: str, experiment_id: str) -> Iterator[Any]:
        """Yield the runs of an experiment, or its recurring_runs."""
        look, page = getattr(self._client, f"list_{kind}"), ""
        while True:
            answer = self._call(f"list of {kind}", look, page_token=page, page_size=50, experiment_id=experiment_id)
            yield from getattr(answer, kind) or ()
            page = answer.next_page_token
            if not page:
                return

    def stop(self, run_id: str) -> RunStatus:
        """Stop a run: its pods end, and only ``record_outcome`` still runs. Return its status before."""
        status = self._status(self._get(run_id))
        if not status.is_finished:
            self._call(f"stopping run {run_id}", self._client.terminate_run, run_id)
        return status

    def status(self, run_id: str, passing: Passing = (ServerTrouble,)) -> RunStatus:
        """Return the status of a run; of one that ends in this moment, once all of its tasks are noted as ended."""
        settled_by = time.monotonic() + NOTED_WITHIN.total_seconds()
        while True:
            run = self._get(run_id, passing)
            status = self._status(run)
            settles = status.is_finished and status.recorded_until is None and has_open(_details(run))
            if not settles or time.monotonic() > settled_by:
                return _with_pods(status)
            time.sleep(self._endpoint.pauses_s[0])

    def wait(
        self,
        run_id: str,
        pause_s: float,
        patience_s: float | None,
        tell: Callable[[RunStatus], None],
        retries: int = 0,
    ) -> RunStatus:
        """Wait until a run has finished.

        Args:
            tell: gets the status at every look before.
            retries: how often a run is tried again that has failed because pods were evicted, and nothing else. What
                has succeeded is kept. Argo itself does not retry them; see ``retry``.

        Raises:
            PipelineFailed: if it takes longer than ``patience_s``.
        """
        deadline = None if patience_s is None else time.monotonic() + patience_s
        while True:
            status = self.status(run_id, _WHILE_WAITING)
            if status.is_finished:
                if not (retries and status.was_evicted and self._tried_again(status)):
                    return status
                retries -= 1
            tell(status)
            if deadline is not None and time.monotonic() > deadline:
                raise PipelineFailed(f"run {run_id} is {status.state} after {patience_s:g} s. It goes on: {status.url}")
            time.sleep(pause_s)

    def _tried_again(self, status: RunStatus) -> bool:
        """Try a run again from its failed tasks on; False, and a warning, where the server does not."""
        failed = [one for one in status.tasks if one.state == FAILED]
        why = ". ".join(f"{one.name} has lost its pod ({one.reason})" for one in failed)
        try:
            retry = self._client._run_api.run_service_retry_run  # kfp.Client has no method for it
            self._call(f"trying run {status.run_id} again", retry, status.run_id)
        except EvenshardError as error:
            if self.status(status.run_id, _WHILE_WAITING).is_finished:
                log.warning("%s. %s", why, error)
                return False
        log.warning("%s: the run is tried again from there", why)
        return True

    def _get(self, run_id: str, passing: Passing = (Busy,)) -> Any:
        return self._call(f"run {run_id}", self._client.get_run, run_id, must_have="run_id", passing=passing)

    def _experiment(self, name: str) -> str:
        make, space = self._client.create_experiment, self._endpoint.namespace
        made = self._call(f"experiment {name}", make, name, namespace=space, must_have="experiment_id")
        return str(made.experiment_id)

    def _status(self, run: Any) -> RunStatus:
        details, state = _details(run), "CANCELED" if was_stopped(run) else str(run.state or PENDING)
        return RunStatus(
            run_id=str(run.run_id),
            name=str(run.display_name),
            namespace=self._endpoint.namespace,
            state=state,
            tasks=tasks_of(details),
            recorded_until=record_ends(details, run.finished_at if state in FINISHED else None, datetime.now(UTC)),
            url=run_page(self._endpoint.url, run.run_id),
        )

    def _call(
        self,
        what: str,
        method: Callable[..., Any],
        *arguments: Any,
        must_have: str = "",
        passing: Passing = (Busy,),
        **named: Any,
    ) -> Any:
        """Call the SDK, and again after failures that may pass.

        Args:
            what: subject of the call, for messages.
            must_have: id that the answer must have, if any: the SDK turns a login page into an empty object.
            passing: these failures. A call that changes something is not made twice, unless it was not begun.
        """
        for pause_s in (*self._endpoint.pauses_s, None):
            try:
                with contextlib.redirect_stdout(io.StringIO()), _mute_logging():  # the SDK prints links, and logs
                    answer = method(*arguments, **named)
                if must_have and not getattr(answer, must_have, None):
                    raise ValueError(f"no {must_have} in the answer")
                return answer
            except Exception as raised:  # the SDK lets errors of urllib3, ssl, json and its own through
                error = error_of(raised, what, self._endpoint.url, self._endpoint.namespace, self._token_file)
            if pause_s is None or not isinstance(error, passing):
                raise error
            log.warning("%s (trying again in %g s)", error, pause_s)
            time.sleep(pause_s)


def _details(run: Any) -> Any:
    return getattr(run.run_details, "task_details", None) or []


def _with_pods(status: RunStatus) -> RunStatus:
    """Return the status with Kubernetes' reasons for pods that have failed or do not start, where it can be asked.

    What prepares a group of tasks is left out, unless it has failed or does not start.
    """
    tasks = [task for task in status.tasks if not task.prepares_a_group or task.state == FAILED or task.is_slow]
    asked = [task for task in tasks if task.nodes and (task.state == FAILED or task.is_slow)]
    workflow, numbers = asked[0].nodes[-1].rpartition("-")[0] if asked else "", {task.pod_number for task in asked}
    pods = pods_of(status.namespace, workflow, numbers) if asked else {}
    for place, task in enumerate(tasks):
        pod = pods.get(task.pod_number) if task in asked else None
        if pod is None:
            continue
        reason, started = pod.reason, task.state == PENDING and pod.phase != "Pending"
        if status.is_finished and reason.startswith("Error,"):  # its own, not OOMKilled, Evicted or the like
            reason = last_error(status.namespace, pod.name) or reason
        state = RUNNING if started else task.state
        tasks[place] = replace(task, state=state, pod=pod.name, reason=reason, evicted=pod.evicted)
    return replace(status, tasks=tuple(tasks))


def run_page(endpoint: str, run_id: str) -> str:
    """Return the address of a run's page."""
    return without_credentials(f"{endpoint.rstrip('/')}/#/runs/details/{run_id}")


@contextlib.contextmanager
def _mute_logging() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


def _client(endpoint: Endpoint, token_file: Path | None) -> Any:
    import kfp
    from kfp.client import ServiceAccountTokenVolumeCredentials

    credentials = None if token_file is None else ServiceAccountTokenVolumeCredentials(str(token_file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # its own namespace is never used, as each call names one; for "kubeflow" it would ask a file and the server
        client = kfp.Client(host=endpoint.url, credentials=credentials, namespace="none")
    rest = client._run_api.api_client.rest_client  # one for all APIs; their methods of kfp.Client take no timeout
    request = rest.request
    limit = (endpoint.timeout_s, endpoint.timeout_s)
    rest.request = lambda *args, **kwargs: request(*args, **{**kwargs, "_request_timeout": limit})
    return client


def _token_file(named: Path | None) -> Path | None:
    """Return the file to read the caller's token from before each call: the named one, or the pod's; None for neither.

    Raises:
        BadFile: if the named file cannot be read or is empty.
    """
    if named is None:
        return pod_token_file()
    try:
        content = named.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(named, f"no token can be read ({error})", "Name a file with a token alone.") from None
    if not content or len(content.split()) > 1:
        raise BadFile(named, "holds no token", "Write the token alone into it.")
    return named


def pod_token_file() -> Path | None:
    """Return the file with a token for Kubeflow Pipelines that a pod has; None where it has none."""
    found = Path(os.environ.get(_TOKEN_PATH) or _TOKEN_IN_CLUSTER)
    return found if found.is_file() else None
