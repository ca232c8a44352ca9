"""Tries and pauses: how long what a stage logs is tried again while MLflow, or the storage behind it, does not answer.

Each request has its own time limit (``client.TIMEOUTS``), and a server that answers is never given up. What counts here
is time lost: attempts that failed, and the pauses after them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from evenshard.utils.errors import BadConfig, EvenshardError
from evenshard.utils.messages import brief

# Variable: seconds that a stage loses at most to an MLflow which is away; each upload adds to them.
PATIENCE = "EVENSHARD_MLFLOW_PATIENCE"
PATIENCE_S = 120.0
# What each file that is uploaded adds, and each megabyte.
PER_FILE_S, PER_MB_S = 5.0, 1.0
# The last is repeated.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
# Statuses below 500 that another try may mend.
TRY_AGAIN = (408, 425, 429)
_NEVER_MENDED = (EvenshardError, TypeError, ValueError, LookupError, AttributeError, AssertionError, FileNotFoundError)
_Result = TypeVar("_Result")


class Patience:
    """Seconds that may still be lost to a server that does not answer.

    Args:
        seconds: at the beginning; with 0, each call is tried once.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._left_s, self._grows = seconds, seconds > 0

    def __call__(self, call: Callable[[], _Result], files: Iterable[Path] = ()) -> _Result:
        """What a call returns, which may be made several times.

        Args:
            files: files that it uploads, for which there is more patience, and more time for each request.

        Raises:
            Exception: what the last attempt raised; at once where another would not help.
        """
        sizes = [path.stat().st_size for path in files]
        if self._grows:
            self._left_s += sum(PER_FILE_S + PER_MB_S * size / 1e6 for size in sizes)
        with _time_for(max(sizes, default=0)):
            return self._tried(call)

    def end(self) -> None:
        """Tries each call once from now on."""
        self._left_s, self._grows = 0.0, False

    def _tried(self, call: Callable[[], _Result]) -> _Result:
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            began = time.monotonic()
            try:
                return call()
            except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
                self._left_s -= time.monotonic() - began
                if self._left_s <= 0 or is_refusal(error):
                    raise
            time.sleep(min(pause_s, self._left_s))
            self._left_s -= pause_s
        raise AssertionError("the pauses have no end")


def files_below(root: Path, name: str = "") -> Iterator[tuple[Path, str | None]]:
    """The files of the folder ``name`` in ``root``, each with its own folder in there, None for ``root`` itself.

    Each is a request of its own, and tried again by itself.
    """
    for file in sorted(path for path in (root / name).rglob("*") if path.is_file()):
        inside = file.relative_to(root).parent
        yield file, None if inside == Path() else inside.as_posix()


def stage_patience_s() -> float:
    """How long a stage waits in all, in seconds, as the environment says.

    Raises:
        BadConfig: if that is not a valid number.
    """
    said = os.environ.get(PATIENCE) or PATIENCE_S
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BadConfig(f"{PATIENCE} is {brief(str(said))}, not a valid number of seconds. Set it to one, such as 120.")
    return seconds


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


@contextmanager
def _time_for(size_bytes: int) -> Iterator[None]:
    """A longer time limit for each request, where a large file is sent: the server stores it before it answers."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ.get(name)
    if before is None or size_bytes < 1e6:
        yield
        return
    os.environ[name] = str(int(float(before) + PER_MB_S * size_bytes / 1e6))
    try:
        yield
    finally:
        os.environ[name] = before
