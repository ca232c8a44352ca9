"""Every example runs from any folder, prints what it promises, and leaves nothing behind."""

from __future__ import annotations

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


def printed_by(example: str, folder: Path) -> str:
    """What the example prints, run in an empty folder."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not any(folder.iterdir())
    return done.stdout


def test_own_tables_live_where_the_rules_say(tmp_path: Path) -> None:
    text = printed_by("own_tables.py", tmp_path)
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


def test_mlperf_beside_torchrec_says_whose_times_they_are(tmp_path: Path) -> None:
    pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
    text = printed_by("mlperf_vs_torchrec.py", tmp_path)
    assert "simulated" in text and "no GPU was used" in text
    ms = {name.strip(): float(value) for name, value in re.findall(r"^(.*?) +(\d+\.\d\d) with", text, re.M)}
    assert ms["evenshard, whole tables"] <= ms["TorchRec, whole tables"]
    assert ms["evenshard, split where that helps"] < 0.8 * ms["evenshard, whole tables"]
    best_of_torchrec = min(value for name, value in ms.items() if "TorchRec" in name)
    assert ms["evenshard, split where that helps"] < 1.02 * best_of_torchrec


def test_traffic_becomes_a_plan(tmp_path: Path) -> None:
    text = printed_by("traffic_to_plan.py", tmp_path)
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


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(example: str) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) < MAX_LINES
