"""``place --near``: what an answer says of its moves, and bounds that hold on every machine."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.loop.decisions.requests import place_arguments
from evenshard.planner.diff import diff
from evenshard.planner.file import json_text, load_answer, save_answer
from evenshard.report.answer import print_answer
from evenshard.search.near_placement import ALIKE
from evenshard.tables.table import Table

GB = 2**30
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
ASKED: dict[str, Any] = {"hardware": "simulated:h100", "optimizer": "adam"}


@cache
def placed() -> evenshard.PlacementAnswer:
    return evenshard.place(OLD, 4, **ASKED)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    save_answer(placed(), tmp_path / "old.json")
    return tmp_path / "old.json"


def test_an_answer_says_what_moves_as_a_diff_counts_it(old: Path) -> None:
    answer = evenshard.place(NOW, 4, **ASKED, near=old, max_move_gb=0.6)
    found, difference = answer.nearness, diff(placed(), answer)
    assert found is not None
    assert found.moved_bytes == difference.traffic.moved_bytes <= 0.6 * GB == pytest.approx(found.max_move_bytes)
    assert set(found.moved_tables) == {move.table for move in difference.moves}
    assert set(found.new_tables) == {"query", "shop"} and found.gone_tables == ("title",)
    assert found.free_ms <= answer.predicted_ms * 1.01 and answer.predicted_ms <= found.stay_ms
    assert found.stay_bytes == 0 <= found.free_bytes
    print_answer(answer, out := io.StringIO())
    text = " ".join(out.getvalue().split())
    for said in (" (limit 614 MB) from ", "new tables, which move nothing: ", "removed tables: title (1 table)"):
        assert said in text
    save_answer(answer, old.with_name("new.json"))
    assert load_answer(old.with_name("new.json")) == answer
    assert "nearness" not in json.loads(json_text(placed()))


def test_a_move_that_a_rule_asks_for_is_counted(old: Path) -> None:
    """``country`` alone has to go to the next device: 200 rows of 16 numbers, and two states of Adam for each."""
    before = evenshard.place(OLD, 4, **ASKED, sharding_types=["table_wise"])
    save_answer(before, old)
    pinned = {"country": (before.parts_of_table["country"][0].device + 1) % 4}
    limited: dict[str, Any] = {**ASKED, "sharding_types": ["table_wise"], "near": old, "max_move_gb": 0.0001}
    found = evenshard.place(OLD, 4, **limited, pinned=pinned).nearness
    assert found is not None and found.moved_tables == ("country",) and found.moved_bytes == 3 * 200 * 16 * 4


def test_without_a_bound_only_the_names_of_devices_are_chosen(old: Path) -> None:
    free, answer = (evenshard.place(OLD, 4, **ASKED, seed=1, **near) for near in ({}, {"near": old}))
    assert answer.predicted_ms <= free.predicted_ms * 1.001
    assert diff(placed(), answer).traffic.moved_bytes <= diff(placed(), free).traffic.moved_bytes


def test_what_makes_no_sense_is_told_in_one_line(old: Path) -> None:
    home = placed().parts_of_table["user"][0].devices
    for asked, said in (
        ({"max_move_gb": 1}, "near is not set"),
        ({"near": old, "max_move_gb": -1}, "max_move_gb is -1"),
        ({"near": old.with_name("none.json")}, "no such file"),
        ({"near": old, "max_move_gb": 1, "forbidden": {"user": home}}, "'user' must move. Raise max_move_gb to 1."),
    ):
        with pytest.raises(evenshard.BadInput) as told:
            evenshard.place(OLD, 4, **ASKED, **asked)
        assert said in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(BadConfig, match=r"near is not supported\. Name the current plan"):  # of a pipeline
        place_arguments({"near": "s3://bucket/old.json"})


ONE, MORE = {"num_devices": 2}, {"num_devices": 4}
NODES = {"nodes": 2, "devices_per_node": 2, "inter": "ib_400g"}
TIGHT = {"memory_cap_gb": 0.25, "reserved_gb": 0, "training_pipeline": ""}
MACHINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "more devices": (ONE, MORE),
    "from nodes to one": (NODES, MORE),
    "host memory": ({**ONE, **TIGHT, "host_memory_gb": 8}, {**ONE, **TIGHT, "host_memory_gb": 8}),
    "rules": (MORE, {**MORE, "forbidden_devices": [0], "apart": [["t0", "t1"]], "together": [["t2", "t3"]]}),
}


def tables(rng: np.random.Generator) -> Iterator[Table]:
    for number in range(5):
        rows, dim, lookups = int(10 ** rng.uniform(3, 5.5)), rng.choice([16, 64, 128]), rng.choice([1, 5, 40])
        yield Table(f"t{number}", rows, int(dim), float(lookups))


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_every_answer_obeys_its_bound_and_is_not_worse_than_it_should_be(name: str, old: Path) -> None:
    rng = np.random.default_rng(list(MACHINES).index(name))
    first, then = ({**ASKED, **one} for one in MACHINES[name])
    before = tuple(tables(rng))
    drifted = [replace(one, pooling_factor=float(one.pooling_factor * rng.uniform(0.5, 4))) for one in before[:-1]]
    today, earlier = (*drifted, replace(before[-1], name="new")), evenshard.place(before, **first)
    save_answer(earlier, old)
    total_gb = 3 * sum(table.size_bytes for table in before) / GB
    for most_gb in (0, 0.1 * total_gb, None):
        try:
            answer = evenshard.place(today, **then, near=old, max_move_gb=most_gb)
        except BadConfig as error:  # something has to move
            assert most_gb is not None and "Raise max_move_gb to" in str(error)
            continue
        found, moved = answer.nearness, diff(earlier, answer).traffic.moved_bytes
        assert found is not None and found.stay_bytes <= found.moved_bytes == moved
        assert moved <= (np.inf if most_gb is None else most_gb * GB)
        assert answer.predicted_ms <= found.stay_ms * (1 + ALIKE)
        assert most_gb is not None or answer.predicted_ms <= found.free_ms * 1.01


def test_rows_that_are_cut_unevenly_stay_so(old: Path) -> None:
    """On 10 and 2 GB, 9 GB have room in uneven rows alone, which a search never cuts."""
    large = Table("a", 9 * GB // 256, 64, 3.0)
    rules: dict[str, Any] = {"hardware": "simulated:h100", "sharding_types": ["row_wise"], "reserved_gb": 0}
    rules |= {"num_devices": 2, "memory_cap_gb": [10, 2], "training_pipeline": ""}
    before = evenshard.place([large], **rules)
    save_answer(before, old)
    answer = evenshard.place([replace(large, pooling_factor=5.0)], **rules, near=old, max_move_gb=0)
    assert answer.parts == before.parts and answer.nearness is not None and answer.nearness.moved_bytes == 0
