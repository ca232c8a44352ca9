"""Arguments that make no sense are refused in one line that says what is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenshard
from evenshard import place, what_if
from evenshard.base.errors import BadConfig, BadFile
from evenshard.planner.diff import diff
from evenshard.planner.explain import explain
from evenshard.planner.file import json_text
from support.builders import table

TABLES = [table("a", 1000, 16, 2.0), table("b", 500, 16, 1.0)]
ASKED: dict[str, Any] = {"num_devices": 2, "memory_cap_gb": 4, "batch_size": 64, "effort": "quick"}


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        (place, {"allow_column_split": "no"}, "allow_column_split is 'no', not true or false. Correct it."),
        (place, {"effort": "lon"}, "effort is 'lon'. Choose from quick, normal, long."),
        (place, {"communication": [-1]}, "communication[0] is -1, not a string. Correct it."),
        (place, {"optimizer": [float("nan")]}, "optimizer is [nan], not a string. Correct it."),
        (place, {"progress": 3}, "progress is 3, not a function. Correct it."),
        (place, {"model": 3}, "model is 3, not a string, a path or a Model. Correct it."),
        (place, {"hosts": Path("\udc80")}, "not Unicode text of at most 4,096 bytes"),
        (place, {"num_devices": 10**6}, "num_devices is 1000000, not a whole number from 1 to 4,096"),
        (place, {"batch_size": 10**400}, "0000, not a whole number from 1 to 2,147,483,647. "),
        (place, {"sharding_types": "row_wise"}, "not a list. Put it in brackets: ['row_wise']"),
        (place, {"hardware": "H100x"}, "Did you mean h100"),
        (place, {"max_move_gb": 1.0}, "max_move_gb is 1, but near is not set."),
        (place, {"constraints": {}}, "constraints apply only to tables of a TorchRec model."),
        (place, {"embedding_dim": 8}, "the tables already have dims. Leave embedding_dim (8) out."),
        pytest.param(place, {"tables": 5}, "tables is 5. Give a file, a data frame", marks=pytest.mark.slow),
        pytest.param(place, {"tables": [1]}, "tables contains 1. Give a file", marks=pytest.mark.slow),
        (place, {"batch_size": 7, "num_devices": 4}, "batch_size is 7 over all 4 devices"),
        (place, {"batch_size": 64, "num_devices": 3}, "Give 63 or 66."),
        (what_if, {"overlap": "1"}, "overlap is '1', not a number"),
        (what_if, {"allow_column_split": "no"}, "allow_column_split is 'no', not true or false"),
        (what_if, {"near": "p.json"}, "near is neither an argument of what_if nor one of place"),
    ],
)
def test_the_line_names_the_argument_its_value_and_what_is_expected(
    call: Callable[..., object], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        call(**{"tables": TABLES, **(ASKED if call is place else {}), **given})
    assert said in str(caught.value) and str(caught.value).isprintable()


def test_answers_are_explained_compared_and_saved_with_checked_arguments_too(tmp_path: Path) -> None:
    one = place(TABLES, **ASKED)
    calls: dict[str, Callable[[], Any]] = {
        "model is None, not a Model": lambda: explain(one, None, "a"),  # type: ignore[arg-type]
        "answer is 'p.json', not a PlacementAnswer": lambda: explain("p.json", None, "a"),  # type: ignore[arg-type]
        "new is None, not a PlacementAnswer": lambda: diff(one, None),  # type: ignore[arg-type]
        "link_gb_s is '25', not a number": lambda: diff(one, one, link_gb_s="25"),  # type: ignore[arg-type]
        "answer is None, not a PlacementAnswer": lambda: evenshard.save_answer(None, tmp_path / "p"),  # type: ignore[arg-type]
    }
    for said, call in calls.items():
        with pytest.raises(BadConfig, match=said):
            call()
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_give_the_same_answer() -> None:
    plain = place(TABLES, **ASKED, pinned={"a": 1})
    of_numpy = {"num_devices": np.int64(2), "memory_cap_gb": list(np.full(2, 4.0)), "batch_size": np.int32(64)}
    numpy = place(TABLES, **{**ASKED, **of_numpy}, pinned={"a": np.int8(1)})  # type: ignore[dict-item]
    assert place(TABLES, **ASKED, pooling_factors={"a": 5}).request.tables[0].pooling_factor == 5
    assert plain == numpy and json_text(plain) == json_text(numpy)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "ok.csv").write_text("name\n")
    with pytest.raises(BadFile, match=r"ok\.csv: is a file, but a model is a folder\. Name the folder of a round"):
        place(TABLES, 2, model=tmp_path / "ok.csv")
