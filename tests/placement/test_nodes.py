"""Machines: nodes, domains and kinds of devices by hand, and what makes one impossible."""

from __future__ import annotations

from dataclasses import replace

from evenshard.placement.nodes import DeviceGroup, Nodes

PODS = Nodes(16, 4, nodes_per_domain=2, intra="nvlink_b200", inter="infiniband_ndr")


def test_one_node_has_all_devices_and_ids_go_on_from_node_to_node() -> None:
    one = Nodes.one_node(8)
    assert (one.num_nodes, one.domain_size, one.num_domains) == (1, 8, 1)
    assert one.devices_of_node(0) == range(8) and one.problem() is None
    assert (PODS.num_nodes, PODS.domain_size, PODS.num_domains) == (4, 8, 2)
    assert [PODS.node_of(device) for device in (0, 3, 4, 15)] == [0, 0, 1, 3]
    assert [list(PODS.devices_of_node(node)) for node in (0, 3)] == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert PODS.problem() is replace(PODS, nodes_per_domain=4, inter="").problem() is None


def test_kinds_of_devices_by_id() -> None:
    mixed = replace(PODS, groups=(DeviceGroup("simulated:h100", 12), DeviceGroup("simulated:a100_80gb", 4)))
    assert [mixed.hardware_of(device) for device in (0, 11, 12, 15)] == ["simulated:h100"] * 2 + [
        "simulated:a100_80gb"
    ] * 2
    assert mixed.problem() is None and PODS.hardware_of(3) == ""


def test_what_makes_a_machine_impossible() -> None:
    for machine, problem in (
        (Nodes(0, 1), "num_devices is 0, not a whole number from 1 to 4,096. Correct it."),
        (Nodes(8, 4, nodes_per_domain=0), "nodes_per_domain is 0, not a whole number"),
        (Nodes(4, 8), "devices_per_node is 8, but there are 4 devices. Lower it, or raise num_devices."),
        (Nodes(12, 8, inter="infiniband_ndr"), "12 devices cannot be split into nodes of 8"),
        (Nodes(24, 8, nodes_per_domain=2, inter="infiniband_ndr"), "3 nodes cannot be split into domains of 2"),
        (Nodes(16, 8), "there are 2 nodes, but no link between them. Name a link, such as --inter infiniband_ndr"),
        (replace(PODS, inter=""), "there are 2 domains, but no link between them."),
        (replace(PODS, groups=(DeviceGroup("cpu", 8),)), "there are 16 devices, but the device kinds have 8."),
    ):
        assert (machine.problem() or "").startswith(problem)
