"""TorchRec's topologies as the machine that evenshard plans for."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner, types
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.sharding_plan import get_default_sharders

from evenshard.base.errors import BadConfig
from evenshard.planner.request import PlacementRequest
from support.drop_in_builders import MB, WARNINGS, Sparse, TableWise, bags, entries, planner, two_gpus
from support.torchrec_builders import topology


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
    plan = planner(uneven, dense_gb=0, reserved_gb=0).plan(Sparse(bags(3)), [TableWise()])
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
    """200 and 50 GB/s, in bytes per millisecond; of a class of one's own, its two bandwidths, not each collective's."""

    class Own(types.GeneralizedCommsBandwidth):  # type: ignore[misc,name-defined]
        inter_host_bw, intra_host_bw = 50e6, 200e6

        def get_bw(self, local_world_size: int, world_size: int, collective_type: Any) -> float:
            return 1.0

    for own in (types.BasicCommsBandwidths(inter_host_bw=50e6, intra_host_bw=200e6), Own()):
        machine = request_on(made({}, generalized_comms_bandwidths=own)).nodes
        assert (machine.intra, machine.inter) == ("200gb_s", "50gb_s")


def test_a_rank_has_its_own_memory_of_each_kind() -> None:
    """TorchRec's data of single devices; what tables may take of a node is what its ranks have together."""
    data = {"hbm_cap": [1, 2, 3, 4], "ddr_cap": [10, 20, 30, 40], "ssd_cap": [5, 6, 7, 8]}
    in_bytes = {name: [MB * one for one in values] for name, values in data.items()}
    custom = types.CustomTopologyData(data=in_bytes, world_size=4)
    request = request_on(made({"additional_params": {"custom_topology_data": custom}}), host_memory_gb=None)
    assert request.caps_bytes == (MB, 2 * MB, 3 * MB, 4 * MB)
    assert request.nodes.host_bytes == (30 * MB, 70 * MB) and request.nodes.ssd_bytes == (11 * MB, 15 * MB)


def test_the_fast_link_connects_a_pod() -> None:
    """Four nodes in pods of two; with all in one pod there is no slow link. Rows stay out of groups, as jobs differ."""
    request = request_on(made({"world_size": 8, "pod_size": 2}))
    assert (request.nodes.devices_per_node, request.nodes.domain_size, request.nodes.num_domains) == (2, 4, 2)
    assert {"table_row_wise", "grid_shard"}.isdisjoint(request.sharding_types) and request.nodes.inter
    assert request_on(made({"pod_size": 2})).nodes.inter == ""
    assert "grid_shard" in request_on(made({"pod_size": 1})).sharding_types
    asked = request_on(made({"world_size": 8, "pod_size": 2}), sharding_types=["table_row_wise"])
    assert asked.sharding_types == ("table_row_wise",)
    with pytest.raises(BadConfig, match=r"3 nodes cannot be split into pods of 2 nodes\. Correct pod_size"):
        request_on(made({"world_size": 6, "pod_size": 2}))
