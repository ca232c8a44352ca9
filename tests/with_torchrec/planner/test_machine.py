"""The machine to plan for: TorchRec's topologies, this machine's memory, or TorchRec's constants with a warning."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner, constants, types
from torchrec.distributed.planner.types import PlannerError, Topology
from torchrec.distributed.sharding_plan import get_default_sharders

from evenshard.base.errors import BadConfig
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.planner.knobs import Memory
from evenshard.planner.request import PlacementRequest
from evenshard.torchrec import EvenshardPlanner
from evenshard.torchrec.planner.machine import device_of_process, links_of_topology, machine_of, topology_of
from support.request_builders import untrained
from support.torchrec_builders import MB, WARNINGS, Only, Sparse, bags, entries, planner, topology, two_gpus


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_shards_live_on_the_devices_of_the_topology(device: str) -> None:
    """Four ranks of two nodes; GPUs are counted within a node, memory of CPUs is that of hosts."""
    ranks = topology(4, device, local_world_size=2, hbm_cap_bytes=MB, ddr_cap_bytes=MB)
    more = {"host_memory_gb": None, "sharding_types": ["table_wise"]}
    plan = planner(ranks, dense_gb=0, reserved_gb=0, **more).plan(Sparse(bags(8, rows=1500)))
    held = {str(one.placement) for entry in entries(plan).values() for one in entry.sharding_spec.shards}
    places = {"cuda": ("cuda:0", "cuda:1", "cuda:0", "cuda:1"), "cpu": ("cpu",) * 4}[device]
    assert held == {f"rank:{rank}/{place}" for rank, place in enumerate(places)}


def test_memory_of_each_rank_is_its_own() -> None:
    uneven = two_gpus()
    uneven.devices[0].storage.hbm = 30_000
    plan = planner(uneven, dense_gb=0, reserved_gb=0).plan(Sparse(bags(3)), [Only("table_wise")])
    ranks = [rank for entry in entries(plan).values() for rank in entry.ranks]
    assert ranks.count(0) == 1 and ranks.count(1) == 2, "25,600 bytes of a table, 30,000 of rank 0"


@WARNINGS
def test_a_device_that_evenshard_does_not_know_is_left_to_torchrec_if_asked() -> None:
    mtia = Topology(world_size=2, compute_device="mtia")
    with pytest.raises(BadConfig, match="compute_device is 'mtia'"):
        planner(mtia)
    one, model = planner(mtia, fallback=True), Sparse(bags(2))
    assert one.plan(model) == EmbeddingShardingPlanner(mtia).plan(model, get_default_sharders())
    assert one.answer is None and "compute_device is 'mtia'" in one.notes[0]


def made(trainer: dict[str, Any], **kernel: Any) -> Any:
    """Make a topology of 2 MB per rank."""
    own = {"world_size": 4, "local_world_size": 2, "hbm_cap_bytes": 2 * MB, **trainer}
    config = types.KernelConfig(compute_device="cuda", **kernel)
    return types.TopologyFactory.create_topology(types.TrainerConfig(**own), types.HardwareConfig(), config)


def request_on(machine: Any, **more: Any) -> PlacementRequest:
    one = planner(machine, dense_gb=0, reserved_gb=0, **more)
    one.plan(Sparse(bags(4)))
    assert one.answer is not None
    return one.answer.request


def test_bandwidths_of_ones_own_are_the_links() -> None:
    """200 and 50 GB/s, in bytes per millisecond."""
    own = types.BasicCommsBandwidths(inter_host_bw=50e6, intra_host_bw=200e6)
    machine = request_on(made({}, generalized_comms_bandwidths=own), sharding_types=["table_wise"]).nodes
    assert (machine.intra, machine.inter) == ("200gb_s", "50gb_s")
    assert links_of_topology(topology(2)) == ("", "13.4218gb_s"), "TorchRec's own"


def test_a_rank_has_its_own_memory_of_each_kind() -> None:
    """TorchRec's data of single devices; what tables may take of a node is what its ranks have together."""
    data = {"hbm_cap": [1, 2, 3, 4], "ddr_cap": [10, 20, 30, 40], "ssd_cap": [5, 6, 7, 8]}
    in_bytes = {name: [MB * one for one in values] for name, values in data.items()}
    custom = types.CustomTopologyData(data=in_bytes, world_size=4)
    found = ranks(machine=made({"additional_params": {"custom_topology_data": custom}}))
    assert found.caps_bytes == (MB, 2 * MB, 3 * MB, 4 * MB)
    assert found.nodes.host_bytes == (30 * MB, 70 * MB) and found.nodes.ssd_bytes == (11 * MB, 15 * MB)


def test_the_fast_link_connects_a_pod() -> None:
    """Four nodes in pods of two; with all in one pod there is no slow link. Rows stay out of groups, as jobs differ."""
    request = request_on(made({"world_size": 8, "pod_size": 2}))
    assert (request.nodes.devices_per_node, request.nodes.domain_size, request.nodes.num_domains) == (2, 4, 2)
    assert {"table_row_wise", "grid_shard"}.isdisjoint(request.sharding_types) and request.nodes.inter
    assert request_on(made({"pod_size": 2}), sharding_types=["table_wise"]).nodes.inter == ""
    asked = request_on(made({"world_size": 8, "pod_size": 2}), sharding_types=["table_row_wise"])
    assert asked.sharding_types == ("table_row_wise",)
    with pytest.raises(BadConfig, match=r"3 nodes cannot be split into pods of 2 nodes\. Correct pod_size"):
        ranks(machine=made({"world_size": 6, "pod_size": 2}))


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
def test_memory_beside_devices_is_told_where_tables_are_kept_there() -> None:
    machine, part = topology(2, hbm_cap_bytes=10 * MB), TablePart("t", Span(0, 1), Span(0, 4), (0,))
    assumed = ranks(machine=machine).assumed
    assert assumed.notes([part]) == ()
    for kernel, word, size in (("fused_uvm", "in host memory", "128 GB"), ("key_value", "on SSDs", "2,048 GB")):
        (note,) = assumed.notes([replace(part, storage=Storage(kernel))])
        assert note.startswith(f"Tables are stored {word}, whose size is assumed to be TorchRec's constant, {size}")
    named = machine_of(machine, None, None, None, Memory(host_memory_gb=100, ssd_gb=100)).assumed
    assert (named.hosts, named.ssds) == ("", "")


@pytest.mark.usefixtures("host")
def test_torchrecs_link_between_nodes_is_told() -> None:
    default = topology(4, local_world_size=2, hbm_cap_bytes=100 * MB)
    told = "The link between nodes is assumed to have TorchRec's constant, 13.4 GB/s. Give inter"
    assert ranks(machine=default).assumed.notes(())[0].startswith(told)
    own = Topology(world_size=4, local_world_size=2, compute_device="cuda", hbm_cap=MB, inter_host_bw=50e6)
    for machine, more in ((default, {"inter": "ib_400g"}), (own, {}), (topology(4), {})):
        assert ranks(machine=machine, **more).assumed.link == ""


# The process, and TorchRec's description of a machine -----------------------------------------------------------------


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
