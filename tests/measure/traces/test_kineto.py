"""Traces that unpack to more than anybody recorded: refused before they fill the memory."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from evenshard.measure.traces.kineto import read_traces
from evenshard.utils.errors import BadFile
from support.trace_builders import TraceBuilder

MB = 2**20
SPACES = bytes([32]) * (20 * MB)


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenshard.utils.packed_files.ALWAYS_UNPACKED_BYTES", 2 * MB)


def archive(members: dict[str, bytes], mode: str = "w:") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as written:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            written.addfile(info, io.BytesIO(content))
    return out.getvalue()


def trace(tmp_path: Path) -> bytes:
    return TraceBuilder().save(tmp_path / "good.json").read_bytes()


BOMBS = {
    "of one trace": lambda: gzip.compress(SPACES),
    "in an archive": lambda: archive({"a.json.gz": gzip.compress(SPACES)}),
    "that is an archive": lambda: archive({"a.json": SPACES}, "w:gz"),
    "in what is passed over": lambda: archive({"a.bin": SPACES, "a.json": b"{}"}, "w:gz"),
    "of many together": lambda: archive({f"{at}.json.gz": gzip.compress(SPACES[:MB]) for at in range(3)}),
    "in the name of a member": lambda: archive({"x" * (20 * MB) + ".json": b"{}"}, "w:gz"),
    "twice": lambda: archive({"a.json.gz": gzip.compress(gzip.compress(SPACES))}, "w:gz"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_refused_without_being_unpacked(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(BOMBS[what]())
    tracemalloc.start()
    try:
        with pytest.raises(BadFile) as error:
            for _ in read_traces(path):
                pass
        assert tracemalloc.get_traced_memory()[1] < 10 * MB
    finally:
        tracemalloc.stop()
    if what not in ("of many together", "twice"):  # the first of many is no trace; the inner one is not unpacked
        assert f" MB, from {path.stat().st_size:,} bytes. Unpack it yourself" in str(error.value)


def test_the_members_of_an_archive_share_the_limit(tmp_path: Path) -> None:
    path, good = tmp_path / "ranks.tar", trace(tmp_path)
    packed = gzip.compress(good + b" " * MB)
    path.write_bytes(archive({"a.json.gz": packed, "b.json": good, "c.json.gz": packed, "d.json.gz": packed}))
    found = read_traces(path)
    assert [next(found).source for _ in range(2)] == [f"{path}:a.json.gz", f"{path}:b.json"]
    with pytest.raises(BadFile, match="unpacks to more than 2 MB"):
        list(found)


def test_what_is_not_packed_has_no_such_limit(tmp_path: Path) -> None:
    good = trace(tmp_path)
    (tmp_path / "long.json").write_bytes(good + b" " * 4 * MB)
    (tmp_path / "long.tar").write_bytes(archive({"a.json": good + b" " * 4 * MB}))
    (tmp_path / "folder.tar.gz").write_bytes(
        archive({"ranks/0.json": good, "ranks/1.json.gz": gzip.compress(good)}, "w:gz")
    )
    assert [len(list(read_traces(tmp_path / name))) for name in ("long.json", "long.tar", "folder.tar.gz")] == [1, 1, 2]


def test_the_holes_of_a_sparse_member_are_not_filled(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.json")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0",
                        "GNU.sparse.size": str(2**40), "GNU.sparse.name": "a.json"}  # fmt: skip
    with tarfile.open(tmp_path / "sparse.tar", "w", format=tarfile.PAX_FORMAT) as written:
        written.addfile(info)
    with pytest.raises(BadFile, match=r"holds no \.json"):
        list(read_traces(tmp_path / "sparse.tar"))
