"""A model of all-to-all times over a named link: a fixed time, and times that grow with three counts of bytes.

One process that measures the devices in turn cannot exchange anything for real, so these times are modelled, and every
row says so.

The three counts: what a device itself moves in the busier of its two directions, what the device that moves most does
(the others wait for its data), and what all devices send together (through a host's memory, it takes turns).
In an even exchange of N devices each sends and receives (N - 1) / N of its buffer. NCCL's bus bandwidth is these bytes
over the time, so on a switch, where only a device's own direction counts, it is ``bandwidth_gb_s`` of long exchanges.
Of a link between nodes, ``bandwidth_gb_s`` is for the bytes that cross it: each device has a link of its own there, and
NVLink carries the rest of an exchange (``measure.collectives``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import OK, DeviceCost, PlacementCost
from evenshard.measure.evidence import DeviceError, Evidence
from evenshard.measure.hardware import AUTO
from evenshard.tables.reuse import FloatArray
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief, cut
from evenshard.utils.units import seconds_to_ms

BYTES_PER_VALUE = 4  # pooled embeddings and their gradients travel as FP32
DEFAULT_LINK = "ethernet_25g"
# The constants of a link that are bandwidths, and the bytes that each is for.
BANDWIDTHS = {
    "bandwidth_gb_s": "a device's own bytes",
    "slowest_gb_s": "those of the device that moves most",
    "shared_gb_s": "those of all devices",
}
# What a provenance names instead of a link where several devices measured at once, with NCCL's network in brackets:
# nccl (NET/IB/GDRDMA).
BACKENDS = ("gloo", "nccl")
# What a provenance names where each shard was measured on one device alone, with no link to another.
NO_LINK = "none"
# That the links inside of a node connect: of DGX A100 and later, of HGX machines, and of hosts with PCIe cards.
GPUS_OF_A_NODE = 8


@dataclass(frozen=True)
class Link:
    """A link between devices. Its bandwidths are 10**9 bytes per second; infinite where those bytes take no time.

    Attributes:
        latency_us: microseconds that an exchange takes besides its bytes.
        source: source of the numbers.
        bandwidth_gb_s: for the bytes of the device's own busier direction.
        slowest_gb_s: for the bytes of the device that moves most, in its busier direction.
        shared_gb_s: for the bytes that all devices send, together.
        forward_share: duration of a forward exchange over that of the backward one.
        spans: devices that it connects; infinite for any number.
        evidence: measured exchanges that the numbers were fitted to or compared with.
    """

    latency_us: float
    source: str
    bandwidth_gb_s: float = math.inf
    slowest_gb_s: float = math.inf
    shared_gb_s: float = math.inf
    forward_share: float = 1.0
    spans: float = math.inf
    evidence: tuple[Evidence, ...] = ()

    @property
    def error(self) -> DeviceError:
        """How far its exchanges are from real ones, by the evidence: what nothing confirms counts as devices do."""
        return DeviceError.of(self.evidence)

    def all_to_all_ms(self, device_dims: Sequence[int], batch_size: int) -> tuple[float, ...]:
        """Duration of the backward all-to-all on each device, ms.

        With table-wise sharding, a device pools its tables for the whole global batch and sends every other device that
        one's part of the samples; its own part stays. The busier of its two directions counts.

        Args:
            device_dims: sum of the embedding dims of each device's tables.
            batch_size: global batch, samples.
        """
        own_D = np.array(device_dims, dtype=np.float64)
        total = float(own_D.sum())
        return tuple(self.exchange_ms(own_D, total, len(device_dims), batch_size, own_D.max(initial=0.0)).tolist())

    def exchange_ms(
        self,
        own_dims: FloatArray,
        total_dims: float,
        num_devices: int,
        batch_size: int,
        most_dims: FloatArray | None = None,
    ) -> FloatArray:
        """``all_to_all_ms`` of devices that hold ``own_dims``, [any shape], of the placement's ``total_dims``.

        Args:
            most_dims: dims of the device that holds most, which broadcasts; None takes each device for that one.
        """
        if num_devices == 1:
            return np.zeros_like(own_dims)
        peers = num_devices - 1
        own = np.maximum(own_dims * peers, total_dims - own_dims)
        slowest = (own_dims if most_dims is None else most_dims) * peers  # no device receives more than this one sends
        bytes_per_dim = (batch_size / num_devices) * BYTES_PER_VALUE
        moved_ms = self.bytes_ms(own * bytes_per_dim, slowest * bytes_per_dim, total_dims * peers * bytes_per_dim)
        return np.asarray(self.latency_us / 1e3 + moved_ms)

    def bytes_ms(self, own: FloatArray | float, slowest: FloatArray | float, shared: FloatArray | float) -> FloatArray:
        """Time that bytes take, without the latency, [any shape] ms.

        Args:
            own: of the device's own busier direction.
            slowest: of the device that moves most.
            shared: of all that the devices send.
        """
        seconds = (own / self.bandwidth_gb_s + slowest / self.slowest_gb_s + shared / self.shared_gb_s) / 1e9
        return np.asarray(seconds * seconds_to_ms(1.0))

    @property
    def tier(self) -> str:
        """Which link it is: intra within a node, or several that it spans, inter between nodes."""
        return "inter" if math.isinf(self.spans) else "intra"

    def even_gb_s(self, num_devices: int) -> float:
        """NCCL's bus bandwidth of a long backward exchange in which all devices send alike."""
        return 1 / (1 / self.bandwidth_gb_s + 1 / self.slowest_gb_s + num_devices / self.shared_gb_s)


_SLIDE = "NVIDIA, GTC25 S72583 (bus bandwidth of NCCL's all-to-all; in stas00/ml-engineering)"
_SMALL = "latency a guess: the kernel of a small exchange takes 7 to 10 us, its launch some more"
_NEURO_SHARD = (
    "outputs of NeuroShard's communication networks, which were trained on measurements (anonymoussubmition/neuroshard "
    "e363480f)"
)
_PARAM = "PARAM, timed from the host (owensgroup/ml_perf_model cf1acc20, comm_bench.ipynb, plot and text)"

LINKS = {
    "pcie3_host": Link(
        535.0,
        f"PCIe 3.0 without peer-to-peer: fitted to {_NEURO_SHARD}. For other numbers of GPUs than 4 a guess",
        bandwidth_gb_s=60.0,
        slowest_gb_s=23.0,
        shared_gb_s=25.1,
        forward_share=0.97,
        spans=GPUS_OF_A_NODE,
        evidence=(
            Evidence("plans on 4 x RTX 2080 Ti, FP32, batch 65,536, both ways", _NEURO_SHARD, 1500, 1500, 1.1, 6.3),
        ),
    ),
    "ethernet_1g": Link(
        30.0, "line rate of 1000BASE; latency of a kernel TCP round through one switch", bandwidth_gb_s=0.125
    ),
    "ethernet_10g": Link(
        30.0, "line rate of 10GBASE; latency of a kernel TCP round through one switch", bandwidth_gb_s=1.25
    ),
    "ethernet_25g": Link(
        30.0, "line rate of 25GBASE; latency of a kernel TCP round through one switch", bandwidth_gb_s=3.125
    ),
    "infiniband_hdr": Link(
        10.0,
        "HDR 200 Gb/s for each GPU, line rate 25 GB/s: the bytes that cross it in exchanges of several nodes, of which "
        "NCCL's bus bandwidth counts those inside of nodes too; latency of a small NCCL all-to-all",
        bandwidth_gb_s=18.0,
        evidence=(
            Evidence(
                "24 GB/s of 32 x A100, 19.1 of it here; the shortest of 12.58 MB of 16 x A100, 404 us",
                f"{_SLIDE}; a trace in facebookresearch/HolisticTraceAnalysis f4d0062",
                2,
                0,
            ),
        ),
    ),
    "infiniband_ndr": Link(
        10.0,
        "NDR 400 Gb/s for each GPU, line rate 50 GB/s: the bytes that cross it in an exchange of 4 nodes; latency as "
        "infiniband_hdr",
        bandwidth_gb_s=38.4,
        evidence=(Evidence("48 GB/s of 32 x H100, 24 of 31 peers on other nodes", _SLIDE, 1, 0),),
    ),
    "nvlink_v100": Link(
        15.0,
        "a guess, for the 16 GPUs of a DGX-2: 0.71 of the line rate of 6 NVLink 2.0 links, 150 GB/s a direction; "
        f"exchanges of A100, H100 and B200 reach that share. {_SMALL}",
        bandwidth_gb_s=107.0,
        spans=16,
    ),
    "nvlink_v100_dgx1": Link(
        87.0,
        f"one half of a DGX-1: fitted to {_PARAM}. Some of the 3 peers are one NVLink 2.0 link away, 25 GB/s, which "
        "bounds the exchange; most pairs across the halves have none",
        bandwidth_gb_s=56.2,
        spans=4,
        evidence=(Evidence("exchanges of 4 x V100, 32 KB to 2 GB", _PARAM, 8, 7, 1.9, 4.1),),
    ),
    "nvlink_a100": Link(
        15.0,
        f"12 NVLink 3.0 links, line rate 300 GB/s a direction; {_SMALL}",
        bandwidth_gb_s=210.0,
        spans=GPUS_OF_A_NODE,
        evidence=(Evidence("210 GB/s of 8 x A100", _SLIDE, 1, 0),),
    ),
    "nvlink_h100": Link(
        15.0,
        "18 NVLink 4.0 links, line rate 450 GB/s a direction: mean of 320 and 335; a maintainer of nccl-tests names "
        f"370. {_SMALL}",
        bandwidth_gb_s=327.0,
        spans=GPUS_OF_A_NODE,
        evidence=(Evidence("320 GB/s of 8 x H100, 524 MB in 1,174 us of 4", f"{_SLIDE}; nccl issue 2169", 2, 0),),
    ),
    "nvlink_h200": Link(
        15.0,
        "as nvlink_h100, which has the same 18 NVLink 4.0 links: a guess until an H200 is measured",
        bandwidth_gb_s=327.0,
        spans=GPUS_OF_A_NODE,
    ),
    "nvlink_b200": Link(
        15.0,
        f"18 NVLink 5.0 links, line rate 900 GB/s a direction; {_SMALL}",
        bandwidth_gb_s=640.0,
        spans=GPUS_OF_A_NODE,
        evidence=(Evidence("640 GB/s of 8 x B200", _SLIDE, 1, 0),),
    ),
    "nvlink_gb200": Link(
        15.0,
        "as nvlink_b200, for the 72 GPUs of a GB200 NVL72, which has the same 18 NVLink 5.0 links: a guess",
        bandwidth_gb_s=640.0,
        spans=72,
    ),
}
# Other names of links, such as h100_nvlink.
ALIASES = {"ib_200g": "infiniband_hdr", "ib_400g": "infiniband_ndr"} | {
    f"{name.removeprefix('nvlink_')}_nvlink": name for name in LINKS if name.startswith("nvlink_")
}
# Of a link of which only a bandwidth is stated: that of NVLink.
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


def start_skew_ms(fwd_compute_ms: Sequence[float]) -> tuple[float, ...]:
    """How long each device waits, after its own forward, until the slowest device can join the exchange, ms.

    All of it counts. On 4 x RTX 2080 Ti an exchange ends only 0.91 to 0.98 ms later for each ms of it: devices that
    are ready exchange what they have.

    A device that ran out of memory (infinite time) never joins: the others do not wait for it, and it does not wait.
    """
    last = max((own for own in fwd_compute_ms if math.isfinite(own)), default=0.0)
    return tuple(last - own if math.isfinite(own) else 0.0 for own in fwd_compute_ms)


def with_modelled_exchanges(
    computes: Sequence[DeviceCost],
    forward_ms: Sequence[float],
    backward_ms: Sequence[float],
    input_dist_ms: Sequence[float] | None = None,
) -> PlacementCost:
    """The cost of a placement whose devices exchanged nothing: modelled exchanges, and the waits before them.

    Args:
        computes: costs of the devices without any exchange; those that are out of memory stay so.
        forward_ms, backward_ms: exchange of each device.
        input_dist_ms: exchange of indices of each device; None where it is left out.
    """
    waits_ms = start_skew_ms([compute.split_ms[0] for compute in computes])
    inputs_ms = [0.0] * len(computes) if input_dist_ms is None else input_dist_ms
    devices = (
        replace(compute, fwd_all_to_all_ms=out, bwd_all_to_all_ms=back, fwd_wait_ms=wait, input_dist_ms=inputs)
        if compute.status == OK
        else compute
        for compute, out, back, wait, inputs in zip(computes, forward_ms, backward_ms, waits_ms, inputs_ms, strict=True)
    )
    return PlacementCost(tuple(devices), all_to_all="modelled")


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
        from evenshard.measure.profile_file import read_profile

        found = read_profile(Path(name), Link)
        remedy = "Calibrate it again with `evenshard calibrate-link`."
        bandwidths = {field: getattr(found, field) for field in BANDWIDTHS}
        if zeros := [field for field, gb_s in bandwidths.items() if gb_s <= 0]:
            raise BadFile(name, f"constant {zeros[0]} is 0", remedy)
        if all(math.isinf(gb_s) for gb_s in bandwidths.values()):
            raise BadFile(name, f"names none of {', '.join(bandwidths)}", remedy)
        return found
    own = link_name(name)
    if stated := _BANDWIDTH.fullmatch(own):
        return Link(STATED_LATENCY_US, "as stated; latency a guess", bandwidth_gb_s=float(stated[1]))
    return LINKS[own]


def bandwidth_name(gb_s: float) -> str:
    """The name of a link of which a bandwidth is all that is known."""
    return f"{gb_s:.6g}gb_s"


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
