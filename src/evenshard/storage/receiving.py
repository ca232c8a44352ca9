"""How does something come from S3? Into a draft that a later try goes on with; checked, then renamed."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from evenshard.atomic import replace_path
from evenshard.errors import BadFile, StorageFailed
from evenshard.progress import progress
from evenshard.storage.address import Address
from evenshard.storage.client import TRIES, Missing, explained, s3_client
from evenshard.storage.manifest import MANIFEST, Manifest, StoredFile, stored
from evenshard.units import bytes_to_gb

CHUNK_BYTES = 1 << 20
STEP_BYTES = 16 << 20  # of the progress that is shown
PAUSES_S = (0.5, 2.0, 5.0)  # before each further try where a connection breaks
log = logging.getLogger(__name__)


def download(source: str, to: Path) -> Path:
    """Downloads a file or a folder; ``to`` appears, or is replaced, when all of it is here and checked.

    Args:
        source: s3://bucket/key, as ``upload`` left it; a file may have been put there by others.
        to: path of the file or folder.

    Returns:
        ``to``.

    Raises:
        BadFile: there is nothing whole at ``source``.
        BadConfig, StorageFailed: see ``client.explained``; or what arrives is not what was uploaded.
    """
    address = Address.of(source)
    try:
        with explained(address, "read"):
            manifest = _manifest(address)
            if manifest is None:
                _download_file(address, to)
            else:
                _download_folder(address, manifest, to)
    except Missing:
        problem = "no such file, and no folder that was uploaded to its end"
        raise BadFile(source, problem, "Check the address, or upload it (again).") from None
    return to


def _manifest(address: Address) -> Manifest | None:
    where = address.below(MANIFEST)
    try:
        with explained(where, "read"):
            body = s3_client().get_object(Bucket=where.bucket, Key=where.key)["Body"].read()
    except Missing:
        return None
    return Manifest.from_json(body, str(where))


def _download_file(address: Address, to: Path) -> None:
    head = s3_client().head_object(Bucket=address.bucket, Key=address.key, ChecksumMode="ENABLED")
    file = StoredFile(to.name, head["ContentLength"], _sha256_of(head))
    version = hashlib.sha256(f"{address} {head['ETag']}".encode()).hexdigest()[:12]
    draft = to.with_name(f".{to.name}.{version}.download")
    to.parent.mkdir(parents=True, exist_ok=True)
    with _alone(draft, draft.touch):
        _require_room(address, to.parent, file.size_bytes - _size(draft))
        _drain(_arriving(address, draft, file, head["ETag"]), file.size_bytes, f"downloading {address}")
        replace_path(draft, to)


def _download_folder(address: Address, manifest: Manifest, to: Path) -> None:
    """The draft is named after the content, so that only the same content goes on with it."""
    draft = to.with_name(f".{to.name}.{manifest.digest[:12]}.download")
    with _alone(draft, lambda: draft.mkdir(parents=True, exist_ok=True)):
        missing = [file for file in manifest.files if not _is_here(draft / file.path, file)]
        size_bytes = sum(file.size_bytes for file in missing)
        _require_room(address, draft, size_bytes - sum(_size(_partial(draft, file)) for file in missing))
        arriving = chain.from_iterable(_arriving_into(address, draft, file) for file in missing)
        _drain(arriving, size_bytes, f"downloading {address}")
        replace_path(draft, to)


@contextmanager
def _alone(draft: Path, make: Callable[[], None]) -> Iterator[None]:
    """Makes the draft, and waits for others who fill the same one: two that append to a file tear it."""
    while True:
        make()
        try:
            descriptor = os.open(draft, os.O_RDONLY)
        except FileNotFoundError:  # another one has just finished it
            continue
        try:
            _lock(descriptor, draft)
            if draft.exists() and os.path.samestat(os.fstat(descriptor), draft.stat()):  # not finished by another
                yield
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, draft: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("waiting for another download into %s", draft)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _arriving_into(address: Address, draft: Path, file: StoredFile) -> Iterator[int]:
    partial = _partial(draft, file)
    (draft / file.path).parent.mkdir(parents=True, exist_ok=True)
    yield from _arriving(address.below(file.blob), partial, file, None)
    partial.replace(draft / file.path)


def _partial(draft: Path, file: StoredFile) -> Path:
    """Named after its content: no other file of the folder has this name, and it is never too long."""
    return (draft / file.path).with_name(f".{file.sha256}.partial")


def _arriving(address: Address, draft: Path, file: StoredFile, etag: str | None) -> Iterator[int]:
    """Appends to ``draft`` what is missing of the object, checks all of it, and yields the bytes that arrive."""
    from botocore.exceptions import BotoCoreError

    if _size(draft) > file.size_bytes:
        os.truncate(draft, 0)
    went_on = _size(draft) > 0
    for attempt in range(TRIES):
        try:
            yield from _rest(address, draft, file.size_bytes, etag)
            break
        except BotoCoreError as error:  # a connection that breaks within the object; boto3 only tries requests again
            if attempt == TRIES - 1:
                raise
            log.info("%s: %s; trying again", address, error)
            time.sleep(PAUSES_S[attempt])
    found = stored(draft, file.path)
    if found.size_bytes == file.size_bytes and file.sha256 in (found.sha256, ""):
        if not file.sha256:
            log.warning("%s has no SHA-256; only its length was checked", address)
        return
    if went_on:  # the beginning may be from another time
        os.truncate(draft, 0)
        yield from _arriving(address, draft, file, etag)
        return
    draft.unlink()
    # An upload takes what has the right name and length there for sent; so the damaged object has to go first.
    raise StorageFailed(
        f"{address}: {file.path} is damaged: SHA-256 {found.sha256[:12]} arrived, {file.sha256[:12]} was uploaded. "
        f"Where that happens again, delete this object and upload {file.path} again."
    )


def _rest(address: Address, draft: Path, size_bytes: int, etag: str | None) -> Iterator[int]:
    with draft.open("ab") as file:
        if file.tell() == size_bytes:
            return
        unchanged = {} if etag is None else {"IfMatch": etag}
        answer = s3_client().get_object(
            Bucket=address.bucket, Key=address.key, Range=f"bytes={file.tell()}-", **unchanged
        )
        for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
            file.write(chunk)
            yield len(chunk)


def _drain(arriving: Iterator[int], size_bytes: int, description: str) -> None:
    """Takes what arrives, one step of progress at a time."""
    for _ in progress(range(max(1, -(-size_bytes // STEP_BYTES))), description):
        step = 0
        for num_bytes in arriving:
            step += num_bytes
            if step >= STEP_BYTES:
                break
    for _ in arriving:
        pass


def _sha256_of(head: dict[str, object]) -> str:
    """What ``upload`` has noted, or what the server has counted over the whole object; "" where nobody has."""
    metadata = head.get("Metadata")
    if isinstance(metadata, dict) and metadata.get("sha256"):
        return str(metadata["sha256"])
    counted = str(head.get("ChecksumSHA256") or "")
    return "" if not counted or "-" in counted else base64.b64decode(counted).hex()


def _is_here(path: Path, file: StoredFile) -> bool:
    return _size(path) == file.size_bytes and path.is_file() and stored(path, file.path) == file


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _require_room(address: Address, folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        needed, left = bytes_to_gb(num_bytes), bytes_to_gb(free)
        raise StorageFailed(
            f"{address}: {needed:.2f} GB are to come, the disk of {folder} has {left:.2f} GB left. Make room."
        )
