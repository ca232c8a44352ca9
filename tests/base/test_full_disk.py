"""A full disk: whatever writes, the error is one line that names the user's file."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from evenshard.base.outputs import atomic_path
from evenshard.base.tensor_files import save_weights
from evenshard.cli import main
from evenshard.measure.journal import Journal
from evenshard.tables.files import save_tables
from evenshard.tables.table import Table

MOST_BYTES = 4096
NET = torch.nn.Linear(64, 64)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file may grow beyond some bytes, as if its disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_net(path: Path) -> None:
    with atomic_path(path) as draft:
        draft.mkdir()
        save_weights(NET, draft / "state.pt")


def save_text(path: Path) -> None:
    with atomic_path(path) as draft:
        draft.write_text("x" * 2 * MOST_BYTES)


def save_inside(path: Path) -> None:
    with atomic_path(path) as draft:
        draft.mkdir()
        save_text(draft / "inside.txt")


def save_tensor(path: Path) -> None:
    with atomic_path(path) as draft, draft.open("wb") as file:
        torch.save(torch.zeros(MOST_BYTES), file)


def save_rows(path: Path) -> None:
    save_tables([Table(f"table {number}", 1000 + number, 16, number / 7) for number in range(1000)], path)


def append_to_journal(path: Path) -> None:
    with Journal(path) as journal:
        journal._write({"job": "x" * 2 * MOST_BYTES})


WRITERS: dict[str, Callable[[Path], None]] = {
    "net": save_net,
    "text.txt": save_text,
    "folder": save_inside,
    "tensor.pt": save_tensor,
    "tables.parquet": save_rows,
    "tables.yaml": save_rows,
    "journal": append_to_journal,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.usefixtures("full")
def test_the_error_names_the_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="File too large") as caught:
        WRITERS[name](tmp_path / name)
    assert str(caught.value) == f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{tmp_path / name}'"
    assert [one.name for one in tmp_path.iterdir()] == (["journal"] if name == "journal" else [])


@pytest.mark.usefixtures("full")
def test_a_command_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "placement.json"
    assert main(["place", "mlperf_dlrm_v2", "--effort", "quick", "--hardware", "h100", "-q", "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"evenshard place failed: [Errno 27] File too large: '{out}'\n"


def test_other_errors_stay(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "a"):
        raise ZeroDivisionError
