"""One device that measures shards in turn: what a cost is made of, and what happens when a shard does not fit."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.measure import one_device
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import TimeShare
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.one_device import SequentialHardware
from evenshard.placement.placement import Placement
from evenshard.price.collectives import all_to_all_ms
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost
from evenshard.price.link import LINKS
from evenshard.tables.table import Table
from support.builders import table, task

CONFIG = MeasureConfig(hardware="cpu", link="ethernet_10g", num_batches=2, warmup=1, repeats=3, visits=2, seed=5)
SHARD = (
    table("ads", rows=50, dim=4, pooling=2.5),
    table("users", rows=200, dim=12, pooling=0.5),
    table("clicks", rows=7, dim=8, pooling=6.0),
)
BATCH_SIZE = 32
GIANT = table("giant", rows=2_000_000_000, dim=256)


def cpu(config: MeasureConfig = CONFIG) -> SequentialHardware:
    return SequentialHardware(config, torch.device("cpu"))


def cost_alone(hardware: SequentialHardware, one: Table, batch_size: int = BATCH_SIZE) -> DeviceCost:
    return hardware.measure(task([one], devices=1, batch_size=batch_size), Placement((0,), 1)).devices[0]


class FakeStopwatch:
    """Laps that were fixed beforehand, (forward, backward) of each pass."""

    def __init__(self, laps: Iterator[tuple[float, float]]) -> None:
        self._laps = laps
        self._marks = 0

    def mark(self) -> None:
        self._marks += 1

    def laps_ms(self) -> list[float]:
        assert self._marks == 3
        return list(next(self._laps))


def with_laps(monkeypatch: pytest.MonkeyPatch, laps: Sequence[tuple[float, float]]) -> None:
    iterator = iter(laps)
    monkeypatch.setattr(one_device, "Stopwatch", lambda device: FakeStopwatch(iterator))


# Costs ---------------------------------------------------------------------------------------------------------------


def test_costs_are_positive_and_an_empty_shard_computes_nothing() -> None:
    of_task = task(SHARD, devices=3, batch_size=BATCH_SIZE)
    measured = cpu().measure(of_task, Placement((0, 2, 0), 3))
    full, empty, other = measured.devices
    for device in (full, other):
        assert device.fwd_compute_ms > 0 and device.bwd_compute_ms > 0
        assert device.fwd_compute_spread_ms >= 0 and device.bwd_compute_spread_ms >= 0
    assert (empty.fwd_compute_ms, empty.bwd_compute_ms) == (0.0, 0.0)
    assert measured.fits and measured.max_device_ms == max(device.total_ms for device in measured.devices)


def test_the_exchange_is_modelled_and_says_so() -> None:
    of_task = task(SHARD, devices=3, batch_size=BATCH_SIZE)
    measured = cpu().measure(of_task, Placement((0, 2, 0), 3))
    expected = tuple(all_to_all_ms(LINKS["ethernet_10g"], [4 + 8, 0, 12], BATCH_SIZE).tolist())
    assert measured.all_to_all == "modelled"
    assert tuple(device.fwd_all_to_all_ms for device in measured.devices) == expected
    assert tuple(device.bwd_all_to_all_ms for device in measured.devices) == expected


def test_a_single_device_exchanges_nothing_and_waits_for_nobody() -> None:
    alone = cost_alone(cpu(), SHARD[0])
    assert (alone.fwd_all_to_all_ms, alone.bwd_all_to_all_ms, alone.fwd_wait_ms) == (0.0, 0.0, 0.0)
    assert alone.fwd_compute_ms > 0 and alone.bwd_compute_ms > 0


def test_a_thousand_times_the_lookups_take_longer() -> None:
    hardware = cpu()
    few = cost_alone(hardware, table("few", rows=10_000, dim=64, pooling=1.0), 512)
    many = cost_alone(hardware, table("many", rows=10_000, dim=64, pooling=1000.0), 512)
    assert many.fwd_compute_ms > 2 * few.fwd_compute_ms
    assert many.bwd_compute_ms > 2 * few.bwd_compute_ms


def test_the_median_and_the_spread_of_the_repeats_count_and_warm_up_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with_laps(monkeypatch, [(900.0, 900.0), (1.0, 40.0), (3.0, 20.0), (2.0, 30.0)])
    found = cost_alone(cpu(), SHARD[0])
    assert (found.fwd_compute_ms, found.bwd_compute_ms) == (2.0, 30.0)
    assert (found.fwd_compute_spread_ms, found.bwd_compute_spread_ms) == (1.0, 10.0)


def test_devices_wait_for_the_slowest_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards of 5, 7 and 4 ms, and a device without tables; how long the backward takes does not matter."""
    with_laps(monkeypatch, [(5.0, 1.0), (7.0, 1.0), (4.0, 99.0)])
    of_task = task(SHARD, devices=4, batch_size=BATCH_SIZE)
    measured = cpu(replace(CONFIG, warmup=0, repeats=1)).measure(of_task, Placement((0, 1, 3), 4))
    assert [device.fwd_wait_ms for device in measured.devices] == [2.0, 0.0, 7.0, 3.0]


def test_the_order_of_a_pass_is_flush_mark_forward_mark_backward_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Watch:
        def mark(self) -> None:
            seen.append("mark")

        def laps_ms(self) -> list[float]:
            return [1.0, 1.0]

    hardware = cpu(replace(CONFIG, repeats=1))
    monkeypatch.setattr(one_device, "Stopwatch", lambda device: Watch())
    monkeypatch.setattr(hardware, "_flush", lambda: seen.append("flush"))
    cost_alone(hardware, SHARD[0])
    assert seen == ["flush", "mark", "mark", "mark"] * 2


def test_kernel_time_is_a_part_of_the_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = cpu()
    assert hardware.time_share.kernel_s == 0
    cost_alone(hardware, SHARD[0])
    share = hardware.time_share
    assert 0 < share.kernel_s <= share.wall_s and 0 < share.kernel_share <= 1
    assert TimeShare(1.0, 4.0).kernel_share == 0.25 and TimeShare(0.0, 0.0).kernel_share == 0.0
    with_laps(monkeypatch, [(500.0, 250.0)] * 4)
    fresh = cpu()
    cost_alone(fresh, SHARD[0])
    assert fresh.time_share.kernel_s == 3.0  # warm-up counts: the kernels ran


def test_every_measurement_knows_its_origin() -> None:
    found = cpu().provenance
    assert found.hardware.startswith("cpu: ") and found.hardware.endswith("(1 thread)")
    assert f"torch {torch.__version__}" in found.versions and "fbgemm_gpu" in found.versions
    assert (found.link, found.seed, found.repeats) == ("ethernet_10g", 5, 3)
    assert found.driver and cpu(replace(CONFIG, link="auto")).provenance.link == "ethernet_25g"


# A shard that does not fit -------------------------------------------------------------------------------------------


def test_a_shard_that_does_not_fit_is_a_finding_and_the_other_devices_are_measured() -> None:
    """A table of 2 TB; the placement after it is measured as if nothing had been."""
    hardware = cpu()
    of_task = task((*SHARD, GIANT), devices=3, batch_size=BATCH_SIZE)
    measured = hardware.measure(of_task, Placement((0, 1, 2, 1), 3))
    first, full, last = measured.devices
    assert full == DeviceCost.out_of_memory() and full.status == OUT_OF_MEMORY
    assert not measured.fits
    for device in (first, last):
        assert device.status == "ok" and device.fwd_compute_ms > 0 and device.fwd_all_to_all_ms > 0
    assert min(first.fwd_wait_ms, last.fwd_wait_ms) == 0.0  # no device waits for one that never comes
    assert abs(first.fwd_wait_ms - last.fwd_wait_ms) == abs(first.fwd_compute_ms - last.fwd_compute_ms)
    after = hardware.measure(task(SHARD, batch_size=BATCH_SIZE), Placement((0, 1, 1), 2))
    assert after.fits and all(device.fwd_compute_ms > 0 for device in after.devices)


class Allocated:
    """Stands for device memory."""


def test_a_shard_is_tried_again_once_with_all_memory_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first attempt allocated is gone before the second: no exception keeps it alive."""
    hardware = cpu()
    blocks: list[weakref.ref[Allocated]] = []
    alive = []

    def load(*_: object) -> Any:
        alive.append(sum(block() is not None for block in blocks))
        held = Allocated()
        blocks.append(weakref.ref(held))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(hardware._kernels, "_load", load)
    freed = []
    monkeypatch.setattr(hardware._kernels, "free", lambda: freed.append(sum(block() is not None for block in blocks)))
    assert cost_alone(hardware, SHARD[0]) == DeviceCost.out_of_memory()
    assert (alive, freed) == ([0, 0], [0, 0])


def test_a_shard_that_fits_once_the_memory_is_free_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = cpu()
    cost_alone(hardware, SHARD[1])
    borrowed = hardware._kernels._weights
    really = hardware._kernels._load

    def load(*arguments: Any) -> Any:
        if hardware._kernels._weights is borrowed:
            raise MemoryError
        return really(*arguments)

    monkeypatch.setattr(hardware._kernels, "_load", load)
    assert cost_alone(hardware, SHARD[0]).fwd_compute_ms > 0


def test_any_other_failure_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an illegal memory access\nA second line")

    hardware = cpu()
    monkeypatch.setattr(hardware._kernels, "_load", fail)
    with pytest.raises(MeasurementFailed, match=r"\[ads, users, clicks\]: an illegal memory access$"):
        hardware.measure(task(SHARD, batch_size=BATCH_SIZE), Placement((0, 0, 0), 2))


def test_tables_that_no_kernel_takes_are_the_users_to_repair() -> None:
    tables = [replace(one, weight_bits=8) for one in SHARD]
    with pytest.raises(BadInput, match="same weight_bits"):
        cpu().measure(task(tables, batch_size=BATCH_SIZE), Placement((0, 0, 1), 2))


def test_closed_hardware_holds_no_memory() -> None:
    hardware = cpu()
    cost_alone(hardware, SHARD[0])
    hardware.close()
    assert hardware._kernels._weights._block.numel() == 0


# Choosing hardware ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hardware": "tpu"}, "hardware is 'tpu'. Use one of auto, cpu, cuda"),
        ({"link": "carrier_pigeon"}, "carrier_pigeon"),
        ({"num_batches": 0}, "measure.num_batches is 0"),
        ({"repeats": 0}, "measure.repeats is 0"),
        ({"visits": 0}, "measure.visits is 0"),
        ({"warmup": -1}, "measure.warmup is -1"),
        ({"controls": -1}, "measure.controls is -1"),
        ({"control_repeats": 0}, "measure.control_repeats is 0"),
        ({"timeout_s": 0.5}, "measure.timeout_s is 0.5"),
        ({"timeout_s": float("nan")}, "measure.timeout_s is nan"),
        ({"noise": -0.1}, "measure.noise is -0.1"),
        ({"noise": 0.1}, "measure.noise is 0.1, but cpu is not simulated"),
    ],
)
def test_senseless_settings_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        open_hardware(replace(CONFIG, **change))


@pytest.mark.parametrize("hardware", ["auto", "cpu"])
def test_one_process_without_a_gpu_is_the_cpu_in_turn(monkeypatch: pytest.MonkeyPatch, hardware: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    opened = open_hardware(MeasureConfig(hardware))
    assert isinstance(opened, SequentialHardware) and opened.provenance.hardware.startswith("cpu")
    with pytest.raises(BadConfig, match="finds no CUDA GPU"):
        open_hardware(MeasureConfig("cuda"))
