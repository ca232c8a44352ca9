"""Records of files and arguments of functions: strict types, with all problems in words."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenshard.base.errors import BadConfig, BadFile, BadRecords
from evenshard.base.knobs import Knob
from evenshard.base.typed import WrongValues, check_arguments, read_record, record_of, section

# Records -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    on: bool
    weight: float = 1.0


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    pair: tuple[float, float]
    inner: Inner
    numbers: float | tuple[int, ...] | None = None
    inners: tuple[Inner, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {"name": "a", "count": 3, "pair": [1, 2.5], "inner": {"on": True}}


def test_a_record_comes_back() -> None:
    assert record_of(Outer, PLAIN) == Outer("a", 3, (1, 2.5), Inner(True))
    full = Outer("a", 3, (1.0, 2.5), Inner(True, 0.5), (1, 2), (Inner(False),), {"x": [1, None]})
    assert record_of(Outer, json.loads(json.dumps(asdict(full)))) == full
    assert record_of(tuple[int, ...], [1, 2]) == (1, 2)


def test_a_record_comes_back_where_pydantic_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    test_a_record_comes_back()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": None}, "name is None, not a string"),
        ({"count": True}, "count is True, not a whole number"),
        ({"count": 3.0}, "count is 3.0, not a whole number"),
        ({"pair": [1.0, "2"]}, "pair[1] is '2', not a number"),
        ({"pair": [1, 2, 3]}, "pair is [1, 2, 3], not a list of 2"),
        ({"pair": [float("inf"), 2]}, "pair[0] is inf, not a finite number"),
        ({"inner": {"on": 1}}, "inner: on is 1, not true or false"),
        ({"inner": {}}, "inner: on is missing"),
        ({"numbers": [1, 2.5]}, "numbers[1] is 2.5, not a whole number"),
        ({"inners": [{"on": True}, {"on": True, "off": 1}]}, "inners[1]: 'off' is unknown"),
        ({"nam": 1}, "'nam' is unknown (did you mean name?)"),
        ({"count": "\ud800"}, "'utf-8' codec can't encode character"),
    ],
)
def test_a_problem_is_one_line(change: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongValues) as caught:
        record_of(Outer, {**PLAIN, **change})
    assert str(caught.value).startswith(why) and len(str(caught.value)) < 150


def test_all_problems_of_a_file_come_at_once() -> None:
    content = {"name": "a", "count": "x", "pair": ["1e-3", 2], "inner": {"on": "yes"}, "more": 1}
    with pytest.raises(BadRecords) as caught:
        read_record(Outer, content, "file.yaml", "Write it anew.")
    assert caught.value.lines == (
        "file.yaml: 4 problems",
        "count is 'x', not a whole number. Correct it.",
        "pair[0] is '1e-3', not a number (write 0.001). Correct it.",
        "inner: on is 'yes', not true or false. Correct it.",
        "'more' is unknown. Correct or remove it.",
        "Write it anew.",
    )
    with pytest.raises(BadFile, match=r"^file.yaml: is 5, not a mapping. Write it anew.$"):
        read_record(Outer, 5, "file.yaml", "Write it anew.")


# Sections of params.yaml ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    num_updates: int
    learning_rate: float = 0.5
    dims: tuple[int, ...] = (4, 8)
    max_rows: int | None = None
    batch_size: int = 1


def test_a_section_becomes_its_dataclass_with_defaults_for_the_rest_and_flags_win() -> None:
    params = {"train": {"num_updates": 3, "dims": [16, 32], "max_rows": None}, "other": {"num_updates": 9}}
    assert section(params, "train", Config) == Config(3, 0.5, (16, 32))
    found = section({"train": {"num_updates": 3.0, "learning_rate": 1}}, "train", Config)
    assert repr(found) == repr(Config(3, 1.0)), "whole numbers are fine as floats and for them"
    params = {"train": {"num_updates": 3, "learning_rate": 0.1}}
    assert section(params, "train", Config, num_updates=7, learning_rate=None) == Config(7, 0.1)
    assert section(params, "train", Config, learning_rate=0.0) == Config(3, 0.0)
    assert params == {"train": {"num_updates": 3, "learning_rate": 0.1}}
    assert section({}, "train", Config, num_updates=2) == Config(2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_updates": 3, "lerning_rate": 1.0}, "train: 'lerning_rate' is unknown (did you mean learning_rate?)"),
        ({"num_updates": 2.5, "max_rows": "x"}, "num_updates is 2.5, not a whole number; max_rows is 'x', not a whole"),
        ({"num_updates": 3, "batch_size": 0}, "train: batch_size is 0, not a whole number from 1 to 2,147,483,647. "),
        ({"num_updates": 3, "learning_rate": float("nan")}, "learning_rate is nan, not a finite number"),
        ([1, 2], "section train is not a mapping"),
    ],
)
def test_a_senseless_value_is_named_by_section_and_key(values: Any, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        section({"train": values}, "train", Config)
    assert words in str(caught.value)


# Arguments -----------------------------------------------------------------------------------------------------------


@check_arguments(Fraction="fractions")
def asked(
    source: "str | Path | Unknown",  # noqa: F821, UP037  # type: ignore[name-defined]
    path: str | Path = "",
    count: int = 1,
    size: float | None = None,
    yes: bool = False,
    names: Sequence[str] = (),
    sizes: float | Sequence[float] = (),
    places: Mapping[str, int | Sequence[int]] | None = None,
    told: Callable[[float], None] | None = None,
    part: "Fraction | None" = None,  # noqa: UP037
    *,
    last: int = 0,
    **knobs: Any,
) -> dict[str, Any]:
    """What it was given."""
    return dict(locals())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("path", 1, "path is 1, not a string or a path. Correct it."),
        ("path", Path("\ud800"), "not Unicode text of at most 4,096 bytes without NUL"),
        ("count", True, "count is True, not a whole number"),
        ("yes", 1, "yes is 1, not true or false"),
        ("names", "one", "names is 'one', not a list. Put it in brackets: ['one']."),
        ("names", ["one", 2], "names[1] is 2, not a string"),
        ("sizes", "1", "sizes is '1', not a number or a list (write 1). Correct it."),
        ("places", {"a": "b"}, "places.a is 'b', not a whole number or a list"),
        ("places", [("a", 1)], "places is [('a', 1)], not a mapping"),
        ("told", 1, "told is 1, not a function"),
    ],
)
def test_another_type_is_said_in_a_line(name: str, value: Any, problem: str) -> None:
    with pytest.raises(BadConfig) as caught:
        asked("", **{name: value})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("source", object, object),
        ("count", np.int64(3), 3),
        ("count", 3.0, 3),
        ("count", 10**400, 10**400),
        ("size", np.float32(0.5), 0.5),
        ("size", Fraction(1, 2), 0.5),
        ("sizes", range(3), [0, 1, 2]),
        ("places", {"a": [np.int32(1)], "b": 2.0}, {"a": [1], "b": 2}),
        ("part", Fraction(1, 2), Fraction(1, 2)),
        ("other", object, object),
    ],
)
def test_values_of_the_type_are_taken_as_plain_ones(name: str, value: Any, found: Any) -> None:
    given = asked(**{"source": "", name: value})
    given |= given["knobs"]
    assert given[name] == found and type(given[name]) is type(found)


def test_the_signature_stays_and_what_is_no_argument_is_pythons_error() -> None:
    assert list(inspect.signature(asked).parameters)[:2] == ["source", "path"]
    with pytest.raises(TypeError, match="missing a required argument: 'source'"):
        asked()


KNOBS = (
    Knob("count", int, 1, "how many"),
    Knob("part", "Fraction | None", None, "how much of it", torchrec="Topology.part"),
    Knob("size_gb", float, 1.0, "how large"),
)


@check_arguments(KNOBS, Fraction="fractions")
def with_knobs(count: int = 0, *, last: int = 0, **knobs: Any) -> dict[str, Any]:
    """What it was given.

    Args:
        knobs: any of ``KNOBS``, which are told
            in two lines.
        last: the last.
    """
    return {"count": count, **knobs}


def test_knobs_are_checked_and_shown_as_they_are_declared() -> None:
    assert str(inspect.signature(with_knobs)) == (
        "(count: int = 1, *, part: 'Fraction | None' = None, size_gb: float = 1.0, last: 'int' = 0) -> 'dict[str, Any]'"
    )
    assert inspect.getdoc(with_knobs) == (
        "What it was given.\n\nArgs:\n    count: how many.\n    part: how much of it. TorchRec: ``Topology.part``.\n"
        "    size_gb: how large.\n    last: the last."
    )
    assert with_knobs(np.int8(2), part=Fraction(1, 2)) == {"count": 2, "part": Fraction(1, 2)}
    for given, said in (({"count": "x"}, "not a whole number"), ({"part": 1}, "not a Fraction")):
        with pytest.raises(BadConfig, match=said):
            with_knobs(**given)
