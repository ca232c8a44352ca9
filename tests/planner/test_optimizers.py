"""Optimizers of a request: who may be replicated, what an answer says about it, and what its times are of."""

from __future__ import annotations

import html
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from evenshard import place
from evenshard.base.errors import BadConfig
from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES
from evenshard.planner.file import json_text
from evenshard.planner.optimizers import list_without_replicas, note_replicas
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.rules import Rules
from evenshard.report.answer import print_answer
from evenshard.report.page.page import page
from support.builders import table
from support.effort import LITTLE
from support.request_builders import request, untrained

ALL: dict[str, Any] = {"sharding_types": (DATA_PARALLEL,)}
OWN: dict[str, Any] = {"table_optimizers": {"a": "adagrad", "b": "sgd"}}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, {"a", "b"}),
        (OWN, set()),
        ({**OWN, "dense_optimizer": "adagrad"}, {"a"}),
        ({**OWN, "sharding_types": SHARDING_TYPES}, {"a", "b"}),
        ({**OWN, "rules": Rules(table_types={"b": SHARDING_TYPES})}, {"b"}),
        ({"table_optimizers": {"a": "adagrad"}}, {"b"}),
        ({"optimizer": "adam", "dense_optimizer": "sgd"}, set()),
        ({"optimizer": "adam", "dense_optimizer": "adam"}, {"a", "b"}),
    ],
)
def test_a_table_is_replicated_where_its_optimizer_is_the_dense_one_or_who_asks_for_it(
    more: dict[str, Any], names: set[str]
) -> None:
    asked = request(8, 16, **more)
    types = asked.task().types
    assert {one.name for at, one in enumerate(asked.tables) if DATA_PARALLEL in types[at]} == names
    assert {*list_without_replicas(asked)} == {"a", "b"} - names
    alone = replace(asked, caps_bytes=asked.caps_bytes[:1])
    assert list_without_replicas(alone) == ()
    pinned = request(8, 16, **OWN, rules=Rules(pinned={"a": (0,)}))  # which is on one device anyway
    assert list_without_replicas(pinned) == ("b",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ALL,
            ["data_parallel tables (a, b). Use sgd with the same settings. To avoid replicas: --sharding-types "
             "table_wise,column_wise,row_wise,table_row_wise,table_column_wise,grid_shard."],
        ),
        (
            {**ALL, "optimizer": "rowwise_adagrad"},
            ["; torch.optim has no row-wise Adagrad (torchrec.optim.RowWiseAdagrad is one). To avoid replicas: "],
        ),
        (
            {**ALL, **OWN, "dense_optimizer": "sgd"},
            ["1 data_parallel table (a), not the fused optimizer (adagrad), because the request names data_parallel.",
             "1 data_parallel table (b). Give sgd the same learning rate and settings as the tables."],
        ),
        (
            OWN,
            ["Replicas (data_parallel) of 2 tables (a, b) are left out: your dense optimizer would update them in "
             "place of their fused optimizer (adagrad or sgd). If both are the same, with the same settings, give "
             "dense_optimizer. You can"],
        ),
        ({**OWN, "sharding_types": ("table_wise",)}, []),
    ],
)  # fmt: skip
def test_what_trains_replicas_is_said(more: dict[str, Any], said: list[str]) -> None:
    asked = request(8, 16, **more)
    replicated = [one.name for one in asked.tables] if DATA_PARALLEL in asked.sharding_types else []
    notes = list(note_replicas(asked, replicated))
    assert len(notes) == len(said)
    assert all(words in note for note, words in zip(notes, said, strict=True))


def test_optimizers_that_make_no_sense_are_refused() -> None:
    for more, problem in (
        ({"dense_optimizer": "lion"}, "dense_optimizer is 'lion', not one of sgd"),
        ({"table_optimizers": {"a": "lion"}}, "optimizer is 'lion', not one of sgd"),
        ({"table_optimizers": {"x": "sgd"}}, "table_optimizers has the key 'x', which is no table"),
    ):
        with pytest.raises(BadConfig, match=problem):
            request(8, 16, **more)


@pytest.mark.parametrize(
    ("learned", "asked", "word"), [("sgd", "adam", "slower"), ("adam", "sgd", "faster"), ("adagrad", "adagrad", None)]
)
def test_an_answer_says_when_its_times_are_of_another_optimizer(
    monkeypatch: pytest.MonkeyPatch, learned: str, asked: str, word: str | None
) -> None:
    """In the terminal, on the page and in the file."""
    monkeypatch.setenv("COLUMNS", "200")
    model = replace(untrained(), trained_on=replace(untrained().trained_on, optimizer=learned))
    one = place_request(request(8, 16, optimizer=asked, sharding_types=("table_wise",)), model, PlaceConfig(LITTLE))
    note = f"Times are predicted for {learned}: {asked}'s memory is counted, but not its {word} backward pass."
    assert one.notes == (() if word is None else (note,))
    assert json.loads(json_text(one))["notes"] == list(one.notes)
    print_answer(one, file := io.StringIO())
    for text in (file.getvalue(), html.unescape(page(one))):
        assert (note in text) == (word is not None)


def test_candidates_are_timed_with_the_optimizer_of_the_request() -> None:
    tables = [table(f"t{number}", rows=10**6, dim=128, pooling=10) for number in range(2)]
    common: dict[str, Any] = {"sharding_types": ("table_wise",), "num_measured": 1, "effort": "quick"}
    found = [place(tables, 2, 30, optimizer=one, **common).measured for one in ("sgd", "adam")]
    sgd, adam = ([one.bwd_compute_ms or 0.0 for one in cost.devices] for cost in found if cost is not None)
    assert min(adam) > 1.1 * max(sgd)
