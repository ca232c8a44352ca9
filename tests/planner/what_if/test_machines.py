"""Machines, and groups of 2D parallelism: which ranks they are, and what it takes to keep them alike, by hand."""

from __future__ import annotations

import pytest

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.planner.what_if.machines import (
    CONTIGUOUS,
    STRIDED,
    build_machine,
    group_ranks,
    layouts_of,
    map_to_hardware,
    replica_ranks,
    replicas_ms,
    sum_synced_bytes,
    sync_of,
)
from support.answer_builders import answer
from support.builders import table

# Two nodes of 8.
SIXTEEN = Nodes(16, 8, 1, "100gb_s", "10gb_s")
# Of a link of which a bandwidth is all that is known.
LATENCY_MS = 0.015


def test_the_ranks_are_those_of_dmp_collection() -> None:
    """As its docstring has them: 8 ranks in groups of 4 are 0 2 4 6 and 1 3 5 7, with replicas 0 1, 2 3, ..."""
    groups, replicas = group_ranks(8, 4, STRIDED), replica_ranks(8, 4, STRIDED)
    assert [list(one) for one in groups] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [list(one) for one in replicas] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    groups, replicas = group_ranks(8, 4, CONTIGUOUS), replica_ranks(8, 4, CONTIGUOUS)
    assert [list(one) for one in groups] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [list(one) for one in replicas] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_group_keeps_to_a_node_or_spans_both() -> None:
    found = dict(layouts_of(SIXTEEN, 8))
    assert found[CONTIGUOUS] == Nodes(8, 8, 1, "100gb_s")
    assert found[STRIDED] == Nodes(8, 4, 1, "100gb_s", "10gb_s")
    assert layouts_of(SIXTEEN, 16) == (("", SIXTEEN),)
    assert layouts_of(Nodes(8, 8, 1, "100gb_s"), 4) == ((CONTIGUOUS, Nodes(4, 4, 1, "100gb_s")),)


def test_groups_that_lie_unevenly_are_refused() -> None:
    with pytest.raises(BadConfig, match="16 devices do not fill groups of 5"):
        layouts_of(SIXTEEN, 5)
    twelve = Nodes(12, 4, 1, "100gb_s", "10gb_s")
    assert [layout for layout, _ in layouts_of(twelve, 6)] == [STRIDED]  # in a row: 4 and 2 on a node
    with pytest.raises(BadConfig, match="groups of 4 devices spread unevenly over nodes of 6"):
        layouts_of(Nodes(36, 6, 1, "100gb_s", "10gb_s"), 4)


def test_a_sync_sends_all_rows_of_the_fullest_device_twice() -> None:
    """256 MB of a and 512 MB of b and c on two devices; 8 groups of 2 over 2 nodes, in a row: 4 replicas on each."""
    one = answer()
    assert sum_synced_bytes(one) == (2**28, 2**29)
    found = sync_of(one, SIXTEEN, CONTIGUOUS, 10)
    held = 2**29
    intra, inter = 2 * held * 3 / 4, 2 * held * 1 / 2 / 4  # in the node first, then a quarter of it between the two
    assert (found.bytes_per_device, found.bytes_of_all) == (held, 8 * (2**28 + held))
    assert found.sent_bytes == intra + inter
    assert found.once_ms == pytest.approx(LATENCY_MS + max(intra / 100e9, inter / 10e9) * 1e3)
    assert found.step_ms == found.once_ms / 10


def test_optimizer_state_travels_too_as_a_collective_of_its_own() -> None:
    plain = sync_of(answer(), SIXTEEN, STRIDED, 1)
    adagrad = sync_of(answer(asked={"optimizer": "adagrad"}), SIXTEEN, STRIDED, 1)
    assert adagrad.bytes_per_device == 2 * plain.bytes_per_device
    assert adagrad.once_ms - 2 * plain.once_ms == pytest.approx(0.0, abs=1e-9)


def test_replicas_are_no_part_of_a_sync_and_are_reduced_over_all_devices_in_each_step() -> None:
    """b is on both devices: 1,000 rows of 64 gradients; 16 devices on two nodes take longer than two in one."""
    tables = [table("a", 2**20, 64), table("b", 1000, 64), table("c", 2**20, 64)]
    one = answer(
        device_of_part=(0, (0, 1), 1),
        tables=tables,
        asked={"sharding_types": SHARDING_TYPES, "machine": Nodes(2, 2, 1, "100gb_s")},
    )
    assert sum_synced_bytes(one) == (2**28, 2**28)
    size = 2 * 4 * 64_000
    within = size / 2 / 100e9
    over = max(size * 7 / 8 / 100e9, size / 2 / 8 / 10e9)
    assert replicas_ms(one, SIXTEEN) == pytest.approx((over - within) * 1e3)


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
