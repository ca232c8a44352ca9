"""Every example runs from any folder, prints what it promises, and leaves nothing behind."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evenshard.planner.rules import load_rules
from evenshard.tables.sources import tables_from
from support.repository import ROOT

EXAMPLES = ROOT / "examples"


# A search that is short: for examples of which no time is looked at.
SHORT = """
import runpy, sys
from support.effort import LITTLE, search_with
search_with(LITTLE)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def printed_by(example: str, folder: Path, *flags: str) -> str:
    """What the example prints, run in an empty folder."""
    done = subprocess.run(
        [sys.executable, *flags, str(EXAMPLES / example)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not any(folder.iterdir())
    return done.stdout


@pytest.mark.slow
def test_own_tables_live_where_the_rules_say(tmp_path: Path) -> None:
    text = printed_by("own_tables.py", tmp_path, "-c", SHORT)
    by_device = re.findall(r"device (\d): .* GB: (.*)", text)
    device_of = {name: int(device) for device, names in by_device for name in names.split(", ")}
    known = tables_from(EXAMPLES / "tables.yaml", 65_536)
    assert set(device_of) == {table.name for table in known.tables}
    rules = load_rules(EXAMPLES / "rules.yaml")
    for name, devices in rules.pinned.items():
        assert device_of[name] in devices
    for group in rules.together:
        assert len({device_of[name] for name in group}) == 1
    for group in rules.apart:
        assert len({device_of[name] for name in group}) == len(group)
    assumed = [one.table for one in known.assumptions if one.column == "pooling_factor"]
    assert assumed and assumed == re.findall(r"assumed: (\w+) has the pooling factor", text)


@pytest.mark.nightly
def test_mlperf_beside_torchrec_says_whose_times_they_are(tmp_path: Path) -> None:
    text = printed_by("mlperf_vs_torchrec.py", tmp_path)
    assert "simulated" in text and "no GPU was used" in text
    ms = {name.strip(): float(value) for name, value in re.findall(r"^(.*?) +(\d+\.\d\d) with", text, re.M)}
    assert ms["evenshard, whole tables"] <= ms["TorchRec, whole tables"]
    best_of_torchrec = min(value for name, value in ms.items() if "TorchRec" in name)
    assert ms["evenshard, split where that helps"] < 1.02 * best_of_torchrec


@pytest.mark.slow
def test_traffic_becomes_a_plan(tmp_path: Path) -> None:
    text = printed_by("traffic_to_plan.py", tmp_path, "-c", SHORT)
    tables = {name: float(mean) for name, mean in re.findall(r"^(\w+): [\d,]+ rows, (\d+\.\d) lookups", text, re.M)}
    # The sample was drawn with these pooling factors.
    assert tables == pytest.approx({"user": 1.0, "clicks": 31.5, "carts": 6.2, "words": 12.0}, rel=0.02)
    ranks = dict(re.findall(r"^(\w+): (?:table|column)_wise on ranks \[([\d, ]+)\]", text, re.M))
    assert ranks.keys() == tables.keys() and set(", ".join(ranks.values()).split(", ")) == {"0", "1"}


@pytest.mark.nightly
def test_the_notebook_shows_what_it_gives(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(EXAMPLES / "place_your_tables.ipynb", as_version=4)
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


def test_examples_are_short() -> None:
    assert not [path for path in EXAMPLES.glob("*.py") if len(path.read_text().splitlines()) >= 60]
