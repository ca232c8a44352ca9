"""The registry of a test file, whose fixture ``root`` fills it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def registry(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the registry; the working directory is another folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return root
