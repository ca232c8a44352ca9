"""Placements that were timed on an H100: their table in the page is what the stored measurements say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.scripts.measured_placements import table_of
from support.dvc_store import stored
from support.repository import ROOT

FOLDER = "hardware=h100/collection=placements"


@pytest.mark.slow
def test_the_page_says_what_was_timed(tmp_path: Path) -> None:
    for name in ("costs.parquet", "tables.parquet"):
        shutil.copy(stored(f"{FOLDER}/{name}"), tmp_path / name)
    page = (ROOT / "benchmarks/fbgemm_h100_202611.md").read_text()
    rows = [line.split("  ") for line in table_of(tmp_path).splitlines()[1:]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    timed = {name: times for name, *times in cells}
    assert "TorchRec's planner" in timed and len(timed) >= 7
    for name, (step, longer, wins, compute) in timed.items():
        row = f"| {name} | {step} | {longer} % | {wins} | {compute} |"
        assert (row if name != "evenshard" else f"| {name} | {step} | | | {compute} |") in page
