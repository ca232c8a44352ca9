"""An empty MLflow, and the registry of a test file, whose fixture ``root`` fills it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.tracking_builders import empty_mlflow


@pytest.fixture
def registry(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the registry; the working directory is another folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def client(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")  # MLflow keeps what a name once meant
    return empty_mlflow(workdir)
