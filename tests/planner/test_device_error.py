"""The error of a simulated device: in every interval that is told, and in words wherever a time is."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs, save_costs
from evenshard.measure.local_hardware import open_hardware
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.price.costs import MeasuredPlacement
from evenshard.price.evidence import DeviceError, Evidence, error_factors, widen_interval
from evenshard.price.gpu_profile import write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.link import link
from evenshard.price.step import exchange_share
from evenshard.report.answer import print_answer
from evenshard.report.page.page import page
from evenshard.report.step_facts import device_error_text
from evenshard.sharders.training_domain import TrainingDomain
from support.answer_builders import answer
from support.effort import LITTLE
from support.request_builders import request, untrained

CONFIRMED, UNCONFIRMED = DeviceError(12.0, 40), DeviceError()
WORDS = {
    CONFIRMED: "Device model h100: 90 % of kernel times within a factor of 1.13 (40 held-out measurements)",
    UNCONFIRMED: "Device model h100: assumed accurate to a factor of 3.49 (unverified)",
}


# Intervals -----------------------------------------------------------------------------------------------------------


def test_two_independent_errors_add_up_as_squares() -> None:
    own, device = 0.3, 0.4
    low, high = widen_interval(DeviceError(40.0, 40), 10.0, 10 * math.exp(-own), 10 * math.exp(own))
    assert (low, high) == (pytest.approx(10 * math.exp(-0.5)), pytest.approx(10 * math.exp(math.hypot(own, device))))


@pytest.mark.parametrize("ends", [(0.0, 0.0, 0.0), (10.0, 0.0, 12.0), (1e-300, 1e-308, 1e300)])
def test_extreme_intervals_stay_intervals(ends: tuple[float, float, float]) -> None:
    low, high = widen_interval(UNCONFIRMED, *ends)
    assert 0 <= low <= ends[1] and ends[2] <= high < math.inf


def test_an_answer_tells_the_wide_interval_and_keeps_the_models() -> None:
    one = answer(device_error=CONFIRMED)
    assert (one.model_low_ms, one.model_high_ms) == (3.6, pytest.approx(4.4))
    assert one.low_ms == pytest.approx(4 * math.exp(-math.hypot(math.log(0.9), 0.12)))
    assert one.high_ms == pytest.approx(4 * math.exp(math.hypot(math.log(1.1), 0.12)))
    assert one.uncertainty_ms == pytest.approx((one.high_ms - one.low_ms) / 2)


def test_it_travels_from_the_profile_of_the_training_data_into_the_answer(tmp_path: Path) -> None:
    profile, costs = tmp_path / "mine.yaml", tmp_path / "costs.parquet"
    evidence = Evidence("shards", "a laboratory", 50, 40, 5.0, 12.0)
    write_profile(profile_path("v100"), {}, "", [evidence], profile)
    asked = request(8, 16, hardware=f"simulated:{profile}")
    task = asked.task()
    hardware, placement = open_hardware(MeasureConfig(f"simulated:{profile}")), Placement((0, 1), 2)
    cost = hardware.measure(task, placement)
    save_costs(
        [MeasuredPlacement("a", 1, "random", task, placement.parts(task.tables), cost, hardware.provenance)], costs
    )
    write_profile(profile_path("v100"), {}, "", [], profile)
    TrainingDomain.of(load_costs(costs, task.tables)).save(tmp_path / "trained_on.json")
    learned = replace(untrained(), trained_on=TrainingDomain.load(tmp_path / "trained_on.json"))
    one = place_request(asked, learned, PlaceConfig(LITTLE))
    assert one.device_error == CONFIRMED
    assert one.link_error == link(one.link).error
    assert device_error_text(one) == (
        "Device model mine: 90 % of kernel times within a factor of 1.13 (40 held-out measurements); communication: "
        "within 1.78 (1,099)"
    )


def test_the_interval_knows_the_link() -> None:
    """The same placement over a link that measurements confirm, and over one that nothing does."""
    ends = {}
    for intra in ("pcie3_host", "50gb_s"):
        one = place_request(request(8, 16, machine=Nodes(2, 2, intra=intra)), untrained(), PlaceConfig(LITTLE))
        assert one.link_error == link(intra).error
        share = exchange_share(one.devices, one.request.training_pipeline)
        assert 0 < share < 1
        below, above = error_factors(None, one.link_error, share)
        assert one.low_ms <= one.predicted_ms / below and one.high_ms >= one.predicted_ms * above
        ends[intra] = above
    assert ends["pcie3_host"] < ends["50gb_s"]


# In words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [CONFIRMED, UNCONFIRMED])
def test_terminal_and_page_say_it_once(monkeypatch: pytest.MonkeyPatch, error: DeviceError) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    one, file = answer(device_error=error), io.StringIO()
    print_answer(one, file)
    for text in (file.getvalue(), page(one)):
        assert text.count(WORDS[error]) == 1
    assert ('class="box warn">Device model' in page(one)) == (error == UNCONFIRMED)


# What a simulated device times ---------------------------------------------------------------------------------------
