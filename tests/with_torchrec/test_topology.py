"""The kind of device that a process trains on, and TorchRec's description of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.base.units import BYTES_PER_GB
from evenshard.planner.knobs import Memory
from evenshard.torchrec.planner.machine import (
    device_of_process,
    machine_of,
    topology_of,
)

GB = BYTES_PER_GB


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("backend", "has_gpu", "expected"),
    [
        ("gloo", True, "cpu"),
        ("gloo", False, "cpu"),
        ("nccl", True, "cuda"),
        ("cpu:gloo,cuda:nccl", True, "cuda"),
        ("cpu:gloo,cuda:nccl", False, "cpu"),
        ("mpi", True, "cuda"),
    ],
)
def test_the_process_group_says_the_device(
    monkeypatch: pytest.MonkeyPatch, backend: str, has_gpu: bool, expected: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_backend", lambda *group: backend)
    assert device_of_process() == device_of_process("cuda") == device_of_process("cpu") == expected


@pytest.mark.parametrize("has_gpu", [True, False])
def test_without_a_group_the_launcher_or_the_caller_does(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    here = "cuda" if has_gpu else "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert device_of_process() == here
    assert device_of_process("cuda") == "cuda" and device_of_process("cpu") == "cpu", "a process of no job"
    monkeypatch.setenv("RANK", "0")
    assert device_of_process("cuda") == "cuda", "one variable alone is no launcher"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert device_of_process("cuda") == device_of_process("cpu") == here


def test_a_machine_described_and_read_back() -> None:
    machine = machine_of(None, 4, 2, "cuda", Memory([1, 2, 3, 4], 0.0))
    described = topology_of(machine)
    assert [one.storage.hbm for one in described.devices] == [GB, 2 * GB, 3 * GB, 4 * GB]
    read = machine_of(described, None, None, None, Memory(reserved_gb=0.0))
    assert replace(read, assumed=machine.assumed) == machine, "its link is TorchRec's"
    on_cpu = topology_of(machine_of(None, 2, None, "cpu", Memory(5, 0.0)))
    assert [one.storage.ddr for one in on_cpu.devices] == [5 * GB] * 2 and on_cpu.compute_device == "cpu"


def test_pods_are_those_of_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks of four nodes in pods of two, as TorchRec's planner finds them without a topology; described so."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: 8)
    monkeypatch.setenv("TOPOLOGY_DOMAIN_MULTIPLE", "2")
    machine = machine_of(None, None, 2, "cuda", Memory(1, 0.0))
    assert machine.nodes.nodes_per_domain == 2 and machine.nodes.domain_size == 4
    assert topology_of(machine).intra_group_size == 4
    monkeypatch.setenv("TOPOLOGY_DOMAIN_MULTIPLE", "9")
    assert machine_of(None, None, 2, "cuda", Memory(1, 0.0)).nodes.nodes_per_domain == 4, "all nodes"
