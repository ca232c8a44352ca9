"""Files and folders go to a real S3 and come back whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evenshard.errors import BadConfig, BadFile, StorageFailed
from evenshard.storage import Address, download, is_address, local, upload
from evenshard.storage.client import s3_client
from evenshard.storage.manifest import MANIFEST, Manifest
from faulty_network import faulty_network
from http_serving import Silent, serving
from servers import S3, missing_seaweedfs, seaweedfs

MIB = 1 << 20
PART = 5 * MIB
"""The least that S3 allows."""


@pytest.fixture(autouse=True)
def _fresh_client() -> Iterator[None]:
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


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 2 * PART + 77])
def test_a_file_comes_back(store: S3, at: str, tmp_path: Path, size: int) -> None:
    (tmp_path / "one").write_bytes(blob(size))
    manifest = upload(tmp_path / "one", at, PART)
    assert [(one.size_bytes, one.sha256) for one in manifest.files] == [(size, sha256(blob(size)))]
    assert objects(store, at) == [Address.of(at).key]  # a plain object that others read, and no leftovers
    found = store.client().get_object(Bucket=store.bucket, Key=Address.of(at).key)
    assert found["Metadata"]["sha256"] == sha256(blob(size))
    assert download(at, tmp_path / "new" / "two").read_bytes() == blob(size)
    assert os.listdir(tmp_path / "new") == ["two"]


def test_a_folder_comes_back(store: S3, at: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", a=b"1", deep__er__b=b"22", same=b"1", empty=b"", big=blob(PART + 1))
    manifest = upload(folder, at, PART)
    assert manifest == Manifest.of(folder)
    assert manifest.size_bytes == PART + 5
    assert len(objects(store, at)) == 5  # four contents and the manifest
    assert contents(download(at, tmp_path / "back")) == contents(folder)
    with local(at) as path:
        assert contents(path) == contents(folder)
    assert not path.exists()


def test_any_file_name_comes_back(store: S3, at: str, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    names = ["a b", "\u00fc", "plus+", "%20", "?", "#", "new\nline", "b", ".b.partial", "L" * 250, "\udcff"]
    for name in names:
        (folder / name).write_bytes(name.encode(errors="replace"))
    upload(folder, at)
    assert contents(download(at, tmp_path / "back")) == contents(folder)


def test_what_would_not_come_back_is_refused(store: S3, at: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", a=b"1", c=b"2")
    (folder / "b").symlink_to(folder / "a")
    upload(folder, at)
    assert contents(download(at, tmp_path / "back")) == {"a": b"1", "b": b"1", "c": b"2"}
    folder_of(tmp_path / "elsewhere", inner=b"1")
    for target in (tmp_path / "elsewhere", tmp_path / "nowhere"):
        (folder / "link").symlink_to(target)
        with pytest.raises(BadFile, match="link: is no file, and no link to one"):
            upload(folder, at)
        (folder / "link").unlink()
    (folder / "back\\slash").write_bytes(b"1")
    with pytest.raises(BadFile, match="no plain path"):
        upload(folder, at)


def test_a_newer_folder_replaces_an_older_one(store: S3, at: str, tmp_path: Path) -> None:
    upload(folder_of(tmp_path / "old", a=b"old", gone=b"old"), at)
    download(at, tmp_path / "here")
    upload(folder_of(tmp_path / "new", a=b"new"), at)
    assert contents(download(at, tmp_path / "here")) == {"a": b"new"}


def test_what_is_there_is_not_sent_again(store: S3, at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(tmp_path / "model", a=b"1", b=b"2")
    with caplog.at_level("INFO"):
        upload(folder, at)
        folder_of(folder, b=b"3")
        upload(folder, at)
    assert [record.getMessage().split(": ")[1] for record in caplog.records if "to upload" in record.message] == [
        "2 of 2 files to upload",
        "1 of 2 files to upload",
    ]


def test_a_file_of_others_without_a_checksum_comes_with_a_warning(
    store: S3, at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.client().put_object(Bucket=store.bucket, Key=Address.of(at).key, Body=b"tables", ChecksumAlgorithm="CRC32")
    assert download(at, tmp_path / "t").read_bytes() == b"tables"
    assert "no SHA-256" in caplog.text


def test_local_leaves_paths_alone(tmp_path: Path) -> None:
    with local(tmp_path / "a.parquet") as path:
        assert path == tmp_path / "a.parquet"
    assert not is_address("bucket/key") and is_address("s3://bucket/key")


# Nothing half-visible -----------------------------------------------------------------------------------------------


def test_a_folder_without_its_manifest_is_not_there(store: S3, at: str, tmp_path: Path) -> None:
    upload(folder_of(tmp_path / "model", a=b"1", b=b"2"), at)
    store.client().delete_object(Bucket=store.bucket, Key=f"{Address.of(at).key}/{MANIFEST}")
    assert len(objects(store, at)) == 2
    with pytest.raises(BadFile, match="no folder that was uploaded to its end"):
        download(at, tmp_path / "back")
    assert not (tmp_path / "back").exists()


UPLOAD = "import sys; from pathlib import Path; from evenshard.storage import upload; "
UPLOAD += f"upload(Path(sys.argv[1]), sys.argv[2], {PART})"


def killed_upload(store: S3, source: Path, at: str, num_parts: int) -> None:
    """Uploads in another process and kills it after some parts."""
    process = subprocess.Popen([sys.executable, "-c", UPLOAD, str(source), at])
    key, client = Address.of(at).key, store.client()
    try:
        for _ in range(2000):
            begun = client.list_multipart_uploads(Bucket=store.bucket, Prefix=key).get("Uploads", [])
            for one in begun:
                parts = client.list_parts(Bucket=store.bucket, Key=one["Key"], UploadId=one["UploadId"])
                if len(parts.get("Parts", [])) >= num_parts:
                    return
            assert process.poll() is None, "it was too fast to be killed"
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_upload_is_not_seen_and_goes_on(
    store: S3, at: str, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = blob(8 * PART)
    source = folder_of(tmp_path / "data", big=content) / ("big" if kind == "file" else "")
    killed_upload(store, source, at, 1)
    with pytest.raises(BadFile):
        download(at, tmp_path / "back")
    with caplog.at_level("INFO"):
        upload(source, at, PART)
    assert "parts are there already" in caplog.text
    back = download(at, tmp_path / "back")
    assert (back if kind == "file" else back / "big").read_bytes() == content
    assert not store.client().list_multipart_uploads(Bucket=store.bucket, Prefix=Address.of(at).key).get("Uploads")


def test_an_older_file_stays_while_a_newer_one_is_half_there(store: S3, at: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    upload(tmp_path / "file", at)
    (tmp_path / "file").write_bytes(blob(8 * PART, b"other"))
    killed_upload(store, tmp_path / "file", at, 1)
    assert download(at, tmp_path / "back").read_bytes() == b"old"


def test_two_uploads_at_once_leave_one_of_them_whole(store: S3, at: str, tmp_path: Path) -> None:
    shared = blob(3 * PART)
    folders = [folder_of(tmp_path / name, big=shared, own=name.encode() * 9) for name in ("left", "right")]
    running = [subprocess.Popen([sys.executable, "-c", UPLOAD, str(folder), at]) for folder in folders]
    assert [process.wait(60) for process in running] == [0, 0]
    assert contents(download(at, tmp_path / "back")) in [contents(folder) for folder in folders]


def test_who_comes_second_with_the_same_content_is_done_too(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenshard.storage import sending

    move = sending._move
    monkeypatch.setattr(sending, "_move", lambda *args: (move(*args), move(*args)))
    (tmp_path / "file").write_bytes(blob(2 * PART))
    upload(tmp_path / "file", at, PART)
    assert download(at, tmp_path / "back").read_bytes() == blob(2 * PART)
    assert objects(store, at) == [Address.of(at).key]


def test_an_upload_goes_on_in_parts_of_another_size(store: S3, at: str, tmp_path: Path) -> None:
    """The second part is as long in both ways, but not the same bytes."""
    from evenshard.storage.manifest import stored
    from evenshard.storage.sending import _Sending

    (tmp_path / "file").write_bytes(blob(3 * PART))
    file = stored(tmp_path / "file", "file")
    requests = _Sending(tmp_path / "file", Address.of(f"{at}.files/{file.sha256}"), file, PART).requests()
    next(requests), next(requests)
    upload(tmp_path / "file", at, 2 * PART)
    assert download(at, tmp_path / "back").read_bytes() == blob(3 * PART)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_two_downloads_at_once_to_one_place_do_not_mix(
    store: S3, at: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenshard.storage import receiving

    rest = receiving._rest

    def slow_rest(*args: object) -> Iterator[int]:
        for num_bytes in rest(*args):  # type: ignore[arg-type]
            time.sleep(0.1)
            yield num_bytes

    monkeypatch.setattr(receiving, "_rest", slow_rest)
    source = folder_of(tmp_path / "data", big=blob(4 * MIB)) / ("big" if kind == "file" else "")
    upload(source, at)
    back = tmp_path / "new" / "back"
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: download(at, back), range(2))) == [back, back]
    assert (back if kind == "file" else back / "big").read_bytes() == blob(4 * MIB)
    assert os.listdir(tmp_path / "new") == ["back"]


# A bad network ------------------------------------------------------------------------------------------------------


def test_a_download_goes_on_where_the_connection_was_cut(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = blob(8 * MIB)
    (tmp_path / "one").write_bytes(content)
    upload(tmp_path / "one", at)
    monkeypatch.setattr("evenshard.storage.receiving.PAUSES_S", (0, 0, 0))
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        faults.cuts = [3 * MIB, 3 * MIB]
        assert download(at, tmp_path / "two").read_bytes() == content
        assert not faults.cuts
        # never begun again; what stood in a buffer of less than a chunk is fetched again
        assert faults.bytes_down < 11 * MIB


def test_a_download_that_failed_goes_on_the_next_time(
    store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "data", a=blob(2 * MIB, b"a"), b=blob(8 * MIB, b"b"))
    upload(folder, at)
    folder_of(tmp_path / "back", a=b"older")
    monkeypatch.setattr("evenshard.storage.receiving.PAUSES_S", (0, 0, 0))
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        download(at, tmp_path / "whole")
        needed, faults.bytes_down = faults.bytes_down, 0
        faults.cuts = [3 * MIB + MIB // 2] * 2 + [100] * 40
        with pytest.raises(StorageFailed, match=r"does not answer .* goes on from there"):
            download(at, tmp_path / "back")
        assert contents(tmp_path / "back") == {"a": b"older"}
        faults.cuts, faults.bytes_down = [], 0
        download(at, tmp_path / "back")
        assert contents(tmp_path / "back") == contents(folder)
        assert faults.bytes_down < needed - 3 * MIB
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "data", "whole"]


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
            with pytest.raises(StorageFailed, match="not what was sent"):
                upload(tmp_path / name, at, PART)
    assert Address.of(at).key not in objects(store, at)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_damage_on_the_way_back_is_seen(
    store: S3, at: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "data", one=b"ABCD" * 1000) / ("one" if kind == "file" else "")
    upload(source, at)
    with faulty_network(store.endpoint) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        s3_client.cache_clear()
        faults.flip = (b"ABCD", b"ABxD")
        with pytest.raises(StorageFailed, match=r"one|back.*damaged"):
            download(at, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    s3_client.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    download(at, tmp_path / "back")


def test_a_server_that_is_killed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing_seaweedfs():
        pytest.skip(reason)
    folder = folder_of(tmp_path / "data", a=b"1", big=blob(8 * PART))
    with seaweedfs() as server:
        for name, value in server.settings().items():
            monkeypatch.setenv(name, value)
        at = f"s3://{server.bucket}/data"
        process = subprocess.Popen([sys.executable, "-c", UPLOAD, str(folder), at], stderr=subprocess.PIPE, text=True)
        while not server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads"):
            assert process.poll() is None
        time.sleep(0.1)
        server.kill()
        _, said = process.communicate(timeout=60)
        assert "StorageFailed" in said.splitlines()[-1]
        assert "What has arrived is kept" in said.splitlines()[-1]
        server.start()
        with pytest.raises(BadFile):
            download(at, tmp_path / "back")
        upload(folder, at, PART)
        assert contents(download(at, tmp_path / "back")) == contents(folder)


# One clear line for each trouble ------------------------------------------------------------------------------------


def test_a_wrong_key(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"1")
    for name, value in (("AWS_SECRET_ACCESS_KEY", "no"), ("AWS_ACCESS_KEY_ID", "nobody")):
        monkeypatch.setenv(name, value)
        s3_client.cache_clear()
        for call in (lambda: upload(tmp_path / "one", at), lambda: download(at, tmp_path / "two")):
            with pytest.raises(BadConfig, match=r"does not know this key .* Check AWS_ACCESS_KEY_ID and"):
                call()


def test_no_key(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(BadConfig, match=r"Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        download(at, tmp_path / "two")


def test_no_bucket(store: S3, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    at = "s3://nowhere/one"
    for call in (
        lambda: upload(tmp_path, at),
        lambda: upload(tmp_path / "one", at),
        lambda: download(at, tmp_path / "x"),
    ):
        with pytest.raises(BadConfig, match=r"has no bucket 'nowhere'. Create it"):
            call()


def test_a_bucket_that_may_only_be_read(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(folder_of(tmp_path / "data", a=b"1"), at)
    for name, value in store.settings(store.reader_key, store.reader_secret).items():
        monkeypatch.setenv(name, value)
    s3_client.cache_clear()
    folder_of(tmp_path / "data", a=b"2", big=blob(PART + 1))
    for part_bytes in (PART, 2 * PART):
        with pytest.raises(BadConfig, match="may not write here"):
            upload(tmp_path / "data", at, part_bytes)
    assert contents(download(at, tmp_path / "back")) == {"a": b"1"}


def test_an_endpoint_that_is_down(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(StorageFailed, match=r"http://127.0.0.1:1 does not answer"):
        download(at, tmp_path / "two")
    assert time.monotonic() - began < 30


def test_an_endpoint_that_is_no_address(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    with pytest.raises(BadConfig, match="Check AWS_ENDPOINT_URL"):
        download(at, tmp_path / "two")


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
        with pytest.raises(BadConfig, match=r"session token has expired .* Get a new one"):
            download(at, tmp_path / "two")


def test_a_full_disk(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "data", a=b"1")
    manifest = upload(folder, at)
    draft = tmp_path / f".back.{manifest.digest[:12]}.download"
    draft.mkdir()
    partial = draft / f".{sha256(b'1')}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(StorageFailed, match=r"the disk here is full. Make room. .* goes on"):
        download(at, tmp_path / "back")
    partial.unlink()
    assert contents(download(at, tmp_path / "back")) == {"a": b"1"}


def test_too_little_room_is_known_before(store: S3, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evenshard.storage import receiving

    upload(folder_of(tmp_path / "data", a=b"1"), at)
    monkeypatch.setattr(receiving.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    with pytest.raises(StorageFailed, match="Make room"):
        download(at, tmp_path / "back")


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "a//b", "./a", "a\\b", ".", "a\0b"])
def test_a_manifest_leads_nowhere_else(store: S3, tmp_path: Path, path: str) -> None:
    at = f"s3://{store.bucket}/elsewhere"
    upload(folder_of(tmp_path / "data", a=b"1"), at)
    key = f"{Address.of(at).key}/{MANIFEST}"
    manifest = json.loads(Manifest.of(tmp_path / "data").to_json())
    manifest["files"][0]["path"] = path
    store.client().put_object(Bucket=store.bucket, Key=key, Body=json.dumps(manifest).encode())
    with pytest.raises(BadFile, match="no plain path"):
        download(at, tmp_path / "deep" / "back")
    assert contents(tmp_path) == {"data/a": b"1"}


def test_a_manifest_names_no_file_as_a_folder(store: S3, at: str, tmp_path: Path) -> None:
    upload(folder_of(tmp_path / "data", a=b"1"), at)
    manifest = json.loads(Manifest.of(tmp_path / "data").to_json())
    manifest["files"].append({**manifest["files"][0], "path": "a/b"})
    key = f"{Address.of(at).key}/{MANIFEST}"
    store.client().put_object(Bucket=store.bucket, Key=key, Body=json.dumps(manifest).encode())
    with pytest.raises(BadFile, match="'a' is a file and a folder"):
        download(at, tmp_path / "back")


def test_a_damaged_object_is_named_and_can_be_replaced(store: S3, at: str, tmp_path: Path) -> None:
    [file] = upload(folder_of(tmp_path / "data", a=b"1"), at).files
    where = {"Bucket": store.bucket, "Key": f"{Address.of(at).key}/{file.blob}"}
    store.client().put_object(**where, Body=b"2")
    with pytest.raises(StorageFailed, match=rf"{file.blob}: a is damaged.* delete this object and upload a again"):
        download(at, tmp_path / "back")
    store.client().delete_object(**where)
    upload(tmp_path / "data", at)
    assert contents(download(at, tmp_path / "back")) == {"a": b"1"}


def test_a_file_that_changes_while_it_is_uploaded(store: S3, at: str, tmp_path: Path) -> None:
    from evenshard.storage.manifest import stored
    from evenshard.storage.sending import _Sending

    (tmp_path / "one").write_bytes(blob(2 * PART))
    file = stored(tmp_path / "one", "one")
    requests = _Sending(tmp_path / "one", Address.of(at), file, PART).requests()
    next(requests)
    (tmp_path / "one").write_bytes(blob(2 * PART, b"other"))
    with pytest.raises(BadFile, match="changed while it was uploaded"):
        list(requests)
    assert not objects(store, at)


@pytest.mark.parametrize(
    "text", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "bucket/key", "s3://b/a/../c", "s3://b//c"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadConfig, match="is no address on S3"):
        Address.of(text)


def test_nothing_to_upload(store: S3, at: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        upload(tmp_path / "none", at)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="no folder with files in it"):
        upload(tmp_path / "empty", at)


def test_place_reads_tables_and_model_from_s3(
    store: S3, at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenshard import models
    from evenshard.cli import main

    (tmp_path / "t.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,8,1\nb,2000,8,2\n")
    upload(tmp_path / "t.csv", f"{at}/t.csv")
    upload(Path(models.__file__).parent / "bundled" / "h200", f"{at}/model")
    flags = ["--devices", "2", "--model", f"{at}/model", "-o", str(tmp_path / "placement.json")]
    assert main(["place", f"{at}/t.csv", *flags]) == 0
    answer = json.loads((tmp_path / "placement.json").read_text())
    assert answer["lineage"]["model"]["source"] == f"{at}/model"
    assert f"{at}/t.csv" in json.dumps(answer["lineage"])
    capsys.readouterr()
    assert main(["place", f"{at}/none.csv", *flags]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
