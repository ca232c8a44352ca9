"""Traces that are larger than anybody recorded."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from evenshard.base.errors import BadFile
from evenshard.measure.traces.kineto import read_traces

KB = 2**10
SPACES = b" " * (20 * KB)


def archive(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as written:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        written.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr("evenshard.measure.traces.kineto.MAX_TRACE_BYTES", KB)
    for name, content in (("a.json", SPACES), ("b.json.gz", gzip.compress(SPACES))):
        path = tmp_path / (f"{name}.tar" if packed else name)
        path.write_bytes(archive(name, content) if packed else content)
        with pytest.raises(BadFile, match="the trace is larger than 0 GB"):
            list(read_traces(path))
