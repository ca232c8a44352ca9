"""The curve of a collective: points where times bend, and growth at the end whatever the noise before it."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.base.errors import MeasurementFailed
from evenshard.measure.calibrate.link import fit_curve
from evenshard.price.link_model import ALL_TO_ALL, Curve

BYTES_P = 1024.0 * 2 ** np.arange(11)


def _us(curve: Curve, moved: float) -> float:
    return float(curve.latency_ms + curve.bytes_ms(moved)) * 1e3


def test_a_curve_that_bends_is_found() -> None:
    """20 us up to 64 KB, then 1 GB/s."""
    us_P = 20 + np.maximum(BYTES_P - 65_536, 0) / 1e3
    curve = fit_curve(ALL_TO_ALL, 2, BYTES_P, us_P)
    assert [_us(curve, moved) for moved in BYTES_P] == pytest.approx(us_P.tolist(), rel=0.02)
    assert curve.gb_s == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_noise_does_not_hide_that_long_calls_grow(seed: int) -> None:
    """Times off by 30 %, as on a busy machine, of four repeats each; the longest take 1.7 times the shortest."""
    moved_P = np.tile(BYTES_P, 4)
    us_P = (1500 + moved_P / 1e3) * np.exp(np.random.default_rng(seed).normal(0, 0.3, len(moved_P)))
    assert fit_curve(ALL_TO_ALL, 2, moved_P, us_P).gb_s > 0


def test_times_that_do_not_grow_at_all_are_refused() -> None:
    with pytest.raises(MeasurementFailed, match="larger messages do not take longer"):
        fit_curve(ALL_TO_ALL, 2, BYTES_P, np.linspace(2000, 1000, len(BYTES_P)))
