"""Simulated hardware: placements, noise, memory, profiles. The times themselves stand in test_device_model.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import yaml

from evenshard.measure.config import MeasureConfig
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost, interquartile_range
from evenshard.price.device_model import backward_ms, forward_ms
from evenshard.price.evidence import EXTRAPOLATED_PERCENT, DeviceError
from evenshard.price.hardware import profile_path
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from support.builders import task as make_task

BATCH = 65536
POOL = generate_tables(GeneratorConfig(120, (4, 8, 16, 64, 128), weight_bits=16), BATCH, seed=3)
TASKS = tuple(
    make_task(POOL[first : first + 20], devices=4, task_id=f"t{first}", batch_size=BATCH) for first in (0, 60)
)


def simulated(name: str = "a100_80gb", **settings: object) -> SimulatedHardware:
    return SimulatedHardware(MeasureConfig(hardware=f"simulated:{name}", **settings))  # type: ignore[arg-type]


def random_jobs(count: int, seed: int = 0) -> list[tuple[ShardingTask, Placement]]:
    rng = np.random.default_rng(seed)
    return [(TASKS[i % 2], Placement(tuple(rng.integers(0, 4, 20).tolist()), 4)) for i in range(count)]


def test_a_shard_beyond_the_memory_is_out_of_memory_and_the_others_are_not() -> None:
    big = Table("big", 45 * 2**20, 64, 1.0, None, 32)  # 11.25 GB, the card has 10.75
    small = Table("small", 1000, 64, 1.0, None, 32)
    cost = simulated("rtx_2080_ti").measure(make_task((big, small), batch_size=BATCH), Placement((0, 1), 2))
    assert cost.devices[0] == DeviceCost.out_of_memory()
    assert cost.devices[1].status != OUT_OF_MEMORY and cost.devices[1].total_ms < 100
    assert cost.devices[1].fwd_wait_ms == 0


def test_measuring_one_by_one_or_all_at_once_is_the_same() -> None:
    jobs = random_jobs(30)
    assert simulated().measure_many(jobs) == [simulated().measure(*jobs[0]), *simulated().measure_many(jobs[1:])]
    hardware = simulated(noise=0.1, seed=4)
    assert simulated(noise=0.1, seed=4).measure_many(jobs) == [hardware.measure(*job) for job in jobs]
    assert simulated().measure_many([]) == []


def test_times_are_exact_without_noise() -> None:
    job, hardware = random_jobs(1)[0], simulated()
    cost = hardware.measure(*job)
    assert hardware.measure(*job) == cost
    assert all(one.fwd_compute_spread_ms == one.bwd_compute_spread_ms == 0 for one in cost.devices)
    shard = [job[0].tables[position] for position in job[1].shards()[2]]
    alone = hardware.measure(make_task(shard, devices=1, batch_size=BATCH), Placement((0,) * len(shard), 1)).devices[0]
    assert (alone.fwd_compute_ms, alone.bwd_compute_ms) == (
        cost.devices[2].fwd_compute_ms,
        cost.devices[2].bwd_compute_ms,
    )
    work, gpu = hardware.shard_work([job]), hardware.profile
    assert [one.fwd_compute_ms for one in cost.devices] == forward_ms(gpu, work).tolist()
    assert [one.bwd_compute_ms for one in cost.devices] == backward_ms(gpu, work).tolist()


def test_noise_depends_on_seed_placement_and_visit_but_not_on_the_order() -> None:
    first, second = random_jobs(2)
    hardware = simulated(noise=0.05, seed=1)
    visits = [hardware.measure(*first), hardware.measure(*first)]
    assert visits[0] != visits[1]
    other = simulated(noise=0.05, seed=1)
    other.measure(*second)
    assert [other.measure(*first), other.measure(*first)] == visits
    assert simulated(noise=0.05, seed=2).measure(*first) != visits[0]
    renamed = simulated(noise=0.05, seed=1).measure(replace(first[0], task_id="another"), first[1])
    assert renamed.devices[0].fwd_compute_ms != visits[0].devices[0].fwd_compute_ms


def test_noise_has_the_spread_that_was_asked_for() -> None:
    job, noise = random_jobs(1)[0], 0.05
    exact = simulated().measure(*job)
    seen = simulated(noise=noise).measure_many([job] * 600)
    for get in (lambda c: c.devices[0].fwd_compute_ms, lambda c: c.devices[3].bwd_compute_ms):
        factors = np.array([get(cost) / get(exact) for cost in seen])
        assert median(factors) == pytest.approx(1, abs=0.01)
        assert factors.std() == pytest.approx(noise, rel=0.15)
        shard = seen[0].devices[0]
        assert shard.bwd_compute_spread_ms / shard.bwd_compute_ms == pytest.approx(
            interquartile_range(factors.tolist()), rel=0.2
        )
    forward, backward = (
        [getattr(cost.devices[0], name) for cost in seen] for name in ("fwd_compute_ms", "bwd_compute_ms")
    )
    assert abs(np.corrcoef(forward, backward)[0, 1]) < 0.15
    assert {cost.devices[0].fwd_all_to_all_ms for cost in seen} == {exact.devices[0].fwd_all_to_all_ms}


def test_provenance_says_that_it_was_simulated_and_has_the_error_of_its_profile(tmp_path: Path) -> None:
    hardware = open_hardware(MeasureConfig(hardware="simulated:v100", repeats=3, visits=2, seed=9))
    found = hardware.provenance
    assert (found.hardware, found.driver, found.link) == ("simulated: v100", "none", "nvlink_v100")
    assert (found.seed, found.repeats) == (9, 6) and found.versions.startswith("evenshard ")
    assert hardware.time_share.kernel_s == 0 and hardware.time_share.wall_s > 0
    copy = tmp_path / "mine.yaml"
    copy.write_text(profile_path("v100").read_text())
    assert simulated(str(copy)).provenance.hardware == "simulated: mine"
    # The file may be gone when a model learns from the measurements. An extrapolated profile has a large error.
    content = yaml.safe_load(profile_path("v100").read_text())
    shards = {"points": "shards", "source": "a test", "fitted": 50, "held_out": 40}
    content["evidence"] = [{**shards, "median_error_percent": 5.0, "p90_error_percent": 12.0}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    assert simulated(str(tmp_path / "mine.yaml")).provenance.device_error == DeviceError(12.0, 40)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content | {"extrapolated_from": "rtx_2080_ti"}))
    assert simulated(str(tmp_path / "mine.yaml")).provenance.device_error == DeviceError(EXTRAPOLATED_PERCENT, 40)
