"""Folders for a moment: gone at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from evenshard.base.outputs import scratch_folder


def test_it_goes_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with scratch_folder() as folder, scratch_folder() as other:
        (folder / "deep").mkdir()
        assert folder.parent == tmp_path and other != folder and other.exists()
    with pytest.raises(ValueError), scratch_folder() as folder:
        raise ValueError
    assert list(tmp_path.iterdir()) == []
