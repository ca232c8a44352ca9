"""Transfers: files and folders to S3 and back, with boto3's own transfer manager, and what says they are whole."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from evenshard.utils.atomic import atomic_path
from evenshard.utils.console import progress
from evenshard.utils.errors import BadFile, StorageFailed
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import brief, reason_of
from evenshard.utils.outputs import ANY_FOLDER, File
from evenshard.utils.provenance import sha256_of
from evenshard.utils.s3.client import FORBIDDEN, MISSING, Address, code_of, readable_errors, s3_client

MANIFEST = "evenshard-manifest.json"
PART_BYTES = 16 << 20
_SHA256 = "sha256"
_ODD = re.compile("[\\\\\0\ud800-\udfff]")  # a lone surrogate is a byte of a name that is not UTF-8
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredFile:
    """One file of a folder: its path below the folder with "/" between the parts, its length, its SHA-256 in hex.

    A file that others have put there has "" for a SHA-256.
    """

    path: str
    size_bytes: int
    sha256: str

    @staticmethod
    def of(path: Path, name: str) -> StoredFile:
        """What a file of this machine holds."""
        return StoredFile(name, path.stat().st_size, sha256_of(path))

    @property
    def blob(self) -> str:
        """Where its content is, below the folder's address."""
        return f"files/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """The files of a folder, in the order of their paths."""

    files: tuple[StoredFile, ...]

    @staticmethod
    def of(folder: Path) -> Manifest:
        """Reads every file below ``folder`` once.

        Raises:
            BadFile: if there is nothing in it, or something that would not come back: a link to a folder, a pipe, an
                odd name.
        """
        paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        if not paths:
            raise BadFile(folder, "no such file, and no folder with files in it", "Check the path.")
        for path in paths:
            if not path.is_file():
                raise BadFile(path, "neither a file nor a link to one", "Put the file itself there, or take it away.")
        files = tuple(StoredFile.of(path, path.relative_to(folder).as_posix()) for path in paths)
        if problem := _problem(files):
            raise BadFile(folder, problem, "Rename it.")
        return Manifest(files)

    def to_json(self) -> bytes:
        """The manifest as it stands on S3."""
        return (json.dumps({"schema": 1, "files": [asdict(one) for one in self.files]}, indent=1) + "\n").encode()

    @staticmethod
    def from_json(content: bytes, where: str) -> Manifest:
        """Reads what ``to_json`` has written, or another writer with access to the bucket.

        Raises:
            BadFile: if it is not a manifest, or a path leads out of the folder.
        """
        try:
            found: Any = load_json(content)
            files = tuple(StoredFile(**one) for one in found["files"])
            problem = _problem(files) if found["schema"] == 1 else "its schema is not 1"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"it is not a manifest ({reason_of(error)})"
        if problem is not None:
            raise BadFile(where, problem, "Upload the folder again.")
        return Manifest(files)


def _problem(files: Sequence[StoredFile]) -> str | None:
    """What keeps these from being the files of one folder, as a manifest names them."""
    for one in files:
        if type(one.size_bytes) is not int or not re.fullmatch("[0-9a-f]{64}", one.sha256):
            return f"size or SHA-256 of {brief(one.path)} is impossible"
    return _problem_of_paths(files)


def _problem_of_paths(files: Sequence[StoredFile]) -> str | None:
    paths = {one.path for one in files}
    if not files or len(paths) < len(files):
        return "it names no file, or one twice"
    for one in files:
        path = PurePosixPath(one.path)
        plain = not _ODD.search(one.path) and str(path) == one.path and path.name
        if not plain or path.is_absolute() or ".." in path.parts:
            return f"path {brief(one.path)} is not a plain path below the folder"
        if paths & {str(folder) for folder in path.parents}:
            return f"path {brief(one.path)} lies below a file"
    return None


def upload(source: Path, to: str) -> Manifest:
    """Uploads a file or a folder to ``s3://bucket/key``, where it is visible when all of it has arrived.

    Returns:
        What was uploaded; a file is a manifest of one.

    Raises:
        BadFile: if there is no such file, the folder is empty, or a file changes meanwhile.
        BadConfig, StorageFailed: see ``client.readable_errors``.
    """
    address = Address.of(to)
    with readable_errors(address, "write"):
        if source.is_file():
            file = StoredFile.of(source, address.name)
            _send(source, address, file)
            return Manifest((file,))
        manifest = Manifest.of(source)
        there = _sizes_below(address.below("files/"))
        contents = {file.sha256: file for file in manifest.files}  # equal files travel once
        missing = [one for one in contents.values() if there.get(address.below(one.blob).key) != one.size_bytes]
        log.info("%s: %d of %d files to upload", address, len(missing), len(contents))
        for file in progress(missing, f"uploading to {address}"):
            _send(source / file.path, address.below(file.blob), file)
        at = address.below(MANIFEST)
        s3_client().put_object(Bucket=at.bucket, Key=at.key, Body=manifest.to_json(), ChecksumAlgorithm="SHA256")
    return manifest


def download(source: str, to: Path, listed: bool = False) -> Path:
    """Downloads a file or a folder; ``to`` appears, or is replaced, when all of it is here and checked.

    Args:
        source: s3://bucket/key, as ``upload`` left it; a file may have been put there by others.
        to: path of the file or folder, which is also returned.
        listed: also take a folder that others have put there file by file, as it is now: nothing tells whether that
            is all of it.

    Raises:
        BadFile: if there is nothing whole at ``source``.
        BadConfig, StorageFailed: see ``client.readable_errors``; or if what arrives is not what was uploaded.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        manifest = _manifest(address)
        if manifest is not None:
            return _fetch_folder(address, [(address.below(one.blob), one) for one in manifest.files], to)
        if listed and (objects := _listing(address)):
            files = [StoredFile(path, one["Size"], "") for path, one in objects.items()]
            if problem := _problem_of_paths(files):
                raise BadFile(str(address), problem, "Give that object another key.")
            log.info("%s has no manifest: its %d files are those of its listing", address, len(files))
            return _fetch_folder(address, [(address.below(one.path), one) for one in files], to)
        head = _head(address)
        File().require(to)  # before the gigabytes, and again behind them
        with atomic_path(to) as draft:
            _fetch(address, draft, file := StoredFile(address.name, head["ContentLength"], _sha256_in(head)))
        if not file.sha256:
            log.warning("%s has no SHA-256; only its length was checked", address)
        return to


def _fetch_folder(address: Address, files: Sequence[tuple[Address, StoredFile]], to: Path) -> Path:
    """Downloads files, each from its own address, into a folder."""
    ANY_FOLDER.require(to, [one.path for _, one in files])
    with atomic_path(to) as draft:
        for at, file in progress(files, f"downloading {address}"):
            (draft / file.path).parent.mkdir(parents=True, exist_ok=True)
            _fetch(at, draft / file.path, file)
    return to


def remove(address: str) -> None:
    """Removes every object of a folder.

    Raises:
        BadConfig, StorageFailed: see ``client.readable_errors``.
    """
    folder = Address.of(address).below("")
    with readable_errors(folder, "remove"):
        for one in _objects_below(folder):
            s3_client().delete_object(Bucket=folder.bucket, Key=one["Key"])


def content_hash(source: str) -> str:
    """What identifies the content at an address today: a SHA-256, or the server's tags for files without one.

    Raises:
        BadInput, StorageFailed: see ``download``; but nothing is fetched.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        if (manifest := _manifest(address)) is not None:
            return f"sha256:{hashlib.sha256(manifest.to_json()).hexdigest()}"
        if objects := _listing(address):
            tags = [(path, one["ETag"]) for path, one in objects.items()]
            return f"etags:{hashlib.sha256(json.dumps(tags).encode()).hexdigest()}"
        head = _head(address)
        return f"sha256:{_sha256_in(head)}" if _sha256_in(head) else f"etag:{head['ETag']}"


def _in_parts() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(PART_BYTES, multipart_chunksize=PART_BYTES, preferred_transfer_client="classic")


def _send(path: Path, address: Address, file: StoredFile) -> None:
    noted = {"ChecksumAlgorithm": "SHA256", "Metadata": {_SHA256: file.sha256}}
    with path.open("rb") as body:
        s3_client().upload_fileobj(body, address.bucket, address.key, ExtraArgs=noted, Config=_in_parts())
    if sha256_of(path) != file.sha256:
        s3_client().delete_object(Bucket=address.bucket, Key=address.key)
        raise BadFile(path, "changed while it was uploaded", "Upload it again when nothing writes to it.")


def _fetch(address: Address, path: Path, file: StoredFile) -> None:
    with path.open("wb") as body:
        s3_client().download_fileobj(address.bucket, address.key, body, Config=_in_parts())
    found = StoredFile.of(path, file.path)
    if found.size_bytes != file.size_bytes and not file.sha256:
        raise StorageFailed(f"{address}: replaced while it was downloaded. Start again when nothing writes to it.")
    if found.size_bytes != file.size_bytes or file.sha256 not in (found.sha256, ""):
        # An upload takes what has the right name and length there for sent; so a damaged object has to go first.
        raise StorageFailed(
            f"{address}: {file.path} is damaged: SHA-256 {found.sha256[:12]} arrived, {file.sha256[:12]} was uploaded. "
            f"Where that happens again, delete this object and upload {file.path} again."
        )


def _manifest(address: Address) -> Manifest | None:
    """The manifest of a folder; None where there is none."""
    from botocore.exceptions import ClientError

    at = address.below(MANIFEST)
    try:
        body = s3_client().get_object(Bucket=at.bucket, Key=at.key)["Body"].read()
    except ClientError as error:
        if code_of(error) in MISSING | FORBIDDEN:  # a key that may not list gets no answer about what is missing
            return None
        raise
    return Manifest.from_json(body, str(at))


def _head(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = s3_client().head_object(Bucket=address.bucket, Key=address.key, ChecksumMode="ENABLED")
    return found


def _sha256_in(head: dict[str, Any]) -> str:
    """What ``upload`` has noted, or what the server has counted over the whole object; "" where there is neither."""
    counted = str(head.get("ChecksumSHA256", ""))
    whole = "" if "-" in counted else base64.b64decode(counted).hex()  # else it is a sum of the parts' sums
    return str(head["Metadata"].get(_SHA256) or whole)


def _listing(address: Address) -> dict[str, dict[str, Any]]:
    """The objects of a folder that others have put there one by one, by path and in its order; {} for a file."""
    folder = address.below("")
    found = {one["Key"].removeprefix(folder.key): one for one in _objects_below(folder)}
    objects = {path: found[path] for path in sorted(found) if path and not path.endswith("/")}  # as consoles mark one
    unfinished = all(re.fullmatch("files/[0-9a-f]{64}", path) for path in objects)  # an upload that did not end
    return {} if unfinished else objects


def _sizes_below(address: Address) -> dict[str, int]:
    """Bytes of every object whose key begins with this one."""
    return {one["Key"]: one["Size"] for one in _objects_below(address)}


def _objects_below(address: Address) -> Iterator[dict[str, Any]]:
    """Every object whose key begins with this one, as the server lists it."""
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key)
    return (one for page in pages for one in page.get("Contents", ()))
