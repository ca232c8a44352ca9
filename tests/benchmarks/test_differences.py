"""Intervals of differences: in worlds of drawn constants they have more than nine in ten of the true differences."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scripts import differences
from benchmarks.scripts.differences import Study, drawn_world, other_link, other_profile, report
from evenshard.measure.link import LINKS
from evenshard.measure.simulated.gpu_profile import gpu_profile


def test_true_differences_are_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "TASKS", ((12, 2), (16, 4)))
    known = [pair for number in (40, 43) for pair in Study.of(number).pairs(worlds=24, seed=number)]
    inside = float(np.mean([pair.is_inside for pair in known]))
    assert len(known) > 2_000 and 0.95 <= inside < 1
    *_, last = report(known).splitlines()
    assert last.split()[:2] == ["all", f"{len(known):,}"]


def test_a_world_is_other_constants_and_as_far_off_as_a_links_error_says() -> None:
    rng, link, profile = np.random.default_rng(1), LINKS["nvlink_h100"], gpu_profile("h100")
    worlds = [drawn_world(rng, 0.3, [link]) for _ in range(400)]
    long = [other_link(link, one.links[0]).even_gb_s(8) / link.even_gb_s(8) for one in worlds]
    assert np.quantile(np.abs(np.log(long)), 0.9) == pytest.approx(np.log(link.error.factor), rel=0.15)
    short = [other_link(link, one.links[0]).latency_ms(8) / link.latency_ms(8) for one in worlds]
    assert np.quantile(np.abs(np.log(short)), 0.9) == pytest.approx(np.log(link.error.factor), rel=0.15)
    other = other_profile(profile, worlds[0])
    assert other.hbm_gb_s == profile.hbm_gb_s and other.hbm_efficiency != profile.hbm_efficiency
