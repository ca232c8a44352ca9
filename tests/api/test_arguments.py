"""Whatever is given for an argument in Python: an answer, or one line that says what is wrong with it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenshard
from evenshard.api import place, what_if
from evenshard.base.errors import BadConfig, BadInput, InfeasibleTask
from evenshard.planner.diff import diff
from evenshard.planner.explain import explain
from evenshard.torchrec import EvenshardPlanner
from support.builders import table
from support.repository import ROOT

SPOILT = ROOT.parent / "shared/repro/spoilt"
TABLES = [table("a", 1000, 16, 2.0), table("b", 500, 16, 1.0)]
# Of some argument's type, and beyond what it means.
WRONG: tuple[Any, ...] = (
    None, "", "no", "\ud800", "x" * 5000, float("nan"), -1, 0.5, 1e300, 10**400, object(), [], [[]], [["a", "b"]], {},
    {"h100": "x" * 5000},
)  # fmt: skip
ASKED = {"num_devices": 2, "memory_cap_gb": 4, "batch_size": 64}


class _SearchBegun(Exception):
    """All arguments were taken: what follows knows nothing of them."""


def begun(*_: Any) -> Any:
    raise _SearchBegun


def problems_of(call: Callable[..., object], arguments: Iterable[str]) -> list[str]:
    found = []
    for argument, value in product(arguments, WRONG):
        try:
            call(**{argument: value})
        except _SearchBegun:
            pass
        except (BadInput, InfeasibleTask) as error:
            if not str(error).isprintable() or len(str(error)) > 1200:
                found.append(f"{argument}={value!r:.60}: {error}")
        except Exception as error:
            found.append(f"{argument}={value!r:.60}: {type(error).__name__}: {error}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (place, {"tables": TABLES, **ASKED, "progress": begun}),
        (what_if, {"tables": TABLES, "hardware": ["h100"], "devices": [2], "progress": begun}),
        (EvenshardPlanner, {"world_size": 2, "compute_device": "cuda"}),
    ],
)
def test_senseless_values_get_a_line(call: Callable[..., object], asked: dict[str, Any]) -> None:
    arguments = inspect.signature(call).parameters.keys() - {"progress"}
    assert not problems_of(lambda **more: call(**{**asked, **more}), arguments)


def test_the_line_names_the_argument_its_value_and_what_is_expected() -> None:
    for asked, said in (
        ({"allow_column_split": "no"}, "allow_column_split is 'no', not true or false. Correct it."),
        ({"effort": "lon"}, "effort is 'lon'. Choose from quick, normal, long."),
        ({"communication": [-1]}, r"communication\[0\] is -1, not a string. Correct it."),
        ({"optimizer": [float("nan")]}, r"optimizer is \[nan\], not a string. Correct it."),
        ({"progress": 3}, "progress is 3, not a function. Correct it."),
        ({"model": 3}, "model is 3, not a string, a path or a Model. Correct it."),
        ({"hosts": Path("\udc80")}, "not Unicode text of at most 4,096 bytes"),
        ({"num_devices": 10**6}, "num_devices is 1000000, not a whole number from 1 to 4,096"),
    ):
        with pytest.raises(BadConfig, match=said):
            place(TABLES, **{**ASKED, **asked})
    with pytest.raises(BadConfig, match="overlap is '1', not a number"):
        what_if(TABLES, overlap="1")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="allow_column_split is 'no', not true or false"):
        what_if(TABLES, allow_column_split="no")
    with pytest.raises(BadConfig, match="fallback is 'no', not true or false"):
        EvenshardPlanner(world_size=2, fallback="no")  # type: ignore[arg-type]


def test_answers_are_explained_and_compared_with_checked_arguments_too() -> None:
    one = place(TABLES, **ASKED)
    for call, said in (
        (lambda: explain(one, None, "a"), "model is None, not a Model"),  # type: ignore[arg-type]
        (lambda: explain("placement.json", None, "a"), "answer is 'placement.json', not a PlacementAnswer"),  # type: ignore[arg-type]
        (lambda: diff(one, None), "new is None, not a PlacementAnswer"),  # type: ignore[arg-type]
        (lambda: diff(one, one, link_gb_s="25"), "link_gb_s is '25', not a number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadConfig, match=said):
            call()


def test_numbers_of_numpy_give_the_same_answer() -> None:
    plain = place(TABLES, 2, [4.0, 4.0], batch_size=64, pinned={"a": 1})
    numpy = place(TABLES, np.int64(2), list(np.full(2, 4.0)), batch_size=np.int32(64), pinned={"a": np.int8(1)})  # type: ignore[arg-type,dict-item]
    assert plain == numpy
    assert evenshard.planner.file.json_text(plain) == evenshard.planner.file.json_text(numpy)


@pytest.mark.skipif(not SPOILT.is_dir(), reason="no folder of spoilt inputs beside the checkout")
@pytest.mark.parametrize("path", sorted(SPOILT.glob("place_kwargs_*")), ids=lambda path: path.name)
def test_spoilt_arguments_get_a_line(path: Path) -> None:
    with pytest.raises(BadConfig, match=r"^(communication\[0\]|optimizer) is .*, not a "):
        place(TABLES, **json.loads(path.read_text()))
