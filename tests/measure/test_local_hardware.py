"""What the loop depends on of the machine that it measures on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenshard.cli import main
from evenshard.measure import local_hardware
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import device_name, kernel_provenance, resolve_device
from evenshard.measure.local_hardware import MACHINE, identify_hardware, machine_id

CPU = MeasureConfig("cpu")


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE, raising=False)


def test_it_is_what_each_row_says_that_is_measured_here_and_the_machine() -> None:
    found, origin = identify_hardware(CPU), kernel_provenance(CPU, resolve_device(CPU), "ethernet_25g")
    assert found == {"hardware": origin.hardware, "versions": origin.versions, "machine": machine_id()}
    assert found["hardware"] == device_name(resolve_device(CPU)) and "fbgemm_gpu" in found["versions"]
    assert identify_hardware(CPU) == found


def test_machines_of_one_name_count_as_one_and_the_name_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for number, content in enumerate(("0123456789abcdef\n", "fedcba9876543210\n")):
        file = tmp_path / f"id_{number}"
        file.write_text(content)
        monkeypatch.setattr(local_hardware, "MACHINE_ID", file)
        found.add(machine_id())
        assert content.strip() not in machine_id() and len(machine_id()) == 16
    monkeypatch.setattr(local_hardware, "MACHINE_ID", tmp_path / "none")
    found.add(machine_id())
    assert len(found) == 3
    named = set()
    for file in tmp_path.iterdir():
        monkeypatch.setattr(local_hardware, "MACHINE_ID", file)
        monkeypatch.setenv(MACHINE, "our-h100s")
        named.add(machine_id())
    assert len(named) == 1 and not named & found and "h100" not in named.pop()


def test_the_command_writes_what_the_settings_mean_here(workdir: Path) -> None:
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == identify_hardware(CPU)
    (workdir / "params.yaml").unlink()
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0  # auto
    (workdir / "params.yaml").write_text("measure: {hardware: h200}\n")
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == {"hardware": "simulated: h200"}
