"""Targets of the Makefile: the versions that they name, and the program that runs TorchRec's own tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from evenshard import __version__
from support.repository import ROOT
from tools.torchrec_planner_tests import DOCS, FILES, TESTS, find_tests, listed_cases, problems, summary


def recipe(*words: str) -> str:
    """What make would run, without the lines about folders that it adds where the tests were started by make."""
    command = ["make", "-n", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("words", "version"), [((), "1.7"), (("TORCHREC_VERSION=1.9",), "1.9")])
def test_the_tests_with_another_torchrec_name_its_version_and_not_ours(words: tuple[str, ...], version: str) -> None:
    assert set(re.findall(r"torchrec==([\d.]+)\.\*", recipe("test-torchrec", *words))) == {version} != {__version__}


def test_no_variable_of_the_makefile_is_given_two_values() -> None:
    """Make takes the last one, for recipes above it too."""
    names = re.findall(r"^([A-Z_]+) *[?:]?= ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_the_docs_command_of_another_torchrec_is_that_of_the_makefile() -> None:
    (command,) = re.findall(r"^    make (test-torchrec TORCHREC_VERSION=\S+)$", DOCS.read_text(), flags=re.MULTILINE)
    assert "torchrec==1.9.*" in recipe(*command.split())


# TorchRec's own tests -------------------------------------------------------------------------------------------------


def test_without_the_tests_of_torchrec_the_program_says_where_they_are(tmp_path: Path) -> None:
    command = [".venv/bin/python", "tools/torchrec_planner_tests.py", "--checkout", str(tmp_path)]
    assert recipe("test-torchrec-planner", f"TORCHREC_REPO={tmp_path}").strip().endswith(" ".join(command))
    assert find_tests(tmp_path) is None
    (tmp_path / TESTS).mkdir(parents=True)
    (tmp_path / TESTS / FILES[0]).touch()
    assert find_tests(tmp_path) == tmp_path / TESTS


def test_what_is_not_as_the_docs_list_it_fails() -> None:
    listed = frozenset({"A::test_private", "A::test_gone"})
    outcomes = {
        "A::test_private": "failed",
        "A::test_new": "failed",
        "B::test_right": "passed",
        "B::test_not": "skipped",
    }
    assert list(problems(outcomes, listed)) == [
        "A::test_new fails, and docs/torchrec_planner.md does not list it",
        "A::test_gone is listed in docs/torchrec_planner.md, and this TorchRec has no such case",
    ]
    assert list(problems({"A::test_private": "passed"}, frozenset({"A::test_private"}))) == [
        "A::test_private passes: take it out of docs/torchrec_planner.md"
    ]


def test_the_docs_list_the_cases_with_reasons_and_the_count() -> None:
    docs = DOCS.read_text()
    listed = listed_cases(docs)
    found = re.search(
        r"TorchRec [\d.]+: (\d+) of the (\d+) cases that make a planner pass, (\d+) of (\d+) in all", docs
    )
    assert found is not None and "TestExtractPlan::test_extract_plan_success" in listed
    made_and_passed, made, passed, cases = map(int, found.groups())
    assert len(listed) == made - made_and_passed == cases - passed
    outcomes = {**dict.fromkeys(listed, "failed"), **{f"C::test_{at}": "passed" for at in range(passed)}}
    asked = {*listed, *(f"C::test_{at}" for at in range(made_and_passed))}
    assert summary(found[0].split()[1].rstrip(":"), outcomes, asked) in docs
