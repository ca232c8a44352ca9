"""The picture of machines: two panels with prices, intervals around every point, and crosses where nothing fits."""

from __future__ import annotations

from pathlib import Path

import pytest

import evenshard
from evenshard.compare.what_if.option import WhatIfOption
from evenshard.compare.what_if.prices import HardwarePrice, Prices
from evenshard.compare.what_if.question import Question
from evenshard.compare.what_if.result import WhatIfAnswer
from evenshard.report.what_if_plot import save_plot
from evenshard.utils.errors import BadConfig
from support.what_if_builders import MACHINE, option

QUESTION = Question(
    evenshard.place, None, {}, Prices({"h100": HardwarePrice(1.0)}, "USD"), 1000, None, {}, None, 0.0, 1, {}
)


def test_it_is_written_in_the_kind_of_its_suffix(tmp_path: Path) -> None:
    lacking = WhatIfOption("simulated:a100_80gb", MACHINE, 1000, 2, problem="no room")
    found = WhatIfAnswer((option(price_per_hour=1.0), lacking), QUESTION)
    save_plot(found, tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text()
    assert "<svg" in drawn and drawn.count('id="axes_') == 2
    unpriced = WhatIfAnswer((option(),), QUESTION)
    save_plot(unpriced, tmp_path / "two.svg")
    assert (tmp_path / "two.svg").read_text().count('id="axes_') == 1
    with pytest.raises(BadConfig, match="a picture ends in"):
        save_plot(found, tmp_path / "one.txt")
