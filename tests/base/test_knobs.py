"""Knobs: fields of dataclasses with ranges, flags and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import (
    RANGES,
    Range,
    changed_knobs,
    check_knobs,
    check_ranges,
    copy_fields,
    knob,
    knobs_of,
    range_problems,
)


@dataclass(frozen=True)
class Some:
    num_devices: int = knob(1, "how many")
    share: float | None = knob(None, "of something", range=Range(0, 1, above=True))
    names: tuple[str, ...] = knob((), "of tables", flag="--name")
    host_gb: Any = knob({"a": 1}, "how much")
    plain: int = 3


@pytest.mark.parametrize(
    ("limits", "good", "bad"),
    [
        (Range(1, 4, whole=True), [1, 4], {0: "is 0, not a whole number from 1 to 4", 5: "", 2.0: "", True: ""}),
        (Range(0, 1000), [0, 0.5, 1000], {-1: "is -1, not a number from 0 to 1,000", 1001: "", "1": "", True: ""}),
        (Range(0, 1, above=True), [1e-9, 1], {0: "is 0, not a number above 0 and at most 1", float("nan"): ""}),
        (RANGES["memory_cap_gb"], [2**20], {0: "", 2**20 + 1: ""}),
    ],
)
def test_ranges(limits: Range, good: list[float], bad: dict[Any, str]) -> None:
    assert [limits.problem(value) for value in good] == [None] * len(good)
    for value, said in bad.items():
        problem = limits.problem(value)
        assert problem is not None and said in (problem, "")


def test_a_value_out_of_range_is_refused() -> None:
    assert [*range_problems(Some())] == []
    wrong = Some(num_devices=0, share=2.0)
    assert [one.split()[0] for one in range_problems(wrong)] == ["num_devices", "share"]
    with pytest.raises(BadConfig, match=r"^--x: num_devices is 0, not a whole number from 1 to 4,096\. Correct it\.$"):
        check_knobs(wrong, "--x: ")
    check_ranges(seed=0, nodes=None)
    with pytest.raises(BadConfig, match="seed is -1"):
        check_ranges(nodes=1, seed=-1)


def test_a_knob_knows_its_type_flag_and_unit() -> None:
    devices, share, names, host = knobs_of(Some)
    assert [one.name for one in (devices, share, names, host)] == ["num_devices", "share", "names", "host_gb"]
    assert [one.flag_name for one in (devices, names)] == ["--num-devices", "--name"]
    assert (devices.range, share.range, names.range) == (RANGES["num_devices"], Range(0, 1, above=True), None)
    assert (share.kind, share.scalar, names.scalar, devices.unit, host.unit) == (float, float, None, "", "GB")
    assert names.is_default([]) and not names.is_default(["a"]) and not devices.is_default(True)
    assert knobs_of(int) == ()


def test_changed_knobs_and_shared_fields() -> None:
    assert changed_knobs(Some()) == {}
    assert changed_knobs(Some(num_devices=2, names=("a",), plain=4)) == {"num_devices": 2, "names": ("a",)}

    @dataclass(frozen=True)
    class Less:
        plain: int = 0
        other: int = 7

    assert copy_fields(Some(plain=5), Less) == Less(5)
