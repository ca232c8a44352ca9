"""Other people's measurements of GPUs, in a folder beside the checkout; nothing of them is part of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.references.others_measurements import default_folder


def truth_folder() -> Path | None:
    """The folder of the measurements: that of EVENSHARD_TRUTH, or shared/truth beside the checkout; None without it."""
    folder = default_folder()
    return folder if folder.is_dir() else None


def truth_file(name: str) -> Path:
    """One file of the measurements; the test that asks is skipped where it is missing."""
    folder = truth_folder()
    if folder is None or not (folder / name).exists():
        pytest.skip(f"{name}: other people's measurements are not here; set EVENSHARD_TRUTH to their folder")
    return folder / name
