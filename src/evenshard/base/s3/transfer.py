"""Transfers: files to S3, files and folders back, with boto3's own transfer manager."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from evenshard.base.atomic import atomic_path
from evenshard.base.console import progress
from evenshard.base.errors import BadFile, StorageFailed
from evenshard.base.messages import brief
from evenshard.base.outputs import ANY_FOLDER, File
from evenshard.base.s3.client import FORBIDDEN, Address, code_of, readable_errors, s3_client

PART_BYTES = 16 << 20
_ODD = re.compile("[\\\\\0\ud800-\udfff]")  # a lone surrogate is a byte of a name that is not UTF-8


def upload(source: Path, to: str) -> None:
    """Upload a file to ``s3://bucket/key``, where it is visible when all of it has arrived.

    Raises:
        BadFile: if it cannot be read.
        BadConfig, StorageFailed: see ``client.readable_errors``.
    """
    address = Address.of(to)
    with readable_errors(address, "write"), source.open("rb") as body:
        s3_client().upload_fileobj(
            body, address.bucket, address.key, ExtraArgs={"ChecksumAlgorithm": "SHA256"}, Config=_in_parts()
        )


def download(source: str, to: Path) -> Path:
    """Download a file or a folder; ``to`` appears, or is replaced, when all of it is here.

    A folder is every object below the address, as the server lists them now.

    Args:
        source: s3://bucket/key.
        to: path of the file or folder, which is also returned.

    Raises:
        BadFile: if there is nothing at ``source``.
        BadConfig, StorageFailed: see ``client.readable_errors``.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        objects = _listing(address)
        if not objects:
            head = _head(address)
            File().require(to)  # before the gigabytes, and again behind them
            with atomic_path(to) as draft:
                _fetch(address, draft, head["ContentLength"])
            return to
        ANY_FOLDER.require(to, list(objects))
        with atomic_path(to) as draft:
            for path, one in progress(list(objects.items()), f"downloading {address}"):
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                _fetch(address.below(path), draft / path, one["Size"])
        return to


def remove(address: str) -> None:
    """Remove every object of a folder.

    Raises:
        BadConfig, StorageFailed: see ``client.readable_errors``.
    """
    folder = Address.of(address).below("")
    with readable_errors(folder, "remove"):
        for one in _objects_below(folder):
            s3_client().delete_object(Bucket=folder.bucket, Key=one["Key"])


def content_hash(source: str) -> str:
    """Return a text that changes with the content at an address: the server's tags of its files.

    Raises:
        BadInput, StorageFailed: see ``download``; but nothing is fetched.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        tags = [(path, one["ETag"]) for path, one in _listing(address).items()]
        if not tags:
            return f"etag:{_head(address)['ETag']}"
        return f"etags:{hashlib.sha256(json.dumps(tags).encode()).hexdigest()}"


def _in_parts() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(PART_BYTES, multipart_chunksize=PART_BYTES, preferred_transfer_client="classic")


def _fetch(address: Address, path: Path, size_bytes: int) -> None:
    with path.open("wb") as body:
        s3_client().download_fileobj(address.bucket, address.key, body, Config=_in_parts())
    if path.stat().st_size != size_bytes:
        raise StorageFailed(f"{address}: replaced while it was downloaded. Start again when nothing writes to it.")


def _head(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = s3_client().head_object(Bucket=address.bucket, Key=address.key)
    return found


def _listing(address: Address) -> dict[str, dict[str, Any]]:
    """Return the objects of a folder, by path and in its order; {} for a file, and for a key that may not list."""
    from botocore.exceptions import ClientError

    folder = address.below("")
    try:
        found = {one["Key"].removeprefix(folder.key): one for one in _objects_below(folder)}
    except ClientError as error:
        if code_of(error) in FORBIDDEN:
            return {}
        raise
    objects = {path: found[path] for path in sorted(found) if path and not path.endswith("/")}  # as consoles mark one
    if problem := _problem_of_paths(list(objects)):
        raise BadFile(str(address), problem, "Give that object another key.")
    return objects


def _problem_of_paths(paths: Sequence[str]) -> str | None:
    files = {*paths}
    for one in paths:
        path = PurePosixPath(one)
        if _ODD.search(one) or str(path) != one or path.is_absolute() or ".." in path.parts:
            return f"path {brief(one)} is not a plain path below the folder"
        if files & {str(folder) for folder in path.parents}:
            return f"path {brief(one)} lies below a file"
    return None


def _objects_below(address: Address) -> Iterator[dict[str, Any]]:
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key)
    return (one for page in pages for one in page.get("Contents", ()))
