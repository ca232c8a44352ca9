"""How do files and folders get to S3 and back? ``upload`` and ``download``; the only package that knows boto3.

::

    s3://bucket/some/tables.parquet                     a file: one object, its SHA-256 in the object's metadata
    s3://bucket/some/model/evenshard-manifest.json      a folder: names, sizes and SHA-256 of its files, written last
    s3://bucket/some/model/files/<sha256>               what they hold

Nothing half-uploaded is ever seen: a folder is what its manifest says, and the manifest comes last, in one piece. An
older version stays whole until then. What was stopped goes on where it was. Every byte is checked against its SHA-256
on both ways: by the server when it arrives there, by us when it arrives here. What a newer manifest no longer names
stays in the bucket: somebody may be reading it.

Keys, region and endpoint come from where boto3 finds them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from evenshard.storage.address import SCHEME, Address
from evenshard.storage.manifest import MANIFEST, Manifest
from evenshard.storage.receiving import download
from evenshard.storage.sending import upload

__all__ = ["MANIFEST", "SCHEME", "Address", "Manifest", "download", "is_address", "local", "upload"]


def is_address(source: str | PathLike[str]) -> bool:
    """Whether this names something on S3."""
    return str(source).startswith(SCHEME)


@contextmanager
def local(source: str | PathLike[str]) -> Iterator[Path]:
    """A path to read ``source`` from: what is on S3 is here within the block, anything else stays where it is.

    Raises:
        BadInput, StorageFailed: see ``download``.
    """
    if not is_address(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="evenshard-") as folder:
        yield download(str(source), Path(folder) / Address.of(str(source)).name)
