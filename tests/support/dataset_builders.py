"""The commands of git and DVC in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def dvc(folder: Path, *words: str) -> str:
    return run(folder, sys.executable, "-m", "dvc", *words)


def git(folder: Path, *words: str) -> str:
    return run(folder, "git", *words)
