"""Costs of placements of parts; ``test_simulated_cost`` has those of the device model."""

from __future__ import annotations

import pytest

from evenshard.base.errors import BadConfig
from evenshard.measure.placements import open_measurer
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from support.builders import some_tables


def test_devices_of_several_kinds_are_not_measured_on_one_machine() -> None:
    machine = Nodes(2, 2, groups=(DeviceGroup("cpu", 1), DeviceGroup("simulated:h100", 1)))
    request = PlacementRequest(some_tables(2), (2**30,) * 2, 64, machine=machine, hardware="cpu")
    with (
        pytest.raises(BadConfig, match="devices of several kinds cannot be measured"),
        open_measurer(request, DeviceModel("simulated:h100"), visits=1),
    ):
        pass
