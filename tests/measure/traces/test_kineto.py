"""Traces that are larger than anybody recorded."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from evenshard.base.errors import BadFile
from evenshard.measure.traces.kineto import read_traces

MB = 2**20
SPACES = bytes([32]) * (20 * MB)


def archive(members: dict[str, bytes], mode: str = "w:") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as written:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            written.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr("evenshard.measure.traces.kineto.MAX_TRACE_BYTES", MB)
    for name, content in (("a.json", SPACES), ("b.json.gz", gzip.compress(SPACES))):
        path = tmp_path / (f"{name}.tar" if packed else name)
        path.write_bytes(archive({name: content}) if packed else content)
        with pytest.raises(BadFile, match="the trace is larger than 0 GB"):
            list(read_traces(path))
