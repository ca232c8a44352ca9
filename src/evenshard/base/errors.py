"""Errors of evenshard, as one tree.

::

    EvenshardError
    |-- BadInput              the user can correct it; names problem and remedy    (exit code 2)
    |   |-- BadFile           a file is missing or damaged, or has an invalid value
    |   |   +-- BadRecords    a file has several invalid values, all listed
    |   |-- BadConfig         a setting in params.yaml or a flag is invalid
    |   +-- MissingPackage    a package of an extra is not installed
    |-- InfeasibleTask        no legal placement exists, or none was found         (exit code 2 for a single
    |                         placement; studies report it and continue)
    |-- MeasurementFailed     a kernel or a device failed during a measurement     (exit code 1)
    |-- TrainingFailed        a weight of a network is not finite                  (exit code 1)
    |-- DatasetRefused        measured costs are too noisy                         (exit code 1)
    |-- PipelineFailed        a run of a pipeline failed, or its server is down    (exit code 1)
    |-- TrackingFailed        MLflow rejected a record                             (exit code 1)
    +-- StorageFailed         S3 is down or full, or a transfer was damaged        (exit code 1)
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

MAX_PROBLEMS = 20  # most problems of one file that an error message lists


class EvenshardError(Exception):
    """Base of all errors that evenshard raises on purpose; the message is one printable line without passwords."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class BadInput(EvenshardError):
    """Invalid input; the message is one line that tells the user how to correct it."""


class BadFile(BadInput):
    """An unusable file. ``where`` is the row, record or key with the problem, if known."""

    def __init__(self, path: str | PathLike[str], problem: str, remedy: str, where: str | None = None) -> None:
        place = f"{path}, {where}" if where else f"{path}"
        super().__init__(f"{place}: {problem}. {remedy}")
        self.path = str(path)


class BadRecords(BadFile):
    """A file with several problems.

    Args:
        found: (location in the file or "", problem, remedy) of each problem.
        remedy: one remedy for all problems, or "".

    Attributes:
        lines: the message as lines: the number of problems, the first ``MAX_PROBLEMS`` of them, and the remedy.
    """

    def __init__(self, path: str | PathLike[str], found: Sequence[tuple[str, str, str]], remedy: str = "") -> None:
        shown = [f"{where}: {problem}. {fix}".removeprefix(": ") for where, problem, fix in found[:MAX_PROBLEMS]]
        more = len(found) - len(shown)
        text = "; ".join(shown).removesuffix(".")
        last = [*([f"And {more:,} more."] if more else ()), *([remedy] if remedy else ())]
        super().__init__(path, f"{len(found):,} problems: {text}", " ".join(last))
        self.lines = tuple(map(one_line, (f"{path}: {len(found):,} problems", *shown, *last)))


def bad_records(path: str | PathLike[str], found: Sequence[tuple[str, str, str]], remedy: str = "") -> BadFile:
    """Return a ``BadFile`` for one problem, or a ``BadRecords`` for several; for the arguments, see ``BadRecords``."""
    if len(found) > 1:
        return BadRecords(path, found, remedy)
    ((where, problem, fix),) = found
    return BadFile(path, problem, remedy or fix, where or None)


class BadConfig(BadInput):
    """An invalid setting."""


class MissingPackage(BadInput):
    """A missing package of an optional extra; the message ends with the install command."""


class InfeasibleTask(EvenshardError):
    """A task without a legal placement. The message is ``problem``, which may include a remedy, and ``remedy``."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class MeasurementFailed(EvenshardError):
    """A failed measurement, such as an error in a kernel or of a device."""


class TrainingFailed(EvenshardError):
    """A network whose training diverged."""


class DatasetRefused(EvenshardError):
    """Measured costs that are too noisy."""


class PipelineFailed(EvenshardError):
    """A failed run of a pipeline, or a pipeline server that does not answer."""


class TrackingFailed(EvenshardError):
    """A failed request to MLflow, such as a rejected metric."""


class StorageFailed(EvenshardError):
    """A failed upload or download; a retry may succeed."""


def require(condition: bool, message: str) -> None:
    """Raise BadConfig with ``message`` if the condition is false."""
    if not condition:
        raise BadConfig(message)


def blame_file(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a reader of a user's file so that any unexpected error becomes a BadFile.

    Args:
        read: reader whose first argument is the path. EvenshardError, OSError and ImportError are not converted.
    """

    @wraps(read)
    def read_or_blame(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return read(*args, **kwargs)
        except (EvenshardError, OSError, ImportError):
            raise
        except Exception as error:
            path = next(iter(inspect.signature(read).bind(*args, **kwargs).arguments.values()))
            logging.getLogger(__name__).debug("unexpected error in %s", read.__qualname__, exc_info=True)
            problem = f"cannot be read ({type(error).__name__}: {reason_of(error)})"
            raise BadFile(str(path), problem, "Check its content, or create it again.") from error

    return read_or_blame


@contextmanager
def blame_folder(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Convert every error in the block to a BadFile about a folder of a saved model.

    Args:
        what: name of the content in messages, such as "network".
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BadFile(folder, f"{Path(error.filename).name} is missing", remedy) from None
    except BadFile:
        raise
    except Exception as error:  # torch.load raises many types of errors on a torn file
        raise BadFile(folder, f"not readable as a saved {what} ({reason_of(error)})", remedy) from None
