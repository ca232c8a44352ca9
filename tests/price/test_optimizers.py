"""Optimizers on simulated GPUs: what they keep is read and written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.scripts.fit_devices import Point, published_points
from evenshard.placement.memory import STATE_NUMBERS
from evenshard.price.device_model import backward_ms
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.hardware import profile_names
from evenshard.price.kernel_calls import Lookup
from evenshard.price.shard_work import WorkCounter
from evenshard.price.simulated_price import DeviceModelPrice
from support.builders import table
from support.truth import truth_file


@pytest.mark.parametrize("profile", profile_names())
def test_the_more_an_optimizer_keeps_the_longer_is_the_backward_pass_and_no_other(profile: str) -> None:
    price, wide = DeviceModelPrice(gpu_profile(profile)), table(rows=10**6, dim=256, pooling=1, bits=16)
    lookups = [Lookup(wide, 65_536, optimizer) for optimizer in STATE_NUMBERS]
    forward, backward, _ = price.call_ms(price.columns(lookups))
    assert len(set(forward)) == 1
    of_state = dict(zip(STATE_NUMBERS.values(), backward.tolist(), strict=True))
    assert all(less < more for less, more in pairwise(of_state.values()))
    assert len(set(backward)) == len(of_state), "optimizers with as much state take as long"


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
