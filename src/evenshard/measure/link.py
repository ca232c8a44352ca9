"""A model of all-to-all times over a named link: latency and bandwidth, nothing more.

One process that measures the devices in turn cannot exchange anything for real, so these times are modelled, and every
row says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import AUTO
from evenshard.tables.reuse import FloatArray
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief
from evenshard.utils.units import seconds_to_ms

BYTES_PER_VALUE = 4  # pooled embeddings and their gradients travel as FP32
DEFAULT_LINK = "ethernet_25g"
BACKENDS = ("gloo", "nccl")
"""What a provenance names instead of a link where several devices measured at once."""
GPUS_OF_A_NODE = 8
"""That the links inside of a node connect: of DGX and HGX machines, and of hosts with PCIe cards."""


@dataclass(frozen=True)
class Link:
    """A link between devices.

    Attributes:
        latency_us: microseconds before the first byte of an exchange arrives.
        bandwidth_gb_s: 10**9 bytes per second that one device can send, and receive at the same time.
        source: source of the numbers.
        spans: devices that it connects; infinite for any number.
    """

    latency_us: float
    bandwidth_gb_s: float
    source: str
    spans: float = math.inf

    def all_to_all_ms(self, device_dims: Sequence[int], batch_size: int) -> tuple[float, ...]:
        """Duration of one all-to-all on each device, ms.

        With table-wise sharding, a device pools its tables for the whole global batch and sends every other device that
        one's part of the samples; its own part stays. The busier of its two directions counts.

        Args:
            device_dims: sum of the embedding dims of each device's tables.
            batch_size: global batch, samples.
        """
        own_D = np.array(device_dims, dtype=np.float64)
        return tuple(self.exchange_ms(own_D, float(own_D.sum()), len(device_dims), batch_size).tolist())

    def exchange_ms(self, own_dims: FloatArray, total_dims: float, num_devices: int, batch_size: int) -> FloatArray:
        """``all_to_all_ms`` of devices that hold ``own_dims``, [any shape], of the placement's ``total_dims``."""
        if num_devices == 1:
            return np.zeros_like(own_dims)
        values = batch_size / num_devices * np.maximum(own_dims * (num_devices - 1), total_dims - own_dims)
        seconds = self.latency_us * 1e-6 + values * BYTES_PER_VALUE / (self.bandwidth_gb_s * 1e9)
        return np.asarray(seconds * seconds_to_ms(1.0))


LINKS = {
    "pcie3_host": Link(
        40.0,
        5.0,
        "estimate: PCIe 3.0 x16 without peer-to-peer: 7 to 13 GB/s to or from pinned host memory, crossed twice by "
        "all GPUs at once; latency of a small NCCL all-to-all through host memory, 30 to 50 us",
        GPUS_OF_A_NODE,
    ),
    "ethernet_10g": Link(30.0, 1.25, "line rate of 10GBASE; latency of a kernel TCP round through one switch"),
    "ethernet_25g": Link(30.0, 3.125, "line rate of 25GBASE; latency of a kernel TCP round through one switch"),
    "infiniband_hdr": Link(10.0, 25.0, "line rate of HDR 200 Gb/s; latency of a small NCCL all-to-all"),
    "nvlink_v100": Link(
        15.0,
        150.0,
        "6 NVLink 2.0 links of 25 GB/s a direction; latency of a small NCCL all-to-all",
        GPUS_OF_A_NODE,
    ),
    "nvlink_a100": Link(
        15.0,
        300.0,
        "12 NVLink 3.0 links of 25 GB/s a direction; latency of a small NCCL all-to-all",
        GPUS_OF_A_NODE,
    ),
    "nvlink_h200": Link(
        15.0,
        450.0,
        "18 NVLink 4.0 links of 25 GB/s a direction; latency of a small NCCL all-to-all",
        GPUS_OF_A_NODE,
    ),
}


def is_modelled(name: str) -> bool:
    """Whether exchange times of a provenance with this link come from a model; else devices really exchanged."""
    return name not in BACKENDS


def beyond_span(name: str, num_devices: int) -> str | None:
    """What to say of the times of more devices than a link connects; None where it connects them all.

    Args:
        name: one of ``LINKS``; of any other, such as a file, nothing is known.
    """
    found = LINKS.get(name)
    if found is None or num_devices <= found.spans:
        return None
    return (
        f"{num_devices} devices are priced as if one node held them all, each with {found.bandwidth_gb_s:g} GB/s a "
        f"direction, but {name} connects {found.spans:g}. Across nodes the exchange is slower, and the order of "
        f"placements may change."
    )


def start_skew_ms(fwd_compute_ms: Sequence[float]) -> tuple[float, ...]:
    """How long each device waits, after its own forward, until the slowest device can join the exchange, ms.

    A device that ran out of memory (infinite time) never joins: the others do not wait for it, and it does not wait.
    """
    last = max((own for own in fwd_compute_ms if math.isfinite(own)), default=0.0)
    return tuple(last - own if math.isfinite(own) else 0.0 for own in fwd_compute_ms)


def link_of(config: MeasureConfig, own: str = DEFAULT_LINK) -> str:
    """Name of the link that the settings name.

    Args:
        own: link of the hardware, which auto means.
    """
    return own if config.link == AUTO else config.link


def link(name: str) -> Link:
    """The link called ``name``: one of ``LINKS``, or a YAML file that ``evenshard calibrate-link`` wrote.

    Raises:
        BadConfig: if there is none.
        BadFile: if the file is not a link profile.
    """
    if name.endswith((".yaml", ".yml")):
        from evenshard.measure.profiles import read_profile

        found = read_profile(Path(name), Link)
        if found.bandwidth_gb_s <= 0:
            raise BadFile(name, "constant bandwidth_gb_s is 0", "Calibrate it again with `evenshard calibrate-link`.")
        return found
    if name not in LINKS:
        raise BadConfig(
            f"link is {brief(name)}. Use auto, one of {', '.join(LINKS)}, or a file that calibrate-link wrote."
        )
    return LINKS[name]
