"""boto3's client, addresses on S3, and one clear line for everything that can go wrong there."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

from evenshard.base.errors import BadConfig, BadFile, StorageFailed
from evenshard.base.extras import require_package
from evenshard.base.messages import brief, reason_of

SCHEME = "s3://"
TRIES = 4
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
MISSING = {"NoSuchKey", "404", "NotFound"}
FORBIDDEN = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "MethodNotAllowed"}
_WRONG_KEY = {"SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "InvalidSecurity", "AuthFailure"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "InsufficientCapacity", "507"}
_DAMAGED = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """A file or a folder in a bucket; the key has no slash at its end and is never empty."""

    bucket: str
    key: str

    @staticmethod
    def of(text: str) -> Address:
        """Reads ``s3://bucket/key``. Raises BadConfig if it is not such an address."""
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        key = key.rstrip("/")
        if not text.startswith(SCHEME) or not bucket or any(part in ("", ".", "..") for part in key.split("/")):
            raise BadConfig(f"{brief(text)} is not an address on S3. Write s3://bucket/folder/name.")
        return Address(bucket, key)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    def below(self, path: str) -> Address:
        """An address inside this folder."""
        return Address(self.bucket, f"{self.key}/{path}")

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@cache
def s3_client() -> Any:
    """boto3's client, with short timeouts and a few tries, so that a server that is away is known within a minute."""
    require_package("boto3")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": TRIES})
    try:
        client = boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise BadConfig(
            f"S3 is not set up: {reason_of(error)}. Check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION and AWS_PROFILE."
        ) from None
    if urlsplit(client.meta.endpoint_url).username:
        log.warning("user and password in AWS_ENDPOINT_URL are not used: S3 takes the keys from %s", KEYS)
    return client


@contextmanager
def readable_errors(address: Address, doing: str) -> Iterator[None]:
    """Turns every error of boto3 in the block into one line that says what to do.

    Args:
        doing: "read", "write" or "remove".

    Raises:
        BadConfig: if key, bucket, rights or address are wrong.
        BadFile: if there is no such object, or a file of this machine cannot be read or written.
        StorageFailed: if the endpoint does not answer, a disk is full, or bytes arrive damaged.
    """
    require_package("boto3")
    from botocore import exceptions as of_client
    from s3transfer import exceptions as of_transfer

    try:
        yield
    except of_client.ClientError as error:
        _explain(error, address, doing)
    except (
        of_client.NoCredentialsError,
        of_client.PartialCredentialsError,
        of_client.CredentialRetrievalError,
    ) as error:
        raise BadConfig(f"{address}: {reason_of(error)}. Set {KEYS}, or AWS_PROFILE.") from None
    except (of_client.NoRegionError, of_client.ParamValidationError) as error:
        raise BadConfig(f"{address}: {reason_of(error)}. Check the address and AWS_DEFAULT_REGION.") from None
    except (of_client.FlexibleChecksumError, of_transfer.S3DownloadFailedError) as error:
        raise StorageFailed(f"{address}: damaged, or replaced meanwhile ({reason_of(error)}). Start again.") from None
    except (of_client.BotoCoreError, of_transfer.RetriesExceededError) as error:  # connections: refused, torn
        reason = reason_of(getattr(error, "last_exception", error))
        raise StorageFailed(f"{address}: the endpoint {_endpoint()} does not answer ({reason}). Start again.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFailed(f"{address}: the disk here is full. Make room, and start again.") from None
        where, reason = error.filename or str(address), error.strerror or reason_of(error)
        raise BadFile(where, f"cannot be read or written here ({reason})", "Check the path and its rights.") from None


def code_of(error: Any) -> str:
    """The code of an S3 server's answer, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _explain(error: Any, address: Address, doing: str) -> NoReturn:
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # Some servers answer 404 or 500 where the bucket is missing.
    if code == "NoSuchBucket" or ((code in MISSING or status >= 500) and _no_bucket(address.bucket)):
        said = f"the endpoint {_endpoint()} has no bucket {address.bucket!r}. Create it, or correct the name."
    elif code in MISSING:
        remedy = "Check the address, or upload it: `aws s3 cp --recursive`."
        raise BadFile(str(address), "no such file or folder", remedy) from None
    elif code in _WRONG_KEY:
        said = f"the endpoint {_endpoint()} does not know this key ({code}). Check {KEYS}."
    elif code in _EXPIRED:
        said = f"the session token has expired ({code}). Get a new one."
    elif code in FORBIDDEN:
        said = f"this key may not {doing} here ({code}). Ask for the right to, or use another key."
    elif code in _ELSEWHERE:
        said = f"the bucket is in another region ({reason_of(error)}). Set AWS_DEFAULT_REGION."
    else:
        said = f"the endpoint {_endpoint()} failed ({reason_of(error)}). Start again."
        if code in _FULL or status == 507:
            said = f"the storage is full ({code}). Make room there, and start again."
        elif code in _DAMAGED:
            said = f"what arrived there is not what was sent ({code}). Start again."
        raise StorageFailed(f"{address}: {said}") from None
    raise BadConfig(f"{address}: {said}") from None


def _no_bucket(bucket: str) -> bool:
    """True only where the endpoint says so."""
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
