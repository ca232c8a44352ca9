"""Every example runs from any folder, prints what it promises, and leaves nothing behind."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

# A search that is short: for examples of which no time is looked at.
SHORT = """
import runpy, sys
from support.effort import LITTLE, search_with
search_with(LITTLE)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "shown"),
    [
        ("own_tables.py", r"device 1: .* GB: \w"),
        ("traffic_to_plan.py", r"clicks: [\d,]+ rows, 31\.\d lookups"),  # the sample was drawn with 31.5
    ],
)
def test_an_example_runs_anywhere_and_leaves_nothing_behind(tmp_path: Path, example: str, shown: str) -> None:
    words = [sys.executable, "-c", SHORT, str(ROOT / "examples" / example)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(shown, done.stdout) and not any(tmp_path.iterdir())


@pytest.mark.nightly
def test_the_notebook_shows_what_it_gives(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(ROOT / "examples/place_your_tables.ipynb", as_version=4)
    given = copy.deepcopy(stored)
    NotebookClient(given, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert {path.name for path in tmp_path.iterdir()} == {"placement.html", "placement.json"}
    before, now = (
        "\n".join(
            one.get("text") or one["data"]["text/plain"] for cell in book.cells for one in cell.get("outputs", ())
        )
        for book in (stored, given)
    )
    number = re.compile(r"\d[\d,.]*\d|\d")
    assert number.sub("#", before).split() == number.sub("#", now).split()
    figures, figures_now = ([float(one.replace(",", "")) for one in number.findall(text)] for text in (before, now))
    assert figures == pytest.approx(figures_now, rel=0.02, abs=0.02)
