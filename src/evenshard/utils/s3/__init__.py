"""Files and folders on S3: ``upload`` and ``download``, whole or not at all; the only package that knows boto3.

::

    s3://bucket/some/tables.parquet                     a file: one object, its SHA-256 in the object's metadata
    s3://bucket/some/model/evenshard-manifest.json      a folder: names, sizes and SHA-256 of its files, written last
    s3://bucket/some/model/files/<sha256>               what they hold
    s3://bucket/some/traces/rank_0.json.gz              a file of a folder that others wrote: its listing names them

boto3's transfer manager sends and fetches, large files in parts. An object appears when all of its parts are there, and
a folder is what its manifest says: until that comes, in one piece, an older version stays whole. The server checks what
arrives there against SHA-256, we check what arrives here. What a newer manifest no longer names stays in the bucket, as
it may be in use. So do the parts of an upload that was killed, unseen, until a lifecycle rule of the bucket
(AbortIncompleteMultipartUpload) removes them.

Keys, region and endpoint come from where boto3 finds them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from evenshard.utils.errors import BadConfig, BadInput
from evenshard.utils.s3.client import SCHEME, Address
from evenshard.utils.s3.transfer import MANIFEST, Manifest, content_hash, download, remove, upload
from evenshard.utils.scratch import scratch_folder

__all__ = [
    "MANIFEST",
    "SCHEME",
    "Address",
    "Manifest",
    "content_hash",
    "download",
    "is_address",
    "local",
    "remove",
    "upload",
]


def is_address(source: str | PathLike[str]) -> bool:
    """Whether this names something on S3."""
    return str(source).startswith(SCHEME)


@contextmanager
def local(source: str | PathLike[str], listed: bool = False) -> Iterator[Path]:
    """A path to read ``source`` from: what is on S3 is here within the block, anything else stays where it is.

    Args:
        listed: see ``download``.

    Raises:
        BadInput, StorageFailed: see ``download``.
    """
    if not is_address(source):
        yield Path(source)
        return
    with scratch_folder() as folder:
        path = download(str(source), folder / Address.of(str(source)).name, listed)
        try:
            yield path
        except BadInput as error:  # the user knows the address, not where it was fetched to
            raise BadConfig(str(error).replace(str(path), str(source))) from None
