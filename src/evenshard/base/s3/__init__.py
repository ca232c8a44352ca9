"""Files and folders on S3, with boto3's transfer manager; the only package that knows boto3.

A file is one object, which appears when all of its parts are there. A folder is what the server lists below its
address. boto3 and the server check what arrives by checksums. The parts of an upload that was killed stay unseen, until
a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.

Keys, region and endpoint come from where boto3 finds them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from evenshard.base.atomic import scratch_folder
from evenshard.base.errors import BadConfig, BadInput
from evenshard.base.s3.client import SCHEME, Address
from evenshard.base.s3.transfer import content_hash, download, remove, upload

__all__ = [
    "SCHEME",
    "Address",
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
def local(source: str | PathLike[str]) -> Iterator[Path]:
    """A path to read ``source`` from: what is on S3 is here within the block, anything else stays where it is.

    Raises:
        BadInput, StorageFailed: see ``download``.
    """
    if not is_address(source):
        yield Path(source)
        return
    with scratch_folder() as folder:
        path = download(str(source), folder / Address.of(str(source)).name)
        try:
            yield path
        except BadInput as error:  # the user knows the address, not where it was fetched to
            raise BadConfig(str(error).replace(str(path), str(source))) from None
