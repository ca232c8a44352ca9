"""evenshard in the place of TorchRec's planner."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan

from evenshard.errors import BadConfig, InfeasibleTask
from evenshard.export.torchrec import EvenshardPlanner, sharding_plan, tables_of
from evenshard.placement import Placement
from evenshard.tasks import PlacementTask
from evenshard.units import BYTES_PER_GB
from torchrec_builders import (
    GREEDY,
    META,
    USER,
    Fixed,
    Model,
    topology,
)

# The planner ----------------------------------------------------------------------------------------------------------


@dataclass
class Curious:
    """A sharder that keeps what it is asked."""

    name: str = "curious"
    task: PlacementTask | None = None

    def place(self, task: PlacementTask) -> Placement:
        self.task = task
        return Placement((0,) * len(task.tables), task.num_devices)


def asked(**kwargs: Any) -> PlacementTask:
    """The task that a planner asks of its sharder."""
    sharder = Curious()
    EvenshardPlanner(sharder, **kwargs).plan(Model(META), [EmbeddingBagCollectionSharder()])
    assert sharder.task is not None
    return sharder.task


def test_the_sharder_gets_the_global_batch_and_the_true_tables() -> None:
    task = asked(world_size=4, memory_cap_bytes=10**6, batch_size=100, pooling_factors={"clicks": 7.5})
    assert (task.num_devices, task.memory_cap_bytes, task.batch_size) == (4, 10**6, 400)
    assert task.tables == tables_of(Model(META), {"clicks": 7.5})


def test_a_topology_tells_ranks_and_memory() -> None:
    """85 % of its memory may be weights, unless the caller knows better."""
    task = asked(topology=topology(3))
    assert (task.num_devices, task.memory_cap_bytes, task.batch_size) == (3, int(0.85 * BYTES_PER_GB), 3 * 512)
    assert asked(topology=topology(3), memory_cap_bytes=9999).memory_cap_bytes == 9999
    assert asked(topology=topology(2, "cpu", ddr_cap_bytes=10**6)).memory_cap_bytes == 850_000
    uneven = topology(3)
    uneven.devices[1].storage.hbm = 10**8
    assert asked(topology=uneven).memory_cap_bytes == 85_000_000


def test_the_plan_is_for_the_topologys_devices() -> None:
    """Rank 3 is the second GPU of the second node."""
    planner = EvenshardPlanner(Fixed((3, 3, 3, 3, 3)), topology=topology(4, local_world_size=2))
    plan = planner.plan(Model(META), [EmbeddingBagCollectionSharder()])
    assert {str(one.sharding_spec.shards[0].placement) for of in plan.plan.values() for one in of.values()} == {
        "rank:3/cuda:1"
    }
    assert plan == sharding_plan(Placement((3,) * 5, 4), tables_of(Model(META)), Model(META), local_world_size=2)


def test_torchrun_tells_ranks_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    planner = EvenshardPlanner(Fixed((3, 3, 3, 3, 3)), compute_device="cuda", memory_cap_bytes=10**6)
    (shard,) = planner.plan(Model(META)).plan["item"]["tags"].sharding_spec.shards
    assert str(shard.placement) == "rank:3/cuda:1"


def test_a_model_without_collections_has_an_empty_plan() -> None:
    planner = EvenshardPlanner(GREEDY, world_size=2, memory_cap_bytes=1)
    assert planner.plan(nn.Linear(2, 2)) == ShardingPlan({})
    assert planner.plan(Model(META), []) == ShardingPlan({})


def test_an_impossible_task_is_torchrecs_error_with_evenshards_numbers() -> None:
    for sharder in (GREEDY, Fixed((0, 0, 0, 0, 0))):  # one that says so, and one that ignores memory
        planner = EvenshardPlanner(sharder, world_size=2, memory_cap_bytes=4700)
        with pytest.raises(PlannerError, match=r"the model: .* needs .* Raise memory_cap_gb or num_devices") as caught:
            planner.plan(Model(META))
        assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE
        assert isinstance(caught.value.__cause__, InfeasibleTask)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"memory_cap_bytes": 1}, "the number of ranks is unknown"),
        ({"world_size": 2}, "the memory of a rank is unknown"),
        ({"topology": topology(2), "world_size": 2}, "the topology tells ranks"),
        ({"world_size": 0, "memory_cap_bytes": 1}, "world_size is 0"),
        ({"world_size": 1, "memory_cap_bytes": 0}, "memory_cap_bytes is 0"),
        ({"world_size": 1, "memory_cap_bytes": 1, "batch_size": 0}, "batch_size is 0"),
    ],
)
def test_a_machine_that_is_not_told(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        EvenshardPlanner(GREEDY, **kwargs)


def test_planning_together_needs_a_process_group() -> None:
    with pytest.raises(BadConfig, match="no process group"):
        EvenshardPlanner(GREEDY, world_size=1, memory_cap_bytes=1).collective_plan(Model(META))


def test_without_torchrec_the_remedy_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    with pytest.raises(BadConfig, match="pip install --no-deps torchrec"):
        tables_of(USER)
