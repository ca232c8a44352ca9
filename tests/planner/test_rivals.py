"""What others would do: the model prices each, and TorchRec's planner shards tables in every way that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import check_parts_memory
from evenshard.placement.sharding import BY_COLUMNS, TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.planner import rivals as module
from evenshard.planner.answer import Rival
from evenshard.planner.pricing import PartsMeasurer, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rivals import FULL_SPACE, MOST_SHARDS, TORCHREC, rivals
from evenshard.planner.rules import Rules
from evenshard.sharders.model import DeviceModel
from evenshard.torchrec.plan.plans import shards_of
from support.builders import table
from support.request_builders import ROOM, untrained

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

COSTLY = (table("costly", 100_000, 64, 100.0), *(table(name, 100_000, 64, 1.0) for name in "abc"))


def asked(**more: object) -> PlacementRequest:
    known = {"tables": COSTLY, "caps_bytes": (ROOM,) * 4, "batch_size": 65_536, "hardware": "simulated:h200"}
    return PlacementRequest(**{**known, **more})  # type: ignore[arg-type]


def found(request: PlacementRequest, *names: str, measure: PartsMeasurer | None = None) -> tuple[Rival, ...]:
    return rivals(request, part_costs(request, untrained()), names, measure)


def test_torchrec_is_asked_for_more_than_whole_tables_only_where_that_is_allowed() -> None:
    names = ("random", *TORCHREC, FULL_SPACE)
    assert [one.sharder for one in found(asked(), *names)] == list(names)
    whole = found(asked(sharding_types=(TABLE_WISE,)), *names)
    assert [one.sharder for one in whole] == ["random", *TORCHREC]


def test_no_user_waits_minutes_for_torchrec() -> None:
    many = tuple(table(f"t{number}", 10, 64) for number in range(MOST_SHARDS // 4 + 1))
    assert found(asked(tables=many), FULL_SPACE) == ()


def test_the_best_of_torchrecs_plans_is_its_answer_and_its_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of_columns = asked(sharding_types=BY_COLUMNS)
    each = []
    for width in (64, 32, 16):
        monkeypatch.setattr(module, "TORCHREC_MIN_PARTITIONS", (width,))
        each.append(found(of_columns, FULL_SPACE)[0])
        assert f"of 3 plans: min_partition {width}; and as it comes, with its own bandwidths" in each[-1].setting
    assert [one.setting.partition(";")[0] for one in each] == [
        f"min_partition {width}, by storage" for width in (64, 32, 16)
    ]
    monkeypatch.setattr(module, "TORCHREC_MIN_PARTITIONS", (64, 32, 16))
    (best,), expected = found(of_columns, FULL_SPACE), min(each, key=lambda one: one.predicted_ms or 0.0)
    assert best.predicted_ms == expected.predicted_ms
    assert best.setting.startswith(expected.setting.partition(";")[0])
    assert "of 5 plans: min_partition 64, 32, 16; and as it comes, with its own bandwidths" in best.setting


SMALL_AND_LARGE = ((2**21, 64, 1.0), (2**21, 64, 8.0), (2**8, 128, 1.0), (2**12, 64, 20.0))
BY_ROWS = ((2**14, 128, 1.0), (2**16, 128, 8.0), (2**17, 64, 1.0), (2**18, 64, 20.0), (2**17, 64, 1.0))


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation")
@pytest.mark.parametrize(
    ("shapes", "devices", "types"), [(SMALL_AND_LARGE, 2, ()), (BY_ROWS, 4, ("row_wise", "data_parallel"))]
)
def test_torchrecs_plan_without_settings_is_never_better_than_its_answer_here(
    shapes: Sequence[tuple[int, int, float]], devices: int, types: tuple[str, ...]
) -> None:
    """Replicas, and bandwidths that it was told, made it up to 80 % slower than it is."""
    tables = tuple(table(f"t{number}", *shape) for number, shape in enumerate(shapes))
    request = asked(tables=tables, caps_bytes=(64 * 2**30,) * devices, sharding_types=types)
    costs = part_costs(request, DeviceModel("simulated:h200"))
    configs = [
        EmbeddingBagConfig(
            name=one.name, feature_names=[one.name], num_embeddings=one.num_rows, embedding_dim=one.embedding_dim
        )
        for one in tables
    ]
    model = torch.nn.ModuleDict({"tables": EmbeddingBagCollection(device=torch.device("meta"), tables=configs)})
    constraints = {one.name: ParameterConstraints(sharding_types=list(types)) for one in tables} if types else None
    topology = Topology(world_size=devices, local_world_size=devices, compute_device="cuda", hbm_cap=80 * 2**30)
    planner = EmbeddingShardingPlanner(topology, batch_size=65_536 // devices, constraints=constraints)
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    without_settings = costs.predict(shards_of(plan, tables)).predicted_ms
    (rival,) = rivals(request, costs, [FULL_SPACE])
    assert rival.predicted_ms is not None and rival.predicted_ms <= 1.001 * without_settings


@pytest.mark.slow
def test_a_grid_is_asked_for_where_there_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[bool, bool, bool]] = []

    class Planner(module.TorchRecPlanner):
        def plan(self, setting, widths=None):  # type: ignore[no-untyped-def]
            plans.append((setting.grid_shard, setting.replicas, setting.lookups))
            return super().plan(setting, widths)

    monkeypatch.setattr(module, "TorchRecPlanner", Planner)
    monkeypatch.setattr(module, "TORCHREC_MIN_PARTITIONS", (16,))
    found(asked(), FULL_SPACE)
    found(asked(machine=Machine(4, 2, inter="infiniband_ndr")), FULL_SPACE)
    one_node = [(False, True, True), (False, False, True), (False, True, True), (False, True, False)]
    assert plans == [*one_node, one_node[0], (True, True, True), *one_node[1:]]


def test_tables_that_stay_together_stay_whole_and_what_breaks_a_rule_is_said() -> None:
    together = asked(rules=Rules(together=(("costly", "a"),)), sharding_types=BY_COLUMNS)
    (one,) = found(together, FULL_SPACE)
    assert one.predicted_ms is not None
    assert "costly, a are not together" in one.note


@pytest.mark.slow
def test_plans_are_measured_as_they_are() -> None:
    seen: list[tuple[ShardingTask, Sequence[TablePart]]] = []

    def measure(task: ShardingTask, placements: Sequence[Sequence[TablePart]]) -> list[PlacementCost]:
        seen.extend((task, parts) for parts in placements)
        return [PlacementCost((DeviceCost(1, 2, 3, 4),), "modelled")]

    (one,) = found(asked(), FULL_SPACE, measure=measure)
    assert one.measured_ms == 10
    ((task, parts),) = seen
    check_parts_memory(task, parts)


def test_what_torchrec_cannot_place_in_any_way_has_no_time() -> None:
    (one,) = found(asked(caps_bytes=(25 * 2**20,) * 2), FULL_SPACE)
    assert one.predicted_ms is None and "TorchRec's planner found no plan in any of 10 settings" in one.note


@pytest.mark.slow
def test_where_tables_do_not_fit_torchrec_has_caches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFLOAD_SETTINGS", module.OFFLOAD_SETTINGS[:2])
    small = asked(caps_bytes=(20 * 2**20,) * 4, machine=Machine(4, 4, host_bytes=(2**30,)))
    (one,) = found(small, FULL_SPACE)
    assert one.predicted_ms is not None and one.predicted_ms > 0
    assert one.setting.startswith("load factor ") and one.note == ""
    assert "with caches and UVM, load factors 0.02, 0.1, every sharding type" in one.setting
    (none,) = found(asked(caps_bytes=(20 * 2**20,) * 4), FULL_SPACE)
    assert none.predicted_ms is None and "in any of 10 settings" in none.note
    in_device_memory = replace(small, compute_kernels=("fused",))
    assert "in any of 10 settings" in found(in_device_memory, FULL_SPACE)[0].note
