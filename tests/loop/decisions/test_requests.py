"""What the pipeline ``place`` leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import evenshard
from evenshard.base.errors import BadConfig, BadFile
from evenshard.loop.decisions.requests import NO_PLAN, place_tables, save_placement
from evenshard.planner.file import load_answer
from evenshard.tables.files import save_tables
from evenshard.tables.table import Table
from evenshard.torchrec.plan.file import PLACEMENT, PLAN


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


def test_a_bound_is_on_what_moves_from_the_plan_in_use(tmp_path: Path) -> None:
    """That which is compared with: its file or its folder; nothing moves within 0 GB, and without a bound it may."""
    tables, in_use = tmp_path / "tables.json", tmp_path / "in_use"
    uneven = tuple(Table(f"t{n}", 200_000, 16, float(factor)) for n, factor in enumerate((1, 2, 20, 40)))
    request = {"num_devices": 2, "hardware": "simulated:h100", "batch_size": 4096, "sharding_types": ["table_wise"]}
    old = evenshard.place(uneven, **request)
    save_placement(old, in_use, in_use, in_use / "page.html")
    save_tables([replace(one, pooling_factor=41 - one.pooling_factor) for one in uneven], tables)

    def placed(at: Path | None, **bound: float) -> tuple[evenshard.PlacementAnswer, str]:
        return place_tables(str(tables), None, {**request, **bound}, None if at is None else str(at))

    for at in (in_use, in_use / PLACEMENT):
        answer, difference = placed(at, max_move_gb=0.0)
        assert answer.parts == old.parts and answer.nearness is not None
        assert (answer.nearness.source, answer.nearness.moved_bytes) == (str(at), 0)
        assert "moves" in difference.lower()
    assert placed(in_use)[0].nearness is None
    with pytest.raises(BadConfig, match=r"max_move_gb is 1, but no current plan is given\. Name it with --set in_use"):
        placed(None, max_move_gb=1.0)
    with pytest.raises(BadFile, match="is a TorchRec plan or a reshard delta, which has no times"):
        placed(in_use / PLAN, max_move_gb=1.0)
