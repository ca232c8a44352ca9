"""Options of a machine with known times, made by hand."""

from __future__ import annotations

from typing import Any

from evenshard.placement.nodes import Nodes
from evenshard.planner.what_if.option import WhatIfOption
from evenshard.price.evidence import DeviceError
from support.answer_builders import answer

ERROR = DeviceError(40.0, 12)
MACHINE = Nodes(2, 2, 1, "100gb_s")


def option(
    ms: float = 4.0, hardware: str = "simulated:h100", error: DeviceError | None = ERROR, **more: Any
) -> WhatIfOption:
    """Of a step of so many ms, of which a quarter is exchanged; the model alone is 10 % sure."""
    placed = answer(totals_ms=(ms, ms / 2), device_error=error)
    return WhatIfOption(hardware, MACHINE, 1000, 2, answer=placed, **more)
