"""The backlog: what MLflow has missed of runs, kept beside the outputs of stages and logged by a later one.

::

    work/mlflow_backlog/20260301T101500-train_cost_2-5f0c.../
        run.json    the run (``entries.Record``), what it has logged, and for which MLflow, without a password
        files/      copies of the files and models in there

A folder appears whole when its run ends, and goes when MLflow has it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard.tracking.client import address, connect, first_line, is_refusal, short_timeouts
from evenshard.tracking.entries import Entry, Record, Sender, open_run
from evenshard.tracking.parents import Parent
from evenshard.tracking.pyfunc import ServedCode
from evenshard.utils.atomic import atomic_path
from evenshard.utils.messages import reason_of

# Variable: the folder of the backlog.
BACKLOG = "EVENSHARD_BACKLOG"
BACKLOG_NAME = "mlflow_backlog"
# Tag of a run that was logged from the backlog: which of its folders. Other pods may have copies of it.
LOGGED_TAG = "evenshard.backlog"
_RUN, _FILES = "run.json", "files"
log = logging.getLogger(__name__)


def backlog_folder() -> Path:
    """``work/mlflow_backlog``, or the folder that EVENSHARD_BACKLOG names."""
    return Path(os.environ.get(BACKLOG) or Path("work", BACKLOG_NAME))


def has_backlog() -> bool:
    """Whether MLflow has missed something that is still kept here."""
    return any(_folders())


class KeptRun:
    """A run that becomes a folder of the backlog when it is closed.

    Args:
        record: the run.

    Raises:
        OSError: if the disk is full, or nothing may be written there.
    """

    def __init__(self, record: Record) -> None:
        self._record, self._entries = record, list[Entry]()
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.start_ms / 1000))
        self.folder = backlog_folder() / f"{when}-{record.name or 'loop'}-{time.time_ns():x}"
        self._writing = ExitStack()
        self._draft = self._writing.enter_context(atomic_path(self.folder))
        self._draft.mkdir()

    def add(self, entry: Entry) -> None:
        """Keeps an entry, with copies of the files that it names."""
        if "path" in entry:
            source = Path(entry["path"])
            kept = Path(_FILES, str(len(self._entries)), source.name)
            (self._draft / kept).parent.mkdir(parents=True)
            copy: Callable[..., object] = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, self._draft / kept)
            entry = {**entry, "path": kept.as_posix()}
        self._entries.append(entry)

    def close(self) -> None:
        """Lets a later stage have it."""
        run = {"uri": address(), "record": asdict(self._record), "entries": self._entries}
        (self._draft / _RUN).write_text(json.dumps(run, default=str) + "\n")  # YAML knows dates, JSON does not
        self._writing.close()

    def discard(self) -> None:
        """Gives its space back."""
        shutil.rmtree(self._draft, ignore_errors=True)
        with suppress(OSError):
            self._writing.close()


def log_backlog(code: Callable[[], ServedCode]) -> int:
    """Logs what this MLflow has missed, the oldest first, until it does not answer.

    Args:
        code: gives what answers for the models in there.

    Returns:
        The number of runs.
    """
    done = 0
    for folder in _folders():
        try:
            with _lock_folder(folder):
                done += _log_kept_run(folder, code)
        except (BlockingIOError, FileNotFoundError):  # another process logs it, or has done so
            continue
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be logged to MLflow (%s). Delete it", folder, reason_of(error))
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
            log.warning("%s stays there: MLflow at %s did not take it (%s)", folder, address(), first_line(error))
            if not is_refusal(error):
                break
    if done:
        runs = "a run" if done == 1 else f"{done} runs"
        log.warning("MLflow at %s has got what it had missed of %s", address(), runs)
    return done


def _folders() -> list[Path]:
    return sorted(path.parent for path in backlog_folder().glob(f"[!.]*/{_RUN}"))


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError if another process has the lock. A volume may know no locks."""
    with (folder / _RUN).open() as run:
        try:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def _log_kept_run(folder: Path, code: Callable[[], ServedCode]) -> bool:
    """Logs a run and removes its folder; False if it is meant for another MLflow."""
    told: dict[str, Any] = json.loads((folder / _RUN).read_text())
    if told["uri"] != address():
        return False
    of = told["record"]
    record = Record(**{**of, "parent": of["parent"] and Parent(**of["parent"])})
    paths = [Path(entry["path"]) for entry in told["entries"] if "path" in entry]
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("it names a file outside of itself")
    with short_timeouts(max_retries=0):
        client = connect()
        run_id = open_run(client, record)
        if run_id and client.get_run(run_id).data.tags.get(LOGGED_TAG) != folder.name:
            sender = Sender(client, run_id, record.about)
            for entry in told["entries"]:
                sender.send(entry, code() if entry["kind"] == "model" else None, folder)
            client.set_tag(run_id, LOGGED_TAG, folder.name)
    retired = folder.with_name(f".{folder.name}")
    folder.rename(retired)
    with suppress(OSError):
        shutil.rmtree(retired)
    return True
