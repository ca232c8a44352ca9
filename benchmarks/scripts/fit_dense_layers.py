"""Fit of the times of matrix products to NVIDIA's published measurements of four GPUs, with its errors.

    python -m benchmarks.scripts.fit_dense_layers [--truth FOLDER]

The folder has published measurements (its README names their sources), which are not part of the project. Every third
row is held out of the fit, and the errors are of these rows. ``evenshard.price.dense`` has the model and the constants.

They are checked against a whole training step that no fit used: the products of HSTU's eight layers on 2 x 8 H100.

Legend: P products.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import astuple
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.references import others_measurements
from benchmarks.references.rows import read_rows, run_script
from evenshard.base.messages import text_table
from evenshard.price.dense import FITS, ProductFit, mean_fit, product_ms
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.hardware import SHORT_NAMES
from evenshard.tables.reuse import FloatArray

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
    return HSTU_LAYERS * float(product_ms(gpu_profile("h100"), FITS["h100"], *sizes).sum())


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
