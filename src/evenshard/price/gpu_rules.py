"""Rules that derive a GPU's profile from its data sheet, learned from fully measured GPUs.

Times per bag, lookup, row and pair are inversely proportional to the speed of a GPU, and rates are proportional to it:

    speed = SMs x clock x L1 of an SM

The fitted GPUs' constants, scaled by speed, are averaged; fitted GPUs of a similar speed have a higher weight.
Minimum times of kernels, times of the longest bag and host times are averaged without scaling. ``EVIDENCE`` has the
error of these rules; docs/decisions/0041-gpu-profiles-from-data-sheets.md has it by kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from evenshard.base.knobs import Range
from evenshard.price.evidence import Evidence

# The required fields of a data sheet, and the range of each: a value outside probably has another unit.
SHEET: Mapping[str, Range] = {
    "num_sms": Range(1, 10_000),
    "clock_ghz": Range(0.1, 20),
    "l1_kb": Range(4, 10_000),
    "memory_gb": Range(1, 100_000),
    "hbm_gb_s": Range(20, 1_000_000),
    "l2_mb": Range(0.1, 100_000),
    "tflops": Range(1, 1_000_000),
    "pcie_gb_s": Range(0.5, 10_000),
}
# The profiles that the rules are learned on: all kernels of each GPU were measured with a recent FBGEMM.
FITTED = ("h100", "h200")
# Rates, proportional to the speed, and times inversely proportional to it, besides those per bag, lookup or row.
_RATES, _TIMES = ("l2_gb_s", "sort_pairs_per_ns"), ("hot_lookup_ns",)
# Fraction of PCIe's line rate for reads of rows in host memory: 50 of 63 GB/s, fitted to an H100.
HOST_SHARE = 50 / 63
WARPS_PER_SM = 64  # most resident warps, as in the fitted GPUs

# benchmarks/scripts/gpu_rules.py learned the rules. They are not known to hold for GPUs of other vendors.
VENDOR = "NVIDIA"
EVIDENCE = Evidence(
    "kernels, calls and shards of 6 GPUs; rules learned from the other GPUs predict each (errors of log time)",
    "sources of the profiles rtx_2080_ti, v100, a100_80gb, h100 and h200; for the B200 AMD-AGI/Primus-DLRM",
    1995,
    474,
    34.6,
    107.0,
    ("sgd", "rowwise_adagrad", "adagrad", "adam"),
)


def speed_of(gpu: Mapping[str, float]) -> float:
    """Return the speed of a GPU in an arbitrary unit."""
    return gpu["num_sms"] * gpu["clock_ghz"] * gpu["l1_kb"]


def constants_by_rules(
    sheet: Mapping[str, float],
    fitted: Mapping[str, Mapping[str, float]],
    speed: Callable[[Mapping[str, float]], float] = speed_of,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute the profile constants that a data sheet lacks; also return the names of those that were scaled.

    ``fitted`` has all constants of the profiles to learn from, by name.
    """
    own = speed(sheet)
    ratios = {name: own / speed(other) for name, other in fitted.items()}
    constants, scaled = {}, []
    for constant in next(iter(fitted.values())):
        if constant in SHEET or constant in ("host_gb_s", "warps_per_sm"):
            continue
        power = exponent(constant)
        weights = [min(ratio, 1 / ratio) for ratio in ratios.values()]
        terms = [
            weight * fitted[one][constant] * ratios[one] ** power for one, weight in zip(fitted, weights, strict=True)
        ]
        constants[constant] = math.fsum(terms) / math.fsum(weights)
        if power:
            scaled.append(constant)
    constants |= {"host_gb_s": HOST_SHARE * sheet["pcie_gb_s"], "warps_per_sm": WARPS_PER_SM}
    return constants, (*scaled, "host_gb_s")


def exponent(constant: str) -> int:
    """Return the power of GPU speed by which a constant scales: 1 for rates, -1 for times per unit of work, else 0."""
    if constant in _RATES:
        return 1
    return -1 if "_ns_per_" in constant or constant in _TIMES else 0
