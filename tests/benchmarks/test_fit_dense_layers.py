"""Matrix products: by hand, as they grow, and against NVIDIA's published times."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from benchmarks.scripts.fit_dense_layers import (
    FITS,
    HSTU,
    ProductFit,
    errors_of,
    fit_of,
    fit_products,
    hstu_ms,
    left_out,
    mean_fit,
    product_ms,
    read_products,
)
from evenshard.price.gpu_profile import gpu_profile
from support.truth import truth_file

pytestmark = pytest.mark.nightly

SHEET = replace(gpu_profile("h100"), tflops=1.0, hbm_gb_s=1.0, num_sms=2)
FIT = ProductFit(reached=0.5, start_depth=0.0, hbm_share=1e9, floor_us=3.0, wave_share=1.0, sharpness=4.0)


def of(m: float, n: float, k: float, fit: ProductFit = FIT, dtype: str = "bf16") -> float:
    return float(product_ms(SHEET, fit, np.array(m), np.array(n), np.array(k), dtype))


def test_whole_waves_by_hand() -> None:
    """Two SMs take two tiles of 128 x 128 at once, 2 x 2 x 128 x 128 x 100 operations at 0.5 x 10**12 a second."""
    wave_ms = 2 * 2 * 128 * 128 * 100 / 0.5e12 * 1e3
    assert of(128, 256, 100) == of(1, 1, 100) == pytest.approx(0.003 + wave_ms)
    assert of(128, 257, 100) == pytest.approx(0.003 + 2 * wave_ms)
    assert of(128, 256, 100, dtype="tf32") == pytest.approx(0.003 + wave_ms / 0.42)
    assert of(128, 256, 100, replace(FIT, start_depth=100.0)) == pytest.approx(0.003 + 2 * wave_ms)


def test_bytes_by_hand() -> None:
    """All operands of a product that computes in no time: 2 bytes of 10 x 20 + 20 x 30 + 10 x 30 values at 1 GB/s."""
    of_memory = replace(FIT, reached=1e9, hbm_share=1.0)
    assert of(10, 30, 20, of_memory) == pytest.approx(0.003 + 2200e-6)
    assert of(10, 30, 20, of_memory, "tf32") == pytest.approx(0.003 + 4400e-6)


@pytest.mark.parametrize("gpu", sorted(FITS))
def test_products_that_a_fit_did_not_see_and_gpus_by_the_others(gpu: str) -> None:
    rows = read_products(truth_file("gemm_bf16.csv").parent)[gpu]
    seen, unseen = left_out(rows)
    assert astuple(fit_products(gpu_profile(gpu), seen)) == pytest.approx(astuple(FITS[gpu]), rel=0.02)
    assert np.median(errors_of(gpu_profile(gpu), FITS[gpu], unseen)) < 0.09
    others = mean_fit({name: one for name, one in FITS.items() if name != gpu})
    assert np.median(errors_of(gpu_profile(gpu), others, rows)) < 0.14


def test_whole_training_steps_and_a_gpu_that_nobody_fitted() -> None:
    """Large products go with TFLOPS."""
    for *forward, ms in HSTU.values():
        assert hstu_ms(*forward) == pytest.approx(ms, rel=0.08)
    assert fit_of("h100") == FITS["h100"] and fit_of("l40s") == mean_fit(FITS)
    l40s, h100 = gpu_profile("l40s"), gpu_profile("h100")
    times = [float(product_ms(gpu, fit_of("l40s"), *[np.array(8192.0)] * 3)) for gpu in (l40s, h100)]
    assert times[0] / times[1] == pytest.approx(h100.tflops / l40s.tflops, rel=0.1)
