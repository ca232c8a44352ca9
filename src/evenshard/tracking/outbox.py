"""What stages have logged while MLflow was away: kept in a folder for each run, and sent by ``evenshard sync``.

::

    work/mlflow_outbox/20260301T101500-train_cost_2-5f0c.../
        run.json    the run (``sending.Record``), its operations, and which MLflow it is meant for, without a password
        files/      copies of the files and models in there

A folder appears whole when its stage ends. Each operation counts once, however often it is sent.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenshard.tracking.client import connect, environment, first_line, patience, tracking_uri
from evenshard.tracking.deadline import NoAnswer
from evenshard.tracking.parents import Parent
from evenshard.tracking.sending import Operation, Record, ensure_run, send
from evenshard.utils.atomic import atomic_path
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import reason_of, without_credentials

RUN, FILES = "run.json", "files"
OLD_OPERATIONS = "operations.jsonl"
"""Where earlier versions kept the operations, one per line, the last perhaps torn."""
TIME_FOR_SYNC = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""Nothing waits for a sync, as stages do."""


def outbox_folder() -> Path:
    """``work/mlflow_outbox``, or the folder that EVENSHARD_OUTBOX names: a volume, where a pod's own files would go."""
    return Path(os.environ.get("EVENSHARD_OUTBOX", "work/mlflow_outbox"))


def entries() -> list[Path]:
    """Folders of the outbox, the oldest first."""
    return sorted(path for path in outbox_folder().glob("[!.]*") if (path / RUN).is_file())


class KeptRun:
    """A run that becomes a folder of the outbox when it is closed.

    Raises:
        OSError: if the disk is full, or nothing may be written there.
    """

    def __init__(self, record: Record) -> None:
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.start_ms / 1000))
        self.folder = outbox_folder() / f"{when}-{record.name or 'loop'}-{secrets.token_hex(4)}"
        self._writing = ExitStack()
        self._draft = self._writing.enter_context(atomic_path(self.folder))
        self._draft.mkdir()
        self._operations: list[Operation] = []
        self._run = {"uri": without_credentials(tracking_uri()), "record": asdict(record)}

    def add(self, operation: Operation) -> None:
        """Keeps an operation; files and folders that it names are copied."""
        if "path" in operation:
            source = Path(operation["path"])
            kept = Path(FILES, str(len(self._operations)), source.name)
            (self._draft / kept).parent.mkdir(parents=True)
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, self._draft / kept)
            operation = {**operation, "path": kept.as_posix()}
        self._operations.append(operation)

    def close(self) -> None:
        """Lets ``evenshard sync`` have it."""
        content = {**self._run, "operations": self._operations}
        (self._draft / RUN).write_text(json.dumps(content, default=str) + "\n")  # YAML knows dates, JSON does not
        self._writing.close()

    def discard(self) -> None:
        """Gives its space back."""
        shutil.rmtree(self._draft, ignore_errors=True)
        with suppress(OSError):
            self._writing.close()


@dataclass(frozen=True)
class Synced:
    """What became of an entry of the outbox.

    Attributes:
        name: of its folder.
        run_id: of the run; empty where it was not sent.
        problem: why it is still there; empty where it is not.
    """

    name: str
    run_id: str
    problem: str = ""


def sync(to: str | None = None) -> list[Synced]:
    """Sends what is in the outbox, the oldest first.

    Args:
        to: URI of the MLflow that gets all; None for the one that each entry was meant for.

    Returns:
        One record per entry. Entries with a problem stay where they are.
    """
    away: dict[str, str] = {}
    return [_sync_one(folder, to, away) for folder in entries()]


def _sync_one(folder: Path, to: str | None, away: dict[str, str]) -> Synced:
    """``away``: what the MLflows that did not answer said; they are asked once."""
    try:
        with (folder / RUN).open() as run:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two that send it at once could both make its run
            meant_for, record, operations = _read(folder, run.read())
            return _send(folder, to or _with_password(meant_for), record, operations, away)
    except BlockingIOError:
        return Synced(folder.name, "", "another sync is sending it")
    except (OSError, ValueError, KeyError, TypeError) as error:  # damaged, or of a later version
        problem = f"{folder} cannot be read ({reason_of(error)}). Sync with the version that wrote it, or delete it"
        return Synced(folder.name, "", problem)


def _send(folder: Path, uri: str, record: Record, operations: list[Operation], away: dict[str, str]) -> Synced:
    if "***" in uri:
        problem = f"it is meant for {uri}. Set MLFLOW_TRACKING_URI to that, with its password, or name another (--to)"
        return Synced(folder.name, "", problem)
    if uri in away:
        return Synced(folder.name, "", away[uri])
    run_id = ""
    try:
        # MLflow's registry asks the environment where the logged model is
        with environment({"MLFLOW_TRACKING_URI": uri}, replace=True), environment(TIME_FOR_SYNC), patience():
            client = connect(uri)
            run_id = ensure_run(client, record)
            for operation in operations:
                send(client, run_id, operation, folder)
    except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
        problem = f"{without_credentials(uri)}: {first_line(error)}"
        if not run_id or isinstance(error, NoAnswer):
            away[uri] = problem
        return Synced(folder.name, run_id, problem)
    retired = folder.with_name(f".{folder.name}")
    folder.rename(retired)
    shutil.rmtree(retired)
    return Synced(folder.name, run_id)


def _with_password(uri: str) -> str:
    return tracking_uri() if without_credentials(tracking_uri()) == uri else uri


def _read(folder: Path, text: str) -> tuple[str, Record, list[Operation]]:
    content = load_json(text)
    told = content["record"]
    record = Record(**{**told, "parent": told["parent"] and Parent(**told["parent"])})
    if not (folder / OLD_OPERATIONS).exists():
        return str(content["uri"]), record, content["operations"]
    lines = (folder / OLD_OPERATIONS).read_text().splitlines(keepends=True)
    operations: list[Any] = [load_json(line) for line in lines if line.endswith("\n")]
    if record.key and not any(one["kind"] == "end" for one in operations):  # its stage was killed
        end_ms = int((folder / OLD_OPERATIONS).stat().st_mtime * 1000)
        operations.append({"kind": "end", "status": "KILLED", "end_ms": end_ms})
    return str(content["uri"]), record, operations
