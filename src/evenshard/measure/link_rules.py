"""Links that nobody fitted, by their data sheets: rules learned on the links that were.

How far off the rules are where they can be checked is said in decision 38, and in the evidence of each such link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evenshard.measure.evidence import Evidence
from evenshard.measure.link_model import ALL_TO_ALL, COLLECTIVES, Curve, Link, mean_curve

# That the links inside of a node connect: of DGX A100 and later, of HGX machines, and of hosts with PCIe cards.
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
    """An NVLink of which no more than the data sheet is known: as the fitted links of the nearest line rate.

    Latencies are theirs, and bytes as much faster as the line is; of several links it is the mean.

    Args:
        line_gb_s: line rate of a GPU in one direction, GB/s.
        spans: devices that it connects.
        others: fitted links, of ``NVLINK_GB_S``.
        evidence: how far the rule was off elsewhere.
    """

    def distance(name: str) -> float:
        return abs(math.log(NVLINK_GB_S[name] / line_gb_s))

    nearest = [name for name in others if distance(name) == min(map(distance, others))]
    factor = line_gb_s / NVLINK_GB_S[nearest[0]]
    known = [one.faster(factor) for name in nearest for one in others[name].curves]
    kinds = dict.fromkeys((one.collective, one.num_devices) for one in known)
    of_kind = [[one for one in known if (one.collective, one.num_devices) == kind] for kind in kinds]
    return Link(
        float(np.mean([others[name].latency_us for name in nearest])),
        f"line rate {line_gb_s:g} GB/s a direction, all else as {' and '.join(nearest)}",
        bandwidth_gb_s=factor * float(np.mean([others[name].bandwidth_gb_s for name in nearest])),
        spans=spans,
        curves=tuple(mean_curve(alike, [1.0] * len(alike)) for alike in of_kind),
        evidence=tuple(evidence),
        extrapolated_from=" and ".join(nearest),
    )


# Shares of the line rate, and latencies (us), by the number of GPUs. Rings: RTX 4090 with peer-to-peer access (24.7 to
# 26 GB/s on 4 and 5), RTX 5090 without (35 on 4, 28 on 8); all-to-all on 8: two hosts' CPUs with 4 GPUs each. What lies
# between them is a guess.
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
        f"{generation}, line rate {line_gb_s:g} GB/s a direction; shares of it that others saw on RTX 4090 and 5090 "
        "(tinygrad/open-gpu-kernel-modules issues 17 and 36, NVIDIA/nccl issue 1639) and on 2 x 4 GPUs of PCIe 5 "
        f"({SLIDE})",
        bandwidth_gb_s=line_gb_s * _PCIE_SHARES[8][1],
        spans=GPUS_OF_A_NODE,
        curves=tuple(curves),
        evidence=(Evidence("bus bandwidths of other GPUs", "those above", 5, 0),),
        extrapolated_from="GeForce GPUs",
    )


# Of the line rate of a NIC, what exchanges of several nodes reach: 19.1 of 25 and 38.4 of 50 GB/s.
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
        f"{name} for each GPU, line rate {line_gb_s:g} GB/s, of which exchanges reach {NIC_SHARE}: bus bandwidth is "
        "N / (N - 1) times that over N nodes (NVIDIA/nccl-tests issue 130); latency of a small NCCL all-to-all",
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
