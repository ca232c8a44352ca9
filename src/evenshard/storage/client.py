"""What can go wrong on the way to S3 and back? The client, and one clear line for every kind of trouble."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

from evenshard.errors import BadConfig, StorageFailed
from evenshard.messages import reason_of
from evenshard.storage.address import Address

TRIES = 4
_GOES_ON = "What has arrived is kept: started again, it goes on from there."
_WRONG_KEY = {"SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "InvalidSecurity", "AuthFailure"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_FORBIDDEN = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "MethodNotAllowed"}
_MISSING = {"NoSuchKey", "404", "NotFound"}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "InsufficientCapacity", "507"}
_DAMAGED = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}


class Missing(Exception):
    """There is no such object (which a caller may be able to tell more about)."""


@cache
def s3_client() -> Any:
    """boto3's client, with short timeouts and a few tries, so that a server that is away is known within a minute."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": TRIES})
    try:
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise BadConfig(
            f"S3 is not set up: {reason_of(error)}. Check AWS_ENDPOINT_URL, AWS_REGION and AWS_PROFILE."
        ) from None


@contextmanager
def explained(address: Address, doing: str) -> Iterator[None]:
    """Turns every error of boto3 in the block into one line that says what to do.

    Args:
        doing: "read" or "write".

    Raises:
        BadConfig: key, bucket, rights or address are wrong.
        StorageFailed: the endpoint does not answer, a disk is full, or bytes arrive damaged.
        Missing: no such object.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as error:
        _explain(error, address, doing)
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise BadConfig(
            f"{address}: {reason_of(error)}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
        ) from None
    except (NoRegionError, ParamValidationError) as error:
        raise BadConfig(f"{address}: {reason_of(error)}. Check the address and AWS_REGION.") from None
    except BotoCoreError as error:  # connections: refused, timed out, closed, torn
        raise StorageFailed(
            f"{address}: the endpoint {_endpoint()} does not answer ({reason_of(error)}). {_GOES_ON}"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFailed(f"{address}: the disk here is full. Make room. {_GOES_ON}") from None


def _explain(error: Any, address: Address, doing: str) -> NoReturn:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _WRONG_KEY:
        raise BadConfig(
            f"{address}: the endpoint {_endpoint()} does not know this key ({code}). Check AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY."
        ) from None
    if code in _EXPIRED:
        raise BadConfig(f"{address}: the session token has expired ({code}). Get a new one. {_GOES_ON}") from None
    # Some servers answer 404 or 500 where the bucket is missing.
    if code == "NoSuchBucket" or ((code in _MISSING or status >= 500) and _no_bucket(address.bucket)):
        raise BadConfig(
            f"{address}: the endpoint {_endpoint()} has no bucket {address.bucket!r}. Create it, or correct the name."
        ) from None
    if code in _MISSING:
        raise Missing from None
    if code in _FORBIDDEN:
        raise BadConfig(f"{address}: this key may not {doing} here ({code}). Ask for the right to, or use another key.")
    if code in _ELSEWHERE:
        raise BadConfig(f"{address}: the bucket is in another region ({reason_of(error)}). Set AWS_REGION.") from None
    if code in _FULL or status == 507:
        raise StorageFailed(f"{address}: the storage is full ({code}). Make room there. {_GOES_ON}") from None
    if code in _DAMAGED:
        raise StorageFailed(f"{address}: what arrived there is not what was sent ({code}). Start again.") from None
    raise StorageFailed(f"{address}: the endpoint {_endpoint()} failed ({reason_of(error)}). {_GOES_ON}") from None


def _no_bucket(bucket: str) -> bool:
    """True only where the endpoint says so."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3_client().head_bucket(Bucket=bucket)
    except ClientError as error:
        return str(error.response.get("Error", {}).get("Code", "")) in {"404", "NoSuchBucket", "NotFound"}
    except BotoCoreError:
        pass
    return False


def _endpoint() -> str:
    return str(s3_client().meta.endpoint_url)
