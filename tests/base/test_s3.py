"""Files and folders go to a real S3 and come back whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

from evenshard.base.errors import BadConfig, BadFile, StorageFailed
from evenshard.base.s3 import (
    Address,
    _fetch,
    content_hash,
    download,
    is_address,
    local_copy,
    readable_errors,
    remove,
    s3_client,
    upload,
)
from support.faulty_network import faulty_network
from support.http_server import Silent, serving
from support.learned import LEARNED
from support.servers import S3

MIB = 1 << 20
# The least that S3 allows.
PART = 5 * MIB


@pytest.fixture(autouse=True)
def _fresh_client_with_small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("evenshard.base.s3.PART_BYTES", PART)
    s3_client.cache_clear()
    yield
    s3_client.cache_clear()


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3.settings().items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture
def at(s3: S3, request: pytest.FixtureRequest) -> str:
    """An address of this test's own."""
    return f"s3://{s3.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"


def folder_of(path: Path, **contents: bytes) -> Path:
    """A folder with files; "__" in a name stands for a folder in it."""
    for name, content in contents.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob(size: int, seed: bytes = b"") -> bytes:
    return hashlib.shake_128(seed).digest(size)


def objects(s3: S3, at: str) -> list[str]:
    return s3.keys(Address.of(at).key)


# There and back -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 2 * PART + 77])
def test_a_file_comes_back(store: S3, at: str, tmp_path: Path, size: int) -> None:
    (tmp_path / "one").write_bytes(blob(size))
    upload(tmp_path / "one", at)
    assert objects(store, at) == [Address.of(at).key]  # a plain object that others read, and no leftovers
    assert download(at, tmp_path / "new" / "two").read_bytes() == blob(size)
    assert os.listdir(tmp_path / "new") == ["two"]


@pytest.mark.slow
def test_what_identifies_the_content_changes_with_it(store: S3, at: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    upload(tmp_path / "one", at)
    first = content_hash(at)
    (tmp_path / "one").write_bytes(b"2")
    upload(tmp_path / "one", at)
    assert first.startswith("etag:") and content_hash(at) != first
    with pytest.raises(BadFile, match="no such file"):
        content_hash(f"{at}.none")


@pytest.mark.slow
def test_an_error_about_a_file_from_there_names_its_address(store: S3, at: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    upload(tmp_path / "one", at)
    with pytest.raises(BadConfig, match=f"^{at}: torn. Repair it.$"), local_copy(at) as path:
        raise BadFile(path, "torn", "Repair it.")


def test_local_leaves_paths_alone(tmp_path: Path) -> None:
    with local_copy(tmp_path / "a.parquet") as path:
        assert path == tmp_path / "a.parquet"
    assert not is_address("bucket/key") and is_address("s3://bucket/key")


# Nothing half-visible -----------------------------------------------------------------------------------------------


UPLOAD = f"""
import sys
from pathlib import Path
from evenshard.base import s3
s3.PART_BYTES = {PART}
s3.upload(Path(sys.argv[1]), sys.argv[2])
"""


def in_parts(store: S3, source: Path, at: str) -> subprocess.Popen[str]:
    """Uploads in another process, and comes back when that is under way, in parts."""
    client, key = store.client(), Address.of(at).key  # made before: that takes as long as a fast upload
    process = subprocess.Popen([sys.executable, "-c", UPLOAD, str(source), at], stderr=subprocess.PIPE, text=True)
    while not client.list_multipart_uploads(Bucket=store.bucket, Prefix=key).get("Uploads"):
        assert process.poll() is None, "it was too fast"
    return process


@pytest.mark.slow
def test_a_killed_upload_is_not_seen(store: S3, at: str, tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"old")
    upload(source, at)
    source.write_bytes(blob(8 * PART))
    with in_parts(store, source, at) as process:
        process.kill()
    assert download(at, tmp_path / "back").read_bytes() == b"old"
    upload(source, at)
    assert download(at, tmp_path / "back").read_bytes() == blob(8 * PART)


# Folders of others --------------------------------------------------------------------------------------------------


def put(s3: S3, at: str, **contents: bytes) -> None:
    """Puts objects there one by one, as ``aws s3 cp --recursive`` or a job does; "__" in a name stands for a slash."""
    for name, content in contents.items():
        key = f"{Address.of(at).key}/{name.replace('__', '/')}"
        s3.client().put_object(Bucket=s3.bucket, Key=key, Body=content)


@pytest.mark.slow
def test_a_folder_is_what_its_listing_names(store: S3, at: str, tmp_path: Path) -> None:
    put(store, at, a=b"1", deep__er__b=b"22", empty=b"", big=blob(PART + 1))
    put(store, at + "-other", c=b"3")
    put(store, at, deep__=b"", __=b"")  # what a console makes of a folder
    wanted = {"a": b"1", "deep/er/b": b"22", "empty": b"", "big": blob(PART + 1)}
    assert contents(download(at, tmp_path / "back")) == wanted
    with local_copy(at) as path:
        assert contents(path) == wanted


@pytest.mark.slow
def test_a_folder_is_removed_and_nothing_beside_it(store: S3, at: str, tmp_path: Path) -> None:
    put(store, at, a=b"1", deep__b=b"2")
    put(store, f"{at}-other", c=b"3")
    remove(at)
    assert objects(store, at) == [f"{Address.of(at).key}-other/c"]
    remove(at)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["../a", "b/../../a", "b//a", "/a", "back\\slash"])
def test_a_listing_leads_nowhere_else(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """SeaweedFS takes most of these keys for others: this server answers as Amazon's does."""

    class Listing(Silent):
        def do_GET(self) -> None:
            found = f"<ListBucketResult><Contents><Key>job/traces/{path}</Key><Size>1</Size></Contents>"
            missing = "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            lists = "list-type" in self.path
            body = (f"{found}</ListBucketResult>" if lists else missing).encode()
            self.send_response(200 if lists else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Listing) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(BadFile, match="is not a plain path"):
            download("s3://bucket/job/traces", tmp_path / "back")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_identifies_a_folder_of_others_changes_with_it(store: S3, at: str) -> None:
    found = []
    for content in (b"1", b"2", b"1"):
        put(store, at, a=content, b=b"same")
        found.append(content_hash(at))
    assert found[0] == found[2] != found[1] and found[0].startswith("etags:")


# A bad network ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_connection_that_is_cut_is_made_again(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_bytes(blob(PART - 1))
    upload(tmp_path / "one", at)
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        faults.cuts = [MIB, MIB]
        assert download(at, tmp_path / "two").read_bytes() == blob(PART - 1)
        assert not faults.cuts
        faults.cuts = [100_000] * 99
        with pytest.raises(StorageFailed, match=r"does not answer .* Try again"):
            download(at, tmp_path / "two")
        assert (tmp_path / "two").read_bytes() == blob(PART - 1)
        assert sorted(os.listdir(tmp_path)) == ["one", "two"]


@pytest.mark.slow
def test_damage_on_the_way_there_is_refused_by_the_server(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_bytes(b"ABCD" * 1000)
    (tmp_path / "big").write_bytes(b"ABCD" * (PART // 3))
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        faults.flip = (b"ABCD", b"ABxD")
        for name in ("one", "big"):
            with pytest.raises(StorageFailed, match="damaged during the upload"):
                upload(tmp_path / name, at)
    assert Address.of(at).key not in objects(store, at)


@pytest.mark.slow
def test_damage_on_the_way_back_is_seen(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"ABCD" * 1000)
    upload(tmp_path / "one", at)
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        faults.flip = (b"ABCD", b"ABxD")
        with pytest.raises(StorageFailed, match="damaged"):
            download(at, tmp_path / "back")
    assert not (tmp_path / "back").exists()


# One clear line for each trouble ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wrong_key(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"1")
    for name, value in (("AWS_SECRET_ACCESS_KEY", "no"), ("AWS_ACCESS_KEY_ID", "nobody")):
        monkeypatch.setenv(name, value)
        s3_client.cache_clear()
        for call in (lambda: upload(tmp_path / "one", at), lambda: download(at, tmp_path / "two")):
            with pytest.raises(BadConfig, match=r"does not know this key .* Check AWS_ACCESS_KEY_ID and"):
                call()


@pytest.mark.slow
def test_no_key(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(BadConfig, match=r"Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        download(at, tmp_path / "two")


@pytest.mark.slow
def test_no_bucket(store: S3, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    at = "s3://nowhere/one"
    for call in (
        lambda: upload(tmp_path / "one", at),
        lambda: download(at, tmp_path / "x"),
    ):
        with pytest.raises(BadConfig, match=r"has no bucket 'nowhere'. Create it"):
            call()


@pytest.mark.slow
def test_a_bucket_that_may_only_be_read(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, at, a=b"1")
    for name, value in store.settings(store.reader_key, store.reader_secret).items():
        monkeypatch.setenv(name, value)
    s3_client.cache_clear()
    folder_of(tmp_path / "data", a=b"2", big=blob(PART + 1))
    for source in (tmp_path / "data/a", tmp_path / "data/big"):
        with pytest.raises(BadConfig, match="no permission to write here"):
            upload(source, at)
    assert contents(download(at, tmp_path / "back")) == {"a": b"1"}


@pytest.mark.slow
def test_an_endpoint_that_is_down(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageFailed, match=r"http://127.0.0.1:1 does not answer"):
        download(at, tmp_path / "two")


@pytest.mark.slow
def test_an_endpoint_that_is_not_amazons_finds_the_bucket_in_the_path(
    store: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3.example.com:8333")
    url = s3_client().generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    assert url.startswith("http://s3.example.com:8333/b/k?")


@pytest.mark.slow
def test_an_endpoint_that_is_no_address(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    with pytest.raises(BadConfig, match="Check AWS_ENDPOINT_URL"):
        download(at, tmp_path / "two")


@pytest.mark.slow
def test_an_expired_token(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS knows no such tokens: this server answers as Amazon's does."""

    class Expired(Silent):
        def do_GET(self) -> None:
            body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Expired) as url:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.setenv(name, "some")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(BadConfig, match=r"session token has expired .* Get a new token"):
            download(at, tmp_path / "two")


@pytest.mark.slow
def test_a_full_disk(store: S3, at: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    upload(tmp_path / "one", at)
    address = Address.of(at)
    with pytest.raises(StorageFailed, match="the local disk is full"), readable_errors(address, "read"):
        _fetch(address, Path("/dev/full"), 1)


@pytest.mark.slow
def test_no_password_of_the_endpoint_is_shown(store: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://alice:hunter2@127.0.0.1:1")
    words = [sys.executable, "-m", "evenshard", "place", "s3://b/k.parquet", "--devices", "2"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    warned, *_, failed = done.stderr.splitlines()  # between them a slow machine says that it searches
    assert "user and password in AWS_ENDPOINT_URL are ignored" in warned
    assert "http://***@127.0.0.1:1 does not answer" in failed
    assert done.returncode == 1 and "hunter2" not in done.stderr and "alice" not in done.stderr


@pytest.mark.parametrize(
    "text", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "bucket/key", "s3://b/a/../c", "s3://b//c"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadConfig, match="is not an address on S3"):
        Address.of(text)


@pytest.mark.slow
def test_nothing_to_upload(store: S3, at: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file or directory"):
        upload(tmp_path / "none", at)


@pytest.mark.slow
def test_place_reads_tables_and_model_from_s3(
    store: S3, at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenshard.cli import main

    (tmp_path / "t.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,8,1\nb,2000,8,2\n")
    upload(tmp_path / "t.csv", f"{at}/t.csv")
    put(store, f"{at}/model", **contents(LEARNED))
    flags = ["--devices", "2", "--model", f"{at}/model", "-o", str(tmp_path / "placement.json")]
    assert main(["place", f"{at}/t.csv", *flags]) == 0
    answer = json.loads((tmp_path / "placement.json").read_text())
    assert answer["lineage"]["model"]["source"] == f"{at}/model"
    assert f"{at}/t.csv" in json.dumps(answer["lineage"])
    capsys.readouterr()
    assert main(["place", f"{at}/none.csv", *flags]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


class _Sts(Silent):
    """Gives keys for a role and a token, as STS does, and serves a file to whoever signs with them."""

    asked: ClassVar[list[dict[str, list[str]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(parse_qs(body))
        ns = "https://sts.amazonaws.com/doc/2011-06-15/"
        self._answer(
            f'<AssumeRoleWithWebIdentityResponse xmlns="{ns}"><AssumeRoleWithWebIdentityResult><Credentials>'
            "<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session"
            "</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
            "<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId>"
            "</AssumedRoleUser></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.end_headers()
        self.wfile.write(text.encode())


def test_without_a_key_the_role_of_the_pod_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What EKS sets in a pod with IRSA, and nothing else: boto3's own chain trades the token for keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("of the pod")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/evenshard-runner")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with serving(_Sts) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        s3_client.cache_clear()
        signed = s3_client().generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    s3_client.cache_clear()
    (asked,) = _Sts.asked
    assert asked["WebIdentityToken"] == ["of the pod"] and asked["RoleArn"][0].endswith("/evenshard-runner")
    assert "ASIAROLE" in signed and "session" in signed
