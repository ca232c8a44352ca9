"""Folders for a moment: gone at the end, and after a kill gone with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from evenshard.utils import atomic
from evenshard.utils.atomic import atomic_path
from evenshard.utils.scratch import scratch_folder

USER = """
import sys
from evenshard.utils.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "big").write_text("big")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_goes_with_the_block(temporary: Path) -> None:
    with scratch_folder() as folder, scratch_folder() as other:
        (folder / "deep").mkdir()
        assert folder.parent == temporary and other != folder and other.exists()
    with pytest.raises(ValueError), scratch_folder() as folder:
        raise ValueError
    assert list(temporary.iterdir()) == []


def test_that_of_a_killed_process_goes_with_the_next_one_and_that_of_a_living_one_stays(temporary: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        folder = Path(user.stdout.readline().decode().strip())
        with scratch_folder():
            assert (folder / "big").exists()
        user.kill()
        user.wait()
    assert (folder / "big").exists()
    with scratch_folder():
        assert not folder.exists()
    assert list(temporary.iterdir()) == []


def test_what_others_have_put_there_stays(temporary: Path) -> None:
    (temporary / "evenshard-scratch-notes").mkdir()
    (temporary / "evenshard-scratch-abcdefgh-2").mkdir()
    (temporary / "evenshard-scratch-abcdefgh").write_text("a file")
    (temporary / "elsewhere").mkdir()
    (temporary / "evenshard-scratch-12345678").symlink_to("elsewhere")
    before = sorted(temporary.iterdir())
    with scratch_folder():
        pass
    assert sorted(temporary.iterdir()) == before


def test_files_are_written_whole_into_it_without_waiting(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic.time, "sleep", lambda seconds: pytest.fail("waited for its own lock"))
    with scratch_folder() as folder, atomic_path(folder / "file") as draft:
        draft.write_text("whole")
