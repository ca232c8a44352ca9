"""How does something get to S3? File by file, big ones in parts; the folder's manifest comes last."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from evenshard.errors import BadFile, StorageFailed
from evenshard.progress import progress
from evenshard.storage.address import Address
from evenshard.storage.client import Missing, explained, s3_client
from evenshard.storage.manifest import FILES, MANIFEST, Manifest, StoredFile, stored

PART_BYTES = 16 << 20
MAX_PARTS = 10_000  # of one object, by S3's own rule
SHA256 = "sha256"
log = logging.getLogger(__name__)


def upload(source: Path, to: str, part_bytes: int = PART_BYTES) -> Manifest:
    """Uploads a file or a folder; it is visible at ``to`` when all of it has arrived, and an older one until then.

    Args:
        source: file or folder.
        to: s3://bucket/key.
        part_bytes: what goes in one request, at least 5 MiB where S3 is Amazon's.

    Returns:
        What was uploaded; a file is a manifest of one.

    Raises:
        BadFile: there is no such file, the folder is empty, or a file changes meanwhile.
        BadConfig, StorageFailed: see ``client.explained``.
    """
    address = Address.of(to)
    try:
        with explained(address, "write"):
            return _upload(source, address, part_bytes)
    except Missing:
        raise StorageFailed(f"{address}: what was just uploaded is gone. Start again.") from None


def _upload(source: Path, address: Address, part_bytes: int) -> Manifest:
    if source.is_file():
        file = stored(source, address.name)
        # A big file goes in parts to where its content gives the name, so that it can go on after a kill.
        alone = Address(address.bucket, f"{address.key}.{FILES}/{file.sha256}")
        target = address if file.size_bytes <= part_bytes else alone
        _send_all([_Sending(source, target, file, part_bytes)], address)
        if target != address:
            _move(target, address, file)
        return Manifest((file,))
    manifest = Manifest.of(source)
    if not manifest.files:
        raise BadFile(source, "no such file, and no folder with files in it", "Check the path.")
    there = _sizes_below(address)
    contents = {file.sha256: file for file in manifest.files}  # equal files travel once
    missing = [
        _Sending(source / file.path, address.below(file.blob), file, part_bytes)
        for file in contents.values()
        if there.get(address.below(file.blob).key) != file.size_bytes
    ]
    log.info("%s: %d of %d files to upload", address, len(missing), len(contents))
    _send_all(missing, address)
    body = manifest.to_json()
    _put(address.below(MANIFEST), body, hashlib.sha256(body).digest(), {})
    return manifest


def _send_all(sendings: list[_Sending], address: Address) -> None:
    requests = chain.from_iterable(one.requests() for one in sendings)
    for _ in progress(range(sum(one.num_parts for one in sendings)), f"uploading to {address}"):
        next(requests, None)
    next(requests, None)


@dataclass(frozen=True)
class _Sending:
    """One file on its way: ``requests`` yields after each part, and ends when the object is there."""

    path: Path
    target: Address
    file: StoredFile
    part_bytes: int

    @property
    def size_of_part(self) -> int:
        return max(self.part_bytes, -(-self.file.size_bytes // MAX_PARTS))

    @property
    def num_parts(self) -> int:
        return max(1, -(-self.file.size_bytes // self.size_of_part))

    def requests(self) -> Iterator[None]:
        from botocore.exceptions import ClientError

        metadata = {SHA256: self.file.sha256}
        if self.num_parts == 1:
            _put(self.target, self.path.read_bytes(), bytes.fromhex(self.file.sha256), metadata)
            yield
            return
        try:
            yield from self._parts(metadata)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "NoSuchUpload":
                raise
            # Somebody else was sending the same content and has completed it, or given it up.
            if _sizes_below(self.target).get(self.target.key) != self.file.size_bytes:
                yield from self._parts(metadata)

    def _parts(self, metadata: dict[str, str]) -> Iterator[None]:
        place = {"Bucket": self.target.bucket, "Key": self.target.key}
        upload_id, sizes = _begun(self.target)
        if sizes.get(1, (self.size_of_part, ""))[0] != self.size_of_part:  # begun in parts of another size
            sizes = {}
        if upload_id is None:
            begun = s3_client().create_multipart_upload(**place, ChecksumAlgorithm="SHA256", Metadata=metadata)
            upload_id = begun["UploadId"]
        place["UploadId"] = upload_id
        parts, whole = [], hashlib.sha256()
        with self.path.open("rb") as file:
            for number in range(1, self.num_parts + 1):
                body = file.read(self.size_of_part)
                whole.update(body)
                sum_of_part = base64.b64encode(hashlib.sha256(body).digest()).decode()
                size, etag = sizes.get(number, (-1, ""))
                if size != len(body):  # the key is the content's own: a part of this length is this part
                    etag = s3_client().upload_part(**place, PartNumber=number, Body=body, ChecksumSHA256=sum_of_part)[
                        "ETag"
                    ]
                parts.append({"PartNumber": number, "ETag": etag, "ChecksumSHA256": sum_of_part})
                yield
        if whole.hexdigest() != self.file.sha256:
            s3_client().abort_multipart_upload(**place)
            raise BadFile(self.path, "changed while it was uploaded", "Upload it again when nobody writes to it.")
        s3_client().complete_multipart_upload(**place, MultipartUpload={"Parts": parts})


def _put(address: Address, body: bytes, sha256: bytes, metadata: dict[str, str]) -> None:
    """One request; the server compares what arrives with the SHA-256."""
    s3_client().put_object(
        Bucket=address.bucket,
        Key=address.key,
        Body=body,
        ChecksumSHA256=base64.b64encode(sha256).decode(),
        Metadata=metadata,
    )


def _move(source: Address, target: Address, file: StoredFile) -> None:
    """Within the server, which does it in one go."""
    from botocore.exceptions import ClientError

    try:
        s3_client().copy(
            {"Bucket": source.bucket, "Key": source.key},
            target.bucket,
            target.key,
            ExtraArgs={"Metadata": {SHA256: file.sha256}, "MetadataDirective": "REPLACE"},
        )
    except ClientError:
        if not _holds(target, file):  # or else somebody who sent the same content has moved it
            raise
    s3_client().delete_object(Bucket=source.bucket, Key=source.key)


def _holds(target: Address, file: StoredFile) -> bool:
    from botocore.exceptions import ClientError

    try:
        head = s3_client().head_object(Bucket=target.bucket, Key=target.key)
    except ClientError:
        return False
    return bool(head.get("Metadata", {}).get(SHA256) == file.sha256)


def _begun(target: Address) -> tuple[str | None, dict[int, tuple[int, str]]]:
    """The upload of this object that was stopped, if there is one, and size and tag of each part that has arrived."""
    listed = s3_client().list_multipart_uploads(Bucket=target.bucket, Prefix=target.key)
    upload_id = next((one["UploadId"] for one in listed.get("Uploads", ()) if one["Key"] == target.key), None)
    if upload_id is None:
        return None, {}
    pages = s3_client().get_paginator("list_parts").paginate(Bucket=target.bucket, Key=target.key, UploadId=upload_id)
    arrived = {one["PartNumber"]: (one["Size"], one["ETag"]) for page in pages for one in page.get("Parts", ())}
    log.info("%s: %d parts are there already", target, len(arrived))
    return upload_id, arrived


def _sizes_below(address: Address) -> dict[str, int]:
    """Bytes of every object whose key begins with this one."""
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key)
    return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", ())}
