"""Optimizers on simulated GPUs: what they keep is read, written and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.scripts.fit_devices import Point, published_points
from evenshard.base.errors import BadInput
from evenshard.measure.calibrate.device import extract_shards
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.price.costs import OK, OUT_OF_MEMORY, DeviceCost, MeasuredPlacement
from evenshard.price.device_model import backward_ms
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.hardware import profile_names
from evenshard.price.shard_work import WorkCounter
from evenshard.tables.table import Table
from support.builders import some_tables, table, task
from support.truth import truth_file

SHARDS: Mapping[str, Sequence[Table]] = {
    "small": some_tables(5),
    "narrow": [table("narrow", rows=10**6, dim=4, pooling=3)],
    "wide": [table("wide", rows=10**6, dim=256, pooling=1, bits=16), table("hot", rows=10, dim=128, pooling=50)],
}


def cost(profile: str, optimizer: str, shard: Sequence[Table], batch_size: int = 65536) -> DeviceCost:
    hardware = SimulatedHardware(MeasureConfig(f"simulated:{profile}", optimizer=optimizer))
    of = task(shard, devices=1, batch_size=batch_size)
    return hardware.measure(of, place_on_one_device(of)).devices[0]


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("shard", SHARDS)
def test_the_more_an_optimizer_keeps_the_longer_is_the_backward_pass_and_no_other(profile: str, shard: str) -> None:
    found = [cost(profile, optimizer, SHARDS[shard]) for optimizer in STATE_NUMBERS]
    assert len({one.fwd_compute_ms for one in found}) == 1
    backward = [one.bwd_compute_ms or 0.0 for one in found]
    assert backward[0] > 0 and all(less <= more for less, more in pairwise(backward))
    if shard == "wide":
        of_state = {STATE_NUMBERS[optimizer]: ms for optimizer, ms in zip(STATE_NUMBERS, backward, strict=True)}
        assert all(less < more for less, more in pairwise(of_state.values()))
        assert len(set(backward)) == len(of_state), "optimizers with as much state take as long"


def test_the_state_takes_memory() -> None:
    shard = [table("big", rows=10**8, dim=64, pooling=1)]  # 25.6 GB of weights; adam keeps twice as much beside them
    assert cost("a100_40gb", "rowwise_adagrad", shard).status == OK
    assert cost("a100_40gb", "adagrad", shard).status == cost("a100_40gb", "adam", shard).status == OUT_OF_MEMORY
    assert cost("a100_80gb", "adam", shard).status == OK


def test_a_calibration_knows_the_optimizer_and_takes_one_alone() -> None:
    of = task(some_tables(6), devices=2, batch_size=65536)
    placement, start = Placement((0, 1, 0, 1, 0, 1), 2), gpu_profile("v100")
    sgd, adam = (
        MeasuredPlacement(
            name, 1, "random", of, placement.parts(of.tables), hardware.measure(of, placement), hardware.provenance
        )
        for name in ("sgd", "adam")
        for hardware in [SimulatedHardware(MeasureConfig("simulated:h200", optimizer=name))]
    )
    assert extract_shards(start, [adam]).optimizer == "adam"
    with pytest.raises(BadInput, match=r"mix optimizers \(adam, sgd\), whose backward passes differ"):
        extract_shards(start, [sgd, adam])


def simulated_ms(point: Point) -> float:
    profile = gpu_profile("h100")
    counter = WorkCounter(profile, point.optimizer)
    columns = counter.columns(point.tables, point.batch_size)
    work = counter.shard_work(columns, np.zeros(len(columns), dtype=np.int64), 1)
    return float(backward_ms(profile, work, point.optimizer)[0])


@pytest.mark.parametrize(("num_tables", "num_rows"), [(1, 16777216), (10, 1677721)])
def test_adam_takes_as_much_longer_than_sgd_as_on_an_h100(num_tables: int, num_rows: int) -> None:
    """A million lookups of 128 dims: 596 us became 923, and 614 became 1005."""
    points = {
        point.optimizer: point
        for point in published_points(truth_file("gpu_points.csv").parent)
        if point.gpu.startswith("H100") and point.time == "backward" and len(point.tables) == num_tables
        if point.tables[0].num_rows == num_rows
    }
    real = points["adam"].ms / points["sgd"].ms
    assert real > 1.5
    assert simulated_ms(points["adam"]) / simulated_ms(points["sgd"]) == pytest.approx(real, rel=0.15)
