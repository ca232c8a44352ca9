"""Sizes of device memory as an axis of ``what_if``: more memory is never slower, and offloaded tables are named."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache

import pytest

import evenshard
from evenshard.base.units import gb_to_bytes
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.planner.what_if.answer import WhatIfAnswer, keep_faster_placements
from evenshard.planner.what_if.option import WhatIfOption
from evenshard.report.what_if import print_what_if
from support.builders import table
from support.what_if_builders import option

# Two GB of tables, one of which has next to all lookups.
TABLES = [table("busy", 2**20, 64, 50.0), table("idle", 7 * 2**20, 64, 1.0)]
ASKED = {"batch_size": 8192, "training_pipeline": "none", "effort": "quick", "optimizer": "sgd"}


@cache
def sizes() -> WhatIfAnswer:
    return evenshard.what_if(TABLES, ["h100"], [2], memory_cap_gb=[4, 0.75, 0.01, 0.75], host_memory_gb=8, **ASKED)


def test_each_size_is_an_option_in_ascending_order() -> None:
    assert [one.memory_cap_gb for one in sizes().options] == [0.01, 0.75, 4]
    least, some, enough = sizes().options
    assert not least.fits and least.problem
    placed = evenshard.place(TABLES, 2, 0.75, hardware="h100", host_memory_gb=8, **ASKED)
    assert some.answer is not None and some.answer.parts == placed.parts and placed.offloaded
    assert enough.answer is not None and not enough.answer.offloaded
    assert enough.step_ms.value < some.step_ms.value
    assert sizes().fastest is not None and sizes().fastest.option is enough
    assert [one["memory_cap_gb"] for one in sizes().record()["options"]] == [0.01, 0.75, 4]


def test_one_size_is_a_number_and_none_is_that_of_the_hardware() -> None:
    (one,) = evenshard.what_if(TABLES, ["h100"], [2], memory_cap_gb=0.75, host_memory_gb=8, **ASKED).options
    assert one.answer is not None and one.answer.request.caps_bytes == (gb_to_bytes(0.75),) * 2
    for nothing in (None, ()):
        (own,) = evenshard.what_if(TABLES, ["h100"], [2], memory_cap_gb=nothing, **ASKED).options
        assert own.memory_cap_gb is None and own.answer is not None and own.answer.request.caps_bytes[0] > 2**36


def test_the_text_says_what_is_not_in_device_memory() -> None:
    said = io.StringIO()
    print_what_if(sizes(), said)
    text = " ".join(said.getvalue().split())
    assert "samples/s not in device memory" in text
    assert "2 x h100 with 0.01 GB 1 does not fit" in text and "GB of 1 table" in text and "nothing fastest" in text
    assert "fastest: 2 x h100 with 4 GB," in text


@pytest.mark.parametrize("own", [5.0, None])
def test_a_placement_for_less_memory_is_kept_where_more_memory_gives_a_slower_one(own: float | None) -> None:
    """A search with more memory may find a slower placement, or none: then that of less memory is the answer."""
    less = option(4.0, memory_cap_gb=40)
    slower = option(5.0, memory_cap_gb=80)
    more = slower if own else WhatIfOption(less.hardware, less.machine, 1000, 2, problem="none", memory_cap_gb=80)
    faster = option(3.0, memory_cap_gb=96)
    first, kept, last = keep_faster_placements([less, more, faster])
    assert (first, last) == (less, faster)
    assert kept.step_ms == less.step_ms and kept.memory_cap_gb == 80 and not kept.problem
    assert kept.answer is not None and less.answer is not None and kept.answer.parts == less.answer.parts
    assert kept.answer.request.caps_bytes == (gb_to_bytes(80),) * 2
    elsewhere = replace(slower, machine=Nodes(4, 4, 1, "100gb_s"))
    assert list(keep_faster_placements([less, elsewhere])) == [less, elsewhere]


def test_sizes_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["what-if", "criteo_kaggle", "--memory-cap-gb", "40,x"])
    assert raised.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert main(["what-if", "criteo_kaggle", "--memory-cap-gb", "40,-1"]) == 2
    assert "memory_cap_gb is -1" in capsys.readouterr().err
