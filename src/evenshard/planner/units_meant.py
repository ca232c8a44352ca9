"""Warnings about values of a request that are likely meant in another unit than the one in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import GPUS_OF_A_NODE, LINKS, link
from evenshard.measure.simulated.gpu_profile import profile_of
from evenshard.planner.request import PlacementRequest
from evenshard.utils.units import bytes_to_gb

# Factors beyond the largest and below the smallest known value at which another unit is likely.
MOST, LEAST, MOST_MEMORY = 5.0, 0.01, 2.0
BETWEEN_NODES = ("ethernet", "infiniband")
# Smallest and largest value of a server.
HOSTS = {
    "host_memory_gb": ("GB", (16.0, 6_144.0)),
    "host_bandwidth_gb_s": ("GB/s", (20.0, 1_200.0)),
    "ssd_gb": ("GB", (100.0, 250_000.0)),
    "ssd_bandwidth_gb_s": ("GB/s", (0.5, 60.0)),
}
# What a value may be meant in, and the factor to the unit in which it is read.
MEANT: Mapping[str, Mapping[str, float]] = {
    "GB/s": {
        "in Gbit/s": 1 / 8,
        "in MB/s, or in bytes per second where TorchRec's Topology counts bytes per ms": 1e-3,
        "in bytes per second": 1e-9,
        "in TB/s": 1e3,
        "in GB/s where TorchRec's Topology counts bytes per ms": 1e6,
    },
    "GB": {"in MB": 1 / 1024, "in KB": 2.0**-20, "in bytes": 2.0**-30, "in TB": 1024.0, "in GB": 2.0**30},
    "us": {"in ns": 1e-3, "in ms": 1e3},
}


def unit_warnings(request: PlacementRequest) -> tuple[str, ...]:
    """Return a clause for each value that no known machine comes near: its field, value, unit and likely meaning."""
    return tuple(dict.fromkeys(one for one in (*_list_link_warnings(request), *_list_memory_warnings(request)) if one))


def _list_link_warnings(request: PlacementRequest) -> Iterator[str | None]:
    machine = request.nodes
    for field, theirs, name in (("intra", "intra_host_bw", machine.intra), ("inter", "inter_host_bw", machine.inter)):
        if not name or name in LINKS:
            continue
        tier = [one for key, one in LINKS.items() if key.startswith(BETWEEN_NODES) == (field == "inter")]
        found, gb_s = link(name), [one.even_gb_s(GPUS_OF_A_NODE) for one in tier]
        what = f"{field} ({theirs} of a Topology)"
        yield _warn_beyond(what, found.even_gb_s(GPUS_OF_A_NODE), "GB/s", (min(gb_s), max(gb_s)))
        us = [one.latency_us for one in tier]
        yield _warn_beyond(f"the latency of {field}", found.latency_us, "us", (min(us), max(us)))


def _list_memory_warnings(request: PlacementRequest) -> Iterator[str | None]:
    machine = request.nodes
    for device, cap in enumerate(request.caps_bytes):
        profile = profile_of(HardwareName.parse(machine.hardware_of(device) or request.hardware))
        if profile is not None:
            known = (profile.memory_gb, profile.memory_gb)
            yield _warn_beyond("memory_cap_gb (hbm_cap of a Topology)", bytes_to_gb(cap), "GB", known, MOST_MEMORY)
    values = {
        "host_memory_gb": [bytes_to_gb(one) for one in machine.host_bytes],
        "host_bandwidth_gb_s": [machine.host_gb_s],
        "ssd_gb": [bytes_to_gb(one) for one in machine.ssd_bytes],
        "ssd_bandwidth_gb_s": [machine.ssd_gb_s],
    }
    for field, of_field in values.items():
        for value in filter(None, of_field):  # 0 is none, or unknown
            yield _warn_beyond(field, value, *HOSTS[field])


def _warn_beyond(field: str, value: float, unit: str, known: tuple[float, float], most: float = MOST) -> str | None:
    low, high = known
    if LEAST * low <= value <= most * high:
        return None
    beyond = f"more than {most:g} times {high:,.4g}, the most of any known"
    if value < low:
        beyond = f"less than a hundredth of {low:,.4g}, the least of any known"
    readings = ((words, value * factor) for words, factor in MEANT[unit].items())
    meant = next(
        (f"; meant {words} it is {own:,.4g} {unit}" for words, own in readings if low / 2 <= own <= high * 2), ""
    )
    return f"{field} is {value:,.6g} {unit}, {beyond}{meant}"
