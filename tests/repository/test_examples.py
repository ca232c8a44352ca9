"""Every example runs from any folder, prints what it promises, and leaves nothing behind."""

from __future__ import annotations

import json
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
MAX_LINES = 60


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


@pytest.mark.slow
def test_mlperf_beside_torchrec_says_whose_times_they_are(tmp_path: Path) -> None:
    pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
    text = printed_by("mlperf_vs_torchrec.py", tmp_path)
    assert "simulated" in text and "no GPU was used" in text
    ms = {name.strip(): float(value) for name, value in re.findall(r"^(.*?) +(\d+\.\d\d) with", text, re.M)}
    assert ms["evenshard, whole tables"] <= ms["TorchRec, whole tables"]
    assert ms["evenshard, split where that helps"] < 0.8 * ms["evenshard, whole tables"]
    best_of_torchrec = min(value for name, value in ms.items() if "TorchRec" in name)
    assert ms["evenshard, split where that helps"] < 1.02 * best_of_torchrec


@pytest.mark.slow
def test_traffic_becomes_a_plan(tmp_path: Path) -> None:
    text = printed_by("traffic_to_plan.py", tmp_path, "-c", SHORT)
    tables = dict(re.findall(r"^(\w+): [\d,]+ rows, (\d+\.\d) lookups", text, re.M))
    # The sample was drawn with these pooling factors.
    assert {name: pytest.approx(float(mean), rel=0.02) for name, mean in tables.items()} == {
        "user": 1.0,
        "clicks": 31.5,
        "carts": 6.2,
        "words": 12.0,
    }
    ranks = re.findall(r"^(\w+): (?:table|column)_wise on ranks \[([\d, ]+)\]", text, re.M)
    assert {name for name, _ in ranks} == set(tables)
    assert {rank for _, of_table in ranks for rank in of_table.split(", ")} == {"0", "1"}


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""


def outputs_of(notebook: Path) -> list[str]:
    """What the code cells of a notebook print and show, as text."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = [one.get("text") or one["data"]["text/plain"] for cell in cells for one in cell["outputs"]]
    return ["".join(text) for text in shown]


@pytest.mark.slow
def test_the_notebook_shows_what_it_gives(tmp_path: Path) -> None:
    notebook, folder = EXAMPLES / "place_your_tables.ipynb", tmp_path / "here"
    folder.mkdir()
    arguments = [str(notebook), str(folder), str(tmp_path / "done.ipynb")]
    done = subprocess.run([sys.executable, "-c", EXECUTE, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"placement.html", "placement.json"}
    stored, given = outputs_of(notebook), outputs_of(tmp_path / "done.ipynb")
    number = re.compile(r"\d[\d,.]*\d|\d")
    assert [number.sub("#", one).split() for one in stored] == [number.sub("#", one).split() for one in given]
    for before, now in zip(stored, given, strict=True):
        figures = ([float(one.replace(",", "")) for one in number.findall(text)] for text in (before, now))
        assert next(figures) == pytest.approx(next(figures), rel=0.02, abs=0.02)
    assert "ms of embedding work per step" in "".join(
        json.loads(notebook.read_text())["cells"][1]["outputs"][0]["data"]["text/html"]
    )


@pytest.mark.slow
def test_torchrec_trains_rows_of_means_wrongly_beside_a_whole_table(tmp_path: Path) -> None:
    """And rightly where all tables are cut by rows; SUM with weights of 1/length is MEAN, and right beside any type."""
    pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
    lines = [line for line in printed_by("means_by_rows.py", tmp_path).splitlines() if ", in one piece " in line]
    cases = dict(line.split(": ", 1) for line in lines)
    losses = {name: tuple(map(json.loads, said.split(", in one piece "))) for name, said in cases.items()}
    wrong, expected = losses["MEAN, a by rows beside b whole"]
    assert all(abs(one - other) > 0.1 * other for one, other in zip(wrong, expected, strict=True))
    for name in ("MEAN, a and b by rows", "SUM with weights of 1/length, a by rows beside b whole"):
        assert losses[name] == (expected, expected)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(example: str) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) < MAX_LINES
