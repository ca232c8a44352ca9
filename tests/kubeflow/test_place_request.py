"""What the pipeline ``place`` leaves."""

from __future__ import annotations

from pathlib import Path

import evenshard
from evenshard.kubeflow.place_request import NO_PLAN, save_placement
from evenshard.planner.file import load_answer
from evenshard.planner.in_use import PLACEMENT, PLAN
from evenshard.tables.table import Table


def test_a_placement_that_torchrec_cannot_have_is_left_without_a_plan(tmp_path: Path) -> None:
    answer = evenshard.place(
        (Table("a", 100_000, 16, 2.0), Table("b", 50_000, 16, 1.0)),
        num_devices=2,
        hardware="simulated:h100",
        host_memory_gb=8.0,
        table_kernels={"a": "host"},
    )
    save_placement(answer, tmp_path / "placement", tmp_path / "plan", tmp_path / "page.html")
    assert load_answer(tmp_path / "placement" / PLACEMENT).parts == answer.parts
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert not (tmp_path / "plan" / PLAN).exists() and "host" in (tmp_path / "plan" / NO_PLAN).read_text()
