"""Journals of measurements that outlive the pod of a stage: on a volume, or in parts on S3.

::

    /data/journals/evenshard-train-2w4hm/benchmark_2_part_1/20261123T113445-9f2c.jsonl    one attempt of a task
    s3://bucket/journals/evenshard-train-2w4hm/benchmark_2_part_1/20261123T113445-9f2c/   the same on S3: one file per
        000000000000 000000018231                         ten seconds, named by the offset of its first byte

An attempt starts with the measurements of earlier attempts. Each attempt writes its own journal, because the pod of an
earlier attempt may still run on a lost node. All journals are deleted when the stage has finished.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from evenshard.base.errors import BadFile, EvenshardError
from evenshard.base.outputs import scratch_folder
from evenshard.base.process import on_sigterm, signal_socket, terminate
from evenshard.base.retry import with_retries
from evenshard.base.s3 import download, is_address, remove, upload
from evenshard.measure.journal import Journal
from evenshard.tracking import LOOP_ID

FOLDER = "EVENSHARD_JOURNAL_FOLDER"  # environment variable: folder for journals, on a volume that all pods mount
ADDRESS = "EVENSHARD_JOURNALS"  # environment variable: address for journals on S3, if there is no volume
UPLOAD_EVERY_S = 10.0  # a lost pod loses at most the measurements of this interval
log = logging.getLogger(__name__)


@contextmanager
def keep_journal(task: str, output_address: str) -> Iterator[Path | None]:
    """Yield a journal with the measurements of earlier attempts of a task; None if there is no storage for it.

    The journal is deleted if the block succeeds, and kept for the next attempt if it fails.

    Args:
        task: name of stage, round and part.
        output_address: address of an output of the task; if it is on S3, the journal is stored next to it.
    """
    run, folder, address = os.environ.get(LOOP_ID), os.environ.get(FOLDER), os.environ.get(ADDRESS)
    if not address and is_address(output_address):
        address = f"{output_address.partition('?')[0]}.journals"
    with scratch_folder() as scratch:
        if run and folder:
            with _keep_on_volume(Path(folder) / run / task, scratch) as journal:
                yield journal
        elif run and address:
            with _keep_on_s3(f"{address.rstrip('/')}/{run}/{task}", scratch) as journal:
                yield journal
        else:
            yield None


@contextmanager
def _keep_on_volume(folder: Path, scratch: Path) -> Iterator[Path | None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [Path(shutil.copy(path, scratch)) for path in sorted(folder.glob("*.jsonl"))]
        journal: Path | None = _continue_journal(folder / f"{_name_attempt()}.jsonl", earlier)
    except OSError as error:
        log.warning("%s: cannot keep a journal (%s); if this pod is lost, its measurements are lost", folder, error)
        journal = None
    yield journal
    if journal is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _keep_on_s3(address: str, scratch: Path) -> Iterator[Path]:
    journal = _continue_journal(scratch / "journal.jsonl", _download_earlier(address, scratch))
    with _keep_uploading(journal, f"{address}/{_name_attempt()}"):
        yield journal
    try:
        with_retries(remove)(address)
    except EvenshardError as error:
        log.warning("%s: cannot delete this finished journal (%s)", address, error)


def _name_attempt() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"


def _continue_journal(journal: Path, earlier: Sequence[Path]) -> Path:
    with Journal(journal) as mine:
        for path in earlier:
            try:
                with Journal(path) as theirs:
                    mine.add_all(theirs)
            except BadFile as error:
                log.warning("%s The placements in this journal are measured again.", error)
    return journal


def _download_earlier(address: str, scratch: Path) -> list[Path]:
    try:
        folder = with_retries(download)(address, scratch / "earlier")
    except BadFile:  # no journal yet
        return []
    except EvenshardError as error:
        log.warning("%s The measurements of earlier attempts of this task are repeated.", error)
        return []
    return [_join_parts(parts) for parts in sorted(folder.iterdir()) if parts.is_dir()]


def _join_parts(parts: Path) -> Path:
    """Join the parts of a journal, up to the first missing part."""
    journal = parts.with_suffix(".jsonl")
    with journal.open("wb") as file:
        for part in sorted(parts.iterdir()):
            if part.name != _name_part(file.tell()):
                break
            file.write(part.read_bytes())
    return journal


def _name_part(first_byte: int) -> str:
    return f"{first_byte:012d}"


@contextmanager
def _keep_uploading(journal: Path, address: str) -> Iterator[None]:
    """Upload new lines of a journal every ten seconds, at the end of the block, and on SIGTERM.

    After SIGTERM, a pod has about one second: Argo signals the whole process group, Kubeflow's launcher dies, and
    Argo's next poll ends the pod.
    """
    sent, ended, part = 0, False, journal.with_suffix(".part")

    def upload_rest() -> None:
        nonlocal sent
        whole = journal.read_bytes()[sent:]
        whole = whole[: whole.rfind(b"\n") + 1]  # a line may be half written
        if not whole:
            return
        part.write_bytes(whole)
        try:
            upload(part, f"{address}/{_name_part(sent)}")
            sent += len(whole)
        except EvenshardError as error:
            log.warning("%s If this pod is lost, the measurements since the last upload are lost.", error)

    def upload_parts() -> None:
        while not ended:
            if select.select([signals], [], [], UPLOAD_EVERY_S)[0]:
                signals.recv(16)
            upload_rest()

    with signal_socket() as (signals, wake), on_sigterm(terminate):
        thread = threading.Thread(target=upload_parts, name="journal", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended = True
            wake.send(b"\0")
            thread.join()
            upload_rest()
