"""``place --near``: what an answer says of its moves, in every output; and requests that make no sense."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.planner.diff import diff
from evenshard.planner.file import load_answer, save_answer
from evenshard.report.answer import print_answer
from evenshard.tables.table import Table

OLD = (
    Table("clicks", 2_000_000, 64, 30.0),
    Table("user", 5_000_000, 32, 1.0),
    Table("item", 1_000_000, 64, 8.0),
    Table("country", 200, 16, 1.0),
    Table("query", 3_000_000, 16, 3.5),
    Table("title", 800_000, 32, 12.0),
)
NOW = (
    *OLD[:2],
    replace(OLD[2], pooling_factor=60.0),
    OLD[3],
    replace(OLD[4], num_rows=3_500_000),
    Table("shop", 4_000, 32, 5.0),
)


@cache
def placed() -> evenshard.PlacementAnswer:
    return evenshard.place(OLD, 4, hardware="simulated:h100", optimizer="adam")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    save_answer(placed(), tmp_path / "old.json")
    return tmp_path / "old.json"


def said(answer: evenshard.PlacementAnswer) -> str:
    out = io.StringIO()
    print_answer(answer, out)
    return " ".join(out.getvalue().split())


def test_an_answer_says_what_moves_as_a_diff_counts_it(old: Path) -> None:
    answer = evenshard.place(NOW, 4, hardware="simulated:h100", optimizer="adam", near=old, max_move_gb=0.6)
    found, difference = answer.nearness, diff(load_answer(old), answer)
    assert found is not None
    assert found.moved_bytes == difference.traffic.moved_bytes <= 0.6 * 2**30 == pytest.approx(found.max_move_bytes)
    assert set(found.moved_tables) == {move.table for move in difference.moves}
    assert set(found.new_tables) == {"query", "shop"} and found.gone_tables == ("title",)
    assert found.free_ms <= answer.predicted_ms * 1.01 and answer.predicted_ms <= found.stay_ms
    assert found.stay_bytes == 0 <= found.free_bytes
    text = said(answer)
    assert (
        " (limit 614 MB) from " in text
        and "new tables, which move nothing: " in text
        and "removed tables: title (1 table)" in text
    )
    assert " ms without moves, " in text


def test_a_move_that_a_rule_asks_for_is_counted(tmp_path: Path) -> None:
    """``country`` alone has to go to the next device: 200 rows of 16 numbers, and two states of Adam for each."""
    asked: dict[str, Any] = {"hardware": "simulated:h100", "optimizer": "adam", "sharding_types": ["table_wise"]}
    before = evenshard.place(OLD, 4, **asked)
    save_answer(before, tmp_path / "old.json")
    (part,) = before.parts_of_table["country"]
    pinned = {"country": (part.device + 1) % 4}
    answer = evenshard.place(OLD, 4, **asked, pinned=pinned, near=tmp_path / "old.json", max_move_gb=0.0001)
    found, difference = answer.nearness, diff(before, answer)
    assert found is not None and found.moved_tables == ("country",)
    assert found.moved_bytes == difference.traffic.moved_bytes == 3 * 200 * 16 * 4


def test_without_a_bound_only_the_names_of_devices_are_chosen(old: Path) -> None:
    free = evenshard.place(OLD, 4, hardware="simulated:h100", optimizer="adam", seed=1)
    answer = evenshard.place(OLD, 4, hardware="simulated:h100", optimizer="adam", seed=1, near=old)
    assert answer.predicted_ms <= free.predicted_ms * 1.001
    before = load_answer(old)
    assert diff(before, answer).traffic.moved_bytes <= diff(before, free).traffic.moved_bytes
    assert "of at most" not in said(answer)


def test_what_makes_no_sense_is_told_in_one_line(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadConfig, match="near is not set"):
        evenshard.place(OLD, 4, max_move_gb=1)
    with pytest.raises(BadConfig, match="max_move_gb is -1"):
        evenshard.place(OLD, 4, near=old, max_move_gb=-1)
    with pytest.raises(evenshard.BadInput, match="no such file"):
        evenshard.place(OLD, 4, near=old.with_name("none.json"))
    home = load_answer(old).parts_of_table["user"][0].devices
    with pytest.raises(BadConfig, match=r"'user' must move\. Raise max_move_gb to 1\.\d") as told:
        evenshard.place(
            OLD, 4, hardware="simulated:h100", optimizer="adam", near=old, max_move_gb=1, forbidden={"user": home}
        )
    assert "\n" not in str(told.value)


def test_pipelines_take_it_and_a_served_model_which_has_no_files_does_not() -> None:
    from evenshard.loop.decisions.requests import place_arguments
    from evenshard.tracking.pyfunc import list_parameters

    assert place_arguments({"max_move_gb": 1})["max_move_gb"] == 1
    with pytest.raises(BadConfig, match=r"near is not supported\. Name the current plan"):
        place_arguments({"near": "s3://bucket/old.json"})
    assert not {"near", "max_move_gb"} & set(list_parameters())
