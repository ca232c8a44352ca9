"""Run TorchRec's tests of its planner with ``EvenshardPlanner`` instead: make test-torchrec-planner.

TorchRec's wheel does not contain its tests, so they come from a checkout, whose code shadows the installed TorchRec.
docs/torchrec_planner.md lists the cases that do not pass, with reasons, below ``HEADING``. This program fails if
another case fails, or if a listed case passes. All cases run twice, without and with ``fallback``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "torchrec_planner.md"
HEADING = "### Cases of TorchRec's that do not pass"
TESTS = Path("torchrec", "distributed", "planner", "tests")
FILES = ("test_planners.py", "test_stats.py", "test_types.py")
THEIRS = "EmbeddingShardingPlanner"


@dataclass
class Swap:
    """A pytest plugin that replaces the planner in the modules of the tests."""

    fallback: bool  # True if TorchRec's planner plans where evenshard cannot
    outcomes: dict[str, str] = field(default_factory=dict)  # by class and name of the case
    asked: set[str] = field(default_factory=set)  # cases that construct a planner
    _now: str = ""

    def pytest_collection_modifyitems(self, items: Sequence[Any]) -> None:
        planner = self._planner()
        for module in {item.module for item in items}:
            if hasattr(module, THEIRS):
                setattr(module, THEIRS, planner)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._now = _case(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or (report.when == "call" and self.outcomes.get(_case(report.nodeid)) != "failed"):
            self.outcomes[_case(report.nodeid)] = report.outcome

    def _planner(self) -> type:
        from evenshard.torchrec import EvenshardPlanner

        swap = self

        class Planner(EvenshardPlanner):
            def __init__(self, *given: Any, **named: Any) -> None:
                swap.asked.add(swap._now)
                super().__init__(*given, **named, fallback=swap.fallback)

        return Planner


def _case(nodeid: str) -> str:
    """Return class and name of a case."""
    return nodeid.partition("::")[2]


def find_tests(checkout: Path | None) -> Path | None:
    """Return the folder of the tests, in the checkout or the installed TorchRec; None if there is none."""
    if checkout is not None:
        return checkout / TESTS if (checkout / TESTS / FILES[0]).is_file() else None
    installed = importlib.util.find_spec("torchrec")
    if installed is None or installed.origin is None:
        return None
    folder = Path(installed.origin).parents[1] / TESTS
    return folder if (folder / FILES[0]).is_file() else None


def listed_cases(docs: str) -> frozenset[str]:
    """Return the cases in the first column of the docs' table below ``HEADING``."""
    table = docs.partition(f"\n{HEADING}\n")[2].partition("\n#")[0]
    return frozenset(re.findall(r"^\| `(\w+::\w+)` \|", table, flags=re.MULTILINE))


def problems(outcomes: Mapping[str, str], listed: frozenset[str]) -> Iterator[str]:
    """Yield one line for each case whose outcome differs from the docs."""
    for case, outcome in outcomes.items():
        if outcome == "failed" and case not in listed:
            yield f"{case} fails, and docs/torchrec_planner.md does not list it"
        elif outcome == "passed" and case in listed:
            yield f"{case} passes: remove it from docs/torchrec_planner.md"
    for case in sorted(listed - outcomes.keys()):
        yield f"{case} is listed in docs/torchrec_planner.md, but this TorchRec does not have it"


def summary(version: str, outcomes: Mapping[str, str], asked: set[str]) -> str:
    """Return the line with counts that the docs contain."""
    passed = {case for case, outcome in outcomes.items() if outcome == "passed"}
    return (
        f"TorchRec {version}: {len(passed & asked)} of the {len(asked)} cases that make a planner pass, "
        f"{len(passed)} of {len(outcomes)} in all"
    )


def run(folder: Path, fallback: bool) -> tuple[dict[str, str], set[str]]:
    """Run all cases; return their outcomes, and the cases that construct a planner."""
    swap = Swap(fallback)
    for name in FILES:  # Hypothesis does not run cases of a class that was collected before
        sys.modules.pop(Path(name).stem, None)
    quiet = ["-q", "--tb=no", "--no-header", "--no-summary", "--show-capture=no", "-W", "ignore"]
    alone = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
    pytest.main([*quiet, *alone, *(str(folder / name) for name in FILES)], plugins=[swap])
    return swap.outcomes, swap.asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, help="checkout of TorchRec, which shadows the installed TorchRec")
    parser.add_argument("--shadowed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    folder = find_tests(asked.checkout)
    if folder is None:
        where = "the installed TorchRec has" if asked.checkout is None else f"{asked.checkout / TESTS} holds"
        print(
            f"skipped: {where} no {FILES[0]}. Name a checkout: git clone --depth 1 --branch release/v1.8.0 "
            "https://github.com/meta-pytorch/torchrec work/torchrec && make test-torchrec-planner "
            "TORCHREC_REPO=work/torchrec"
        )
        return 0
    if asked.checkout is not None and not asked.shadowed:
        own = {"PYTHONPATH": str(asked.checkout.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, "--checkout", str(asked.checkout), "--shadowed"]
        return subprocess.run(command, env={**os.environ, **own}).returncode
    docs, found = DOCS.read_text(), []
    version = _version(folder)
    for fallback in (False, True):
        outcomes, made = run(folder, fallback)
        line = summary(version, outcomes, made)
        print(f"{line} (fallback={fallback})", flush=True)
        found += [f"{problem} (fallback={fallback})" for problem in problems(outcomes, listed_cases(docs))]
        if f"TorchRec {version}: " in docs and line not in docs:
            found.append(f"docs/torchrec_planner.md has other counts for TorchRec {version} (fallback={fallback})")
    print("\n".join(found) or "All other cases are listed in docs/torchrec_planner.md.")
    return 1 if found else 0


def _version(folder: Path) -> str:
    """Return the version of a checkout, or of the installed package."""
    stated = folder.parents[len(TESTS.parts) - 1] / "version.txt"
    return stated.read_text().strip() if stated.is_file() else importlib.metadata.version("torchrec")


if __name__ == "__main__":
    sys.exit(main())
