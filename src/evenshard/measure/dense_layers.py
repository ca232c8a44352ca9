"""How long the matrix products of dense layers take on a GPU: work in whole tiles, bytes of memory, and a floor.

A product of [m, k] and [k, n] is cut into tiles of the result, which the GPU's multiprocessors (SMs) take in waves;
part of the last wave is lost. What it computes and what it reads and writes overlap, the better the sharper.

Six constants are fitted to each GPU, of BF16; a GPU that was not measured has their mean, and its own data sheet. FP16
and TF32 follow from their rates and bytes alone. The A100's are no physical shares: they only describe its times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.tables.reuse import FloatArray

# Bytes of a value of a product, and the rate at which tensor cores take values, relative to BF16: NVIDIA's data sheets,
# but TF32 as an H100 and an H200 took it (data/kernels; the data sheets say 0.5).
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4}
RATES = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.42}
_TILES = ((128, 256), (128, 128))


@dataclass(frozen=True)
class ProductFit:
    """What a data sheet does not say.

    Attributes:
        reached: share of ``tflops`` that a long product of full waves reaches.
        start_depth: what each tile takes besides its depth (k), as if that were so much more.
        hbm_share: share of ``hbm_gb_s`` that is reached.
        floor_us: what a product takes at least.
        wave_share: share of the work that is taken in whole waves.
        sharpness: how well computing and memory overlap; 1 is not at all.
    """

    reached: float
    start_depth: float
    hbm_share: float
    floor_us: float
    wave_share: float
    sharpness: float


# Fits by profile, by benchmarks/scripts/fit_dense_layers.py, from products in ai-dynamo/aiconfigurator 095f58a51.
FITS = {
    "a100_80gb": ProductFit(0.9057, 84.36, 1.143, 4.112, 0.0288, 1.06),
    "h100": ProductFit(0.8205, 117.8, 0.8681, 2.695, 0.138, 3.354),
    "h200": ProductFit(0.8268, 122.8, 0.8889, 2.774, 0.1121, 2.944),
    "b200": ProductFit(0.7023, 73.2, 0.8288, 2.262, 0.1965, 2.539),
}


def product_ms(
    gpu: GpuProfile, fit: ProductFit, m: FloatArray, n: FloatArray, k: FloatArray, dtype: str = "bf16"
) -> FloatArray:
    """[any shape] time of products of [m, k] and [k, n], ms.

    Args:
        gpu: whose memory bandwidth, SMs and TFLOPS count.
        fit: of the GPU, see ``fit_of``.
        m, n, k: sizes, which broadcast.
        dtype: one of ``BYTES``.
    """
    waves = [
        np.ceil(np.ceil(m / rows) * np.ceil(n / columns) / gpu.num_sms) * rows * columns for rows, columns in _TILES
    ]
    work = fit.wave_share * np.min(waves, axis=0) * gpu.num_sms + (1 - fit.wave_share) * m * n
    computed_us = 2 * work * (k + fit.start_depth) / (gpu.tflops * RATES[dtype] * fit.reached) / 1e6
    moved_us = BYTES[dtype] * (m * k + k * n + m * n) / (gpu.hbm_gb_s * fit.hbm_share) / 1e3
    power = fit.sharpness
    return np.asarray((fit.floor_us + (computed_us**power + moved_us**power) ** (1 / power)) / 1e3)


def fit_of(profile: str) -> ProductFit:
    """The constants of a GPU, by the name of its profile."""
    return FITS.get(profile) or mean_fit(FITS)


def mean_fit(fits: dict[str, ProductFit]) -> ProductFit:
    """The geometric mean: the rule for GPUs that were not measured."""
    values = np.log([[getattr(one, field.name) for field in fields(ProductFit)] for one in fits.values()])
    return ProductFit(*np.exp(values.mean(axis=0)).tolist())
