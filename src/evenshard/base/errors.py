"""Errors of evenshard, as one tree.

::

    EvenshardError
    |-- BadInput              the user can repair it: what, where, what to do      (exit code 2)
    |   |-- BadFile           a file is missing, torn, or holds a wrong value
    |   |   +-- BadRecords    ... or several wrong values: all of them
    |   |-- BadConfig         a setting in params.yaml or a flag is invalid
    |   +-- MissingPackage    a package of an extra is not installed
    |-- InfeasibleTask        the tables do not fit the devices' memory            (exit code 2 when asked
    |                         for one placement; a row of the report in a study)
    |-- MeasurementFailed     a kernel or a device failed while being measured     (exit code 1)
    |-- TrainingFailed        a network has a number that is not finite            (exit code 1)
    |-- DatasetRefused        measured costs are too noisy                         (exit code 1)
    |-- PipelineFailed        a run of a pipeline failed, or its server is down    (exit code 1)
    |-- TrackingFailed        MLflow rejected a record                     (exit code 1)
    +-- StorageFailed         S3 is down or full, or bytes arrived damaged         (exit code 1)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import ParamSpec, TypeVar

from evenshard.base.messages import one_line, reason_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Number of problems of one file that are listed.
MAX_PROBLEMS = 20


class EvenshardError(Exception):
    """Base of all intended errors of evenshard; the message is one printable line without passwords."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class BadInput(EvenshardError):
    """Input that the user can repair; the message is one line that names the remedy."""


class BadFile(BadInput):
    """A file that cannot be used; ``where`` is the row, record or key, if known."""

    def __init__(self, path: str | PathLike[str], problem: str, remedy: str, where: str | None = None) -> None:
        place = f"{path}, {where}" if where else f"{path}"
        super().__init__(f"{place}: {problem}. {remedy}")
        self.path = str(path)


class BadRecords(BadFile):
    """A file with several problems.

    Args:
        found: (place in the file or "", problem, remedy) of each problem.
        remedy: advice to the user for all problems, if any.

    Attributes:
        lines: number of problems, the first ``MAX_PROBLEMS``, and the remedy: one printable line each.
    """

    def __init__(self, path: str | PathLike[str], found: Sequence[tuple[str, str, str]], remedy: str = "") -> None:
        shown = [f"{where}: {problem}. {fix}".removeprefix(": ") for where, problem, fix in found[:MAX_PROBLEMS]]
        more = len(found) - len(shown)
        text = "; ".join(shown).removesuffix(".")
        last = [*([f"And {more:,} more."] if more else ()), *([remedy] if remedy else ())]
        super().__init__(path, f"{len(found):,} problems: {text}", " ".join(last))
        self.lines = tuple(map(one_line, (f"{path}: {len(found):,} problems", *shown, *last)))


def bad_records(path: str | PathLike[str], found: Sequence[tuple[str, str, str]], remedy: str = "") -> BadFile:
    """Return the error for one or several problems of a file; for arguments see ``BadRecords``."""
    if len(found) > 1:
        return BadRecords(path, found, remedy)
    ((where, problem, fix),) = found
    return BadFile(path, problem, remedy or fix, where or None)


class BadConfig(BadInput):
    """An invalid setting."""


class MissingPackage(BadInput):
    """A package of an extra that is not installed; the message ends in the command that installs it."""


class InfeasibleTask(EvenshardError):
    """Lack of memory for a table on all devices. Problem and remedy are sentences; the remedy may be in the problem."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class MeasurementFailed(EvenshardError):
    """A failed measurement."""


class TrainingFailed(EvenshardError):
    """A network that cannot be used because its training diverged."""


class DatasetRefused(EvenshardError):
    """Measured costs that are too noisy."""


class PipelineFailed(EvenshardError):
    """A failed run of a pipeline, or a server that does not answer."""


class TrackingFailed(EvenshardError):
    """A record that MLflow rejected."""


class StorageFailed(EvenshardError):
    """A file that could not be stored or fetched; a retry may succeed."""


def require(condition: bool, message: str) -> None:
    """Raise BadConfig with ``message`` if the condition is false."""
    if not condition:
        raise BadConfig(message)


def blame_file(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a reader of a user's file so that any unexpected error becomes a BadFile.

    Args:
        read: reader whose first argument is the path. Our errors, OSError and ImportError are not changed.
    """

    @wraps(read)
    def read_or_blame(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return read(*args, **kwargs)
        except (EvenshardError, OSError, ImportError):
            raise
        except Exception as error:
            path = next(iter(inspect.signature(read).bind(*args, **kwargs).arguments.values()))
            logging.getLogger(__name__).debug("unforeseen error in %s", read.__qualname__, exc_info=True)
            problem = f"cannot be read ({type(error).__name__}: {reason_of(error)})"
            raise BadFile(str(path), problem, "Check its content, or make it again.") from error

    return read_or_blame


@contextmanager
def reading_saved(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Convert every error in the block to a BadFile that names a folder of training results.

    Args:
        what: content of the folder, such as "network".
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BadFile(folder, f"{Path(error.filename).name} is missing", remedy) from None
    except BadFile:
        raise
    except Exception as error:  # torch.load raises many types of errors on a torn file
        raise BadFile(folder, f"not readable as a saved {what} ({reason_of(error)})", remedy) from None
