"""Sizes of device memory as an axis of ``what_if``: more memory is never slower, and offloaded tables are named."""

from __future__ import annotations

import io
from functools import cache

import pytest

import evenshard
from evenshard.base.units import gb_to_bytes
from evenshard.cli import main
from evenshard.planner.what_if.answer import WhatIfAnswer
from evenshard.report.what_if import print_what_if
from support.builders import table

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
    print_what_if(sizes(), said := io.StringIO())
    text = " ".join(said.getvalue().split())
    assert "2 x h100 with 0.01 GB 1 does not fit" in text and "fastest: 2 x h100 with 4 GB," in text
    assert [one["memory_cap_gb"] for one in sizes().record()["options"]] == [0.01, 0.75, 4]


def test_one_size_is_a_number_and_none_is_that_of_the_hardware() -> None:
    (one,) = evenshard.what_if(TABLES, ["h100"], [2], memory_cap_gb=0.75, host_memory_gb=8, **ASKED).options
    assert one.answer is not None and one.answer.request.caps_bytes == (gb_to_bytes(0.75),) * 2
    for nothing in (None, ()):
        (own,) = evenshard.what_if(TABLES, ["h100"], [2], memory_cap_gb=nothing, **ASKED).options
        assert own.memory_cap_gb is None and own.answer is not None and own.answer.request.caps_bytes[0] > 2**36


def test_sizes_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["what-if", "criteo_kaggle", "--memory-cap-gb", "40,x"])
    assert raised.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as raised:
        main(["what-if", "criteo_kaggle", "--dense-ms", "h100=1,h100=2"])
    assert raised.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert main(["what-if", "criteo_kaggle", "--memory-cap-gb", "40,-1"]) == 2
    assert "memory_cap_gb is -1" in capsys.readouterr().err
