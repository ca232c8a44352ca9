"""Files and folders go to a real S3 and come back whole, or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    FlexibleChecksumError,
    NoCredentialsError,
    NoRegionError,
)
from s3transfer.exceptions import RetriesExceededError

from evenshard.base.errors import BadConfig, BadFile, EvenshardError, StorageFailed
from evenshard.base.s3 import (
    Address,
    _fetch,
    _problem_of_paths,
    content_hash,
    download,
    is_address,
    local_copy,
    readable_errors,
    remove,
    s3_client,
    upload,
)
from support.learned import LEARNED
from support.servers import S3

# The least that S3 allows.
PART = 5 << 20


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    monkeypatch.setattr("evenshard.base.s3.PART_BYTES", PART)
    configure(monkeypatch, **s3.settings())
    yield s3
    s3_client.cache_clear()


@pytest.fixture
def at(s3: S3, request: pytest.FixtureRequest) -> str:
    """An address of this test's own."""
    return f"s3://{s3.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"


def configure(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    s3_client.cache_clear()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blob(size: int) -> bytes:
    return hashlib.shake_128().digest(size)


def objects(s3: S3, at: str) -> list[str]:
    return s3.keys(Address.of(at).key)


def put(s3: S3, at: str, **contents: bytes) -> None:
    """Put objects one by one, as ``aws s3 cp --recursive`` or a job does; "__" in a name stands for a slash."""
    for name, content in contents.items():
        key = f"{Address.of(at).key}/{name.replace('__', '/')}"
        s3.client().put_object(Bucket=s3.bucket, Key=key, Body=content)


# Addresses and errors -------------------------------------------------------------------------------------------------


def test_addresses_and_keys_of_a_folder(tmp_path: Path) -> None:
    address = Address.of("s3://bucket/folder/name/")
    assert (str(address), address.bucket, address.key) == ("s3://bucket/folder/name", "bucket", "folder/name")
    assert (address.name, str(address.below("x/y"))) == ("name", "s3://bucket/folder/name/x/y")
    assert is_address("s3://bucket/key") and not is_address("bucket/key")
    with local_copy(tmp_path / "a.parquet") as path:
        assert path == tmp_path / "a.parquet"
    assert _problem_of_paths(["a", "b/c", "b/d.e"]) is None
    for key in ("../a", "b/../../a", "b//a", "/a", "back\\slash", "nul\0", "lone\ud800"):
        assert "is not a plain path" in str(_problem_of_paths(["good", key]))
    assert "'a/b' is itself a file" in str(_problem_of_paths(["a", "a/b"]))


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "bucket/key", "s3://b/a/../c", "s3://b/./c", "s3://b//c"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadConfig, match="is not an address on S3"):
        Address.of(text)


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")  # type: ignore[arg-type, typeddict-item]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, AWS_ENDPOINT_URL="http://h:1", AWS_DEFAULT_REGION="us-east-1")
        s3_client()
        yield
    s3_client.cache_clear()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (refused("NoSuchBucket"), BadConfig, "http://h:1 has no bucket 'b'. Create it, or correct the name."),
        (refused("SignatureDoesNotMatch"), BadConfig, "does not know this key (SignatureDoesNotMatch). Check AWS_ACC"),
        (refused("ExpiredToken"), BadConfig, "the session token has expired (ExpiredToken). Get a new token."),
        (refused("AccessDenied"), BadConfig, "this key has no permission to write here (AccessDenied)."),
        (refused("PermanentRedirect"), BadConfig, "the bucket is in another region"),
        (refused("QuotaExceeded"), StorageFailed, "the S3 storage is full (QuotaExceeded). Free some space there"),
        (refused("BadDigest"), StorageFailed, "the content was damaged during the upload (BadDigest). Try again."),
        (refused("SlowDown"), StorageFailed, "the endpoint http://h:1 failed ("),
        (NoCredentialsError(), BadConfig, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."),
        (FlexibleChecksumError(error_msg="x"), StorageFailed, "the data was damaged in transit ("),
        (RetriesExceededError(ValueError("cut")), StorageFailed, "the endpoint http://h:1 does not answer (cut)."),
        (NoRegionError(), BadConfig, "Check the address and AWS_DEFAULT_REGION."),
        (EndpointConnectionError(endpoint_url="x"), StorageFailed, "the endpoint http://h:1 does not answer ("),
        (OSError(errno.ENOSPC, "full"), StorageFailed, "the local disk is full. Free some space and try again."),
        (OSError(errno.EACCES, "not allowed", "f"), BadFile, "f: cannot be read or written (not allowed)."),
    ],
)
def test_each_trouble_is_a_clear_line(endpoint: None, error: Exception, kind: type[EvenshardError], said: str) -> None:
    with pytest.raises(EvenshardError) as caught, readable_errors(Address("b", "k"), "write"):
        raise error
    assert type(caught.value) is kind and said in str(caught.value)


def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, AWS_ENDPOINT_URL="no address")
    with pytest.raises(BadConfig, match="Check AWS_ENDPOINT_URL"):
        s3_client()


@pytest.mark.slow
def test_a_real_server_gives_these_troubles(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = written(tmp_path / "one", b"1")
    put(store, at, a=b"1")
    for call in (lambda: upload(one, "s3://nowhere/one"), lambda: download("s3://nowhere/one", tmp_path / "x")):
        with pytest.raises(BadConfig, match=r"has no bucket 'nowhere'. Create it"):
            call()
    with pytest.raises(BadFile, match="no such file or folder"):
        download(f"{at}/none", tmp_path / "x")
    with pytest.raises(BadFile, match="No such file or directory"):
        upload(tmp_path / "none", at)
    configure(monkeypatch, **store.settings(store.reader_key, store.reader_secret))
    for size in (1, PART + 1):
        with pytest.raises(BadConfig, match="no permission to write here"):
            upload(written(tmp_path / "more", blob(size)), at)
    assert contents(download(at, tmp_path / "back")) == {"a": b"1"}
    configure(monkeypatch, AWS_SECRET_ACCESS_KEY="no")
    for call in (lambda: upload(one, at), lambda: download(at, tmp_path / "x")):
        with pytest.raises(BadConfig, match=r"does not know this key .* Check AWS_ACCESS_KEY_ID and"):
            call()
    configure(monkeypatch, AWS_ENDPOINT_URL="http://127.0.0.1:1")
    with pytest.raises(StorageFailed, match=r"http://127.0.0.1:1 does not answer"):
        download(at, tmp_path / "x")


# There and back -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_comes_back(store: S3, at: str, tmp_path: Path) -> None:
    hashes = set()
    for size in (0, PART, 2 * PART + 77):
        upload(written(tmp_path / "one", blob(size)), at)
        assert objects(store, at) == [Address.of(at).key]  # a plain object that others read, and no leftovers
        assert download(at, tmp_path / "new" / "two").read_bytes() == blob(size)
        assert os.listdir(tmp_path / "new") == ["two"]
        hashes.add(content_hash(at))
    with pytest.raises(StorageFailed, match="changed during the download"):
        _fetch(Address.of(at), tmp_path / "three", PART)
    assert len(hashes) == 3
    with pytest.raises(BadConfig, match=f"^{at}: torn. Repair it.$"), local_copy(at) as path:
        raise BadFile(path, "torn", "Repair it.")


@pytest.mark.slow
def test_a_folder_is_what_its_listing_names(store: S3, at: str, tmp_path: Path) -> None:
    put(store, at, a=b"1", deep__er__b=b"22", empty=b"", big=blob(PART + 1))
    put(store, at + "-other", c=b"3")
    put(store, at, deep__=b"", __=b"")  # what a console makes of a folder
    wanted = {"a": b"1", "deep/er/b": b"22", "empty": b"", "big": blob(PART + 1)}
    assert contents(download(at, tmp_path / "back")) == wanted
    with local_copy(at) as path:
        assert contents(path) == wanted
    before = content_hash(at)
    put(store, at, a=b"2")
    changed = content_hash(at)
    put(store, at, a=b"1")
    assert content_hash(at) == before != changed
    remove(at)
    assert objects(store, at) == [f"{Address.of(at).key}-other/c"]


@pytest.mark.slow
def test_place_reads_tables_and_model_from_s3(
    store: S3, at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenshard.cli import main

    put(store, at, **{"t.csv": b"name,num_rows,embedding_dim,pooling_factor\na,1000,8,1\nb,2000,8,2\n"})
    put(store, f"{at}/model", **contents(LEARNED))
    flags = ["--devices", "2", "--model", f"{at}/model", "-o", str(tmp_path / "placement.json")]
    assert main(["place", f"{at}/t.csv", *flags]) == 0
    answer = json.loads((tmp_path / "placement.json").read_text())
    assert answer["lineage"]["model"]["source"] == f"{at}/model"
    assert f"{at}/t.csv" in json.dumps(answer["lineage"])
    capsys.readouterr()
    assert main(["place", f"{at}/none.csv", *flags]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
