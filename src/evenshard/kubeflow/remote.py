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
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from evenshard.kubeflow.api_errors import Busy, ServerTrouble, TokenRefused, error_of
from evenshard.kubeflow.pods import Pod, last_error, pods_of
from evenshard.kubeflow.run_tasks import (
    FAILED,
    NOTED_WITHIN,
    PENDING,
    RUNNING,
    TaskStatus,
    has_open,
    record_ends,
    tasks_of,
)
from evenshard.utils.errors import BadConfig, BadFile, EvenshardError, PipelineFailed
from evenshard.utils.messages import brief, without_credentials

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
Passing = tuple[type[EvenshardError], ...]
FINISHED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
# The variable with the address of the API.
ENDPOINT = "KF_PIPELINES_ENDPOINT"
_TOKEN_PATH = "KF_PIPELINES_SA_TOKEN_PATH"
_TOKEN_IN_CLUSTER = "/var/run/secrets/kubeflow/pipelines/token"
# Seconds until the API lists a run that a recurring run has started.
LISTED_AFTER_S = 10.0
# Failures that pass for who waits for a run: the token was good when the run was started.
_WHILE_WAITING = (PipelineFailed, TokenRefused)
# A pod that has not started for so long may never: an image is pulled by then, most often.
SLOW_START = timedelta(minutes=2)


@dataclass(frozen=True)
class Endpoint:
    """Where the API is, and how patient to be with it.

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


@dataclass(frozen=True)
class RunStatus:
    """How a run is doing.

    Attributes:
        run_id, name: id and name of the run.
        namespace: namespace of its pods.
        state: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELING, CANCELED, SKIPPED or PAUSED. A run that was stopped is
            CANCELED, although Kubeflow Pipelines ends it as FAILED.
        tasks: tasks that have begun.
        recorded_until: time until which Kubeflow Pipelines recorded what they do; None if nothing shows that it has
            stopped.
        url: address of its page.
    """

    run_id: str
    name: str
    namespace: str
    state: str
    tasks: tuple[TaskStatus, ...]
    recorded_until: datetime | None
    url: str

    @property
    def is_finished(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINISHED

    @property
    def was_evicted(self) -> bool:
        """Whether it has failed because the cluster has ended pods, as far as Kubernetes could be asked."""
        failed = [one for one in self.tasks if one.state == FAILED]
        return self.state == FAILED and bool(failed) and all(one.evicted for one in failed)


class Remote:
    """Kubeflow Pipelines at an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Opens nothing yet.

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
        """Starts a run of a compiled pipeline; makes the experiment if there is none of the name.

        Raises:
            BadInput: if the server refuses it.
            PipelineFailed: if the server does not answer.
        """
        experiment_id = self._experiment(experiment)
        run = self._call(
            partial(
                self._client.run_pipeline,
                experiment_id,
                run_name,
                str(package),
                params=dict(values),
                service_account=service_account or None,
            ),
            f"starting {run_name}",
            "run_id",
        )
        return self._status(run)

    def schedule(
        self,
        package: Path,
        values: Mapping[str, Any],
        experiment: str,
        name: str,
        cron: str,
        service_account: str,
    ) -> str:
        """Makes a recurring run, one at a time and without catching up; returns its id.

        Args:
            cron: five fields, or six with the seconds first.

        Raises:
            BadInput: if the server refuses it, or ``cron`` has not as many fields.
            PipelineFailed: if the server does not answer.
        """
        num_fields = len(cron.split())
        if num_fields not in (5, 6):
            raise BadConfig(
                f"cron {brief(cron)} has {num_fields} fields. Write five, such as '0 3 * * 0', or the seconds before."
            )
        call = partial(
            self._client.create_recurring_run,
            self._experiment(experiment),
            name,
            cron_expression=cron if num_fields == 6 else f"0 {cron}",
            max_concurrency=1,
            no_catchup=True,
            params=dict(values),
            pipeline_package_path=str(package),
            service_account=service_account or None,
        )
        return str(self._call(call, f"scheduling {name}", "recurring_run_id").recurring_run_id)

    def pause(self, name: str, experiment: str, resume: bool = False) -> str:
        """Let a recurring run start no more runs, or start runs again; those in progress go on. Return its id.

        Args and Raises: see ``unschedule``.
        """
        number = str(self._recurring_run(name, experiment).recurring_run_id)
        switch = self._client.enable_recurring_run if resume else self._client.disable_recurring_run
        self._call(partial(switch, number), f"recurring run {name}")
        return number

    def unschedule(self, name: str, experiment: str, force: bool = False) -> str:
        """Delete a recurring run, which is paused first, if none of its runs is in progress. Return its id.

        It owns the workflows of its runs: Kubernetes would delete them with it, and their exit handlers would not run.

        Args:
            name: its name or its id.
            experiment: name of the experiment that it is in.
            force: delete it in any case.

        Raises:
            BadInput: if there is none, or there are several of the name, or the server refuses it.
            PipelineFailed: if a run is in progress, or the server does not answer.
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
        self._call(partial(self._client.delete_recurring_run, number), f"recurring run {name}")
        return number

    def _recurring_run(self, name: str, experiment: str) -> Any:
        """Find the recurring run of an experiment with this name or id."""
        find = self._client._experiment_api.experiment_service_list_experiments
        by_name = partial(find, namespace=self._endpoint.namespace, filter=_name_filter(experiment))
        experiments = self._call(by_name, f"experiment {experiment}").experiments or ()
        known = [run for one in experiments for run in self._all("recurring_runs", one.experiment_id)]
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
            ask = partial(look, page_token=page, page_size=50, experiment_id=experiment_id)
            answer = self._call(ask, f"list of {kind}")
            yield from getattr(answer, kind) or ()
            page = answer.next_page_token
            if not page:
                return

    def stop(self, run_id: str) -> RunStatus:
        """Stops a run: its pods end, and only ``record_outcome`` still runs. Returns how it was doing before.

        Raises:
            BadInput: if there is no such run, or the server refuses it.
            PipelineFailed: if the server does not answer.
        """
        status = self._status(self._call(partial(self._client.get_run, run_id), f"run {run_id}", "run_id"))
        if not status.is_finished:
            self._call(partial(self._client.terminate_run, run_id), f"stopping run {run_id}")
        return status

    def status(self, run_id: str) -> RunStatus:
        """How a run is doing.

        Raises:
            BadInput: if there is no such run, or the server refuses to answer.
            PipelineFailed: if the server does not answer.
        """
        return self._look(run_id)

    def wait(
        self,
        run_id: str,
        pause_s: float,
        patience_s: float | None,
        tell: Callable[[RunStatus], None],
        retries: int = 0,
    ) -> RunStatus:
        """Waits until a run has finished.

        Args:
            tell: gets what is found at every look before.
            retries: how often a run is tried again that has failed because pods were evicted, and nothing else. What
                has succeeded is kept. Argo itself does not retry them; see ``retry``.

        Raises:
            PipelineFailed: if it takes longer than ``patience_s``.
        """
        deadline = None if patience_s is None else time.monotonic() + patience_s
        while True:
            status = self._look(run_id, _WHILE_WAITING)
            if status.is_finished:
                if not (retries and status.was_evicted and self._tried_again(status)):
                    return status
                retries -= 1
            tell(status)
            if deadline is not None and time.monotonic() > deadline:
                raise PipelineFailed(f"run {run_id} is {status.state} after {patience_s:g} s. It goes on: {status.url}")
            time.sleep(pause_s)

    def _tried_again(self, status: RunStatus) -> bool:
        """Tries a run again from its failed tasks on; False, and a warning, where the server does not."""
        failed = [one for one in status.tasks if one.state == FAILED]
        why = ". ".join(f"{one.name} has lost its pod ({one.reason})" for one in failed)
        try:
            call = partial(self._client._run_api.run_service_retry_run, status.run_id)
            self._call(call, f"trying run {status.run_id} again")
        except EvenshardError as error:
            if self._look(status.run_id, _WHILE_WAITING).is_finished:
                log.warning("%s. %s", why, error)
                return False
        log.warning("%s: the run is tried again from there", why)
        return True

    def _look(self, run_id: str, passing: Passing = (ServerTrouble,)) -> RunStatus:
        """Return how a run is doing; of one that ends in this moment, once all of its tasks are noted as ended."""
        settled_by = time.monotonic() + NOTED_WITHIN.total_seconds()
        while True:
            run = self._call(partial(self._client.get_run, run_id), f"run {run_id}", "run_id", passing)
            status = self._status(run)
            settles = status.is_finished and status.recorded_until is None and has_open(_details(run))
            if not settles or time.monotonic() > settled_by:
                return _with_pods(status)
            time.sleep(self._endpoint.pauses_s[0])

    def _experiment(self, name: str) -> str:
        call = partial(self._client.create_experiment, name, namespace=self._endpoint.namespace)
        return str(self._call(call, f"experiment {name}", "experiment_id").experiment_id)

    def _status(self, run: Any) -> RunStatus:
        details, state = _details(run), "CANCELED" if was_stopped(run) else str(run.state or "PENDING")
        return RunStatus(
            run_id=str(run.run_id),
            name=str(run.display_name),
            namespace=self._endpoint.namespace,
            state=state,
            tasks=tasks_of(details),
            recorded_until=record_ends(details, run.finished_at if state in FINISHED else None, datetime.now(UTC)),
            url=run_page(self._endpoint.url, run.run_id),
        )

    def _call(self, call: Callable[[], _Answer], what: str, id_name: str = "", passing: Passing = (Busy,)) -> _Answer:
        """Make one call, and again after failures that may pass.

        Args:
            id_name: id that the answer must have, if any: the SDK turns a login page into an empty object.
            passing: these failures. A call that changes something is not made twice, unless it was not begun.
        """
        for pause_s in self._endpoint.pauses_s:
            try:
                return self._call_once(call, what, id_name)
            except passing as error:
                log.warning("%s (trying again in %g s)", error, pause_s)
            time.sleep(pause_s)
        return self._call_once(call, what, id_name)

    def _call_once(self, call: Callable[[], _Answer], what: str, id_name: str) -> _Answer:
        try:
            with contextlib.redirect_stdout(io.StringIO()), _mute_logging():  # the SDK prints links, and logs
                answer = call()
            if id_name and not getattr(answer, id_name, None):
                raise ValueError(f"no {id_name} in the answer")
            return answer
        except Exception as error:  # the SDK lets errors of urllib3, ssl, json and its own through
            raise error_of(error, what, self._endpoint.url, self._endpoint.namespace, self._token_file) from None


def _details(run: Any) -> Any:
    return getattr(run.run_details, "task_details", None) or []


def was_stopped(run: Any) -> bool:
    """True if a run has ended because it was terminated through the API, and was not tried again."""
    before = [one.state for one in run.state_history or () if one.state not in (None, run.state)]
    return run.state == "FAILED" and before[-1:] == ["CANCELING"]


def _name_filter(name: str) -> str:
    """The filter of Kubeflow's lists for what has this name."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def is_slow(task: TaskStatus) -> bool:
    """Whether a task waits for its pod longer than a cluster with room takes."""
    return task.state == PENDING and datetime.now(UTC) - task.since > SLOW_START


def _with_pods(status: RunStatus) -> RunStatus:
    """The status with what Kubernetes says of pods that have failed or do not start, where it can be asked.

    What prepares a group of tasks is left out, unless it has failed or does not start.
    """
    tasks = tuple(task for task in status.tasks if not task.prepares_a_group or task.state == FAILED or is_slow(task))
    asked = [task for task in tasks if task.nodes and (task.state == FAILED or is_slow(task))]
    numbers = {_number_of(task) for task in asked}
    pods = pods_of(status.namespace, asked[0].nodes[-1].rpartition("-")[0], numbers) if asked else {}
    if status.is_finished:
        for number in numbers & pods.keys():
            if pods[number].reason.startswith("Error,"):  # its own, not OOMKilled, Evicted or the like
                said = last_error(status.namespace, pods[number].name)
                pods[number] = replace(pods[number], reason=said or pods[number].reason)
    return replace(status, tasks=tuple(_with_pod(task, pods) if task in asked else task for task in tasks))


def _with_pod(task: TaskStatus, pods: Mapping[str, Pod]) -> TaskStatus:
    pod = pods.get(_number_of(task))
    if pod is None:
        return task
    started = task.state == PENDING and pod.phase != "Pending"
    state = RUNNING if started else task.state
    return replace(task, state=state, pod=pod.name, reason=pod.reason, evicted=pod.evicted)


def _number_of(task: TaskStatus) -> str:
    return task.nodes[-1].rpartition("-")[2]


def run_page(endpoint: str, run_id: str) -> str:
    """The address of a run's page."""
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

    class Client(kfp.Client):  # type: ignore[misc]
        """Names the namespace of this endpoint where a caller names none, and asks and writes no file for it."""

        def _load_context_setting_or_default(self) -> None:
            self._context_setting = {"namespace": endpoint.namespace}

    credentials = None if token_file is None else ServiceAccountTokenVolumeCredentials(str(token_file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = Client(host=endpoint.url, credentials=credentials, namespace=endpoint.namespace)
    for api in (client._run_api, client._experiment_api, client._recurring_run_api):
        _give_up_after(api.api_client.rest_client, endpoint.timeout_s)
    return client


def _give_up_after(rest_client: Any, timeout_s: float) -> None:
    """The SDK waits for ever; its methods take no timeout."""
    if getattr(rest_client, "gives_up", False):
        return
    request = rest_client.request

    def with_timeout(*args: Any, **kwargs: Any) -> Any:
        return request(*args, **{**kwargs, "_request_timeout": (timeout_s, timeout_s)})

    rest_client.request, rest_client.gives_up = with_timeout, True


def _token_file(named: Path | None) -> Path | None:
    """The file to read the caller's token from before each call: the named one, or the pod's; None where there is none.

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
    """The file with a token for Kubeflow Pipelines that a pod has; None where it has none."""
    found = Path(os.environ.get(_TOKEN_PATH) or _TOKEN_IN_CLUSTER)
    return found if found.is_file() else None
