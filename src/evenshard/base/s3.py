"""Upload and download of files and folders on S3 with boto3, which only this module imports.

A file is one object, which becomes visible when its upload is complete. A folder is all objects whose keys begin with
its address and a slash. boto3 and the server verify checksums. A killed upload leaves invisible parts, until a
lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.

boto3 reads keys, region and endpoint from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE,
AWS_DEFAULT_REGION and AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

from evenshard.base.console import progress
from evenshard.base.errors import BadConfig, BadFile, BadInput, StorageFailed
from evenshard.base.installation import require_package
from evenshard.base.messages import brief, reason_of
from evenshard.base.outputs import ANY_FOLDER, File, atomic_path, scratch_folder

SCHEME = "s3://"
TRIES = 4  # attempts of each request by boto3; callers retry whole transfers (``retry``)
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# Error codes of S3 servers by cause; numbers are HTTP statuses of responses without a body.
MISSING = {"NoSuchKey", "404", "NotFound"}
FORBIDDEN = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "MethodNotAllowed"}
_WRONG_KEY = {"SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "InvalidSecurity", "AuthFailure"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "InsufficientCapacity", "507"}
_DAMAGED = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
PART_BYTES = 16 << 20  # of a multipart transfer; boto3 enlarges them for files of more than 10,000 parts
# Backslash, NUL, and lone surrogates, which stand for bytes of a name that is not UTF-8.
_UNSAFE = re.compile("[\\\\\0\ud800-\udfff]")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Address of a file or folder in a bucket; the key is not empty and has no trailing slash."""

    bucket: str
    key: str

    @staticmethod
    def of(text: str) -> Address:
        """Parse ``s3://bucket/key``; raise BadConfig for any other text."""
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        key = key.rstrip("/")
        if not text.startswith(SCHEME) or not bucket or any(part in ("", ".", "..") for part in key.split("/")):
            raise BadConfig(f"{brief(text)} is not an address on S3. Write s3://bucket/folder/name.")
        return Address(bucket, key)

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self.key.rpartition("/")[2]

    def below(self, path: str) -> Address:
        """Return the address of a relative path in this folder."""
        return Address(self.bucket, f"{self.key}/{path}")

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def is_address(source: str | PathLike[str]) -> bool:
    """Return True for an address on S3."""
    return str(source).startswith(SCHEME)


@contextmanager
def local_copy(source: str | PathLike[str]) -> Iterator[Path]:
    """Yield a temporary download of ``source`` if it is an address on S3, or the path itself if it is local.

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
        except BadInput as error:  # replace the path of the download in the message
            raise BadConfig(str(error).replace(str(path), str(source))) from None


def upload(source: Path, to: str) -> None:
    """Upload a file to ``s3://bucket/key``, where it becomes visible when the upload is complete.

    Raises:
        BadFile: if it cannot be read.
        BadConfig, StorageFailed: see ``readable_errors``.
    """
    address = Address.of(to)
    with readable_errors(address, "write"), source.open("rb") as body:
        s3_client().upload_fileobj(
            body, address.bucket, address.key, ExtraArgs={"ChecksumAlgorithm": "SHA256"}, Config=_transfer_config()
        )


def download(source: str, to: Path) -> Path:
    """Download a file or a folder to ``to``, which appears or is replaced when the download is complete.

    Objects that are added to a folder during the download are not included. Return ``to``.

    Raises:
        BadFile: if there is no object at ``source``.
        BadConfig, StorageFailed: see ``readable_errors``.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        objects = _list_folder(address)
        if not objects:
            head = _head(address)
            File().require(to)  # checked before the download, and again after it
            with atomic_path(to) as draft:
                _fetch(address, draft, head["ContentLength"])
            return to
        ANY_FOLDER.require(to, list(objects))
        with atomic_path(to) as draft:
            for path, entry in progress(list(objects.items()), f"downloading {address}"):
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                _fetch(address.below(path), draft / path, entry["Size"])
        return to


def remove(address: str) -> None:
    """Remove every object of a folder; for errors see ``readable_errors``."""
    folder = Address.of(address).below("")
    with readable_errors(folder, "remove"):
        for entry in _objects_below(folder):
            s3_client().delete_object(Bucket=folder.bucket, Key=entry["Key"])


def content_hash(source: str) -> str:
    """Return a hash of the ETags of all objects at an address, which changes with their content.

    Raises:
        BadInput, StorageFailed: see ``download``.
    """
    address = Address.of(source)
    with readable_errors(address, "read"):
        tags = [(path, entry["ETag"]) for path, entry in _list_folder(address).items()]
        if not tags:
            return f"etag:{_head(address)['ETag']}"
        return f"etags:{hashlib.sha256(json.dumps(tags).encode()).hexdigest()}"


def _transfer_config() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(PART_BYTES, multipart_chunksize=PART_BYTES, preferred_transfer_client="classic")


def _fetch(address: Address, path: Path, size_bytes: int) -> None:
    with path.open("wb") as body:
        s3_client().download_fileobj(address.bucket, address.key, body, Config=_transfer_config())
    if path.stat().st_size != size_bytes:
        raise StorageFailed(f"{address}: the file changed during the download. Try again when no job writes to it.")


def _head(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = s3_client().head_object(Bucket=address.bucket, Key=address.key)
    return found


def _list_folder(address: Address) -> dict[str, dict[str, Any]]:
    """Return the objects of a folder by path, in order; {} for a file, or if listing objects is not permitted."""
    from botocore.exceptions import ClientError

    folder = address.below("")
    try:
        found = {entry["Key"].removeprefix(folder.key): entry for entry in _objects_below(folder)}
    except ClientError as error:
        if code_of(error) in FORBIDDEN:
            return {}
        raise
    objects = {path: found[path] for path in sorted(found) if path and not path.endswith("/")}  # without folder markers
    if problem := _problem_of_paths(list(objects)):
        raise BadFile(str(address), problem, "Rename that object.")
    return objects


def _problem_of_paths(paths: Sequence[str]) -> str | None:
    files = {*paths}
    for key in paths:
        path = PurePosixPath(key)
        if _UNSAFE.search(key) or str(path) != key or path.is_absolute() or ".." in path.parts:
            return f"the key {brief(key)} is not a plain path below the folder"
        if files & {str(folder) for folder in path.parents}:
            return f"a parent folder of the key {brief(key)} is itself a file"
    return None


def _objects_below(address: Address) -> Iterator[dict[str, Any]]:
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key)
    return (entry for page in pages for entry in page.get("Contents", ()))


@cache
def s3_client() -> Any:
    """Return boto3's client, with short timeouts and few retries."""
    require_package("boto3")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    # With these limits, an endpoint that does not answer is reported within a minute; a read may pause for 60 s.
    config = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": TRIES})
    try:
        client = boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise BadConfig(
            f"S3 is not configured: {reason_of(error)}. Check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION and AWS_PROFILE."
        ) from None
    if urlsplit(client.meta.endpoint_url).username:
        log.warning("user and password in AWS_ENDPOINT_URL are ignored; S3 takes the keys from %s", KEYS)
    return client


@contextmanager
def readable_errors(address: Address, doing: str) -> Iterator[None]:
    """Convert every error of boto3 in the block to a one-line error with a remedy.

    Args:
        doing: "read", "write" or "remove".

    Raises:
        BadConfig: if the access key, its permissions, the bucket or the address is wrong.
        BadFile: if the object does not exist, or a local file cannot be read or written.
        StorageFailed: if the endpoint does not answer, a disk is full, or a transfer was damaged.
    """
    require_package("boto3")
    from botocore import exceptions as of_client
    from s3transfer import exceptions as of_transfer

    no_keys = (of_client.NoCredentialsError, of_client.PartialCredentialsError, of_client.CredentialRetrievalError)
    try:
        yield
    except of_client.ClientError as error:
        _explain(error, address, doing)
    except no_keys as error:
        raise BadConfig(f"{address}: {reason_of(error)}. Set {KEYS}, or AWS_PROFILE.") from None
    except (of_client.NoRegionError, of_client.ParamValidationError) as error:
        raise BadConfig(f"{address}: {reason_of(error)}. Check the address and AWS_DEFAULT_REGION.") from None
    except (of_client.FlexibleChecksumError, of_transfer.S3DownloadFailedError) as error:
        raise StorageFailed(f"{address}: the data was damaged in transit ({reason_of(error)}). Try again.") from None
    except (of_client.BotoCoreError, of_transfer.RetriesExceededError) as error:  # refused or broken connections
        reason = reason_of(getattr(error, "last_exception", error))
        raise StorageFailed(f"{address}: the endpoint {_endpoint()} does not answer ({reason}). Try again.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFailed(f"{address}: the local disk is full. Free some space and try again.") from None
        where, reason = error.filename or str(address), error.strerror or reason_of(error)
        raise BadFile(where, f"cannot be read or written ({reason})", "Check the path and its permissions.") from None


def code_of(error: Any) -> str:
    """Return the error code of a boto3 error, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _explain(error: Any, address: Address, doing: str) -> NoReturn:
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # Some servers answer 404 or 500 if the bucket is missing.
    if code == "NoSuchBucket" or ((code in MISSING or status >= 500) and _no_bucket(address.bucket)):
        said = f"the endpoint {_endpoint()} has no bucket {address.bucket!r}. Create it, or correct the name."
    elif code in MISSING:
        remedy = "Check the address, or upload it: `aws s3 cp --recursive`."
        raise BadFile(str(address), "no such file or folder", remedy) from None
    elif code in _WRONG_KEY:
        said = f"the endpoint {_endpoint()} does not know this key ({code}). Check {KEYS}."
    elif code in _EXPIRED:
        said = f"the session token has expired ({code}). Get a new token."
    elif code in FORBIDDEN:
        said = f"this key has no permission to {doing} here ({code}). Request it, or use another key."
    elif code in _WRONG_REGION:
        said = f"the bucket is in another region ({reason_of(error)}). Set AWS_DEFAULT_REGION."
    else:
        said = f"the endpoint {_endpoint()} failed ({reason_of(error)}). Try again."
        if code in _FULL or status == 507:
            said = f"the S3 storage is full ({code}). Free some space there and try again."
        elif code in _DAMAGED:
            said = f"the content was damaged during the upload ({code}). Try again."
        raise StorageFailed(f"{address}: {said}") from None
    raise BadConfig(f"{address}: {said}") from None


def _no_bucket(bucket: str) -> bool:
    """Return True only if the endpoint reports that the bucket does not exist."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3_client().head_bucket(Bucket=bucket)
    except ClientError as error:
        return code_of(error) in MISSING | {"NoSuchBucket"}
    except BotoCoreError:
        pass
    return False


def _endpoint() -> str:
    return str(s3_client().meta.endpoint_url)
