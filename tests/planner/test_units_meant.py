"""Values in another unit than the one in which they are read are warned of, whichever way they come in."""

from __future__ import annotations

from typing import Any

import pytest

from evenshard.planner.request import PlacementRequest, list_unit_warnings
from evenshard.price.link import bandwidth_name, link
from evenshard.tables.table import Table
from support.request_builders import devices_asked

TABLE = Table("a", 1000, 16, 4.0)


def warned(**machine: Any) -> tuple[str, ...]:
    """Warnings of a request for this machine, as ``devices_asked`` takes it."""
    found = devices_asked(hardware=machine.pop("hardware", "h100"), **{"nodes": 2, "devices_per_node": 8, **machine})
    request = PlacementRequest((TABLE,), found.caps_bytes, 1024, machine=found.machine, hardware=found.hardware)
    return list_unit_warnings(request)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (
            {"inter": "25000gb_s"},
            "inter (inter_host_bw of a Topology) is 25,000 GB/s, more than 5 times the largest known value (76.6)",
        ),
        (
            {"inter": "25000gb_s"},
            "if given in MB/s, or in bytes per second where TorchRec's Topology counts bytes per ms",
        ),
        ({"inter": "400gb_s"}, "if given in Gbit/s, it is 50 GB/s"),
        ({"inter": "0.000025gb_s"}, "in GB/s where TorchRec's Topology counts bytes per ms, it is 25 GB/s"),
        ({"intra": "450000gb_s"}, "it is 450 GB/s"),
        ({"intra": "0.0009gb_s"}, "less than a hundredth of the smallest known value (2.639)"),
        (
            {"memory_cap_gb": 80 * 1024},
            "(hbm_cap of a Topology) is 81,920 GB, more than 2 times the largest known value (79)",
        ),
        ({"memory_cap_gb": 80 * 1024}, "if given in MB, it is 80 GB"),
        ({"memory_cap_gb": 0.08}, "if given in TB, it is 81.92 GB"),
        ({"host_memory_gb": 1024 * 1024}, "host_memory_gb is 1.04858e+06 GB"),
        ({"host_memory_gb": 512, "host_bandwidth_gb_s": 400_000}, "host_bandwidth_gb_s is 400,000 GB/s"),
        ({"host_memory_gb": 512, "ssd_gb": 1000, "ssd_bandwidth_gb_s": 7_000}, "ssd_bandwidth_gb_s is 7,000 GB/s"),
    ],
)
def test_another_unit_is_warned_of(machine: dict[str, Any], words: str) -> None:
    (warning,) = warned(**{"inter": "ib_400g", **machine})
    assert words in warning


@pytest.mark.parametrize("hardware", ["h100", "h200", "b200", "a100", "mi300x"])
def test_what_comes_with_evenshard_is_not_warned_of(hardware: str) -> None:
    assert warned(hardware=hardware, inter="ib_400g") == ()
    assert (
        warned(
            hardware=hardware,
            inter="50gb_s",
            intra="450gb_s",
            memory_cap_gb=64,
            host_memory_gb=900,
            host_bandwidth_gb_s=400,
        )
        == ()
    )


@pytest.mark.parametrize("gb_s", [2.5e-05, 450.0, 1e7, 0.125])
def test_every_bandwidth_has_a_name(gb_s: float) -> None:
    assert link(bandwidth_name(gb_s)).bandwidth_gb_s == gb_s
