"""Runs of a pipeline on a cluster, through the API of Kubeflow Pipelines (v2beta1) and its SDK."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, BadFile, EvenshardError, PipelineFailed
from evenshard.base.knobs import REQUIRED, Range, knob
from evenshard.base.messages import brief, reason_of, without_credentials
from evenshard.kubeflow import run_status

log = logging.getLogger(__name__)
ENDPOINT = "KF_PIPELINES_ENDPOINT"  # environment variable: address of the API
_TOKEN_PATH = "KF_PIPELINES_SA_TOKEN_PATH"
_TOKEN_IN_CLUSTER = "/var/run/secrets/kubeflow/pipelines/token"
LISTED_AFTER_S = 10.0  # time until the API lists a new run of a recurring run
_BUSY = (429, 502, 503)  # statuses of a server, or of its proxy, that has not started the call


@dataclass(frozen=True)
class Endpoint:
    """Address of Kubeflow Pipelines' API, with namespace, token, and timeout of a call."""

    namespace: str = knob(REQUIRED, "namespace of experiments and runs", metavar="NS")
    url: str = knob("", f"address of Kubeflow Pipelines' API (default: {ENDPOINT})", flag="--endpoint", metavar="URL")
    token_file: Path | None = knob(
        None, "token file, read again for each call (default: the token mounted into this pod, if any)"
    )
    timeout_s: float = knob(
        30.0, "timeout of a call", flag="--timeout-seconds", metavar="S", range=Range(0.01, 1_000_000)
    )
    backoff_s: float = 4.0  # pauses before retries of a request are 0, 2, 4, 8 and 16 times this: 2 minutes in total


class Remote:
    """Client of Kubeflow Pipelines at an endpoint.

    All methods raise BadInput if the server rejects a call, and PipelineFailed if it does not answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        if not endpoint.url.startswith(("http://", "https://")):
            raise BadConfig(
                f"endpoint {brief(endpoint.url)} is not an address. Write it as https://kubeflow.example.com/pipeline."
            )
        if not endpoint.namespace:
            raise BadConfig("namespace is empty. Name the namespace of the runs.")
        self._endpoint, self._token_file, self._waits = endpoint, _token_file(endpoint.token_file), False
        self._client = self._connect()

    def submit(
        self, package: Path, values: Mapping[str, Any], experiment: str, run_name: str, service_account: str
    ) -> run_status.RunStatus:
        """Start a run of a compiled pipeline; create the experiment if it does not exist."""
        start, where = self._client.run_pipeline, (self._experiment(experiment), run_name, str(package))
        settings = {"params": dict(values), "service_account": service_account or None}
        return self._status(self._call(f"starting {run_name}", start, *where, **settings, must_have="run_id"))

    def schedule(
        self, package: Path, values: Mapping[str, Any], experiment: str, name: str, cron: str, service_account: str
    ) -> str:
        """Create a recurring run, one at a time and without catch-up; return its id.

        Args:
            cron: five fields, or six with the seconds first.
        """
        num_fields = len(cron.split())
        if num_fields not in (5, 6):
            raise BadConfig(
                f"cron {brief(cron)} has {num_fields} fields. Write five, such as '0 3 * * 0', or six (seconds first)."
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
        """Pause or resume a recurring run, and return its id; runs in progress continue."""
        number = str(self._recurring_run(name, experiment).recurring_run_id)
        switch = self._client.enable_recurring_run if resume else self._client.disable_recurring_run
        self._call(f"recurring run {name}", switch, number)
        return number

    def unschedule(self, name: str, experiment: str, force: bool = False) -> str:
        """Pause a recurring run, delete it unless one of its runs is in progress, and return its id.

        Kubernetes then also deletes the workflows of its runs, without running their exit handlers.

        Args:
            name: name or id of the recurring run.
            force: delete it even if a run is in progress.

        Raises:
            PipelineFailed: if a run is in progress.
        """
        found = self._recurring_run(name, experiment)
        number = str(found.recurring_run_id)
        self._call(f"recurring run {name}", self._client.disable_recurring_run, number)
        if not force:
            if str(found.status) != "DISABLED":
                time.sleep(LISTED_AFTER_S)  # it may have started a run just before the pause
            runs = [run for run in self._all("runs", found.experiment_id) if run.recurring_run_id == number]
            if going := [run.run_id for run in runs if run.state not in run_status.FINISHED]:
                raise PipelineFailed(
                    f"recurring run {number} is paused, not deleted: its run {', '.join(going)} is in progress. "
                    "Unschedule it again after that run, or stop that run first, or kill it with --force."
                )
        self._call(f"recurring run {name}", self._client.delete_recurring_run, number)
        return number

    def _recurring_run(self, name: str, experiment: str) -> Any:
        by_name = {"operation": "EQUALS", "key": "display_name", "stringValue": experiment}
        experiments = self._call(
            f"experiment {experiment}",
            self._client.list_experiments,
            namespace=self._endpoint.namespace,
            filter=json.dumps({"predicates": [by_name]}),
        ).experiments
        known = [run for group in experiments or () for run in self._all("recurring_runs", group.experiment_id)]
        found = [run for run in known if name in (run.recurring_run_id, run.display_name)]
        if len(found) != 1:
            listed = ", ".join(sorted(f"{run.display_name} ({run.recurring_run_id})" for run in known)) or "none"
            raise BadConfig(
                f"{len(found) or 'no'} recurring runs in experiment {experiment} are called {brief(name)}; the "
                f"experiment has {listed}. Use an id, or name another experiment with --experiment."
            )
        return found[0]

    def _all(self, kind: str, experiment_id: str) -> Iterator[Any]:
        look, page = getattr(self._client, f"list_{kind}"), ""
        while True:
            answer = self._call(f"list of {kind}", look, page_token=page, page_size=50, experiment_id=experiment_id)
            yield from getattr(answer, kind) or ()
            page = answer.next_page_token
            if not page:
                return

    def stop(self, run_id: str) -> run_status.RunStatus:
        """Stop a run, and return its earlier status; all pods end except for the exit handler's, ``record_outcome``."""
        status = self._status(self._get(run_id))
        if not status.is_finished:
            self._call(f"stopping run {run_id}", self._client.terminate_run, run_id)
        return status

    def status(self, run_id: str) -> run_status.RunStatus:
        """Return the status of a run; if it has just ended, wait until the ends of all tasks are recorded."""
        settled_by = time.monotonic() + run_status.RECORDED_WITHIN.total_seconds()
        while True:
            status = self._status(self._get(run_id))
            if not status.is_settling or time.monotonic() > settled_by:
                return run_status.add_pod_reasons(status)
            time.sleep(self._endpoint.backoff_s)

    def wait(
        self,
        run_id: str,
        pause_s: float,
        patience_s: float | None,
        tell: Callable[[run_status.RunStatus], None],
        retries: int = 0,
    ) -> run_status.RunStatus:
        """Wait until a run has finished.

        Args:
            tell: called with the status after each poll except the last.
            retries: number of retries of a run that failed only because pods were evicted, which Argo does not retry.
                Tasks that succeeded do not run again.
        """
        deadline = None if patience_s is None else time.monotonic() + patience_s
        self._waits = True
        while True:
            status = self.status(run_id)
            if status.is_finished:
                if not (retries and status.was_evicted and self._retry_run(status)):
                    return status
                retries -= 1
            tell(status)
            if deadline is not None and time.monotonic() > deadline:
                raise PipelineFailed(
                    f"run {run_id} is still {status.state} after {patience_s:g} s, and continues: {status.url}"
                )
            time.sleep(pause_s)

    def _retry_run(self, status: run_status.RunStatus) -> bool:
        """Retry a run from its failed tasks; log a warning and return False if the server rejects it."""
        why = ". ".join(f"{task.name} lost its pod ({task.reason})" for task in status.failed)
        try:
            retry = self._client._run_api.run_service_retry_run  # kfp.Client has no method for it
            self._call(f"retrying run {status.run_id}", retry, status.run_id)
        except EvenshardError as error:
            if self.status(status.run_id).is_finished:
                log.warning("%s. %s", why, error)
                return False
        log.warning("%s. The run is retried from its failed tasks", why)
        return True

    def _get(self, run_id: str) -> Any:
        return self._call(f"run {run_id}", self._client.get_run, run_id, must_have="run_id")

    def _experiment(self, name: str) -> str:
        make, space = self._client.create_experiment, self._endpoint.namespace
        made = self._call(f"experiment {name}", make, name, namespace=space, must_have="experiment_id")
        return str(made.experiment_id)

    def _status(self, run: Any) -> run_status.RunStatus:
        return run_status.status_of(run, self._endpoint.namespace, run_page(self._endpoint.url, run.run_id))

    def _call(self, what: str, method: Callable[..., Any], *arguments: Any, must_have: str = "", **named: Any) -> Any:
        """Call a method of the SDK; errors name ``what``.

        Args:
            must_have: name of an id in every valid answer; the SDK turns a login page into an object without ids.
        """
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the SDK prints links
                answer = method(*arguments, **named)
            if must_have and not getattr(answer, must_have, None):
                raise ValueError(f"the answer has no {must_have}")
            return answer
        except Exception as error:  # the SDK does not wrap errors of urllib3, ssl and json
            raise self._explain(error, what) from None

    def _explain(self, error: Exception, what: str) -> EvenshardError:
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

        url = self._endpoint.url
        if isinstance(error, ApiException):
            return self._explain_answer(error.status, _server_message(error), what)
        wrapped = getattr(error, "reason", None) or error  # urllib3 wraps the first error
        if isinstance(wrapped, NewConnectionError):
            said = str(wrapped).rsplit(": ", 1)[-1]
            return PipelineFailed(f"{url} cannot be reached ({said}). Check --endpoint and the network.")
        if isinstance(wrapped, TimeoutError):
            hint = "" if what.startswith("run ") else " The call may have succeeded: check before you retry."
            return PipelineFailed(f"{what}: {url} did not answer in time.{hint}")
        if isinstance(wrapped, HTTPError | OSError):
            return PipelineFailed(f"{what}: the connection to {url} failed ({reason_of(wrapped)}).")
        return BadConfig(
            f"{what}: {url} does not answer like Kubeflow Pipelines ({reason_of(error)}); it may be a login page. Give "
            f"the address of the API, and a token with --token-file."
        )

    def _explain_answer(self, status: int | None, said: str, what: str) -> EvenshardError:
        url = self._endpoint.url
        if not status:
            return PipelineFailed(f"{what}: no secure connection to {url}: {said}.")
        if status == 429 or status >= 500:
            return PipelineFailed(f"{what}: {url} failed with status {status}: {said}. Try again later.")
        whose = f"the token in {self._token_file}" if self._token_file else "a call without a token"
        happened, remedy = {
            401: (f"{url} does not accept {whose}", "Get a new token and name its file with --token-file."),
            403: (f"not allowed in namespace {self._endpoint.namespace}", "Request access, or use another namespace."),
            404: (f"not found at {url}", "Check the id and --endpoint."),
        }.get(status, (f"{url} rejects the call", "Correct the value that the server names."))
        return BadConfig(f"{what}: {happened} ({status}): {said}. {remedy}")

    def _connect(self) -> Any:
        """Return the SDK's client; set timeout and retries here, because the SDK's methods have no such arguments."""
        import kfp
        from kfp.client import ServiceAccountTokenVolumeCredentials

        credentials = None if self._token_file is None else ServiceAccountTokenVolumeCredentials(str(self._token_file))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # every call names its namespace; with the default "kubeflow" the client reads a file and calls the server
            client = kfp.Client(host=self._endpoint.url, credentials=credentials, namespace="none")
        pool = client._run_api.api_client.rest_client.pool_manager  # shared by all APIs
        request = pool.request
        pool.request = lambda *args, **named: request(
            *args, **named | {"timeout": self._endpoint.timeout_s, "retries": self._retries()}
        )
        return client

    def _retries(self) -> Any:
        """Return the retry policy: writes are retried while the server is busy, reads after any failure.

        ``wait`` also retries status 401, because Kubeflow Pipelines rejects valid tokens while it cannot reach
        Kubernetes.
        """
        from urllib3.util import Retry

        waits = self._waits

        class Patience(Retry):
            def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
                fails = status_code >= 500 or (waits and status_code == 401)
                return status_code in _BUSY or (method == "GET" and fails)

            def sleep(self, response: Any = None) -> None:
                last = self.history[-1]
                why = reason_of(last.error) if last.error else last.status
                log.warning("Kubeflow Pipelines failed (%s); retrying", why)
                super().sleep(response)

        connect, pause_s = 5 if waits else 0, self._endpoint.backoff_s
        return Patience(5, connect=connect, read=3, backoff_factor=pause_s, raise_on_status=False)


def run_page(endpoint: str, run_id: str) -> str:
    """Return the address of a run's page, without the credentials in the endpoint."""
    return without_credentials(f"{endpoint.rstrip('/')}/#/runs/details/{run_id}")


def _token_file(named: Path | None) -> Path | None:
    if named is None:
        return pod_token_file()
    try:
        content = named.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(named, f"no token can be read ({error})", "Name a file that contains only a token.") from None
    if not content or len(content.split()) > 1:
        raise BadFile(named, "contains no token", "Write only the token into it.")
    return named


def pod_token_file() -> Path | None:
    """Return the path of this pod's token for Kubeflow Pipelines; None if none is mounted."""
    found = Path(os.environ.get(_TOKEN_PATH) or _TOKEN_IN_CLUSTER)
    return found if found.is_file() else None


def _server_message(error: Any) -> str:
    """Return the server's message, which the API puts under "message", "error" or "error_message"."""
    words = error.body or error.reason or "no reason given"
    with contextlib.suppress(ValueError, AttributeError):
        content = json.loads(words)
        words = content.get("message") or content.get("error") or content.get("error_message") or words
    return run_status.shorten_message(words.decode(errors="replace") if isinstance(words, bytes) else str(words))
