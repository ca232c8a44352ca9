"""The hardware of an answer where none is named: the model's own, else one default, the same for every way to ask."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

import evenshard
from evenshard.api import what_if
from evenshard.base.errors import BadConfig
from evenshard.cli import main
from evenshard.measure.inventory import format_inventory, inventory
from evenshard.price.hardware import DEFAULT_HARDWARE
from evenshard.sharders.models import load_model
from evenshard.torchrec.plan.prices import choose_model
from support.learned import learned_model
from support.model_builders import save_model
from support.request_builders import devices_asked

TABLES = [{"name": name, "num_rows": 10_000, "embedding_dim": 16, "pooling_factor": 3} for name in "abcd"]


@pytest.fixture
def cpu_model(tmp_path: Path) -> Path:
    """A model of this machine's CPU, as `make run` leaves one in work/round_3."""
    model = learned_model()
    seen = replace(model.trained_on, hardware="cpu: AMD EPYC (1 thread)", device_error=None, link="ethernet_25g")
    folder = tmp_path / "work" / "round_3"
    folder.parent.mkdir()
    save_model(folder, model.cost_model, seen)
    return folder


def test_one_default_for_every_way_to_ask() -> None:
    assert evenshard.place(TABLES, 2).request.hardware == DEFAULT_HARDWARE == devices_asked(2).hardware
    assert what_if(TABLES, devices=(2,)).options[0].hardware == DEFAULT_HARDWARE
    assert choose_model(None, None, "cpu")[1] == DEFAULT_HARDWARE
    assert inventory()["default"] == DEFAULT_HARDWARE
    assert f"without a model, {DEFAULT_HARDWARE}" in " ".join(format_inventory().split())
    assert inspect.signature(evenshard.place).parameters["hardware"].default is None


@pytest.mark.slow
def test_a_model_is_placed_with_on_its_own_hardware(
    cpu_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tables.json").write_text(json.dumps(TABLES))
    flags = ["tables.json", "--devices", "2", "--model", str(cpu_model)]
    assert main(["place", *flags]) == 0
    assert "\n2 x cpu, ethernet_25g, batch 65,536, " in capsys.readouterr().out
    assert main(["place", *flags, "-o", "plan.json", "--format", "torchrec"]) == 0
    assert '"cpu"' in Path("plan.json").read_text() and "cuda" not in Path("plan.json").read_text()
    for model in (str(cpu_model), {"cpu": str(cpu_model)}):
        assert what_if(TABLES, devices=(2,), model=model).options[0].hardware == "cpu"
    assert choose_model(cpu_model, None, "cuda")[1] == "cpu"


def test_a_loaded_model_of_other_hardware_is_refused(cpu_model: Path) -> None:
    loaded = load_model(cpu_model)
    assert evenshard.place(TABLES, 2, model=loaded).request.hardware == "cpu"
    with pytest.raises(BadConfig, match=r"trained on cpu: AMD EPYC .*, not on simulated:h100"):
        evenshard.place(TABLES, 2, model=loaded, hardware="h100")
