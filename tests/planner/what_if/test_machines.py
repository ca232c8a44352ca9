"""Machines with hosts and links that are taken where none are named."""

from __future__ import annotations

import pytest

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.planner.what_if.machines import build_machine, map_to_hardware


def test_hosts_and_links_that_are_not_named() -> None:
    assert build_machine("simulated:h100", 4) == Nodes(4, 4, 1, "nvlink_h100")
    assert build_machine("simulated:h100", 16) == Nodes(16, 8, 1, "nvlink_h100", "infiniband_ndr")
    assert build_machine("simulated:a100_80gb", 16).inter == "infiniband_hdr"
    assert build_machine("simulated:rtx_2080_ti", 16).inter == "ethernet_25g"
    own = build_machine("simulated:h100", 16, 4, "50gb_s", "ib_200g", 2)
    assert own == Nodes(16, 4, 2, "50gb_s", "infiniband_hdr")


def test_devices_that_do_not_fill_hosts_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"12 x simulated:h100: 12 devices cannot be split into nodes of 8"):
        build_machine("simulated:h100", 12)


def test_one_value_for_all_hardware_or_one_for_each() -> None:
    hardware = ["simulated:h100", "simulated:a100_80gb"]
    assert map_to_hardware("dense_ms", 5.0, hardware) == dict.fromkeys(hardware, 5.0)
    assert map_to_hardware("dense_ms", {"h100": 1.0}, hardware) == {"simulated:h100": 1.0}
    with pytest.raises(BadConfig, match="dense_ms is given for 'simulated:h200'"):
        map_to_hardware("dense_ms", {"h200": 1.0}, hardware)
