"""One device that measures shards in turn: its costs, its clock, its name, and shards that do not fit."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadConfig
from evenshard.cli import main
from evenshard.measure import clock, local_hardware, one_device
from evenshard.measure.clock import Stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import device_name, kernel_provenance, resolve_device
from evenshard.measure.hardware import TimeShare
from evenshard.measure.local_hardware import MACHINE, identify_hardware, machine_id, open_hardware
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


def with_laps(monkeypatch: pytest.MonkeyPatch, laps: Sequence[tuple[float, float]]) -> list[str]:
    """Laps that were fixed beforehand, (forward, backward) of each pass; returns the marks as they are set."""
    fixed, marks = iter(laps), list[str]()

    class Watch:
        def mark(self) -> None:
            marks.append("mark")

        def laps_ms(self) -> list[float]:
            return list(next(fixed))

    monkeypatch.setattr(one_device, "Stopwatch", lambda device: Watch())
    return marks


def test_costs_are_positive_an_empty_shard_computes_nothing_and_the_exchange_is_modelled() -> None:
    of_task = task(SHARD, devices=3, batch_size=BATCH_SIZE)
    measured = cpu().measure(of_task, Placement((0, 2, 0), 3))
    full, empty, other = measured.devices
    for device in (full, other):
        assert device.fwd_compute_ms > 0 and device.bwd_compute_ms > 0
        assert device.fwd_compute_spread_ms >= 0 and device.bwd_compute_spread_ms >= 0
    assert (empty.fwd_compute_ms, empty.bwd_compute_ms) == (0.0, 0.0)
    assert measured.fits and measured.max_device_ms == max(device.total_ms for device in measured.devices)
    expected = tuple(all_to_all_ms(LINKS["ethernet_10g"], [4 + 8, 0, 12], BATCH_SIZE).tolist())
    assert measured.all_to_all == "modelled"
    assert tuple(device.fwd_all_to_all_ms for device in measured.devices) == expected
    assert tuple(device.bwd_all_to_all_ms for device in measured.devices) == expected
    assert [device.fwd_wait_ms == 0 for device in measured.devices].count(True) == 1


def test_a_pass_is_flush_and_three_marks_and_all_but_the_warm_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the time of kernels has that of the warm-up, too: they ran."""
    hardware = cpu()
    seen = with_laps(monkeypatch, [(900.0, 900.0), (1.0, 40.0), (3.0, 20.0), (2.0, 30.0)])
    monkeypatch.setattr(hardware, "_flush", lambda: seen.append("flush"))
    found = cost_alone(hardware, SHARD[0])
    assert (found.fwd_compute_ms, found.bwd_compute_ms) == (2.0, 30.0)
    assert (found.fwd_compute_spread_ms, found.bwd_compute_spread_ms) == (1.0, 10.0)
    assert seen == ["flush", "mark", "mark", "mark"] * 4
    assert hardware.time_share.kernel_s == pytest.approx(1.896) and hardware.time_share.wall_s > 0
    assert TimeShare(1.0, 4.0).kernel_share == 0.25 and TimeShare(0.0, 0.0).kernel_share == 0.0


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


def test_a_shard_is_tried_again_once_with_all_memory_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first attempt allocated is gone before the second: no exception keeps it alive."""
    hardware = cpu()
    blocks: list[weakref.ref[set[int]]] = []
    alive = []

    def load(*_: object) -> Any:
        alive.append(sum(block() is not None for block in blocks))
        held: set[int] = set()
        blocks.append(weakref.ref(held))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(hardware._kernels, "operator", load)
    freed = []
    monkeypatch.setattr(hardware._kernels, "free", lambda: freed.append(sum(block() is not None for block in blocks)))
    assert cost_alone(hardware, SHARD[0]) == DeviceCost.out_of_memory()
    assert (alive, freed) == ([0, 0], [0, 0])


def test_a_shard_that_fits_once_the_memory_is_free_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = cpu()
    cost_alone(hardware, SHARD[1])
    borrowed = hardware._kernels._weights
    really = hardware._kernels.operator

    def load(*arguments: Any) -> Any:
        if hardware._kernels._weights is borrowed:
            raise MemoryError
        return really(*arguments)

    monkeypatch.setattr(hardware._kernels, "operator", load)
    assert cost_alone(hardware, SHARD[0]).fwd_compute_ms > 0
    hardware.close()
    assert hardware._kernels._weights._block.numel() == 0


def test_senseless_settings_are_refused() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"hardware": "tpu"}, "hardware is 'tpu'. Use one of auto, cpu, cuda"),
        ({"link": "carrier_pigeon"}, "carrier_pigeon"),
        *[({name: 0}, f"measure.{name} is 0") for name in ("num_batches", "repeats", "visits", "control_repeats")],
        *[({name: -1}, f"measure.{name} is -1") for name in ("warmup", "controls")],
        ({"timeout_s": 0.5}, "measure.timeout_s is 0.5"),
        ({"noise": -0.1}, "measure.noise is -0.1"),
        ({"noise": 0.1}, "measure.noise is 0.1, but cpu is not simulated"),
        ({"hardware": "simulated:h200", "expect_transport": "IB"}, "does not communicate over a network"),
        ({"expect_transport": "IB"}, "a single process does not communicate"),
    ]
    for change, words in changes:
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


def test_laps_are_the_milliseconds_between_marks_of_their_own_stopwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([10.0, 10.5, 10.75, 13.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(seconds))
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(4):
        watch.mark()
    laps = watch.laps_ms()
    monkeypatch.undo()
    assert laps == [500.0, 250.0, 2250.0]
    for _ in range(2):
        watch = Stopwatch(torch.device("cpu"))
        watch.mark()
        assert watch.laps_ms() == []


# What this machine is called -----------------------------------------------------------------------------------------

OF_CPU = MeasureConfig("cpu")


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE, raising=False)


@pytest.mark.usefixtures("unnamed")
def test_it_is_what_each_row_says_that_is_measured_here_and_the_machine() -> None:
    found, origin = identify_hardware(OF_CPU), kernel_provenance(OF_CPU, resolve_device(OF_CPU), "ethernet_25g")
    assert found == {"hardware": origin.hardware, "versions": origin.versions, "machine": machine_id()}
    assert found["hardware"] == device_name(resolve_device(OF_CPU)) and "fbgemm_gpu" in found["versions"]
    assert identify_hardware(OF_CPU) == found


def test_machines_differ_by_id_or_name_and_neither_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for content, name in (("0123456789abcdef", ""), ("fedcba98", ""), ("0123", "our-h100s"), ("4567", "our-h100s")):
        monkeypatch.setenv(MACHINE, name)
        monkeypatch.setattr(local_hardware, "MACHINE_ID", tmp_path / content)
        (tmp_path / content).write_text(f"{content}\n")
        found.append(machine_id())
        assert content not in found[-1] and "h100" not in found[-1] and len(found[0]) == 16
    assert found[2] == found[3] and len(set(found)) == 3


@pytest.mark.usefixtures("unnamed")
def test_the_command_writes_what_the_settings_mean_here(workdir: Path) -> None:
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == identify_hardware(OF_CPU)
    (workdir / "params.yaml").write_text("measure: {hardware: h200}\n")
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == {"hardware": "simulated: h200"}
