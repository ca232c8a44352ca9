"""Fit of the times of matrix products to NVIDIA's published measurements of four GPUs, with its errors.

    python -m benchmarks.scripts.fit_dense_layers [--truth FOLDER]

The folder has published measurements (its README names their sources), which are not part of the project. Every third
row is held out of the fit, and the errors are of these rows. No answer uses the times yet.

They are checked against a whole training step that no fit used: the products of HSTU's eight layers on 2 x 8 H100.

A product of [m, k] and [k, n] is cut into tiles of the result, which the GPU's multiprocessors (SMs) take in waves;
part of the last wave is lost. Computing and moving bytes overlap, and there is a floor. The A100's constants are no
physical shares: they only describe its times. Products that fit into the L2 are not modelled: an H100 moved their bytes
at up to 1.43 times the rate of its memory.

Legend: P products.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.references import others_measurements
from benchmarks.references.rows import read_rows, run_script
from evenshard.base.messages import text_table
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.hardware import SHORT_NAMES
from evenshard.tables.reuse import FloatArray

# Bytes of a value of a product, and the rate at which tensor cores take values, relative to BF16: NVIDIA's data sheets,
# but TF32 as an H100 and an H200 took it (data/kernels; the data sheets say 0.5).
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4}
RATES = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.42}
_TILES = ((128, 256), (128, 128))


@dataclass(frozen=True)
class ProductFit:
    """Constants of dense layers that no data sheet states.

    Attributes:
        reached: share of ``tflops`` that a long product of full waves reaches.
        start_depth: fixed cost of each tile, as an addition to its depth (k).
        hbm_share: share of ``hbm_gb_s`` that is reached.
        floor_us: least time of a product.
        wave_share: share of the work that is taken in whole waves.
        sharpness: degree to which computing and memory overlap; 1 means that their times add up.
    """

    reached: float
    start_depth: float
    hbm_share: float
    floor_us: float
    wave_share: float
    sharpness: float


# Fits by profile, by ``fit_products``, from products in ai-dynamo/aiconfigurator 095f58a51.
FITS = {
    "a100_80gb": ProductFit(0.9057, 84.36, 1.143, 4.112, 0.0288, 1.06),
    "h100": ProductFit(0.8205, 117.8, 0.8681, 2.695, 0.138, 3.354),
    "h200": ProductFit(0.8268, 122.8, 0.8889, 2.774, 0.1121, 2.944),
    "b200": ProductFit(0.7023, 73.2, 0.8288, 2.262, 0.1965, 2.539),
}


def product_ms(
    gpu: GpuProfile, fit: ProductFit, m: FloatArray, n: FloatArray, k: FloatArray, dtype: str = "bf16"
) -> FloatArray:
    """Predict the times of products of [m, k] and [k, n], ms; all arrays have the same shape."""
    waves = [
        np.ceil(np.ceil(m / rows) * np.ceil(n / columns) / gpu.num_sms) * rows * columns for rows, columns in _TILES
    ]
    work = fit.wave_share * np.min(waves, axis=0) * gpu.num_sms + (1 - fit.wave_share) * m * n
    computed_us = 2 * work * (k + fit.start_depth) / (gpu.tflops * RATES[dtype] * fit.reached) / 1e6
    moved_us = BYTES[dtype] * (m * k + k * n + m * n) / (gpu.hbm_gb_s * fit.hbm_share) / 1e3
    power = fit.sharpness
    return np.asarray((fit.floor_us + (computed_us**power + moved_us**power) ** (1 / power)) / 1e3)


def fit_of(profile: str) -> ProductFit:
    """Return the constants of a GPU, by the name of its profile."""
    return FITS.get(profile) or mean_fit(FITS)


def mean_fit(fits: dict[str, ProductFit]) -> ProductFit:
    """Return the geometric mean of the constants: the rule for GPUs that were not measured.

    It is meant for GPUs like the fitted ones (SXM modules with HBM). PCIe cards with GDDR have far larger errors.
    """
    values = np.log([[getattr(one, field.name) for field in fields(ProductFit)] for one in fits.values()])
    return ProductFit(*np.exp(values.mean(axis=0)).tolist())


FILE = "gemm_bf16.csv"
START = ProductFit(0.7, 100.0, 0.7, 3.0, 0.5, 3.0)
LEFT_OUT = 3

# NVIDIA/recsys-examples a84ae588, examples/hstu/training/benchmark/PERF_ANALYSIS.md, sections 2.2 and 2.4: m, n, k of
# the forward product, for 32 samples of 4,099 tokens, and ms of both passes in all layers.
HSTU_LAYERS = 8
HSTU = {"UVQK": (131_168, 4096, 1024, 33.095), "projection": (131_168, 1024, 1024, 8.905)}


def read_products(folder: Path) -> dict[str, FloatArray]:
    """Read the measured products as [P, 4] m, n, k and ms, by the name of a profile."""
    found = defaultdict(list)
    for row in read_rows(folder / FILE):
        gpu = row["gpu"].removesuffix("_sxm")
        found[SHORT_NAMES.get(gpu, gpu)].append([float(row[name]) for name in ("m", "n", "k", "ms")])
    return {gpu: np.array(rows) for gpu, rows in found.items()}


def fit_products(gpu: GpuProfile, seen_P4: FloatArray) -> ProductFit:
    """Fit the constants to the logarithms of the times; outliers have little weight."""
    *sizes, ms_P = seen_P4.T

    def of(values: FloatArray) -> ProductFit:
        reached, depth, hbm, floor, waves, sharpness = np.exp(values).tolist()
        return ProductFit(reached, depth, hbm, floor, waves / (1 + waves), sharpness)

    start = np.log([*astuple(START)[:4], 1.0, START.sharpness])
    found = least_squares(
        lambda values: np.log(product_ms(gpu, of(values), *sizes) / ms_P), start, loss="soft_l1", f_scale=0.1
    )
    return ProductFit(*(float(f"{one:.4g}") for one in astuple(of(found.x))))


def errors_of(gpu: GpuProfile, fit: ProductFit, rows_P4: FloatArray) -> FloatArray:
    """Return the relative errors of a fit, [P]."""
    *sizes, ms_P = rows_P4.T
    return np.asarray(np.abs(product_ms(gpu, fit, *sizes) / ms_P - 1))


def left_out(rows_P4: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split rows into those that are fitted and those that are held out."""
    is_out_P = np.arange(len(rows_P4)) % LEFT_OUT == 0
    return rows_P4[~is_out_P], rows_P4[is_out_P]


def hstu_ms(m: int, n: int, k: int) -> float:
    """Predict ms of a product in all of HSTU's layers on an H100: forward, and backward for inputs and weights."""
    sizes = np.array([(m, n, k), (m, k, n), (k, n, m)], dtype=np.float64).T
    return HSTU_LAYERS * float(product_ms(gpu_profile("h100"), fit_of("h100"), *sizes).sum())


def main() -> None:
    """Fit the constants, and print them with their errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--truth", type=Path, default=others_measurements.default_folder(), help="folder of the data")
    products = read_products(parser.parse_args().truth)
    fits = {gpu: fit_products(gpu_profile(gpu), left_out(rows)[0]) for gpu, rows in products.items()}
    cells = [("GPU", "rows", "left out: median, %", "90 %", "by the others: median", "90 %", "most")]
    for gpu, rows in products.items():
        print(f'    "{gpu}": ProductFit{astuple(fits[gpu])},')
        own = errors_of(gpu_profile(gpu), fits[gpu], left_out(rows)[1])
        rule = errors_of(gpu_profile(gpu), mean_fit({name: one for name, one in fits.items() if name != gpu}), rows)
        percentiles = [np.percentile(errors, share) for errors in (own, rule) for share in (50, 90)]
        cells.append((gpu, f"{len(rows):,}", *(f"{100 * error:.1f}" for error in (*percentiles, rule.max()))))
    print(text_table(cells, "<>>>>>>"))
    for name, (*forward, ms) in HSTU.items():
        print(f"HSTU's {name} products on H100: predicted {hstu_ms(*forward):.1f} ms, measured {ms:.1f}")


if __name__ == "__main__":
    run_script(main)
