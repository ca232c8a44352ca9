"""Small repositories with datasets, each with its own git, DVC and remote."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from evenshard.measure.cost_dataset import save_costs
from evenshard.price.costs import CONTROL
from evenshard.tables.files import save_tables
from support import builders

CONFIG = """[core]
    analytics = false
    remote = reference
['remote "reference"']
    url = ../dvcstore
"""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def dvc(folder: Path, *words: str) -> str:
    return run(folder, sys.executable, "-m", "dvc", *words)


def git(folder: Path, *words: str) -> str:
    return run(folder, "git", *words)


def make_repository(folder: Path) -> Path:
    """Its default remote is a folder that git carries."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    own_name(folder)
    dvc(folder, "init", "--quiet")
    (folder / ".dvc/config").write_text(CONFIG)
    (folder / ".gitignore").write_text("/data\n/work\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "start")
    return folder


def own_name(folder: Path) -> None:
    git(folder, "config", "user.email", "tests@example.com")
    git(folder, "config", "user.name", "tests")


def clone(repository: Path, folder: Path) -> Path:
    git(folder.parent, "clone", "--quiet", str(repository), str(folder))
    own_name(folder)
    return folder


def measure(
    folder: Path,
    hardware: str = "simulated: h200",
    at: float = 1000.0,
    slower: float = 1.0,
    noise: float = 0.0,
    driver: str = "none",
    optimizer: str = "sgd",
) -> tuple[Path, Path]:
    """Writes costs and tables: five placements, and a control four times.

    Args:
        at: when it began, seconds; another time makes other measurements.
        slower: factor on every time.
        noise: by what share repeats of the control go up and down.
    """
    folder.mkdir(parents=True, exist_ok=True)
    task = builders.task(builders.some_tables(8))
    of = replace(builders.PROVENANCE, hardware=hardware, driver=driver, optimizer=optimizer)
    measured = []
    for number in range(9):
        placed = max(0, number - 3)  # the first four are one placement
        wobble = (noise if number % 2 else -noise) if number < 4 else 0.0
        ms = (1 + placed) * slower * (1 + wobble)
        one = builders.measured(
            task, [(placed >> table % 3) & 1 for table in range(8)], builders.cost(ms, ms), f"m{number}"
        )
        by = CONTROL if number < 4 else "random"
        measured.append(replace(one, proposed_by=by, provenance=of, measured_at=at + number))
    save_costs(measured, folder / "costs.parquet")
    save_tables(task.tables, folder / "tables.parquet")
    return folder / "costs.parquet", folder / "tables.parquet"
