"""Tables, shards and plans of TorchRec models, read and written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torchrec.distributed.types import CacheParams, KeyValueParams, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.base.errors import BadConfig
from evenshard.base.units import BYTES_PER_GB
from evenshard.measure.placements import simulate_cost
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, whole_part
from evenshard.placement.placement import Placement, parts_by_table
from evenshard.placement.sharding import SEQUENCE_TYPES, matching_types
from evenshard.planner.request import PlacementRequest
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import link
from evenshard.torchrec import TablePart, placement_of, predicted, sharding_plan, shards_of, tables_of
from evenshard.torchrec.plan.plans import find_unsupported_kernels
from support.builders import table
from support.request_builders import untrained
from support.torchrec_builders import META, SPLIT, USER, Model, topology
from support.torchrec_training import Everything, bag, in_parts, module_sharders

# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_plan_by_hand() -> None:
    """8 ranks on 2 nodes: rank 6 is the third GPU of its node."""
    model = Model(META)
    placement = Placement((6, 0, 1, 2, 3), 8)
    plan = sharding_plan(placement, tables_of(model), model, local_world_size=4).plan
    assert {path: list(of_module) for path, of_module in plan.items()} == {
        "user.ebc": ["id", "clicks", "wide"],
        "item": ["id", "tags"],
    }
    one = plan["user.ebc"]["id"]
    (shard,) = one.sharding_spec.shards
    assert (one.sharding_type, one.compute_kernel, one.ranks) == ("table_wise", "fused", [6])
    assert (shard.shard_offsets, shard.shard_sizes) == ([0, 0], [50, 8])
    assert str(shard.placement) == "rank:6/cuda:2"
    on_cpu = sharding_plan(placement, tables_of(model), model, compute_device="cpu").plan["user.ebc"]["id"]
    assert str(on_cpu.sharding_spec.shards[0].placement) == "rank:6/cpu"


def test_a_split_by_hand() -> None:
    plan = sharding_plan(SPLIT, tables_of(Model(META)), Model(META), 2).plan["user.ebc"]
    assert {name: one.sharding_type for name, one in plan.items()} == dict.fromkeys(plan, "column_wise")
    assert (plan["wide"].compute_kernel, plan["wide"].ranks) == ("fused", [0, 1])
    parts = plan["wide"].sharding_spec.shards
    assert [part.shard_offsets for part in parts] == [[0, 0], [0, 8]]
    assert [part.shard_sizes for part in parts] == [[30, 8], [30, 16]]
    assert [str(part.placement) for part in parts] == ["rank:0/cuda:0", "rank:1/cuda:1"]


def test_a_replica_and_rows_on_too_many_ranks_by_hand() -> None:
    """The kernel of a replica is dense; rows have a shard on each rank: 5 rows on 4 ranks are 2, 2, 1 and 0."""
    short = EmbeddingBagCollection(tables=[replace(USER[0], num_embeddings=5), USER[1]], device=META)
    tables = tables_of(short)
    rows = [TablePart(tables[0].name, Span(2 * rank, min(2 * rank + 2, 5)), Span(0, 8), (rank,)) for rank in range(3)]
    every = (0, 1, 2, 3)
    plan = sharding_plan([*rows, whole_part(tables[1], every)], tables, short, 4).plan[""]
    cut, replicated = plan[tables[0].name], plan[tables[1].name]
    assert (cut.sharding_type, cut.compute_kernel, cut.ranks) == ("row_wise", "fused", [0, 1, 2, 3])
    shards = [(one.shard_offsets, one.shard_sizes) for one in cut.sharding_spec.shards]
    assert shards == [([0, 0], [2, 8]), ([2, 0], [2, 8]), ([4, 0], [1, 8]), ([5, 0], [0, 8])]
    assert (replicated.sharding_type, replicated.compute_kernel) == ("data_parallel", "dense")
    assert replicated.ranks == [0, 1, 2, 3]


def test_a_plan_comes_back_as_it_went_whatever_the_order_of_tables() -> None:
    model = Model(META)
    tables = tables_of(model)
    placement = Placement((2, 0, 1, 2, 0), 4)
    plan = sharding_plan(placement, tables, model)
    assert placement_of(plan, tables, 4) == placement
    order = (3, 1, 4, 0, 2)
    other_tables = [tables[position] for position in order]
    other = Placement(tuple(placement.device_of_table[position] for position in order), 4)
    assert placement_of(plan, other_tables, 4) == other
    assert sharding_plan(other, other_tables, model) == plan
    split = sharding_plan(SPLIT, tables, model, 2)
    assert sorted(shards_of(split, other_tables), key=str) == sorted(SPLIT, key=str)
    with pytest.raises(BadConfig, match=r"table 'clicks' is split over devices \[0, 1\]"):
        placement_of(split, tables, 2)


EVERYTHING = tables_of(Everything(META))
TWO = Nodes(2, 2)
TWO_NODES = Nodes(4, 2, intra="h100_nvlink", inter="infiniband_ndr")


def torchrecs_plan(way: str | None) -> ShardingPlan:
    """TorchRec's plan of 4 GPUs on 2 nodes, with each table sharded in a way where its collection can be."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import ParameterConstraints

    constraints = {
        one.name: ParameterConstraints(sharding_types=[way], min_partition=4)
        for one in EVERYTHING
        if way is not None and (way in SEQUENCE_TYPES or not one.is_sequence)
    }
    planner = EmbeddingShardingPlanner(
        topology=topology(4, local_world_size=2),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.15),
        stats=[],
        debug=False,
    )
    return planner.plan(Everything(META), module_sharders())


@pytest.mark.parametrize("way", [None, "row_wise", "grid_shard", "data_parallel"])
def test_torchrecs_own_plans_are_read_priced_and_compared(way: str | None) -> None:
    """Those of its own choice, and those of each type; where it puts columns twice on a rank, they are one part."""
    plan = torchrecs_plan(way)
    parts = shards_of(plan, EVERYTHING)
    request = PlacementRequest(EVERYTHING, (BYTES_PER_GB,) * 4, 2048, machine=TWO_NODES)
    task = request.task()
    by_table = parts_by_table(task, parts)
    of_type = {one.name for one in EVERYTHING if way in matching_types(by_table[one.name], one, TWO_NODES)}
    pooled = {one.name for one in EVERYTHING if not one.is_sequence}
    if way not in (None, "grid_shard", "column_wise"):
        assert of_type >= (pooled if way not in SEQUENCE_TYPES else {one.name for one in EVERYTHING})
    h100 = gpu_profile("h100")
    links = Links(link("h100_nvlink"), link("infiniband_ndr"))
    assert simulate_cost(task, parts, [h100] * 4, links).max_device_ms > 0
    priced = predicted(plan, request, untrained())
    assert priced.predicted_ms > 0 and priced.parts == parts and not find_unsupported_kernels(plan, EVERYTHING)


def test_a_table_on_another_kernel_is_read_as_it_lives_and_named(caplog: pytest.LogCaptureFixture) -> None:
    plan = torchrecs_plan("table_wise")
    plan.plan["pooled"]["p_sum"].compute_kernel = "customized_kernel"
    assert find_unsupported_kernels(plan, EVERYTHING) == {"p_sum": "customized_kernel"}
    assert shards_of(plan, EVERYTHING) == shards_of(torchrecs_plan("table_wise"), EVERYTHING)
    predicted(plan, PlacementRequest(EVERYTHING, (BYTES_PER_GB,) * 4, 2048, machine=TWO_NODES), untrained())
    assert "table p_sum uses kernel customized_kernel in the plan; its time is predicted for the fused" in caplog.text


# Where weights are kept -----------------------------------------------------------------------------------------------


def kept(storage: Storage, device: str = "cuda", way: str = "table_wise") -> ParameterSharding:
    """The plan's entry of a table of 50 x 16 weights on 2 ranks, that is kept so."""
    parts = [
        replace(part, storage=storage if one.name == "p_sum" else part.storage)
        for one in EVERYTHING
        for part in in_parts(one, way if one.name == "p_sum" else "table_wise", TWO, 0)
    ]
    return sharding_plan(parts, EVERYTHING, Everything(META), 2, compute_device=device).plan["pooled"]["p_sum"]


def test_kernels_by_hand() -> None:
    """A cache is LRU; whether rows are prefetched is left to the sharders, where no training pipeline is known."""
    cached = kept(Storage("fused_uvm_caching", 0.05))
    assert (cached.compute_kernel, cached.key_value_params) == ("fused_uvm_caching", None)
    assert cached.cache_params == CacheParams(CacheAlgorithm.LRU, load_factor=0.05, reserved_memory=16.05)
    managed = kept(Storage("fused_uvm"))
    assert (managed.compute_kernel, managed.cache_params, managed.key_value_params) == ("fused_uvm", None, None)
    whole = kept(Storage())
    assert (whole.compute_kernel, whole.cache_params, whole.key_value_params) == ("fused", None, None)
    on_ssd = kept(Storage("key_value", 0.5))
    assert (on_ssd.compute_kernel, on_ssd.cache_params.load_factor) == ("key_value", 0.5)
    assert on_ssd.key_value_params == KeyValueParams(max_l1_cache_size=1)  # MB, TorchRec's smallest
    for kernel in ("host", "key_value"):
        on_cpu = kept(Storage(kernel), "cpu")
        assert (on_cpu.compute_kernel, on_cpu.cache_params, on_cpu.key_value_params) == ("fused", None, None)
    with pytest.raises(BadConfig, match="'p_sum' uses kernel host, which TorchRec does not have on GPU ranks"):
        kept(Storage("host"))


def test_a_cache_of_ssds_is_no_larger_than_it_should_be() -> None:
    """Of 2**20 rows in halves of 16 columns, a fourth: 2**18 x 16 x 4 bytes, 16 MB."""
    collection = EmbeddingBagCollection(tables=[bag("big", 2**20, dim=32)], device=META)
    tables = tables_of(collection)
    halves = [replace(one, storage=Storage("key_value", 0.25)) for one in in_parts(tables[0], "column_wise", TWO, 0)]
    assert sharding_plan(halves, tables, collection, 2).plan[""]["big"].key_value_params.max_l1_cache_size == 16


@pytest.mark.parametrize(
    ("cache", "storage"),
    [
        (None, Storage("fused_uvm_caching", 0.2)),
        (CacheParams(), Storage("fused_uvm_caching", 0.2)),
        (CacheParams(load_factor=0.07), Storage("fused_uvm_caching", 0.07)),
        (CacheParams(load_factor=1.5), Storage("fused_uvm_caching", 1.0)),
    ],
)
def test_a_cache_without_a_load_factor_has_torchrecs_own(cache: CacheParams | None, storage: Storage) -> None:
    plan = torchrecs_plan("table_wise")
    entry = plan.plan["pooled"]["p_sum"]
    entry.compute_kernel, entry.cache_params = "fused_uvm_caching", cache
    found = {part.table: part.storage for part in shards_of(plan, EVERYTHING)}
    assert found.pop("p_sum") == storage and set(found.values()) == {Storage()}
    assert not find_unsupported_kernels(plan, EVERYTHING)
    entry.cache_params = CacheParams(load_factor=0.0)
    with pytest.raises(BadConfig, match="table 'p_sum': load_factor"):
        shards_of(plan, EVERYTHING)


def test_an_unknown_type_is_refused() -> None:
    plan = torchrecs_plan("table_wise")
    plan.plan["pooled"]["p_sum"].sharding_type = "diagonal"
    with pytest.raises(
        BadConfig, match="table 'p_sum' is sharded 'diagonal', but evenshard supports only table_wise, column_wise"
    ):
        shards_of(plan, EVERYTHING)
    plan.plan["pooled"]["p_sum"].sharding_type = "data_parallel"
    plan.plan["pooled"]["p_sum"].ranks = None
    with pytest.raises(BadConfig, match="does not list the ranks of table 'p_sum'"):
        shards_of(plan, EVERYTHING)


def test_a_plan_of_other_tables_is_refused() -> None:
    tables = tables_of(Model(META))
    plan = sharding_plan(Placement((0,) * 5, 1), tables, Model(META))
    with pytest.raises(BadConfig, match=r"the plan also shards 'item\.tags'"):
        shards_of(plan, tables[:4])
    for given, message in (
        ([*tables, table("new")], "table 'new' is not in the plan"),
        ([replace(tables[0], name="id")], "table 'id' is not in the plan, or is in it several times"),
        ([tables[0], replace(tables[1], num_rows=41), *tables[2:]], "'clicks' has shards with the rows 0:40; each of"),
    ):
        with pytest.raises(BadConfig, match=message):
            shards_of(plan, given)
    with pytest.raises(BadConfig, match=r"table 'clicks' has shards with the columns 0:16; each of its 32"):
        placement_of(plan, [tables[0], replace(tables[1], embedding_dim=32), *tables[2:]], 1)
    with pytest.raises(BadConfig, match="the devices are 0 to 0"):
        placement_of(sharding_plan(Placement((1,) * 5, 2), tables, Model(META)), tables, 1)


def test_ranks_and_shards_of_a_plan_must_agree() -> None:
    tables = tables_of(Model(META))
    plan = sharding_plan(Placement((0,) * 5, 2), tables, Model(META))
    plan.plan["item"]["tags"].ranks = [1]
    with pytest.raises(BadConfig, match=r"table 'tags' is on ranks \[1\], but its shards are on \[0\]"):
        shards_of(plan, tables)
    plan.plan["item"]["tags"].sharding_spec = None
    with pytest.raises(BadConfig, match="does not list the shards of table 'tags'"):
        shards_of(plan, tables)


def parts_with(*of_wide: TablePart) -> list[TablePart]:
    return [*SPLIT[2:], *of_wide]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (parts_with(), "'wide' has shards with the columns none; each of its 24 columns"),
        (parts_with(SPLIT[1], replace(SPLIT[0], columns=Span(12, 24))), "has shards with the columns 0:8, 12:24;"),
        (parts_with(replace(SPLIT[0], table="narrow")), "'narrow', which is not among the tables"),
        (Placement((0, 0, 0), 2), "the placement has 3 tables, but 5 tables are given"),
        (Placement((0,) * 5, 3), "the placement has 3 devices, but world_size is 2"),
    ],
)
def test_answers_that_make_no_sense(parts: Any, message: str) -> None:
    model = Model(META)
    with pytest.raises(BadConfig, match=message):
        sharding_plan(parts, tables_of(model), model, 2)


def test_a_placement_of_another_models_tables_is_refused() -> None:
    model = Model(META)
    tables = tables_of(model)
    placement = Placement((0,) * 5, 1)
    for given, message in (
        ([*tables[:4], replace(tables[4], name="x")], "table 'x' is not in the model"),
        (tables[:4], "table 'tags' of the model is not placed"),
        ([*tables[:4], replace(tables[4], num_rows=21)], "placed with 21 x 4 weights, but has 20 x 4"),
        ([tables[1], *tables[1:]], "two tables are called 'clicks'"),
    ):
        with pytest.raises(BadConfig, match=message):
            sharding_plan(Placement((0,) * len(given), 1), given, model)
    with pytest.raises(BadConfig, match="table parts do not state it"):
        sharding_plan(SPLIT, tables, model)
    with pytest.raises(BadConfig, match=r"local_world_size is 2. Give a divisor of world_size \(1\)"):
        sharding_plan(placement, tables, model, local_world_size=2)
