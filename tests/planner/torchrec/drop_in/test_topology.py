"""TorchRec's topologies as the machine that evenshard plans for."""

from __future__ import annotations

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders

from evenshard.utils.errors import BadConfig
from support.drop_in_builders import (
    MB,
    WARNINGS,
    Sparse,
    TableWise,
    bags,
    entries,
    planner,
    two_gpus,
)
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
