"""A push that S3 refuses, or dies under: what was whole before stays whole."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import servers
from support.dying_server import MIDDLE, dying
from support.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def remote(s3: servers.S3) -> str:
    return f"s3://{s3.bucket}/dvc-{secrets.token_hex(4)}"


@pytest.fixture
def repository(tmp_path: Path, remote: str) -> Path:
    """A folder with data/ under DVC, nothing pushed yet."""
    place = tmp_path / "here"
    dataset = place / "data" / "hardware=h200" / "collection=reference"
    dataset.mkdir(parents=True)
    for number in range(3):
        (dataset / f"costs_{number}.parquet").write_bytes(os.urandom(1000 + number))
    (dataset / "costs_big.parquet").write_bytes(os.urandom(12 << 20))
    dvc(place, {}, "init", "--no-scm", "-q")
    dvc(place, {}, "add", "data", "-q")
    dvc(place, {}, "remote", "add", "-q", "-d", "s3", remote)
    return place


def start(place: Path, settings: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"DVC_NO_ANALYTICS": "1", "DVC_GLOBAL_CONFIG_DIR": str(place), **settings}
    command = [sys.executable, "-m", "dvc", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=place, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def dvc(place: Path, settings: Mapping[str, str], *arguments: str, fails: bool = False) -> str:
    """Runs it; what it said."""
    process = start(place, settings, *arguments)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode != 0) == fails, said
    return said


def contents(place: Path) -> dict[str, str]:
    files = (path for path in (place / "data").rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def whole_objects(s3: servers.S3, remote: str) -> set[str]:
    """Objects of a remote, by the md5 that is their name; each must have it."""
    found = set()
    for key in s3.keys(remote.removeprefix(f"s3://{s3.bucket}/")):
        content = s3.client().get_object(Bucket=s3.bucket, Key=key)["Body"].read()
        named = "".join(key.split("/")[-2:]).removesuffix(".dir")
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == named, f"{key} is half there"
        found.add("".join(key.split("/")[-2:]))
    return found


def fresh_clone(repository: Path, name: str) -> Path:
    """What git would bring to another machine: no cache, no data."""
    place = repository.parent / name
    shutil.copytree(repository, place, ignore=shutil.ignore_patterns("data", "cache", "tmp"))
    return place


def test_a_push_that_the_server_dies_under_can_be_repeated(s3: servers.S3, remote: str, repository: Path) -> None:
    before, [path] = contents(repository), (repository / "data").rglob("costs_big.parquet")
    big = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    try:
        with dying(s3.endpoint) as proxy:
            proxy.counts = lambda method, path: method == "PUT" and path.endswith(big[2:])
            proxy.lost, proxy.stop_at, proxy.kill = MIDDLE, 1, s3.kill
            pushing = start(repository, {**s3.settings(), "AWS_ENDPOINT_URL": proxy.url}, "push")
            wait_until(lambda: not s3.running, "the server did not die")
            assert pushing.poll() is None  # DVC tries for minutes; a user stops it
            pushing.kill()
            pushing.communicate()
    finally:
        s3.kill()
        s3.start()
    half = whole_objects(s3, remote)
    assert not any(name.endswith(".dir") for name in half)  # the list of files comes last: the dataset is not there
    dvc(fresh_clone(repository, "too_early"), s3.settings(), "pull", fails=True)
    assert contents(repository) == before
    dvc(repository, s3.settings(), "push")
    assert half < whole_objects(s3, remote)
    clone = fresh_clone(repository, "clone")
    dvc(clone, s3.settings(), "pull")
    assert contents(clone) == before


@pytest.mark.parametrize("wrong", ["secret", "reader"])
def test_who_may_not_write_leaves_everything_as_it_was(
    s3: servers.S3, remote: str, repository: Path, wrong: str
) -> None:
    before = contents(repository)
    settings = s3.settings(s3.key, "wrong") if wrong == "secret" else s3.settings(s3.reader_key, s3.reader_secret)
    said = dvc(repository, settings, "push", fails=True)
    assert any(word in said.lower() for word in ("forbidden", "denied", "signature")), said
    assert not s3.keys(remote.removeprefix(f"s3://{s3.bucket}/"))
    assert contents(repository) == before


def test_two_that_push_at_once_leave_both_datasets_whole(s3: servers.S3, remote: str, repository: Path) -> None:
    other = repository.parent / "other"
    shutil.copytree(repository, other)
    (other / "data" / "more.parquet").write_bytes(os.urandom(500))
    dvc(other, {}, "add", "data", "-q")
    pushing = [start(place, s3.settings(), "push") for place in (repository, other)]
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in pushing]
    assert [process.returncode for process in pushing] == [0, 0], said
    names = whole_objects(s3, remote)
    assert len(names) == 4 + 1 + 2  # their files, one of them the other's alone, and a list for each
