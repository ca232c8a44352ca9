"""Arguments that make no sense are refused in one line that says what is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig, BadFile
from evenshard.planner.request import check_batch
from evenshard.tables.table import Table

TABLES = [Table("a", 100, 16, 1.0), Table("b", 300, 16, 1.0)]


@pytest.mark.parametrize(("batch", "devices", "given"), [(7, 4, "4 or 8"), (2, 4, "4"), (64, 3, "63 or 66")])
def test_a_batch_that_devices_cannot_share(batch: int, devices: int, given: str) -> None:
    with pytest.raises(BadConfig, match=f"batch_size is {batch}, .* Give {given}\\."):
        evenshard.place(TABLES, devices, batch_size=batch, hardware="h100")


@pytest.mark.parametrize(("batch", "devices"), [(65_536, 72), (65_536, 12), (512, 8), (1, 1)])
def test_a_batch_that_devices_share_within_a_hundredth(batch: int, devices: int) -> None:
    check_batch(batch, devices)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "ok.csv").write_text("name\n")
    with pytest.raises(BadFile, match=r"ok\.csv: is a file, but a model is a folder\. Name the folder of a round"):
        evenshard.place(TABLES, 2, model=tmp_path / "ok.csv")


@pytest.mark.parametrize("answer", [[1], None, {"a": 1}])
def test_only_answers_are_saved(tmp_path: Path, answer: Any) -> None:
    with pytest.raises(BadConfig, match=r"answer is .*, not a PlacementAnswer"):
        evenshard.save_answer(answer, tmp_path / "placement.json")
    assert not list(tmp_path.iterdir())


def test_tiny_tables_have_a_sum_in_a_small_unit() -> None:
    text = " ".join(evenshard.place(TABLES, 2, batch_size=512, hardware="h100", effort="quick").summary().split())
    memory = text.partition("the fullest: ")[2]
    assert memory.startswith("weights 0.0") and " MB of 67.15 GB" in memory.partition("reserved")[0]
