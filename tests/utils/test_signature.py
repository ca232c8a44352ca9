"""Arguments against the types of a signature: strict, with NumPy's numbers, in one line that says what is expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenshard.utils.errors import BadConfig
from evenshard.utils.knobs import Knob
from evenshard.utils.signature import check_arguments


@check_arguments(Fraction="fractions")
def asked(
    source: "str | Path | Unknown",  # noqa: F821, UP037  # type: ignore[name-defined]
    path: str | Path = "",
    count: int = 1,
    size: float | None = None,
    yes: bool = False,
    names: Sequence[str] = (),
    sizes: float | Sequence[float] = (),
    groups: Sequence[Sequence[str]] = (),
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
        ("path", "\ud800", "which holds half of a character"),
        ("path", Path("\ud800"), "which holds half of a character"),
        ("path", "a\0b", "which holds a character of value 0"),
        ("path", "x" * 5000, r"cannot be looked up \(File name too long\)"),
        ("count", True, "count is True, not a whole number"),
        ("count", "1", "count is '1', not a whole number"),
        ("count", 1.5, "count is 1.5, not a whole number"),
        ("count", float("nan"), "count is nan, not a whole number"),
        ("count", None, "count is None, not a whole number"),
        ("size", "1", "size is '1', not a number"),
        ("size", 1j, "size is 1j, not a number"),
        ("size", False, "size is False, not a number"),
        ("yes", "no", "yes is 'no', not True or False"),
        ("yes", 1, "yes is 1, not True or False"),
        ("names", "one", r"names is 'one', not a list of strings. Put it in brackets: \['one'\]"),
        ("names", ["one", 2], r"names is \['one', 2\], not a list of strings"),
        ("names", {"one"}, "names is {'one'}, not a list of strings"),
        ("sizes", ["1"], r"sizes is \['1'\], not a number or a list of numbers"),
        ("groups", ["ab"], r"groups is \['ab'\], not a list of lists of strings"),
        ("places", {"a": "b"}, "not a mapping of strings to whole numbers or lists of whole numbers"),
        ("places", [("a", 1)], "not a mapping"),
        ("told", 1, "told is 1, not a function"),
        ("part", 1, "part is 1, not a Fraction"),
        ("last", [], r"last is \[\], not a whole number"),
    ],
)
def test_another_type_is_said_in_a_line(name: str, value: Any, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        asked("", **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("source", object, object),
        ("count", np.int64(3), 3),
        ("count", 3.0, 3),
        ("count", 10**400, 10**400),
        ("size", np.float32(0.5), 0.5),
        ("size", Fraction(1, 2), 0.5),
        ("size", 3, 3),
        ("size", None, None),
        ("names", ("a", "b"), ("a", "b")),
        ("sizes", np.float64(2), 2.0),
        ("sizes", range(3), (0, 1, 2)),
        ("places", {"a": [np.int32(1)], "b": 2.0}, {"a": [1], "b": 2}),
        ("told", print, print),
        ("part", Fraction(1, 2), Fraction(1, 2)),
        ("other", object, object),
    ],
)
def test_values_of_the_type_are_taken_as_plain_ones(name: str, value: Any, found: Any) -> None:
    given = asked(**{"source": "", name: value})
    given |= given["knobs"]
    assert given[name] == found and type(given[name]) is type(found)


def test_a_whole_number_stays_what_it_is() -> None:
    assert isinstance(asked("", size=3)["size"], int)


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


def test_knobs_are_checked_as_they_are_declared() -> None:
    assert with_knobs(np.int8(2), part=Fraction(1, 2)) == {"count": 2, "part": Fraction(1, 2)}
    for given, said in (({"count": "x"}, "not a whole number"), ({"part": 1}, "not a Fraction")):
        with pytest.raises(BadConfig, match=said):
            with_knobs(**given)


def test_the_signature_and_the_help_show_every_knob() -> None:
    assert str(inspect.signature(with_knobs)) == (
        "(count: int = 1, *, part: 'Fraction | None' = None, size_gb: float = 1.0, last: 'int' = 0) -> 'dict[str, Any]'"
    )
    assert inspect.getdoc(with_knobs) == (
        "What it was given.\n\nArgs:\n    count: how many.\n    part: how much of it. TorchRec: ``Topology.part``.\n"
        "    size_gb: how large.\n    last: the last."
    )
