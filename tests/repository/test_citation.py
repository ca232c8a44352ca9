"""How to cite evenshard, where security reports go, and which systems it is for."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
import yaml

from support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_the_project() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["repository-code"] == PROJECT["urls"]["Repository"] and found["license"] == PROJECT["license"]
    assert PROJECT["urls"]["Repository"] in (ROOT / "SECURITY.md").read_text()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "examples/place_your_tables.ipynb",
        "src/evenshard/report/page/page.html.j2",
    ],
)
def test_pages_say_how_to_cite_and_where_security_reports_go(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "CITATION.cff" in text and "SECURITY.md" in text


@pytest.mark.slow
def test_windows_is_told_in_a_line_that_evenshard_is_for_linux() -> None:
    code = "import sys; sys.platform = 'win32'; import evenshard"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: evenshard is for Linux: it locks files with fcntl.")
