"""MLflow's client: addresses, a time limit for each request, errors, and the SQLite file that replaces a server.

MLflow creates the database tables of a new file in dozens of steps, and cannot use the file if it is killed in between.
So a missing file is created in a temporary folder, and then linked into place atomically.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evenshard.base.errors import BadConfig, EvenshardError, TrackingFailed
from evenshard.base.installation import require_package
from evenshard.base.messages import reason_of, root_of, without_credentials
from evenshard.base.outputs import atomic_path
from evenshard.base.process import delay_sigterm, environment
from evenshard.base.retry import with_retries

EXPERIMENT = "evenshard"
DEFAULT_URI = "sqlite:///mlflow.db"
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"  # variable of MLflow with its number of retries of a request
# MLflow's defaults are 7 retries with growing pauses and 120 s per request, which is minutes for each call. The user's
# settings take precedence.
TIMEOUTS = {
    RETRIES: "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "AWS_MAX_ATTEMPTS": "2",  # boto3 uploads in threads, and Python waits for them at exit
}
# Codes of MLflow's answers to a wrong request.
CALLER_ERRORS = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "UNAUTHENTICATED", "PERMISSION_DENIED")
# Statuses below 500 that a retry may fix, and errors that no retry fixes.
RETRYABLE_STATUSES = (408, 425, 429)
_PERMANENT = (EvenshardError, TypeError, ValueError, LookupError, AttributeError, AssertionError, FileNotFoundError)
_LONGEST_REFUSAL = 800  # most characters of a refusal message, which ends with the remedy
# Errors of SQLite that a retry does not fix.
BROKEN_FILE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Pauses before each retry of a write, which is refused only if another process has written in the meantime.
_NO_PAUSES = (0.0,) * 4


def tracking_uri() -> str:
    """Return MLflow's tracking URI; an empty environment variable, such as from an empty ConfigMap, counts as unset."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def address() -> str:
    """Return MLflow's tracking URI with its password removed, for messages and files."""
    return without_credentials(tracking_uri())


def registry_uri() -> str:
    """Return MLflow's registry URI."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri()


def connect() -> Any:
    """Return an MLflow client for the addresses in the environment.

    Raises:
        BadConfig: if an address is not valid.
        TrackingFailed: if the SQLite file cannot be used.
        Exception: MLflow, SQLAlchemy and requests raise dozens of types if no server answers.
    """
    require_package("mlflow")
    from mlflow import MlflowClient

    uri, registry = tracking_uri(), registry_uri()
    for server in {uri, registry}:
        _check(server)
    if uri.partition(":")[0].partition("+")[0] in ("postgresql", "mysql", "mssql"):
        import sqlalchemy

        engine = sqlalchemy.create_engine(add_time_limits(uri))
        try:
            engine.connect().close()  # once, because MLflow itself would retry a missing database for two minutes
        finally:
            engine.dispose()
    with ensure_file(registry), ensure_file(uri):
        return MlflowClient(add_time_limits(uri), add_time_limits(registry))


def add_time_limits(uri: str) -> str:
    """Add the driver's time limits to a database address, unless the user set them; return other addresses unchanged.

    They detect that PostgreSQL's machine is gone, but not that its server is frozen: libpq has no limit for that.
    """
    dialect, _, driver = uri.partition("://")[0].partition("+")
    set_s = os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or TIMEOUTS["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    limit_s = max(2, round(float(set_s)))  # libpq's minimum
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


def _check(uri: str) -> None:
    """Raise BadConfig for a URI that the requests library would misparse; its error would show part of the password."""
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


def experiment_name() -> str:
    """Return the name of the experiment for runs."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)


@contextmanager
def short_timeouts(max_retries: int | None = None) -> Iterator[None]:
    """Set short timeouts within the block, and silence messages about retries.

    Args:
        max_retries: retries of a request, unless the user has set them; None for one. 0 overrides the user's setting.
    """
    values = TIMEOUTS if max_retries is None else {**TIMEOUTS, RETRIES: str(max_retries)}
    chosen = os.environ.keys() - ({RETRIES} if max_retries == 0 else set())
    with (
        quiet("urllib3.connectionpool", logging.ERROR),
        quiet("mlflow.store.db.utils", logging.CRITICAL),  # whose errors include a traceback
        # MLflow reads its settings only from the environment
        environment({name: value for name, value in values.items() if name not in chosen}),
    ):
        yield


def protect_database() -> AbstractContextManager[None]:
    """Delay SIGTERM to the end of the block if the client uses a database directly, not a server.

    If SIGTERM raises an exception during a statement, SQLAlchemy leaves SQLite locked, so that the next one waits for
    20 s, or turns the exception into an ordinary error. Calls to a server are not protected: they may take minutes.
    """
    return nullcontext() if tracking_uri().startswith(("http:", "https:")) else delay_sigterm()


@contextmanager
def quiet(logger: str, level: int = logging.WARNING) -> Iterator[None]:
    """Drop a logger's records below a level within the block."""
    source = logging.getLogger(logger)
    before = source.level
    source.setLevel(level)
    try:
        yield
    finally:
        source.setLevel(before)


def is_refusal(error: BaseException) -> bool:
    """Return True if MLflow rejected the call itself, so that a retry would fail, too."""
    if isinstance(error, _PERMANENT):
        return True
    status = _status_of(error)
    return status is not None and status < 500 and status not in RETRYABLE_STATUSES


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a failed call; None if there was no answer."""
    from mlflow.exceptions import MlflowException

    said: Any = error
    if isinstance(error, MlflowException):
        return int(said.get_http_status_code())  # 500 without an answer
    response = getattr(said, "response", None)  # an object in requests, a mapping in boto3
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = getattr(response, "status_code", response)
    return status if isinstance(status, int) else None


def first_line(error: BaseException) -> str:
    """Summarize an error as a clause for a log line.

    A chain of connection errors becomes the system's error. If MLflow rejected the call, its remedy is kept.
    """
    if isinstance(error, EvenshardError):
        return str(error).rstrip(".")
    root = root_of(error)
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    if isinstance(root, sqlite3.Error | TimeoutError):  # which SQLAlchemy and requests hide below their own advice
        return reason_of(root)
    return reason_of(error, _LONGEST_REFUSAL) if is_refusal(error) else reason_of(error)


def describe_miss(error: BaseException, unreached: str) -> str:
    """Describe a failed MLflow call in a sentence; without a response, ``unreached`` is its verb."""
    what = "refuses to log" if is_refusal(error) else unreached
    return f"MLflow {what} at {address()} ({first_line(error)}). The stage continues"


@contextmanager
def ask_mlflow(server: str, problem: str, remedy: str, about: str = "") -> Iterator[None]:
    """Run the block's requests to MLflow with short timeouts, and convert their errors to one line.

    Args:
        server: address of MLflow.
        problem: MLflow's failure, such as "did not answer"; MLflow's own message is added.
        remedy: advice if the request was wrong.
        about: model, version or folder that the request is about.

    Raises:
        BadConfig: if MLflow has no such object, or this user may not see it.
        TrackingFailed: for all other errors, which a retry may fix.
    """
    try:
        with short_timeouts():
            yield
    except EvenshardError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, requests and the stores' own clients raise dozens of types
        where = f"{about}: MLflow" if about else "MLflow"
        said = f"{where} at {without_credentials(server)} {problem} ({first_line(error)})"
        if getattr(error, "error_code", "") in CALLER_ERRORS:
            raise BadConfig(f"{said}. {remedy}") from None
        raise TrackingFailed(f"{said}. Retry, or set MLFLOW_TRACKING_URI to a server that answers.") from None


def make_once(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Call a function that creates an object in MLflow; ignore the error if another process created it first."""
    from mlflow.exceptions import MlflowException

    try:
        call(*args, **named)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def write_together(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Write a tag or parameters that other processes may write at the same time.

    MLflow inserts missing keys. If two processes insert the same key, the database rejects the second, whose retry
    finds the key.
    """
    with_retries(call, _NO_PAUSES, lambda error: getattr(error, "error_code", "") == "BAD_REQUEST")(*args, **named)


@contextmanager
def ensure_file(uri: str) -> Iterator[None]:
    """Create the SQLite file of an address if it is missing; raise TrackingFailed if the block finds it damaged."""
    path = sqlite_file(uri)
    try:
        if path is not None and not path.exists():
            _create_file(path)
        yield
    except Exception as error:
        root = root_of(error)
        if path is None or isinstance(root, OSError) or getattr(root, "sqlite_errorcode", 1) not in BROKEN_FILE:
            raise
        raise TrackingFailed(
            f"{path}: MLflow cannot use this file ({reason_of(root)}). If it contains runs, back it up and try "
            f"`mlflow db upgrade {uri}`. If not, move it away, and the next command creates a new file."
        ) from None


def sqlite_file(uri: str) -> Path | None:
    """Return the file of ``sqlite:///mlflow.db``; None for other addresses, and for those with a query string."""
    scheme, _, path = uri.partition(":///")
    is_file = scheme.partition("+")[0] == "sqlite" and path not in ("", ":memory:") and "?" not in path
    return Path(path) if is_file else None


def _create_file(path: Path) -> None:
    """Create the file. If several processes do so at once, the first to finish wins."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with suppress(FileNotFoundError), atomic_path(path) as draft:  # raised if there is no draft to move into place
        draft.mkdir()
        store = SqlAlchemyStore(f"sqlite:///{draft}/new.db", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        store.engine.dispose()
        for ending in ("-journal", "-wal", "-shm"):  # left by a deleted file: SQLite would apply them to this one
            path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
        with suppress(OSError):  # created by another process; or the disk has no links, and MLflow creates it in place
            os.link(draft / "new.db", path)
        shutil.rmtree(draft)
