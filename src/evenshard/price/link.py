"""Link lookup by name: fitted links, links estimated from data sheets, and plain bandwidths.

The estimation rules are derived from the fitted links; decision 38 and each link's evidence state their errors.
"""

from __future__ import annotations

import math
import re
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief, cut
from evenshard.price.evidence import Evidence
from evenshard.price.gpu_profile import read_profile
from evenshard.price.hardware import AUTO, link_profile_path
from evenshard.price.link_model import ALL_TO_ALL, BANDWIDTHS, COLLECTIVES, Curve, Link, mean_curve

DEFAULT_LINK = "ethernet_25g"
GPUS_OF_A_NODE = 8  # as in HGX and DGX servers
SLIDE = "NVIDIA, GTC25 S72583 (bus bandwidth of NCCL's all-to-all; in stas00/ml-engineering)"
# NVLink GB/s per direction, from data sheets, of the fitted links.
NVLINK_GB_S = {
    "nvlink_a100": 300.0,
    "nvlink_h100": 450.0,
    "nvlink_h200": 450.0,
    "nvlink_b200": 900.0,
    "nvlink_gb200": 900.0,
}
# Transports that a provenance may name in place of a link, such as nccl (NET/IB/GDRDMA).
BACKENDS = ("gloo", "nccl")
# Named by a provenance if each shard was measured alone on one device, without a link.
NO_LINK = "none"

_NEURO_SHARD = (
    "outputs of NeuroShard's communication networks, which were trained on measurements (anonymoussubmition/neuroshard "
    "e363480f)"
)
_PARAM = "PARAM, timed from the host (owensgroup/ml_perf_model cf1acc20, comm_bench.ipynb, plot and text)"
_NCCL_TESTS = "nccl-tests of NVIDIA (ai-dynamo/aiconfigurator 095f58a51)"


def nvlink_by_rule(line_gb_s: float, spans: float, others: Mapping[str, Link], evidence: Sequence[Evidence]) -> Link:
    """Estimate an NVLink from its line rate, as the mean of fitted links with the same rate.

    If no link has this rate, all fitted links are averaged, with their byte times scaled by line rate.

    Args:
        line_gb_s: line rate of a GPU in one direction, GB/s.
        others: fitted links to average, by a name in ``NVLINK_GB_S``.
        evidence: the rule's error on other links.
    """
    alike = [name for name in others if NVLINK_GB_S[name] == line_gb_s] or list(others)
    rates, links = [NVLINK_GB_S[name] for name in alike], [others[name] for name in alike]
    weights, factors = [1 / rates.count(rate) for rate in rates], [line_gb_s / rate for rate in rates]
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
        f"data sheet: line rate {line_gb_s:g} GB/s per direction; other constants from {', '.join(alike)}",
        bandwidth_gb_s=float(np.average(gb_s, weights=weights)),
        spans=spans,
        curves=tuple(curves),
        evidence=tuple(evidence),
        extrapolated_from=", ".join(alike),
    )


# By number of GPUs, shares of the line rate (ring, all-to-all) and latency, us: RTX 4090 and 5090, some values assumed.
_PCIE_SHARES = {2: (0.80, 0.80), 4: (0.80, 0.40), 8: (0.44, 0.19)}
_PCIE_US = {2: 12.0, 4: 20.0, 8: 42.0}


def pcie_by_rule(line_gb_s: float, generation: str) -> Link:
    """Estimate PCIe with peer access between GPUs from its line rate."""
    curves = [
        Curve(one, num, (0.0,), (_PCIE_US[num],), line_gb_s * (to_all if one == ALL_TO_ALL else ring))
        for one in COLLECTIVES
        for num, (ring, to_all) in _PCIE_SHARES.items()
    ]
    return Link(
        _PCIE_US[8],
        f"data sheet: {generation}, line rate {line_gb_s:g} GB/s per direction; shares of it measured on RTX 4090 "
        "and 5090 (tinygrad/open-gpu-kernel-modules issues 17 and 36, NVIDIA/nccl issue 1639) and on 2 x 4 GPUs of "
        f"PCIe 5 ({SLIDE})",
        bandwidth_gb_s=line_gb_s * _PCIE_SHARES[8][1],
        spans=GPUS_OF_A_NODE,
        curves=tuple(curves),
        evidence=(Evidence("bus bandwidths of other GPUs", "the sources of the link", 5, 0),),
        extrapolated_from="GeForce GPUs",
    )


# Line rate of EFA per GPU of an AWS p5.48xlarge, and of PCIe 4.0 x16 in one direction.
EFA_LINE_GB_S, PCIE4_GB_S = 50.0, 31.5
# Share of a NIC's line rate that a multi-node all-to-all reaches: 19.1 of 25 and 38.4 of 50 GB/s.
NIC_SHARE = 0.766
# Latency of InfiniBand over that of EFA, rounded up: an all-reduce of 1 MB on 2 x 8 H100 takes 87 us.
INFINIBAND_LATENCY = 0.3
_TWO_CLUSTERS = "24 GB/s of 32 x A100 and 48 GB/s of 32 x H100, each predicted from the other"


def nic_by_rule(line_gb_s: float, name: str) -> Link:
    """Estimate InfiniBand with a NIC for each GPU from its line rate, in GB/s per NIC, and the fitted EFA.

    Over N nodes, the bus bandwidth of an all-to-all is N / (N - 1) times the NIC's (a maintainer in NVIDIA/nccl-tests
    issue 130), times the share of the line rate that an all-to-all reaches.
    """
    efa, curves = LINKS["efa_400g"], []
    for one in efa.curves:
        gb_s = line_gb_s * NIC_SHARE if one.collective == ALL_TO_ALL else one.gb_s * line_gb_s / EFA_LINE_GB_S
        us, us_per_device = (one.us[0] * INFINIBAND_LATENCY,), one.us_per_device * INFINIBAND_LATENCY
        curves.append(replace(one, us=us, us_per_device=us_per_device, gb_s=gb_s))
    return Link(
        efa.latency_us * INFINIBAND_LATENCY,
        f"data sheet: {name} for each GPU, line rate {line_gb_s:g} GB/s, of which an all-to-all reaches {NIC_SHARE}; "
        "bus bandwidth over N nodes is N / (N - 1) times that (NVIDIA/nccl-tests issue 130); latencies of efa_400g, "
        f"times {INFINIBAND_LATENCY}",
        bandwidth_gb_s=line_gb_s * NIC_SHARE,
        curves=tuple(curves),
        evidence=(Evidence(_TWO_CLUSTERS, SLIDE, 2, 2, 0.7, 0.8),),
        extrapolated_from="efa_400g and two points",
    )


def host_by_rule(line_gb_s: float, generation: str) -> Link:
    """Estimate PCIe without peer-to-peer from its line rate and the fitted PCIe 4.0."""
    known, factor = LINKS["pcie4_host"], line_gb_s / PCIE4_GB_S
    return Link(
        known.latency_us,
        f"guess: {generation} without peer-to-peer, {factor:g} times as fast as pcie4_host",
        shared_gb_s=factor * known.shared_gb_s,
        spans=GPUS_OF_A_NODE,
        curves=tuple(one.faster(factor) for one in known.curves),
        extrapolated_from="pcie4_host",
    )


class _Links(UserDict[str, Any]):
    """Links by name, each built from its profile or rule on first use."""

    def __getitem__(self, name: str) -> Link:
        if not isinstance(self.data[name], Link):
            self.data[name] = self.data[name]()
        found: Link = self.data[name]
        return found


def _of_profile(name: str) -> Link:
    return _of_file(link_profile_path(name))


def _ethernet(gb_s: float, name: str) -> Link:
    source = f"data sheet: line rate of {name}; latency of a kernel TCP round through one switch"
    return Link(30.0, source, bandwidth_gb_s=gb_s)


def _by_fitted_links(line_gb_s: float, spans: float, evidence: Sequence[Evidence] = ()) -> Link:
    return nvlink_by_rule(line_gb_s, spans, {name: LINKS[name] for name in NVLINK_GB_S}, evidence)


def _nvlink(line_gb_s: float, spans: float) -> Link:
    return _by_fitted_links(line_gb_s, spans, [_SAME_LINE if line_gb_s in NVLINK_GB_S.values() else _OTHER_LINE])


# benchmarks/scripts/fit_links.py computed the errors.
_FROM_SAME = "collectives of 2 to 8 H100, H200, B200 and GB200, each predicted from the other link of its line rate"
_FROM_OTHER = "collectives of A100, H100, H200, B200 and GB200, each predicted from links of other line rates"
_SAME_LINE = Evidence(_FROM_SAME, _NCCL_TESTS, 898, 898, 3.7, 10.5)
_OTHER_LINE = Evidence(_FROM_OTHER, _NCCL_TESTS, 1147, 1147, 22.5, 57.6)

LINKS: Mapping[str, Link] = _Links(
    {
        "pcie3_host": Link(
            535.0,
            f"fitted to {_NEURO_SHARD}: PCIe 3.0 without peer-to-peer. A guess except for 4 GPUs",
            bandwidth_gb_s=60.0,
            slowest_gb_s=23.0,
            shared_gb_s=25.1,
            forward_share=0.97,
            spans=GPUS_OF_A_NODE,
            evidence=(
                Evidence("plans on 4 x RTX 2080 Ti, FP32, batch 65,536, fwd + bwd", _NEURO_SHARD, 1500, 1500, 1.1, 6.3),
            ),
        ),
        "pcie4_host": partial(_of_profile, "pcie4_host"),
        "pcie5_host": partial(host_by_rule, 2 * PCIE4_GB_S, "PCIe 5.0 x16, as in the RTX PRO 6000 Blackwell,"),
        "pcie4": partial(pcie_by_rule, PCIE4_GB_S, "PCIe 4.0 x16"),
        "pcie5": partial(pcie_by_rule, 2 * PCIE4_GB_S, "PCIe 5.0 x16"),
        "efa_400g": partial(_of_profile, "efa_400g"),
        "ethernet_1g": partial(_ethernet, 0.125, "1000BASE"),
        "ethernet_10g": partial(_ethernet, 1.25, "10GBASE"),
        "ethernet_25g": partial(_ethernet, 3.125, "25GBASE"),
        "infiniband_hdr": partial(nic_by_rule, 25.0, "HDR 200 Gb/s"),
        "infiniband_ndr": partial(nic_by_rule, 50.0, "NDR 400 Gb/s"),
        "infiniband_xdr": partial(nic_by_rule, 100.0, "XDR 800 Gb/s, as in ConnectX-8"),
        "nvlink_v100": partial(_nvlink, 150.0, 16),
        "nvlink_v100_dgx1": Link(
            87.0,
            f"fitted to {_PARAM}: one half of a DGX-1. Some of the 3 peers are one NVLink 2.0 link away, 25 GB/s, "
            "which limits the all-to-all; most pairs across the halves have no link",
            bandwidth_gb_s=56.2,
            spans=4,
            evidence=(Evidence("all-to-alls of 4 x V100, 32 KB to 2 GB", _PARAM, 8, 7, 1.9, 4.1),),
        ),
        **{name: partial(_of_profile, name) for name in NVLINK_GB_S},
        "nvlink_b300": partial(_nvlink, 900.0, GPUS_OF_A_NODE),
        "nvlink_gb300": partial(_nvlink, 900.0, 72),
        # Seven links per GPU, by the rule for NVLink, which no measurement confirms.
        "infinity_fabric_mi300x": partial(_by_fitted_links, 448.0, GPUS_OF_A_NODE),
        "infinity_fabric_mi350x": partial(_by_fitted_links, 537.6, GPUS_OF_A_NODE),
    }
)
ALIASES = {"ib_200g": "infiniband_hdr", "ib_400g": "infiniband_ndr", "ib_800g": "infiniband_xdr"} | {
    f"{name.removeprefix('nvlink_')}_nvlink": name for name in LINKS if name.startswith("nvlink_")
}
# Latency of a link that is given by its bandwidth alone: that of NVLink.
STATED_LATENCY_US = 15.0
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)gb_s")


def is_modelled(name: str) -> bool:
    """Return True if communication times recorded with this link name are modelled, not measured."""
    return name.partition(" ")[0] not in BACKENDS


def warn_beyond_span(name: str, num_devices: int) -> str | None:
    """Return a warning if ``num_devices`` exceeds the devices that the link connects; else None."""
    found = LINKS.get(name)
    if found is None or num_devices <= found.spans:
        return None
    return (
        f"{num_devices} devices are priced as one node, with {found.even_gb_s(num_devices):.3g} GB/s per device and "
        f"direction, but {name} connects only {found.spans:g} devices. Communication between nodes is slower, which "
        f"may change the ranking of placements."
    )


def resolve_link(name: str, own: str = DEFAULT_LINK) -> str:
    """Resolve a link name to its name in ``LINKS``; for "auto", return ``own``.

    Raises:
        BadConfig: if there is no such link.
    """
    return own if name == AUTO else link_name(name)


def link(name: str) -> Link:
    """Return a link by a name of ``LINKS`` or ``ALIASES``, a bandwidth such as 50gb_s, or a YAML file.

    Raises:
        BadConfig: if there is no such link.
        BadFile: if the file is not a link profile.
    """
    if name.endswith((".yaml", ".yml")):
        return _of_file(Path(name))
    own = link_name(name)
    if stated := _BANDWIDTH.fullmatch(own):
        return Link(STATED_LATENCY_US, "guess: bandwidth as given, latency of NVLink", bandwidth_gb_s=float(stated[1]))
    return LINKS[own]


def _of_file(path: Path) -> Link:
    found = read_profile(path, Link)
    remedy = "Calibrate it again with `evenshard calibrate-link`."
    kinds = [(one.collective, one.num_devices) for one in found.curves]
    if twice := next((kind for at, kind in enumerate(kinds) if kind in kinds[:at]), None):
        raise BadFile(path, f"has two curves of {twice[0]} for {twice[1]} devices", remedy)
    bandwidths = {field: getattr(found, field) for field in BANDWIDTHS}
    if zeros := [field for field, gb_s in bandwidths.items() if gb_s <= 0]:
        raise BadFile(path, f"constant {zeros[0]} is 0", remedy)
    if all(math.isinf(gb_s) for gb_s in bandwidths.values()):
        raise BadFile(path, f"sets none of the bandwidths {', '.join(bandwidths)}", remedy)
    return found


def bandwidth_name(gb_s: float) -> str:
    """Format a bandwidth as a link name, such as 50gb_s."""
    return f"{Decimal(f'{gb_s:.6g}'):f}gb_s"


def link_name(name: str) -> str:
    """Resolve an alias to its name in ``LINKS``; a bandwidth or a file path is returned unchanged.

    Raises:
        BadConfig: if there is no such link.
    """
    if name.endswith((".yaml", ".yml")):
        return name
    plain = name.lower().replace("-", "_").replace("gb/s", "gb_s").replace(" ", "")
    if (stated := _BANDWIDTH.fullmatch(plain)) and float(stated[1]) > 0:
        return plain
    plain = ALIASES.get(plain, plain)
    if plain not in LINKS:
        close = get_close_matches(cut(plain), [*LINKS, *ALIASES], n=2)
        meant = f"Did you mean {' or '.join(close)}? Use one of" if close else "Use auto, one of"
        others = "a bandwidth such as 50gb_s, or a file that calibrate-link wrote"
        raise BadConfig(f"link is {brief(name)}. {meant} {', '.join(LINKS)}, {others}.")
    return plain
