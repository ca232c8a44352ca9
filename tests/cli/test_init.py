"""The files that init writes, and own costs in three commands in a folder that holds nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.base.documents import load_params
from evenshard.cli import main
from evenshard.cli.init import TEMPLATES
from evenshard.loop.commands import ImportCostsConfig
from evenshard.loop.import_costs import read_shards
from evenshard.loop.loop import STAGES
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.planner.hosts import load_hosts_file
from evenshard.planner.rules import load_rules
from evenshard.planner.what_if.option import load_prices
from support.documented import ROOT


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_every_template_is_written_and_can_be_read(begun: Path) -> None:
    assert sorted(path.name for path in begun.iterdir()) == sorted(TEMPLATES)
    params = load_params(Path("params.yaml"))
    assert params == load_params(ROOT / "params.yaml") and all(stage.settings(params, {}) for stage in STAGES)
    assert load_hosts_file("hosts.yaml").num_devices == 16
    assert load_prices("prices.yaml").hardware
    assert main(["place", "tables.csv", "--rules", "rules.yaml", "--devices", "4", "-q"]) == 0
    assert load_rules(Path("rules.yaml")).pinned
    assert main(["place", "--config", "request.yaml", "--effort", "quick", "-q"]) == 0


def test_nothing_is_overwritten(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text("mine")
    for name in TEMPLATES:
        if name != "rules.yaml":
            Path(name).unlink()
    assert main(["init"]) == 2
    assert "rules.yaml already exists" in capsys.readouterr().err
    assert [path.name for path in begun.iterdir()] == ["rules.yaml"] and Path("rules.yaml").read_text() == "mine"


def test_its_costs_are_those_of_the_simulated_h100(begun: Path) -> None:
    shards = read_shards(Path("costs.csv"), Path("tables.csv"), ImportCostsConfig("cuda: x", 65_536))
    hardware = SimulatedHardware(MeasureConfig("h100"))
    for one in shards[::6]:
        (device,) = hardware.measure(one.task, one.placement).devices
        total_ms = device.fwd_compute_ms + device.bwd_compute_ms
        assert one.cost.max_device_ms == pytest.approx(total_ms, abs=1e-4)
