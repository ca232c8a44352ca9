"""Plain values become records if every type is the stated one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from evenshard.utils.records import as_type, record_of


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
    numbers: tuple[int, ...] | None = None
    inners: tuple[Inner, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {"name": "a", "count": 3, "pair": [1, 2.5], "inner": {"on": True}}


def test_a_record_comes_back() -> None:
    assert record_of(Outer, PLAIN) == Outer("a", 3, (1, 2.5), Inner(True))
    full = Outer("a", 3, (1.0, 2.5), Inner(True, 0.5), (1, 2), (Inner(False),), {"x": [1, None]})
    plain = {**asdict(full), "pair": [1.0, 2.5], "numbers": [1, 2], "inners": [{"on": False}]}
    assert record_of(Outer, plain) == full


def test_whole_numbers_stay_whole() -> None:
    """The key of a job is made of what its numbers look like."""
    assert repr(record_of(Inner, {"on": False, "weight": 2}).weight) == "2"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": 3}, "name is 3, not a string"),
        ({"name": None}, "name is None, not a string"),
        ({"name": ["a"]}, r"name is \['a'\], not a string"),
        ({"count": True}, "count is True, not a whole number"),
        ({"count": 3.0}, r"count is 3\.0, not a whole number"),
        ({"count": "3"}, "count is '3', not a whole number"),
        ({"pair": [1.0]}, r"pair is \[1\.0\], not a list of 2"),
        ({"pair": [1.0, "2"]}, r"pair\[1\] is '2', not a number"),
        ({"pair": [False, 2.0]}, r"pair\[0\] is False, not a number"),
        ({"pair": {"a": 1}}, "pair is .*, not a list of 2"),
        ({"inner": {"on": 1}}, "on is 1, not true or false"),
        ({"inner": {}}, "on is missing"),
        ({"inner": {"on": True, "off": 1}}, "'off' is unknown"),
        ({"inner": 5}, "inner is 5, not an object with fields"),
        ({"numbers": [1, 2.5]}, r"numbers\[1\] is 2\.5, not a whole number"),
        ({"numbers": 1}, "numbers is 1, not a list or null"),
        ({"inners": [{"on": True}, 3]}, r"inners\[1\] is 3, not an object with fields"),
        ({"rest": []}, r"rest is \[\], not an object with fields"),
        ({"more": 1}, "'more' is unknown"),
        ({"name": "x" * 10_000, "count": "y" * 10_000}, "count is 'yyy.*, not a whole number"),
    ],
)
def test_another_type_is_one_line(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$") as caught:
        record_of(Outer, {**PLAIN, **change})
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("content", [None, 5, "name", [], [["name", "a"]]])
def test_what_is_not_an_object_is_no_record(content: Any) -> None:
    with pytest.raises(ValueError, match="is not an object with fields"):
        record_of(Outer, content)


def test_a_value_alone() -> None:
    assert as_type([[1, 2], [3]], tuple[tuple[int, ...], ...], "groups") == ((1, 2), (3,))
    assert as_type({"a": [1]}, dict[str, tuple[int, ...]], "pinned") == {"a": (1,)}
    with pytest.raises(ValueError, match=r"^pinned\.a is 1, not a list$"):
        as_type({"a": 1}, dict[str, tuple[int, ...]], "pinned")
