"""Memory and links that are not given: this machine's own, or TorchRec's constants with a warning above everything."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrec.distributed.planner import constants
from torchrec.distributed.planner.types import PlannerError, Topology

from evenshard.planner.knobs import Memory
from evenshard.torchrec import EvenshardPlanner
from evenshard.torchrec.planner.machine import machine_of
from support.drop_in_builders import MB, Sparse, bags
from support.request_builders import untrained
from support.torchrec_builders import topology

GB = 2**30
ASSUMED = "GPU memory is assumed to be TorchRec's constant, 32.0 GB, because this machine has no GPU."


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has 200 GB and no GPU."""
    monkeypatch.setattr("evenshard.torchrec.planner.machine.machine_bytes", lambda: 200 * GB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpus(host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has GPUs of 80 and 79 GB."""
    sizes = [80 * GB, 79 * GB]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: SimpleNamespace(total_memory=sizes[at]))


def ranks(device: str = "cuda", machine: Topology | None = None, cap_gb: float | None = None, **more: Any) -> Any:
    """Eight ranks in two nodes."""
    own = (machine, None, None, None) if machine is not None else (None, 8, 4, device)
    return machine_of(*own, Memory(cap_gb), **more)


@pytest.mark.usefixtures("gpus")
def test_of_gpus_the_driver_and_of_hosts_this_machine_say_it() -> None:
    found = ranks()
    assert found.caps_bytes == (79 * GB,) * 8
    assert found.nodes.host_bytes == (4 * round(0.85 * 50 * GB),) * 2 and found.assumed.notes(()) == ()
    assert ranks(hardware="simulated:h200").caps_bytes == (79 * GB,) * 8, "the job runs here"


@pytest.mark.usefixtures("host")
def test_cpu_ranks_share_this_machines_memory() -> None:
    found = ranks("cpu")
    assert found.caps_bytes == (50 * GB,) * 8 and found.nodes.host_bytes == () and found.assumed.notes(()) == ()


@pytest.mark.usefixtures("host")
def test_without_a_gpu_the_hardware_says_it_or_torchrec_with_a_warning() -> None:
    named = ranks(hardware="simulated:a100_40gb")
    assert named.caps_bytes == (round(39.4 * GB),) * 8 and named.assumed.devices == ""
    found = ranks()
    assert found.caps_bytes == (constants.HBM_CAP,) * 8 and found.assumed.devices.startswith(ASSUMED)
    assert found.nodes.host_bytes == (4 * constants.DDR_CAP,) * 2
    assert ranks(cap_gb=80).assumed.devices == ""


@pytest.mark.usefixtures("host")
def test_the_warning_stands_above_all_others_and_in_refusals(caplog: pytest.LogCaptureFixture) -> None:
    planner = EvenshardPlanner(world_size=2, compute_device="cuda", model=untrained())
    planner.plan(Sparse(bags(2)))
    assert planner.answer is not None and planner.answer.notes[0].startswith(ASSUMED)
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]  # TorchRec informs, too
    said = [line for line in warnings if "evenshard" in line or "GPU memory" in line]
    assert said[0].startswith(ASSUMED)
    with pytest.raises(PlannerError, match=r"Raise memory_cap_gb .* assumed to be TorchRec's constant, 32\.0 GB"):
        EvenshardPlanner(world_size=2, compute_device="cuda", model=untrained(), host_memory_gb=0).plan(
            Sparse(bags(2, rows=100_000_000, dim=512))
        )


@pytest.mark.usefixtures("gpus")
def test_a_topology_counts_and_torchrecs_constants_in_it_are_told() -> None:
    """Not where it has the GPU's size, or where the user named it."""
    constant = ranks(machine=Topology(world_size=2, compute_device="cuda"))
    assert constant.caps_bytes == (constants.HBM_CAP,) * 2
    assert "constant of 32.0 GB per GPU, but this machine's GPU has 79.0 GB" in constant.assumed.devices
    assert ranks(machine=topology(2, hbm_cap_bytes=40 * GB)).assumed.devices == ""
    assert ranks(machine=Topology(world_size=2, compute_device="cuda"), cap_gb=79).assumed.devices == ""


@pytest.mark.usefixtures("host")
def test_a_topology_of_cpu_ranks_may_have_more_than_the_machine() -> None:
    found = ranks(machine=Topology(world_size=2, local_world_size=2, compute_device="cpu"))
    assert found.caps_bytes == (constants.DDR_CAP,) * 2
    assert "default of 128 GB host memory per CPU rank, but this machine has 100 GB per rank" in found.assumed.devices


@pytest.mark.usefixtures("host")
def test_memory_of_hosts_is_told_where_tables_are_kept_there() -> None:
    machine = topology(2, hbm_cap_bytes=10 * MB)
    assert {one.storage.ddr for one in machine.devices} == {constants.DDR_CAP}
    planner = EvenshardPlanner(machine, model=untrained(), batch_size=8, compute_kernels=["fused_uvm"])
    planner.plan(Sparse(bags(2, rows=100_000)))
    assert planner.answer is not None
    (note,) = [one for one in planner.answer.notes if one.startswith("Tables are stored in host memory")]
    assert "TorchRec's constant, 128 GB per rank" in note
    named = EvenshardPlanner(
        machine, model=untrained(), batch_size=8, compute_kernels=["fused_uvm"], host_memory_gb=100
    )
    named.plan(Sparse(bags(2, rows=100_000)))
    assert named.answer is not None and not any("host memory" in one for one in named.answer.notes)


@pytest.mark.usefixtures("host")
def test_torchrecs_link_between_nodes_is_told() -> None:
    default = topology(4, local_world_size=2, hbm_cap_bytes=100 * MB)
    planner = EvenshardPlanner(default, model=untrained())
    planner.plan(Sparse(bags(2)))
    assert planner.answer is not None
    assert planner.answer.notes[0].startswith(
        "The link between nodes is assumed to have TorchRec's constant, 13.4 GB/s. Give inter"
    )
    for machine, more in (
        (default, {"inter": "ib_400g"}),
        (Topology(world_size=4, local_world_size=2, compute_device="cuda", hbm_cap=MB, inter_host_bw=50e6), {}),
        (topology(4, local_world_size=4, hbm_cap_bytes=100 * MB), {}),
    ):
        assert ranks(machine=machine, **more).assumed.link == ""
