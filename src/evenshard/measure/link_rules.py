"""Links without measurements, from their data sheets: rules learned on the links that were fitted.

How far off the rules are where they can be checked is said in decision 38, and in the evidence of each such link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evenshard.measure.evidence import Evidence
from evenshard.measure.link_model import ALL_TO_ALL, COLLECTIVES, Curve, Link, mean_curve

GPUS_OF_A_NODE = 8
SLIDE = "NVIDIA, GTC25 S72583 (bus bandwidth of NCCL's all-to-all; in stas00/ml-engineering)"
# GB/s a direction of NVLink, by data sheets, of the links that were fitted.
NVLINK_GB_S = {
    "nvlink_a100": 300.0,
    "nvlink_h100": 450.0,
    "nvlink_h200": 450.0,
    "nvlink_b200": 900.0,
    "nvlink_gb200": 900.0,
}


def nvlink_by_rule(line_gb_s: float, spans: float, others: Mapping[str, Link], evidence: Sequence[Evidence]) -> Link:
    """An NVLink of which no more than the data sheet is known: the mean of the fitted links of its line rate.

    Where none was fitted, it is the mean over all line rates: the same latencies, and bytes as much faster as the line.

    Args:
        line_gb_s: line rate of a GPU in one direction, GB/s.
        spans: devices that it connects.
        others: fitted links, of ``NVLINK_GB_S``.
        evidence: how far the rule was off elsewhere.
    """
    alike = [name for name in others if NVLINK_GB_S[name] == line_gb_s] or list(others)
    by_rate: dict[float, list[Link]] = {}
    for name in alike:
        by_rate.setdefault(NVLINK_GB_S[name], []).append(others[name])
    weights = [1 / len(of_rate) for of_rate in by_rate.values() for _ in of_rate]
    factors = [line_gb_s / rate for rate, of_rate in by_rate.items() for _ in of_rate]
    links = [one for of_rate in by_rate.values() for one in of_rate]
    kinds = dict.fromkeys((one.collective, one.num_devices) for one in links[0].curves)
    curves = []
    for collective, num_devices in kinds:
        known = [
            (one.faster(factor), weight)
            for link, factor, weight in zip(links, factors, weights, strict=True)
            for one in link.curves
            if (one.collective, one.num_devices) == (collective, num_devices)
        ]
        curves.append(mean_curve([curve for curve, _ in known], [weight for _, weight in known]))
    gb_s = [factor * link.bandwidth_gb_s for factor, link in zip(factors, links, strict=True)]
    return Link(
        float(np.average([link.latency_us for link in links], weights=weights)),
        f"data sheet: line rate {line_gb_s:g} GB/s a direction, all else as {', '.join(alike)}",
        bandwidth_gb_s=float(np.average(gb_s, weights=weights)),
        spans=spans,
        curves=tuple(curves),
        evidence=tuple(evidence),
        extrapolated_from=", ".join(alike),
    )


# Shares of the line rate and latencies, us, by GPUs: RTX 4090 and 5090; the values between are a guess.
_PCIE_SHARES = {2: (0.80, 0.80), 4: (0.80, 0.40), 8: (0.44, 0.19)}
_PCIE_US = {2: 12.0, 4: 20.0, 8: 42.0}


def pcie_by_rule(line_gb_s: float, generation: str) -> Link:
    """PCIe between GPUs that reach each other's memory, of which no more than the line rate is known."""
    curves = [
        Curve(one, num, (0.0,), (_PCIE_US[num],), line_gb_s * (to_all if one == ALL_TO_ALL else ring))
        for one in COLLECTIVES
        for num, (ring, to_all) in _PCIE_SHARES.items()
    ]
    return Link(
        _PCIE_US[8],
        f"data sheet: {generation}, line rate {line_gb_s:g} GB/s a direction; shares of it that others saw on RTX 4090 "
        "and 5090 (tinygrad/open-gpu-kernel-modules issues 17 and 36, NVIDIA/nccl issue 1639) and on 2 x 4 GPUs of "
        f"PCIe 5 ({SLIDE})",
        bandwidth_gb_s=line_gb_s * _PCIE_SHARES[8][1],
        spans=GPUS_OF_A_NODE,
        curves=tuple(curves),
        evidence=(Evidence("bus bandwidths of other GPUs", "those above", 5, 0),),
        extrapolated_from="GeForce GPUs",
    )


# Share of a NIC's line rate that exchanges of several nodes reach: 19.1 of 25 and 38.4 of 50 GB/s.
NIC_SHARE = 0.766


def nic_by_rule(line_gb_s: float, name: str, points: str = "") -> Link:
    """A network between nodes with a NIC for each GPU: an all-to-all waits for the bytes that cross it.

    Over N nodes that makes a bus bandwidth of N / (N - 1) times the NIC's (a maintainer in NVIDIA/nccl-tests issue
    130), less what nobody reaches.

    Args:
        line_gb_s: of a NIC.
        name: of the network.
        points: what was measured on it; empty for nothing.
    """
    return Link(
        10.0,
        f"data sheet: {name} for each GPU, line rate {line_gb_s:g} GB/s, of which exchanges reach {NIC_SHARE}: bus "
        "bandwidth is N / (N - 1) times that over N nodes (NVIDIA/nccl-tests issue 130); latency of a small NCCL "
        "all-to-all",
        bandwidth_gb_s=line_gb_s * NIC_SHARE,
        evidence=(
            Evidence(
                points or "24 GB/s of 32 x A100, 48 GB/s of 32 x H100, each by the share of the other",
                SLIDE,
                2,
                2,
                0.7,
                0.8,
            ),
        ),
        extrapolated_from="two points",
    )
