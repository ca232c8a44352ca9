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

from evenshard.kubeflow.api_errors import BUSY, TokenRefused, error_of
from evenshard.kubeflow.pods import Pod, pods_of
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
FINISHED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
# The variable with the address of the API.
ENDPOINT = "KF_PIPELINES_ENDPOINT"
_TOKEN_PATH = "KF_PIPELINES_SA_TOKEN_PATH"
_TOKEN_IN_CLUSTER = "/var/run/secrets/kubeflow/pipelines/token"
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
        retries: how often urllib3 asks again after the server failed, but for what it may have begun.
        backoff_s: pause before the second of these, which doubles before each further one.
        pauses_waiting_s: pauses before each further look of who waits for a run.
    """

    url: str
    namespace: str
    token_file: Path | None = None
    timeout_s: float = 30.0
    retries: int = 3
    backoff_s: float = 2.0
    pauses_waiting_s: tuple[float, ...] = (1.0, 4.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class RunStatus:
    """How a run is doing.

    Attributes:
        run_id, name: id and name of the run.
        namespace: namespace of its pods.
        state: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELING, CANCELED, SKIPPED or PAUSED.
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

    def unschedule(self, name: str, experiment: str) -> str:
        """Deletes a recurring run; its runs, the one in progress included, stay. Returns its id.

        Args:
            name: its name or its id.
            experiment: name of the experiment that it is in.

        Raises:
            BadInput: if there is none, or there are several of the name, or the server refuses it.
            PipelineFailed: if the server does not answer.
        """
        found = self._recurring_runs(experiment)
        named = {number for number, known in found if name in (number, known)}
        if not named:
            others = f": {', '.join(sorted({known for _, known in found}))}" if found else ""
            raise BadConfig(
                f"no recurring run {brief(name)} in the experiment {experiment}, which has {len(found) or 'none'}"
                f"{others}. Name one of them, or its experiment with --experiment."
            )
        if len(named) > 1:
            raise BadConfig(
                f"{len(named)} recurring runs are called {brief(name)}: {', '.join(sorted(named))}. Name one by its id."
            )
        [number] = named
        self._call(partial(self._client.delete_recurring_run, number), f"recurring run {name}")
        return number

    def _recurring_runs(self, experiment: str) -> list[tuple[str, str]]:
        """Id and name of each recurring run of an experiment."""
        by_name = partial(
            self._client._experiment_api.experiment_service_list_experiments,
            namespace=self._endpoint.namespace,
            filter=_name_filter(experiment),
        )
        found, page = [], ""
        for one in self._call(by_name, f"experiment {experiment}").experiments or ():
            while True:
                look = partial(
                    self._client.list_recurring_runs, page_token=page, page_size=100, experiment_id=one.experiment_id
                )
                answer = self._call(look, f"recurring runs of {experiment}")
                found += [(str(run.recurring_run_id), str(run.display_name)) for run in answer.recurring_runs or ()]
                page = answer.next_page_token
                if not page:
                    break
        return found

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
            status = self._patient_look(run_id)
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
            if self._patient_look(status.run_id).is_finished:
                log.warning("%s. %s", why, error)
                return False
        log.warning("%s: the run is tried again from there", why)
        return True

    def _patient_look(self, run_id: str) -> RunStatus:
        """How a run is doing, asked again after trouble: the token was good when the run was started."""
        for pause_s in self._endpoint.pauses_waiting_s:
            try:
                return self._look(run_id)
            except (PipelineFailed, TokenRefused) as error:
                log.warning("%s (trying again in %g s)", error, pause_s)
            time.sleep(pause_s)
        return self._look(run_id)

    def _look(self, run_id: str) -> RunStatus:
        """How a run is doing; of one that ends in this moment, once all of its tasks are noted as ended."""
        settled_by = time.monotonic() + NOTED_WITHIN.total_seconds()
        while True:
            run = self._call(partial(self._client.get_run, run_id), f"run {run_id}", "run_id")
            status = self._status(run)
            settles = status.is_finished and status.recorded_until is None and has_open(_details(run))
            if not settles or time.monotonic() > settled_by:
                return _with_pods(status)
            time.sleep(self._endpoint.pauses_waiting_s[0])

    def _experiment(self, name: str) -> str:
        call = partial(self._client.create_experiment, name, namespace=self._endpoint.namespace)
        return str(self._call(call, f"experiment {name}", "experiment_id").experiment_id)

    def _status(self, run: Any) -> RunStatus:
        details, state = _details(run), str(run.state or "PENDING")
        return RunStatus(
            run_id=str(run.run_id),
            name=str(run.display_name),
            namespace=self._endpoint.namespace,
            state=state,
            tasks=tasks_of(details),
            recorded_until=record_ends(details, run.finished_at if state in FINISHED else None, datetime.now(UTC)),
            url=run_page(self._endpoint.url, run.run_id),
        )

    def _call(self, call: Callable[[], _Answer], what: str, id_name: str = "") -> _Answer:
        """One call.

        Args:
            id_name: id that the answer must have, if any: the SDK turns a login page into an empty object.
        """
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
    pods = pods_of(status.namespace, asked[0].nodes[-1].rpartition("-")[0]) if asked else {}
    return replace(status, tasks=tuple(_with_pod(task, pods) if task in asked else task for task in tasks))


def _with_pod(task: TaskStatus, pods: Mapping[str, Pod]) -> TaskStatus:
    pod = pods.get(task.nodes[-1].rpartition("-")[2])
    if pod is None:
        return task
    started = task.state == PENDING and pod.phase != "Pending"
    state = RUNNING if started else task.state
    return replace(task, state=state, pod=pod.name, reason=pod.reason, evicted=pod.evicted)


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
    from urllib3 import Retry

    class Retries(Retry):
        """Asks again for what only reads, and for anything that the server has not begun with."""

        def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
            return status_code in BUSY or (method == "GET" and status_code >= 500)

    retries = Retries(
        endpoint.retries, backoff_factor=endpoint.backoff_s, allowed_methods={"GET"}, raise_on_status=False
    )

    class Client(kfp.Client):  # type: ignore[misc]
        """Names the namespace of this endpoint where a caller names none, and asks and writes no file for it."""

        def _load_context_setting_or_default(self) -> None:
            self._context_setting = {"namespace": endpoint.namespace}

        def _load_config(self, *args: Any, **kwargs: Any) -> Any:
            config = super()._load_config(*args, **kwargs)
            config.retries = retries
            return config

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
