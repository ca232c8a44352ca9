"""Pipelines that are built quickly, and an empty MLflow."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.tracking_builders import empty_mlflow


@pytest.fixture(autouse=True, scope="session")
def stacks_without_source() -> Iterator[None]:
    """kfp looks at its caller's name at each setting of a task, by ``inspect.stack``.

    That reads the source of every frame, and pytest has many: a second for each pipeline.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "stack", partial(inspect.stack, 0))
        yield


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow, empty, which the pod's environment names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    return empty_mlflow(tmp_path)
