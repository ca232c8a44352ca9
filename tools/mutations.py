"""Mutation check: apply small wrong changes to src, one at a time, and count those that the nearest test file catches.

Each mutation of tests/mutations.yaml replaces one text in one file. The check runs only the test file that is named
with it, on a copy of src, so the working tree does not change. Exit code 1 if fewer mutations are caught than
``FEWEST_CAUGHT``, if a text does not occur exactly once, or if a test file fails without any mutation.

    python tools/mutations.py            all mutations, on two processes
    python tools/mutations.py price/     mutations of these files only
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/evenshard"
MUTATIONS = ROOT / "tests/mutations.yaml"
FEWEST_CAUGHT = 34
PROCESSES = 2


@dataclass(frozen=True)
class Mutation:
    """A wrong change: ``new`` in place of ``old`` in a file of src/evenshard."""

    file: str
    old: str
    new: str
    tests: str  # nearest test file, from the root of the repository


def run_tests(tests: str, mutation: Mutation | None = None) -> bool:
    """Return True if the test file passes on a copy of src with the mutation."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "evenshard"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            path = copy / mutation.file
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        path_of_imports = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not containers and not nightly", tests]
        environment = {**os.environ, "PYTHONPATH": path_of_imports}
        return not subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def find_problem(mutation: Mutation) -> str | None:
    """Return the reason that a mutation cannot be applied; None if it can."""
    if not (ROOT / mutation.tests).exists():
        return f"{mutation.tests} does not exist"
    count = (SOURCE / mutation.file).read_text(encoding="utf-8").count(mutation.old)
    return None if count == 1 else f"{mutation.file} has {count} times {mutation.old!r}"


def main(chosen: list[str]) -> int:
    """Run the mutations whose file begins with one of ``chosen``; print and count those that are caught."""
    listed = [Mutation(**one) for one in yaml.safe_load(MUTATIONS.read_text(encoding="utf-8"))]
    mutations = [one for one in listed if not chosen or one.file.startswith(tuple(chosen))]
    problems = [problem for one in mutations if (problem := find_problem(one))]
    if problems:
        sys.exit("\n".join([*problems, f"Correct {MUTATIONS.name}."]))
    tests = list(dict.fromkeys(one.tests for one in mutations))
    with ThreadPoolExecutor(PROCESSES) as pool:
        failing = [name for name, passed in zip(tests, pool.map(run_tests, tests), strict=True) if not passed]
        if failing:
            sys.exit(f"these tests fail without a mutation: {', '.join(failing)}")
        caught = 0
        for mutation, passed in zip(
            mutations, pool.map(run_tests, [one.tests for one in mutations], mutations), strict=True
        ):
            caught += not passed
            print(f"{'MISSED' if passed else 'caught'}  {mutation.file}: {mutation.new}", flush=True)
    print(f"{caught} of {len(mutations)} mutations are caught by the nearest test file")
    return int(not chosen and caught < FEWEST_CAUGHT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
