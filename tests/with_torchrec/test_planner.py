"""evenshard in the place of TorchRec's planner."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

import evenshard
from evenshard.base.errors import BadConfig, InfeasibleTask, MissingPackage
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.memory import PIPELINES
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import ShardingTask
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.torchrec import EvenshardPlanner, sharding_plan, shards_of, tables_of
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import DEFAULT_SETTING, Bandwidths
from evenshard.torchrec.model.modules import dense_bytes
from evenshard.torchrec.plan.prices import choose_model
from evenshard.torchrec.planner import model_plan
from support.request_builders import untrained
from support.torchrec_builders import GREEDY, META, USER, Model, gb, topology

GB = BYTES_PER_GB

# The planner ----------------------------------------------------------------------------------------------------------


@dataclass
class Curious:
    """A sharder that keeps what it is asked."""

    device_of_table: tuple[int, ...] = (0,) * 5
    name: str = "curious"
    task: ShardingTask | None = None

    def place(self, task: ShardingTask) -> Placement:
        self.task = task
        return Placement(self.device_of_table, task.num_devices)


# All memory is for weights and optimizer state, which alone count.
WEIGHTS: dict[str, Any] = {"reserved_gb": 0.0, "training_pipeline": "", "dense_gb": 0.0}


def asked(*device_of_table: int, **kwargs: Any) -> ShardingTask:
    """The task that a planner asks of its sharder, by weights and optimizer state alone where nothing else is said."""
    sharder = Curious(device_of_table or (0,) * 5)
    kwargs = {"training_pipeline": "", "dense_gb": 0.0, **kwargs}
    EvenshardPlanner(sharder=sharder, **kwargs).plan(Model(META), [EmbeddingBagCollectionSharder()])
    assert sharder.task is not None
    return sharder.task


def test_the_sharder_gets_the_global_batch_and_the_true_tables() -> None:
    task = asked(
        world_size=4, memory_cap_gb=gb(10**6), reserved_gb=0.0, batch_size=100, pooling_factors={"clicks": 7.5}
    )
    assert (task.num_devices, task.memory_cap_bytes, task.batch_size) == (4, 10**6, 400)
    assert task.tables == tables_of(Model(META), {"clicks": 7.5})


def test_a_topology_tells_ranks_and_memory() -> None:
    """85 % of its memory is for the model, unless the caller knows better."""
    task = asked(topology=topology(3))
    assert (task.num_devices, task.memory_cap_bytes, task.batch_size) == (3, int(0.85 * BYTES_PER_GB), 3 * 512)
    assert asked(topology=topology(3), memory_cap_gb=0.25).room_bytes == (round(0.85 * BYTES_PER_GB / 4),) * 3
    assert asked(topology=topology(3), memory_cap_gb=0.25, reserved_gb=0.0).room_bytes == (BYTES_PER_GB // 4,) * 3
    assert asked(topology=topology(3), memory_cap_gb=0.25, reserved_gb=0.125).memory_cap_bytes == BYTES_PER_GB // 8
    assert asked(topology=topology(3), reserved_gb=0.5).memory_cap_bytes == BYTES_PER_GB // 2
    assert asked(topology=topology(2, "cpu", ddr_cap_bytes=10**6)).memory_cap_bytes == 850_000
    uneven = topology(3)
    uneven.devices[1].storage.hbm = 10**8
    assert asked(topology=uneven).room_bytes == (task.memory_cap_bytes, 85_000_000, task.memory_cap_bytes)
    own = asked(world_size=2, memory_cap_gb=[1, 0.5], reserved_gb=0.0)
    assert own.room_bytes == (BYTES_PER_GB, BYTES_PER_GB // 2)
    assert asked(topology=topology(3), reserved_gb=0.0, dense_gb=0.75).memory_cap_bytes == BYTES_PER_GB // 4
    rooms = [asked(topology=topology(2), training_pipeline=one).memory_cap_bytes for one in ("", *PIPELINES)]
    assert rooms[0] > rooms[1] and rooms == sorted(rooms, reverse=True) and len(set(rooms)) > 3, "batches on the way"


def test_a_dense_model_is_counted_where_nothing_is_said() -> None:
    """Parameters, gradients and two states of Adam for each; 100 x 200 and 200 of a layer, in FP32."""
    model = Model(META)
    model.dense = nn.Linear(100, 200, device=META)
    expected = dense_bytes(Model(META)) + 4 * 4 * (100 * 200 + 200)
    whole: dict[str, Any] = {"model": untrained(), "sharding_types": ["table_wise"]}
    for more, size in (({}, expected), ({"dense_gb": 0.25}, GB // 4)):
        assert requested(model, world_size=2, compute_device="cuda", **more).dense_bytes == size
        assert evenshard.place(model, 2, 1, **whole, **more).request.dense_bytes == size


def requested(model: nn.Module | None = None, **kwargs: Any) -> PlacementRequest:
    """The request of a planner, for whole tables where nothing else is said."""
    planner = EvenshardPlanner(model=untrained(), **{"sharding_types": ["table_wise"], **kwargs})
    planner.plan(model or Model(META))
    assert planner.answer is not None
    return planner.answer.request


def test_a_topology_tells_memory_of_hosts() -> None:
    """Each node has what its ranks have together; TorchRec assumes 128 GB of a rank."""
    ranks: dict[str, Any] = {"local_world_size": 2, "hbm_cap_bytes": 10**9}
    machine = requested(topology=topology(4, ddr_cap_bytes=3 * GB, **ranks)).nodes
    assert machine.host_bytes == (6 * GB, 6 * GB)
    uneven = topology(4, ddr_cap_bytes=3 * GB, **ranks)
    uneven.devices[3].storage.ddr = GB
    assert requested(topology=uneven).nodes.host_bytes == (6 * GB, 4 * GB)
    own = requested(topology=uneven, host_memory_gb=7, host_bandwidth_gb_s=300, ssd_gb=0).nodes
    assert (own.host_bytes, own.host_gb_s, own.ssd_bytes) == ((7 * GB,) * 2, 300, ())
    assert requested(world_size=2, compute_device="cpu").nodes.host_bytes == (), "there it is the devices' own"
    assert requested(world_size=2, compute_device="cuda", host_memory_gb=0).nodes.host_bytes == ()


def test_rules_and_optimizer_are_part_of_the_task() -> None:
    task = asked(
        *(0, 2, 2, 2, 2),
        world_size=3,
        optimizer="adam",
        pinned={"tags": 2},
        forbidden={"wide": [0, 1]},
        forbidden_devices=[1],
        together=[["clicks", "tags"]],
        apart=[["user.ebc.id", "item.id"]],
    )
    assert task.table_bytes == tuple(3 * table.size_bytes for table in task.tables)
    devices = tuple(limits.devices for limits in task.limits)
    assert devices == (*(frozenset({0, 2}),) * 2, frozenset({2}), frozenset({0, 2}), frozenset({2}))
    assert (task.together, task.apart) == (((1, 4),), ((0, 3),))


def test_on_the_cpu_no_rank_is_left_without_rows() -> None:
    """20 rows over 8 ranks are 3 on each of six, and 2; the other tables have enough."""

    def types_of_tags(compute_device: str, *types: str) -> tuple[str, ...] | None:
        asked = requested(world_size=8, compute_device=compute_device, memory_cap_gb=1, sharding_types=types)
        found = dict(asked.rules.table_types)
        tags = found.pop("tags", None)
        assert not found
        return tags

    assert types_of_tags("cpu", "row_wise", "table_wise") == ("table_wise",)
    assert types_of_tags("cuda", "row_wise", "table_wise") is None


def test_the_plan_is_for_the_topologys_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 is the second GPU of the second node; so it is where torchrun tells ranks and nodes."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    launched = EvenshardPlanner(sharder=Curious((3,) * 5), compute_device="cuda", memory_cap_gb=1)
    planner = EvenshardPlanner(sharder=Curious((3,) * 5), topology=topology(4, local_world_size=2))
    plan = planner.plan(Model(META), [EmbeddingBagCollectionSharder()])
    places = [str(one.sharding_spec.shards[0].placement) for of in plan.plan.values() for one in of.values()]
    assert places == ["rank:3/cuda:1"] * 5 and launched.plan(Model(META)) == plan
    assert plan == sharding_plan(
        Placement((3,) * 5, 4), tables_of(Model(META)), Model(META), local_world_size=2, compute_device="cuda"
    )


def test_an_impossible_task_is_torchrecs_error_with_evenshards_numbers() -> None:
    for sharder in (GREEDY, Curious((0,) * 5)):  # one that says so, and one that ignores memory
        planner = EvenshardPlanner(sharder=sharder, world_size=2, memory_cap_gb=gb(4700), **WEIGHTS)
        with pytest.raises(PlannerError, match=r"the model: .*needs .* Raise memory_cap_gb or num_devices") as caught:
            planner.plan(Model(META))
        assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS, "all memory together would do"
        assert isinstance(caught.value.__cause__, InfeasibleTask)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "the number of ranks is unknown"),
        ({"topology": topology(2), "world_size": 2}, "topology replaces world_size"),
        ({"world_size": 3, "local_world_size": 2}, "local_world_size is 2. Give a divisor of world_size"),
        ({"world_size": 1, "compute_device": "tpu"}, "compute_device is 'tpu'. Choose one of cuda, cpu"),
        ({"world_size": 1, "model": "work/round_3"}, "sharder ignores sharding_types"),
        ({"world_size": 1, "sharder": topology(1)}, "sharder is a Topology without a method place"),
        ({"world_size": 1, "dense_gb": -1}, "dense_gb is -1, not a number from 0"),
        (
            {"world_size": 1, "sharder": None, "compute_device": "cuda", "compute_kernels": ["fused", "host"]},
            "TorchRec has no compute kernel 'host' on cuda. Choose from fused, fused_uvm_caching, fused_uvm, key_value",
        ),
        (
            {"world_size": 1, "compute_device": "cpu", "table_kernels": {"tags": "fused_uvm"}},
            "TorchRec has no compute kernel 'fused_uvm' on cpu. Choose from fused",
        ),
        (
            {"world_size": 1, "compute_device": "cpu", "host_memory_gb": 9},
            "on the CPU, memory_cap_gb is host memory. Leave out all knobs of host memory and SSDs",
        ),
    ],
)
def test_arguments_that_make_no_sense(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        EvenshardPlanner(**{"sharder": GREEDY, **kwargs})


def test_without_torchrec_the_remedy_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    with pytest.raises(MissingPackage, match="&& pip install --no-deps 'torchrec==1"):
        tables_of(USER)


# Its own answer -------------------------------------------------------------------------------------------------------


def test_it_answers_as_evenshard_place_does(caplog: pytest.LogCaptureFixture) -> None:
    """What it knows about its last plan can be asked; of what the model has not seen, it warns."""
    known = untrained()
    model, narrow = Model(META), replace(known, trained_on=replace(known.trained_on, embedding_dim=(4.0, 8.0)))
    asked: dict[str, Any] = {"model": narrow, "pinned": {"wide": 0}, "seed": 4, **WEIGHTS, "host_memory_gb": 1.0}
    lookups, cap_gb = {"clicks": 7.5}, gb(8000)
    planner = EvenshardPlanner(
        world_size=2, compute_device="cuda", memory_cap_gb=cap_gb, pooling_factors=lookups, **asked
    )
    plan = planner.plan(model)
    said = [one.getMessage() for one in caplog.records if one.name.startswith("evenshard")]
    starts = (
        "memory_cap_gb (hbm_cap of a Topology) is ",
        "2 tables have",
        "Device 0 is filled to 96 %",
        "The lookups per sample of 4 tables (user.",
    )
    starts += ("Outside the training range: the ", "Your dense optimizer updates 3 data_parallel tables (clicks, ")
    for line, start in zip(said, starts, strict=True):
        assert start in line
    tables = tables_of(model, lookups)
    answer = evenshard.place(tables, 2, cap_gb, batch_size=2 * 512, **asked)
    assert planner.answer == replace(answer, request=planner.answer.request)  # type: ignore[union-attr]
    assert plan == sharding_plan(answer, model)
    assert [one.device for one in shards_of(plan, tables) if one.table == "wide"] == [0]
    assumed = [(one.table, one.column) for one in planner.answer.request.assumptions]  # type: ignore[union-attr]
    assert ("wide", "pooling_factor") in assumed and ("clicks", "pooling_factor") not in assumed
    planner.plan(nn.Linear(2, 2))
    assert planner.answer is None


def test_nodes_of_a_topology_have_a_link_of_its_bandwidth_between_them() -> None:
    """13.4 GB/s is TorchRec's own value; that within a node is left to the hardware where it is TorchRec's own."""
    kwargs: dict[str, Any] = {"memory_cap_gb": 1, "model": untrained()}
    asked = requested(topology=topology(4, local_world_size=2), memory_cap_gb=1, sharding_types=None)
    machine = asked.nodes
    assert (machine.num_devices, machine.devices_per_node, machine.inter) == (4, 2, "13.4218gb_s")
    assert machine.intra == ""
    assert asked.types == SHARDING_TYPES
    nodes: dict[str, Any] = {"world_size": 4, "local_world_size": 2, "compute_device": "cuda"}
    with pytest.raises(PlannerError, match="there are 2 nodes, but no link between them"):
        EvenshardPlanner(**nodes, **kwargs).plan(Model(META))
    kwargs |= {"sharding_types": ["table_row_wise"], "table_types": {"tags": "table_wise"}}
    found = EvenshardPlanner(**nodes, **kwargs, inter="ib_400g").plan(Model(META)).plan
    assert found["user.ebc"]["wide"].sharding_type == "table_row_wise"
    assert found["item"]["tags"].sharding_type == "table_wise"


# Its model ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_the_gpu_chooses_the_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, profile: str | None
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    caplog.set_level(logging.WARNING)
    hardware = f"simulated:{profile or 'h100'}"
    assert choose_model(None, None, "cuda") == (DeviceModel(hardware), hardware)
    assert (f"no cost model is known for {name}" in caplog.text) == (profile is None)
    assert choose_model(None, None, "cpu")[1] == "simulated:h100"


def test_a_model_knows_its_hardware() -> None:
    known = replace(untrained(), trained_on=replace(untrained().trained_on, hardware="simulated: h200"))
    assert choose_model(known, None, "cpu") == (known, "simulated:h200")
    measured = replace(known, trained_on=replace(known.trained_on, hardware="cuda: NVIDIA H200"))
    assert choose_model(measured, None, "cuda") == (measured, "cuda")
    assert choose_model(known, "h200", "cuda") == (known, "simulated:h200")
    with pytest.raises(BadConfig, match="trained on simulated: h200, not on cpu"):
        choose_model(known, "cpu", "cuda")
    found, _ = choose_model(None, "simulated:h200", "cuda")
    assert found.source == "simulated:h200"
    with pytest.raises(BadConfig, match="simulated device is 'tpu'"):
        choose_model(None, "simulated:tpu", "cuda")


def test_the_answer_is_no_worse_than_torchrecs_own_default_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is where the search begins, too; with hardly any time, TorchRec is not asked."""
    known: list[Any] = []
    place = model_plan.place_request

    def spied(request: Any, model: Any, config: Any) -> Any:
        known.append(config.known)
        return place(request, model, config)

    monkeypatch.setattr(model_plan, "place_request", spied)
    planner = EvenshardPlanner(topology=topology(2), batch_size=512, model=untrained())
    planner.plan(Model(META), [EmbeddingBagCollectionSharder()])
    answer = planner.answer
    assert answer is not None
    task = answer.request.task()
    (plan,) = TorchRecPlanner(task, Bandwidths()).plans([DEFAULT_SETTING])
    assert known == [[plan.parts]]
    costs = part_costs(answer.request, untrained())
    assert answer.predicted_ms <= costs.predict(plan.parts).predicted_ms
    hurried = EvenshardPlanner(topology=topology(2), batch_size=512, model=untrained(), timeout_seconds=4)
    hurried.plan(Model(META), [EmbeddingBagCollectionSharder()])
    assert known[1:] == [()]


def test_a_failure_of_torchrec_is_a_warning_and_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*args: Any) -> Any:
        raise AssertionError("a shard has no rank")

    monkeypatch.setattr(model_plan, "TorchRecPlanner", failing)
    planner = EvenshardPlanner(topology=topology(2), batch_size=512, model=untrained())
    assert planner.plan(Model(META), [EmbeddingBagCollectionSharder()]).plan
    assert "the search starts without it: a shard has no rank" in caplog.text
