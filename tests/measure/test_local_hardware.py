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


def test_machines_differ_by_id_or_name_and_neither_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for content, name in (("0123456789abcdef", ""), ("fedcba98", ""), ("0123", "our-h100s"), ("4567", "our-h100s")):
        monkeypatch.setenv(MACHINE, name)
        monkeypatch.setattr(local_hardware, "MACHINE_ID", tmp_path / content)
        (tmp_path / content).write_text(f"{content}\n")
        found.append(machine_id())
        assert content not in found[-1] and "h100" not in found[-1] and len(found[0]) == 16
    assert found[2] == found[3] and len(set(found)) == 3


def test_the_command_writes_what_the_settings_mean_here(workdir: Path) -> None:
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == identify_hardware(CPU)
    (workdir / "params.yaml").write_text("measure: {hardware: h200}\n")
    assert main(["hardware", "--here", "reports/hardware.json"]) == 0
    assert json.loads((workdir / "reports/hardware.json").read_text()) == {"hardware": "simulated: h200"}
