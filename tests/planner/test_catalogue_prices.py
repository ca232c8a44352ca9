"""A placement for simulated devices is predicted to take what the simulated machine says, on every public set."""

from __future__ import annotations

import numpy as np
import pytest

import evenshard
from evenshard.base.units import gb_to_bytes
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.planner.pricing import model_of, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import profile_names
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import Table

BATCH = 65_536
WITHIN = 0.002


def request(name: str, devices: int, hardware: str) -> PlacementRequest:
    machine = Nodes(devices, 8, inter="infiniband_ndr") if devices > 8 else None
    tables = load_catalog(name, BATCH)
    return PlacementRequest(
        tables, (gb_to_bytes(8192),) * devices, BATCH, optimizer="rowwise_adagrad", machine=machine, hardware=hardware
    )


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_can_be_placed_for(profile: str) -> None:
    tables = [Table(f"t{at}", 10 ** (3 + at), 32, 5.0) for at in range(4)]
    answer = evenshard.place(tables, 2, hardware=f"simulated:{profile}")
    assert 0 < answer.lower_bound_ms <= answer.predicted_ms < 10


@pytest.mark.parametrize("name", ["avazu", "criteo_kaggle", "mlperf_dlrm_v2", "nvidia_tiny", "nvidia_medium"])
def test_whole_tables_are_predicted_as_the_loop_measures_them(name: str) -> None:
    """The loop counts no indices; its kernels and its exchanges of embeddings and gradients are the same."""
    asked = request(name, 8, "simulated:h200")
    devices = np.random.default_rng(0).integers(8, size=len(asked.tables)).tolist()
    placement = Placement(tuple(devices), 8)
    hardware = SimulatedHardware(MeasureConfig(asked.hardware, noise=0.0, optimizer=asked.optimizer))
    task = ShardingTask.whole("task", asked.tables, 8, gb_to_bytes(8192), BATCH)
    measured = hardware.measure(task, placement)
    predicted = part_costs(asked, model_of(None, asked.hardware)).predict(placement.parts(asked.tables))
    for one, other in zip(predicted.devices, measured.devices, strict=True):
        for phase in ("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms"):
            assert getattr(one, f"predicted_{phase}") == pytest.approx(getattr(other, phase), rel=WITHIN), phase
