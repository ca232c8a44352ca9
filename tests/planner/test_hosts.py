"""Machines as users state them: flags, files of hosts, and one clear line for what makes no sense."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from evenshard.base.errors import BadConfig, BadFile, BadInput
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.planner.hosts import Hosts, HostsFile, MachineAndMemory, load_hosts_file
from support.request_builders import devices_asked

GB = 2**30
MIXED = {
    "hosts": [
        {"count": 2, "devices": 4, "hardware": "simulated:h200", "memory_gb": 141},
        {"devices": 4, "hardware": "simulated:a100_80gb", "memory_gb": 80},
    ],
    "inter": "ib_400g",
}


@pytest.mark.parametrize(
    ("arguments", "machine"),
    [
        ({}, Nodes(8, 8)),
        ({"num_devices": 4, "inter": "ib_400g"}, Nodes(4, 4)),
        ({"num_devices": 16, "inter": "ib_400g"}, Nodes(16, 8, inter="infiniband_ndr")),
        ({"nodes": 2, "inter": "ib_400g"}, Nodes(16, 8, inter="infiniband_ndr")),
        ({"nodes": 2, "num_devices": 8, "inter": "ethernet_25g"}, Nodes(8, 4, inter="ethernet_25g")),
        (
            {"nodes": 2, "devices_per_node": 8, "intra": "h100_nvlink", "inter": "ib_400g"},
            Nodes(16, 8, 1, "nvlink_h100", "infiniband_ndr"),
        ),
        ({"num_devices": 72, "devices_per_node": 4, "nodes_per_domain": 18, "intra": "nvlink_gb200"},
         Nodes(72, 4, 18, "nvlink_gb200")),
        ({"num_devices": 8, "devices_per_node": 4, "intra": "nvlink_gb200", "inter": "ib_400g"},
         Nodes(8, 4, 1, "nvlink_gb200", "infiniband_ndr")),
        # Nodes of one domain have no link between domains.
        ({"num_devices": 8, "devices_per_node": 4, "nodes_per_domain": 2, "intra": "nvlink_gb200", "inter": "ib_400g"},
         Nodes(8, 4, 2, "nvlink_gb200")),
        ({"num_devices": 16, "hardware": "cpu"}, Nodes(16, 16)),
        ({"num_devices": 16, "hardware": "simulated:v100"}, Nodes(16, 16)),  # a DGX-2
        ({"num_devices": 8, "intra": "900 GB/s", "devices_per_node": 4, "inter": "50gb_s"},
         Nodes(8, 4, 1, "900gb_s", "50gb_s")),
    ],
)  # fmt: skip
def test_machines_of_flags(arguments: dict[str, Any], machine: Nodes) -> None:
    assert devices_asked(**arguments).machine == machine


@pytest.mark.parametrize(
    ("hardware", "cap_gb"), [("simulated:h200", 139), ("simulated:a100_40gb", 39.4), ("simulated:v100", 31.7)]
)
def test_memory_left_out_is_that_of_the_profile(hardware: str, cap_gb: float) -> None:
    assert devices_asked(2, hardware=hardware) == MachineAndMemory(Nodes(2, 2), (round(cap_gb * GB),) * 2, hardware)


def test_memory_left_out_of_a_cpu_is_its_share_of_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenshard.planner.memory.machine_bytes", lambda: 48 * GB)
    found = devices_asked(8, hardware="cpu", nodes=2, inter="ethernet_25g")
    assert found.caps_bytes == (12 * GB,) * 8
    assert found.notes == (
        "Memory is this machine's: 48.00 GB for 4 devices of a node, 12.00 GB each. Give memory_cap_gb "
        "for other machines.",
    )
    assert devices_asked(2, 64, "cpu").notes == ()


def test_memory_left_out_of_a_gpu_is_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadConfig, match=r"because this machine has no GPU\. Give memory_cap_gb"):
        devices_asked(2, hardware="cuda")
    assert devices_asked(2, 40, hardware="cuda").caps_bytes == (40 * GB,) * 2
    sizes = [80 * GB - 1, 79 * GB]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=sizes[device]))
    assert devices_asked(4, hardware="cuda").caps_bytes == (79 * GB,) * 4


HOST = {"host_memory_gb": 512, "host_bandwidth_gb_s": 400, "ssd_gb": 4000}


def test_memory_of_hosts_of_flags() -> None:
    machine = devices_asked(16, inter="ib_400g", **HOST).machine
    assert (machine.host_bytes, machine.host_gb_s) == ((512 * GB,) * 2, 400)
    assert (machine.ssd_bytes, machine.ssd_gb_s) == ((4000 * GB,) * 2, 0)
    none = devices_asked(2, host_memory_gb=0).machine
    assert none == Nodes(2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_devices": 16}, "16 devices are more than nvlink_h100 connects (8). Give the size of a node and"),
        ({"num_devices": 9, "hardware": "cuda"}, "9 devices are more than a node connects (8)."),
        ({"num_devices": 16, "devices_per_node": 8}, "there are 2 nodes, but no link between them. Name a link"),
        ({"num_devices": 8, "nodes": 2, "devices_per_node": 8, "inter": "ib_400g"},
         "num_devices is 8, but there are 2 nodes of 8 devices. Correct one of the three."),
        ({"num_devices": 9, "nodes": 2, "inter": "ib_400g"}, "9 devices cannot be divided evenly over 2 nodes."),
        ({"num_devices": 0}, "num_devices is 0, not a whole number from 1"),
        ({"num_devices": 2, "memory_cap_gb": 0}, "memory_cap_gb is 0"),
        ({"ssd_gb": float("nan")}, "ssd_gb is nan, not a number from 0 to"),
        ({"host_memory_gb": 1, "host_bandwidth_gb_s": 0}, "host_bandwidth_gb_s is 0, not a number above 0"),
        ({"host_bandwidth_gb_s": 9}, "host_bandwidth_gb_s is given without host_memory_gb. Give host_memory_gb, too"),
        ({"num_devices": 2, "memory_cap_gb": [1, 2, 3]}, "memory_cap_gb has 3 numbers for 2 devices."),
    ],
)  # fmt: skip
def test_flags_that_make_no_machine(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        devices_asked(**arguments)
    assert str(caught.value).startswith(message)


# Cluster files -------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_file_of_two_kinds_of_hosts(tmp_path: Path) -> None:
    path = written(tmp_path, MIXED)
    assert load_hosts_file(path) == HostsFile(
        (Hosts(4, 2, "simulated:h200", 141), Hosts(4, 1, "simulated:a100_80gb", 80)), inter="ib_400g"
    )
    found = devices_asked(hosts=path)
    groups = (DeviceGroup("simulated:h200", 8), DeviceGroup("simulated:a100_80gb", 4))
    assert found.machine == Nodes(12, 4, inter="infiniband_ndr", groups=groups)
    assert found.caps_bytes == (141 * GB,) * 8 + (80 * GB,) * 4 and found.hardware == "simulated:h200"
    assert devices_asked(12, hosts=path) == found


def test_a_file_of_hosts_with_memory(tmp_path: Path) -> None:
    hosts = [
        {"count": 2, "devices": 2, "hardware": "simulated:h100", "host_memory_gb": 1024, "ssd_gb": 100},
        {"count": 1, "devices": 2, "hardware": "simulated:b200", "host_memory_gb": 512, "ssd_gb": 0},
    ]
    path = written(tmp_path, {"hosts": hosts, "inter": "ib_400g", "host_bandwidth_gb_s": 300, "ssd_bandwidth_gb_s": 7})
    found = devices_asked(hosts=path)
    assert found.machine.host_bytes == (1024 * GB, 1024 * GB, 512 * GB) and found.machine.host_gb_s == 300
    assert found.machine.ssd_bytes == (100 * GB, 100 * GB, 0) and found.machine.ssd_gb_s == 7
    assert found.caps_bytes == (79 * GB,) * 4 + (178 * GB,) * 2, "of the profiles, as the file leaves it out"
    assert found.hardware == "simulated:h100" and devices_asked(hosts=path, memory_cap_gb=64).caps_bytes[0] == 64 * GB
    for name in ("host_memory_gb", "ssd_gb", "host_bandwidth_gb_s", "ssd_bandwidth_gb_s"):
        with pytest.raises(
            BadFile, match=f"{name} is in the hosts file, but {name} is given, too. Leave one of them.*out.$"
        ):
            devices_asked(hosts=path, **{name: 7})


def test_a_file_leaves_memory_and_hardware_to_the_flags(tmp_path: Path) -> None:
    path = written(tmp_path, {"hosts": [{"devices": 2, "count": 2}], "intra": "nvlink_a100", "inter": "ethernet_25g"})
    found = devices_asked(None, 40.0, "simulated:a100_40gb", hosts=path)
    expected = Nodes(4, 2, intra="nvlink_a100", inter="ethernet_25g")
    assert found == MachineAndMemory(expected, (40 * GB,) * 4, "simulated:a100_40gb")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[", "not readable as YAML"),
        ({}, "hosts is missing"),
        ({**MIXED, "link": "ib_400g"}, "'link' is unknown. Its keys are hosts, nodes_per_domain, intra, inter, host_"),
        ({"hosts": [{"count": 4}]}, "devices is missing"),
        ({"hosts": [{"devices": 0}]}, "hosts, entry 1: devices is 0, not a whole number from 1"),
        ({"hosts": [{"devices": 4, "memory_gb": 0}]}, "hosts, entry 1: memory_gb is 0.0, not a number above 0"),
        ({**MIXED, "hosts": [{"devices": 4}, {"devices": 8}]}, "hosts, entry 2: devices is 8, but entry 1 has 4"),
        ({**MIXED, "hosts": [{"devices": 4, "memory_gb": 9}, {"devices": 4}]}, "memory_gb is given for some hosts,"),
        (
            {"hosts": [{"devices": 4, "host_memory_gb": -1}]},
            "hosts, entry 1: host_memory_gb is -1.0, not a number from 0",
        ),
        ({"hosts": [{"devices": 4, "hardware": "abacus"}]}, "hardware is 'abacus'. Use one of"),
    ],
)
def test_a_file_that_makes_no_machine(tmp_path: Path, content: Any, problem: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(BadFile) as caught:
        devices_asked(hosts=path)
    assert str(caught.value).startswith(f"{path}") and problem in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_devices": 8}, "has 12 devices, but num_devices is 8. Leave num_devices out,"),
        ({"nodes": 3}, "the hosts file replaces nodes. Leave nodes out."),
        ({"memory_cap_gb": 80.0}, "memory_gb is in the hosts file, but memory_cap_gb is given, too."),
        ({"hardware": "simulated:b200"}, "hardware is simulated:h200 in the file, but simulated:b200 is requested."),
    ],
)
def test_a_file_and_flags_that_contradict_it(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        devices_asked(**arguments, hosts=written(tmp_path, MIXED))
    assert message in str(caught.value)
