"""Predicted steps of placements: the times of each device, by hand."""

from __future__ import annotations

import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.measure.step_time import LARGEST_SUM, PIPELINES
from evenshard.placement.machine import Machine
from evenshard.placement.parts import whole_part
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table

# Device 0 has the most lookups, device 1 the widest outputs: each window of a step has another slowest device.
TABLES = (Table("looked up", 10**6, 16, 200.0), Table("wide", 10**4, 1024, 1.0), Table("small", 10**4, 16, 2.0))


@pytest.mark.parametrize("pipeline", [LARGEST_SUM, *PIPELINES])
def test_devices_wait_for_what_is_left_of_the_step(pipeline: str) -> None:
    """Device 3 holds nothing. Where sums are compared, the slowest device does not wait."""
    machine = Machine.one_node(4)
    task = ShardingTask(TABLES, machine, (2**33,) * 4, 65_536)
    kind = simulated_kind(gpu_profile("h100"), machine)
    costs = PartCosts(task, [kind], [0] * 4, Links(link("nvlink_h100"), None), pipeline)
    found = costs.predict([whole_part(table, (device,)) for table, device in zip(TABLES, (0, 1, 2), strict=True)])
    for device in found.devices:
        assert device.predicted_total_ms + device.predicted_wait_ms == pytest.approx(found.predicted_ms, rel=1e-9)
    waits = [device.predicted_wait_ms for device in found.devices]
    assert waits[3] == max(waits)
    assert min(waits) == pytest.approx(0.0, abs=1e-9) if pipeline == LARGEST_SUM else min(waits) > 0.01
