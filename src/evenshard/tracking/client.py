"""MLflow's client with a time limit for each request: of HTTP, of S3 and of a database."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evenshard.tracking.sqlite_file import usable_file
from evenshard.utils.errors import BadConfig, EvenshardError, TrackingFailed
from evenshard.utils.extras import require_package
from evenshard.utils.messages import reason_of, root_of, without_credentials
from evenshard.utils.process import environment, sigterm_waits

EXPERIMENT = "evenshard"
DEFAULT_URI = "sqlite:///mlflow.db"
# Variable of MLflow: how often it repeats a request by itself.
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
# MLflow's own are 7 retries with growing pauses, 120 s each: minutes for each call. What the user has set wins.
TIMEOUTS = {
    RETRIES: "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "AWS_MAX_ATTEMPTS": "2",  # boto3 uploads in threads that Python waits for when it ends
}
# Codes of MLflow's answers to a wrong question.
CALLERS_FAULT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "UNAUTHENTICATED", "PERMISSION_DENIED")
# Statuses below 500 that another try may mend, and errors that none mends.
TRY_AGAIN = (408, 425, 429)
_NEVER_MENDED = (EvenshardError, TypeError, ValueError, LookupError, AttributeError, AssertionError, FileNotFoundError)
# Most characters of a refusal, which ends with the remedy.
_LONGEST_REFUSAL = 800
# Each is refused only if another process has written something new meanwhile.
_ATTEMPTS = 5


def tracking_uri() -> str:
    """Where runs go. A variable without a value is none, as where a ConfigMap has the key alone."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def address() -> str:
    """Where runs go, without a password: what messages and files say."""
    return without_credentials(tracking_uri())


def registry_uri() -> str:
    """Where models are registered."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri()


def connect() -> Any:
    """A client of MLflow where the environment says.

    Raises:
        BadConfig: if an address is not valid.
        TrackingFailed: if its SQLite file cannot be used.
        Exception: MLflow, SQLAlchemy and requests raise dozens of kinds where no server answers.
    """
    require_package("mlflow")
    from mlflow import MlflowClient

    uri, registry = tracking_uri(), registry_uri()
    for one in {uri, registry}:
        _check(one)
    if uri.partition(":")[0].partition("+")[0] in ("postgresql", "mysql", "mssql"):
        _try_database(with_time_limits(uri))
    with usable_file(registry), usable_file(uri):
        return MlflowClient(with_time_limits(uri), with_time_limits(registry))


def with_time_limits(uri: str) -> str:
    """The address of a database with time limits of its driver, but for those that the user has set; others as given.

    A PostgreSQL whose machine is gone is noticed; for one that is frozen with its connection open, libpq has no limit.
    """
    dialect, _, driver = uri.partition("://")[0].partition("+")
    limit_s = max(2, round(request_timeout_s()))  # libpq knows no shorter one
    if dialect == "postgresql" and driver in ("", "psycopg", "psycopg2"):
        limits = {"connect_timeout": limit_s, "keepalives_idle": limit_s, "tcp_user_timeout": 1000 * limit_s}
    elif dialect == "mysql" and driver in ("", "pymysql", "mysqldb"):
        limits = {"connect_timeout": limit_s, "read_timeout": limit_s, "write_timeout": limit_s}
    else:
        return uri
    from sqlalchemy import make_url

    url = make_url(uri)
    url = url.update_query_dict({name: str(value) for name, value in limits.items() if name not in url.query})
    return url.render_as_string(hide_password=False)


def _try_database(uri: str) -> None:
    """Connects once: MLflow itself would try for two minutes to reach a database that is away."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _check(uri: str) -> None:
    """Raises BadConfig for an address that requests would take apart within the password, and tell parts of."""
    scheme, _, rest = uri.partition("://")
    if scheme not in ("http", "https"):
        return
    user = rest.rpartition("@")[0]
    try:
        valid = not set(user) & set("/?#") and urlsplit(uri).port != 0
    except ValueError:
        valid = False
    if not valid:
        raise BadConfig(f"{uri} is not a valid address. In a password, write / as %2F, ? as %3F and # as %23.")


def request_timeout_s() -> float:
    """How long a request may take to be answered, in seconds."""
    return float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or TIMEOUTS["MLFLOW_HTTP_REQUEST_TIMEOUT"])


def experiment_name() -> str:
    """Name of the experiment that runs go to."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)


def require_mlflow(what: str, instead: str = "") -> None:
    """Raises BadConfig where there is no MLflow yet and the client would make an empty one.

    Args:
        what: what is looked for there.
        instead: what helps too, such as ", or name a model's folder".
    """
    if registry_uri() == DEFAULT_URI and not Path(DEFAULT_URI.removeprefix("sqlite:///")).exists():
        raise BadConfig(
            f"{what}: there is no mlflow.db in this folder. Set MLFLOW_TRACKING_URI, or go to the folder of a loop"
            f"{instead}."
        )


@contextmanager
def short_timeouts(max_retries: int | None = None) -> Iterator[None]:
    """Short timeouts for what happens inside, and not a word about each retry.

    Args:
        max_retries: how often MLflow repeats a request by itself, if the user has not said it; None for once. 0 holds
            whatever the user has said.
    """
    values = TIMEOUTS if max_retries is None else {**TIMEOUTS, RETRIES: str(max_retries)}
    chosen = os.environ.keys() - ({RETRIES} if max_retries == 0 else set())
    with (
        quiet("urllib3.connectionpool", logging.ERROR),
        quiet("mlflow.store.db.utils", logging.CRITICAL),  # whose errors come with a traceback
        # MLflow reads its settings from the environment alone
        environment({name: value for name, value in values.items() if name not in chosen}),
    ):
        yield


def in_one_piece() -> AbstractContextManager[None]:
    """SIGTERM takes effect after the block where the client works on a database itself, and at once with a server.

    An exception in the middle of a statement makes SQLAlchemy leave SQLite locked, so that the next statement waits for
    20 s; or it turns into an ordinary error, and the SIGTERM is lost. A call to a server that is away may take minutes.
    """
    return nullcontext() if tracking_uri().startswith(("http:", "https:")) else sigterm_waits()


@contextmanager
def quiet(logger: str, level: int = logging.WARNING) -> Iterator[None]:
    """Nothing below this level from a logger for a while."""
    talkative = logging.getLogger(logger)
    before = talkative.level
    talkative.setLevel(level)
    try:
        yield
    finally:
        talkative.setLevel(before)


def is_refusal(error: BaseException) -> bool:
    """Whether a call was wrong, so that it will be refused however often it is made."""
    if isinstance(error, _NEVER_MENDED):
        return True
    status = _status_of(error)
    return status is not None and status < 500 and status not in TRY_AGAIN


def _status_of(error: BaseException) -> int | None:
    """The status that a server has answered with, or MLflow's code means; None where there was no answer."""
    from mlflow.exceptions import MlflowException

    said: Any = error
    if isinstance(error, MlflowException):
        return int(said.get_http_status_code())  # 500 where there was no answer
    response = getattr(said, "response", None)  # of requests an object, of boto3 a mapping
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = getattr(response, "status_code", response)
    return status if isinstance(status, int) else None


def first_line(error: BaseException) -> str:
    """Return what went wrong as a clause for a log line.

    Of a chain of errors about a connection, it is the system's error. A refusal keeps MLflow's remedy.
    """
    if isinstance(error, EvenshardError):
        return str(error).rstrip(".")
    root = root_of(error)
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    if isinstance(root, sqlite3.Error | TimeoutError):  # which SQLAlchemy and requests bury below their own advice
        return reason_of(root)
    return reason_of(error, _LONGEST_REFUSAL) if is_refusal(error) else reason_of(error)


def describe_miss(error: BaseException, unreached: str) -> str:
    """Return a sentence about a failed call to MLflow; its verb is ``unreached`` unless MLflow refused the call."""
    what = "refuses to log" if is_refusal(error) else unreached
    return f"MLflow {what} at {address()} ({first_line(error)}). The stage goes on"


@contextmanager
def ask_mlflow(server: str, problem: str, remedy: str, about: str = "") -> Iterator[None]:
    """Short timeouts for a question to MLflow, and one line about what went wrong.

    Args:
        server: its address.
        problem: what MLflow did, such as "did not answer"; its own message is added.
        remedy: advice if the request was wrong.
        about: what is asked for.

    Raises:
        BadConfig: where MLflow has answered that there is no such thing, or that this user may not see it.
        TrackingFailed: for all else, which another try may mend.
    """
    try:
        with short_timeouts():
            yield
    except EvenshardError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, requests and the stores' own clients raise dozens of kinds
        where = f"{about}: MLflow" if about else "MLflow"
        said = f"{where} at {without_credentials(server)} {problem} ({first_line(error)})"
        if getattr(error, "error_code", "") in CALLERS_FAULT:
            raise BadConfig(f"{said}. {remedy}") from None
        raise TrackingFailed(f"{said}. Try again, or set MLFLOW_TRACKING_URI to where it answers.") from None


# Calls that several processes may make at the same time: loops of one team, pods of one pipeline. --------------------


def make_once(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Makes what another process may be making too: whoever is second finds it made."""
    from mlflow.exceptions import MlflowException

    try:
        call(*args, **named)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def write_together(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Writes a tag or parameters that other processes may be writing too.

    MLflow looks whether they are there, and adds those that are not. Of two that add one at once the second is refused
    by the database, and finds it there when it asks again.
    """
    from mlflow.exceptions import MlflowException

    for attempt in range(_ATTEMPTS):
        try:
            call(*args, **named)
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST" or attempt == _ATTEMPTS - 1:
                raise
        else:
            return
