"""The links by their names: fitted ones, those of rules and data sheets, and stated bandwidths."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from evenshard.measure.config import MeasureConfig
from evenshard.measure.evidence import Evidence
from evenshard.measure.hardware import AUTO
from evenshard.measure.link_model import BANDWIDTHS as BANDWIDTHS
from evenshard.measure.link_model import BYTES_PER_VALUE as BYTES_PER_VALUE
from evenshard.measure.link_model import Link as Link
from evenshard.measure.link_rules import GPUS_OF_A_NODE as GPUS_OF_A_NODE
from evenshard.measure.link_rules import NVLINK_GB_S, nic_by_rule, nvlink_by_rule, pcie_by_rule
from evenshard.measure.profile_file import read_profile
from evenshard.measure.profiles import link_profile_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief, cut

DEFAULT_LINK = "ethernet_25g"
# Transports that a provenance may name instead of a link, such as nccl (NET/IB/GDRDMA).
BACKENDS = ("gloo", "nccl")
# A provenance names this where each shard was measured on one device alone, with no link to another.
NO_LINK = "none"

_NEURO_SHARD = (
    "outputs of NeuroShard's communication networks, which were trained on measurements (anonymoussubmition/neuroshard "
    "e363480f)"
)
_PARAM = "PARAM, timed from the host (owensgroup/ml_perf_model cf1acc20, comm_bench.ipynb, plot and text)"
_NCCL_TESTS = "nccl-tests of NVIDIA (ai-dynamo/aiconfigurator 095f58a51)"


class _Links(Mapping[str, Link]):
    """Links by name, each made from its profile or rule when it is first asked for."""

    def __init__(self, links: Mapping[str, Link | Callable[[], Link]]) -> None:
        self._links = dict(links)

    def __getitem__(self, name: str) -> Link:
        found = self._links[name]
        if not isinstance(found, Link):
            found = self._links[name] = found()
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._links

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)


def _profile_loader(name: str) -> Callable[[], Link]:
    return lambda: _of_file(link_profile_path(name))


def _nvlink(line_gb_s: float, spans: float) -> Callable[[], Link]:
    """Make the NVLink of a line rate by the rule; its error is smaller if a fitted link has that rate."""
    evidence = _SAME_LINE if line_gb_s in NVLINK_GB_S.values() else _OTHER_LINE
    return lambda: nvlink_by_rule(line_gb_s, spans, {name: LINKS[name] for name in NVLINK_GB_S}, [evidence])


def _infinity_fabric(line_gb_s: float) -> Callable[[], Link]:
    """Make the seven links of each GPU by the rule for NVLink, which nothing confirms here."""
    return lambda: nvlink_by_rule(line_gb_s, GPUS_OF_A_NODE, {name: LINKS[name] for name in NVLINK_GB_S}, ())


# The errors are by benchmarks/scripts/fit_links.py.
_SAME_LINE = Evidence(
    "collectives of 2 to 8 H100, H200, B200 and GB200, each link as the other of its line rate",
    _NCCL_TESTS,
    862,
    862,
    3.5,
    9.7,
)
_OTHER_LINE = Evidence(
    "collectives of A100, H100, H200, B200 and GB200, each by links of other line rates",
    _NCCL_TESTS,
    1099,
    1099,
    22.6,
    57.8,
)

LINKS: Mapping[str, Link] = _Links(
    {
        "pcie3_host": Link(
            535.0,
            f"fitted: PCIe 3.0 without peer-to-peer, to {_NEURO_SHARD}. For other numbers of GPUs than 4 a guess",
            bandwidth_gb_s=60.0,
            slowest_gb_s=23.0,
            shared_gb_s=25.1,
            forward_share=0.97,
            spans=GPUS_OF_A_NODE,
            evidence=(
                Evidence("plans on 4 x RTX 2080 Ti, FP32, batch 65,536, both ways", _NEURO_SHARD, 1500, 1500, 1.1, 6.3),
            ),
        ),
        "pcie4": partial(pcie_by_rule, 31.5, "PCIe 4.0 x16, as of L40S"),
        "pcie5": partial(pcie_by_rule, 63.0, "PCIe 5.0 x16, as of RTX PRO 6000 Blackwell"),
        "ethernet_1g": Link(
            30.0,
            "data sheet: line rate of 1000BASE; latency of a kernel TCP round through one switch",
            bandwidth_gb_s=0.125,
        ),
        "ethernet_10g": Link(
            30.0,
            "data sheet: line rate of 10GBASE; latency of a kernel TCP round through one switch",
            bandwidth_gb_s=1.25,
        ),
        "ethernet_25g": Link(
            30.0,
            "data sheet: line rate of 25GBASE; latency of a kernel TCP round through one switch",
            bandwidth_gb_s=3.125,
        ),
        "infiniband_hdr": partial(nic_by_rule, 25.0, "HDR 200 Gb/s"),
        "infiniband_ndr": partial(nic_by_rule, 50.0, "NDR 400 Gb/s"),
        "infiniband_xdr": partial(nic_by_rule, 100.0, "XDR 800 Gb/s, as of ConnectX-8"),
        "nvlink_v100": _nvlink(150.0, 16),
        "nvlink_v100_dgx1": Link(
            87.0,
            f"fitted: one half of a DGX-1, to {_PARAM}. Some of the 3 peers are one NVLink 2.0 link away, 25 GB/s, "
            "which bounds the exchange; most pairs across the halves have none",
            bandwidth_gb_s=56.2,
            spans=4,
            evidence=(Evidence("exchanges of 4 x V100, 32 KB to 2 GB", _PARAM, 8, 7, 1.9, 4.1),),
        ),
        "nvlink_a100": _profile_loader("nvlink_a100"),
        "nvlink_h100": _profile_loader("nvlink_h100"),
        "nvlink_h200": _profile_loader("nvlink_h200"),
        "nvlink_b200": _profile_loader("nvlink_b200"),
        "nvlink_gb200": _profile_loader("nvlink_gb200"),
        "nvlink_b300": _nvlink(900.0, GPUS_OF_A_NODE),
        "nvlink_gb300": _nvlink(900.0, 72),
        "infinity_fabric_mi300x": _infinity_fabric(448.0),
        "infinity_fabric_mi350x": _infinity_fabric(537.6),
    }
)
ALIASES = {"ib_200g": "infiniband_hdr", "ib_400g": "infiniband_ndr", "ib_800g": "infiniband_xdr"} | {
    f"{name.removeprefix('nvlink_')}_nvlink": name for name in LINKS if name.startswith("nvlink_")
}
# Latency of a link that is stated by its bandwidth alone: that of NVLink.
STATED_LATENCY_US = 15.0
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)gb_s")


def is_modelled(name: str) -> bool:
    """Whether exchange times of a provenance with this link come from a model; else devices really exchanged."""
    return name.partition(" ")[0] not in BACKENDS


def beyond_span(name: str, num_devices: int) -> str | None:
    """What to say of the times of more devices than a link connects; None where it connects them all.

    Args:
        name: one of ``LINKS``; of any other, such as a file, nothing is known.
    """
    found = LINKS.get(name)
    if found is None or num_devices <= found.spans:
        return None
    return (
        f"{num_devices} devices are priced as if one node held them all, each with {found.even_gb_s(num_devices):.3g} "
        f"GB/s a direction, but {name} connects {found.spans:g}. Across nodes the exchange is slower, and the order of "
        f"placements may change."
    )


def link_of(config: MeasureConfig, own: str = DEFAULT_LINK) -> str:
    """Name of the link that the settings name.

    Args:
        own: link of the hardware, which auto means.

    Raises:
        BadConfig: if there is none.
    """
    return own if config.link == AUTO else link_name(config.link)


def link(name: str) -> Link:
    """The link called ``name``.

    Args:
        name: in ``LINKS`` or ``ALIASES``, a bandwidth such as 50gb_s, or a YAML file of ``evenshard calibrate-link``.

    Raises:
        BadConfig: if there is none.
        BadFile: if the file is not a link profile.
    """
    if name.endswith((".yaml", ".yml")):
        return _of_file(Path(name))
    own = link_name(name)
    if stated := _BANDWIDTH.fullmatch(own):
        return Link(
            STATED_LATENCY_US, "guess: bandwidth as stated; latency that of NVLink", bandwidth_gb_s=float(stated[1])
        )
    return LINKS[own]


def _of_file(path: Path) -> Link:
    found = read_profile(path, Link)
    remedy = "Calibrate it again with `evenshard calibrate-link`."
    bandwidths = {field: getattr(found, field) for field in BANDWIDTHS}
    if zeros := [field for field, gb_s in bandwidths.items() if gb_s <= 0]:
        raise BadFile(path, f"constant {zeros[0]} is 0", remedy)
    if all(math.isinf(gb_s) for gb_s in bandwidths.values()):
        raise BadFile(path, f"names none of {', '.join(bandwidths)}", remedy)
    return found


def bandwidth_name(gb_s: float) -> str:
    """The name of a link of which a bandwidth is all that is known."""
    return f"{Decimal(f'{gb_s:.6g}'):f}gb_s"


def link_name(name: str) -> str:
    """The name in ``LINKS`` of a link that may be called by another one; a bandwidth or the path of a file as it is.

    Raises:
        BadConfig: if there is none.
    """
    if name.endswith((".yaml", ".yml")):
        return name
    plain = name.lower().replace("-", "_").replace("gb/s", "gb_s").replace(" ", "")
    if (stated := _BANDWIDTH.fullmatch(plain)) and float(stated[1]) > 0:
        return plain
    plain = ALIASES.get(plain, plain)
    if plain not in LINKS:
        close = get_close_matches(cut(plain), [*LINKS, *ALIASES], n=2)
        meant = f"Did you mean {' or '.join(close)}? Known are" if close else "Use auto, one of"
        others = "a bandwidth such as 50gb_s, or a file that calibrate-link wrote"
        raise BadConfig(f"link is {brief(name)}. {meant} {', '.join(LINKS)}, {others}.")
    return plain
