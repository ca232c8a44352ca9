"""What if MLflow is away? What a run has to say is kept in a folder, and ``evenshard sync`` sends it later, once.

::

    work/mlflow_outbox/20260301T101500-train_cost_2-5f0c.../
        run.json          the run: name, tags, settings, loop (``sending.Record``), and which MLflow it is meant for
        operations.jsonl  what it said, one operation per line, each on disk before the stage goes on
        files/            copies of the files and models in there
        sent              how many operations have been sent

The stage that writes an entry holds a lock on it, which ends with its process: an entry without an end is of a stage
that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard.atomic import atomic_path
from evenshard.messages import without_credentials
from evenshard.tracking.client import tracking_uri
from evenshard.tracking.parents import Parent
from evenshard.tracking.sending import Operation, Record

RUN, OPERATIONS, FILES, SENT = "run.json", "operations.jsonl", "files", "sent"


def outbox_folder() -> Path:
    """``work/mlflow_outbox``, or the folder that EVENSHARD_OUTBOX names: a volume, where a pod's own files would go."""
    return Path(os.environ.get("EVENSHARD_OUTBOX", "work/mlflow_outbox"))


class KeptRun:
    """An entry of the outbox that is being written.

    Raises:
        OSError: if the disk is full, or nothing may be written there.
    """

    def __init__(self, record: Record) -> None:
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.start_ms / 1000))
        self.folder = outbox_folder() / f"{when}-{record.name or 'loop'}-{secrets.token_hex(4)}"
        draft = self.folder.with_name(f".{self.folder.name}")
        draft.mkdir(parents=True)
        content = {"uri": without_credentials(tracking_uri()), "record": asdict(record)}
        (draft / RUN).write_text(json.dumps(content, indent=1, default=str) + "\n")  # YAML knows dates, JSON does not
        self._file = (draft / OPERATIONS).open("ab", buffering=0)  # what a full disk did not take is gone
        fcntl.flock(self._file, fcntl.LOCK_EX)
        draft.rename(self.folder)

    def add(self, operation: Operation) -> None:
        """Keeps an operation; files and folders that it names are copied."""
        if "path" in operation:
            source = Path(operation["path"])
            kept = Path(FILES, secrets.token_hex(4), source.name)
            (self.folder / kept).parent.mkdir(parents=True)
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, self.folder / kept)
            operation = {**operation, "path": kept.as_posix()}
        self._append((json.dumps(operation) + "\n").encode())

    def _append(self, line: bytes) -> None:
        """The whole line, or nothing of it: behind half of one, the next would be lost too."""
        whole = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(whole)
            raise

    def close(self) -> None:
        """Lets ``evenshard sync`` have it."""
        self._file.close()


class Entry:
    """An entry of the outbox that is being sent."""

    def __init__(self, folder: Path) -> None:
        content: dict[str, Any] = json.loads((folder / RUN).read_text())
        record = content["record"]
        parent = None if record["parent"] is None else Parent(**record["parent"])
        self.folder = folder
        self.uri = str(content["uri"])
        self.record = Record(**{**record, "parent": parent})

    def operations(self) -> Iterator[Operation]:
        """Those that have not been sent; of a stage that was killed, its end too."""
        text = (self.folder / OPERATIONS).read_text()
        known = [
            json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")
        ]  # a torn one never was
        if self.record.key and not any(one["kind"] == "end" for one in known):
            last_ms = int((self.folder / OPERATIONS).stat().st_mtime * 1000)
            known.append({"kind": "end", "status": "KILLED", "end_ms": last_ms})
        yield from known[self._num_sent() :]

    def count_sent(self) -> None:
        """Remembers that one more operation has been sent."""
        sent = self._num_sent() + 1
        with atomic_path(self.folder / SENT) as draft:
            draft.write_text(str(sent))

    def remove(self) -> None:
        """Takes it out, as a whole."""
        retired = self.folder.with_name(f".{self.folder.name}")
        self.folder.rename(retired)
        shutil.rmtree(retired)

    def _num_sent(self) -> int:
        path = self.folder / SENT
        return int(path.read_text()) if path.exists() else 0


def entries() -> list[Path]:
    """Folders of the outbox, the oldest first."""
    folder = outbox_folder()
    return sorted(path for path in folder.glob("[!.]*") if (path / RUN).is_file())


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether nobody else has this entry, whether a stage that writes it or a sync that sends it."""
    try:
        file = (folder / OPERATIONS).open("a")
    except FileNotFoundError:  # somebody has just sent it
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield folder.is_dir()
