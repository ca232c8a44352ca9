"""The arguments of TorchRec's planner, and what its own tests ask of it, asked of evenshard's."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, planners
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel, NoopStorageModel
from torchrec.distributed.planner.proposers import GreedyProposer, UniformProposer
from torchrec.distributed.planner.stats import EmbeddingStats, NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
    InferenceStorageReservation,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    PlannerErrorType,
    ShardingOption,
    Stats,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    ShardingPlan,
    ShardingPlanner,
)
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from evenshard.planner.torchrec import EvenshardPlanner
from evenshard.utils.errors import BadConfig, BadFile, MissingPackage
from support.documented import ROOT, snippet
from support.request_builders import untrained
from support.torchrec_builders import META, topology

MB = 2**20
PAGE = "docs/torchrec.md"
WARNINGS = pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")


def bags(number: int, rows: int = 100, dim: int = 64, **more: Any) -> list[EmbeddingBagConfig]:
    """Tables as TorchRec's tests have them: table_0 looked up by feature_0, and so on."""
    return [
        EmbeddingBagConfig(
            name=f"table_{at}", feature_names=[f"feature_{at}"], num_embeddings=rows, embedding_dim=dim, **more
        )
        for at in range(number)
    ]


class Sparse(nn.Module):
    """A collection below a name, and a layer."""

    def __init__(self, tables: list[EmbeddingBagConfig], is_weighted: bool = False) -> None:
        super().__init__()
        self.sparse = nn.Module()
        self.sparse.ebc = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=META)
        self.over = nn.Linear(10, 10, device=META)


def two_gpus(megabytes: float = 2, **more: Any) -> Topology:
    return topology(2, hbm_cap_bytes=int(megabytes * MB), **more)


def planner(machine: Topology | None = None, **given: Any) -> EvenshardPlanner:
    """With a model that was not trained, weights alone that count, and no memory beside the devices'."""
    own: dict[str, Any] = {"model": untrained(), "training_pipeline": "", "host_memory_gb": 0, **given}
    return EvenshardPlanner(two_gpus() if machine is None else machine, **own)


def entries(plan: ShardingPlan) -> dict[str, Any]:
    """Of all tables, by name."""
    return {name: one for of in plan.plan.values() for name, one in of.items()}  # type: ignore[attr-defined]


class TableWise(EmbeddingBagCollectionSharder):
    """A module sharder that knows one type."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused"]


class TableOrRowWise(TableWise):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise", "table_wise"]


# The signature --------------------------------------------------------------------------------------------------------


def test_it_takes_what_torchrecs_planner_takes_in_its_order() -> None:
    theirs = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
    own = inspect.signature(EvenshardPlanner.__init__).parameters
    positional = [name for name, one in own.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs)
    assert {name: own[name].default for name in theirs} == {name: one.default for name, one in theirs.items()}
    assert set(positional) - set(theirs) <= {"plan_loader"}, "which TorchRec has since 1.4"
    for method in ("plan", "collective_plan"):
        asked = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
        assert list(inspect.signature(getattr(EvenshardPlanner, method)).parameters) == list(asked)


def test_it_is_one_of_torchrecs_planners() -> None:
    assert isinstance(planner(), ShardingPlanner)


def test_what_is_no_topology_is_said() -> None:
    with pytest.raises(BadConfig, match=r"topology is a list. Give TorchRec's Topology; a sharder is sharder="):
        EvenshardPlanner([])  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"timeout_seconds is 0\. Give a number above 0"):
        planner(timeout_seconds=0)


def test_a_batch_is_torchrecs_where_none_is_given() -> None:
    for batch_size, expected in ((None, 2 * 512), (100, 200)):
        one = planner(two_gpus(100), batch_size=batch_size)
        one.plan(Sparse(bags(2)))
        assert one.answer is not None and one.answer.request.batch_size == expected


# Plans ----------------------------------------------------------------------------------------------------------------


def test_ranks_of_whole_tables_exist_and_share_the_work() -> None:
    one = planner()
    plan = one.plan(Sparse(bags(4)), [TableWise()])
    assert {name: entry.sharding_type for name, entry in entries(plan).items()} == {
        f"table_{at}": "table_wise" for at in range(4)
    }
    assert sorted(rank for entry in entries(plan).values() for rank in entry.ranks) == [0, 0, 1, 1]


def test_a_module_sharder_says_how_its_tables_may_be_sharded() -> None:
    """Sharders of TorchRec's own classes leave all types to evenshard."""
    model = Sparse(bags(3))
    own = entries(planner().plan(model, [TableOrRowWise()]))
    assert {entry.sharding_type for entry in own.values()} <= {"table_wise", "row_wise"}
    assert {entry.sharding_type for entry in entries(planner().plan(model)).values()} == {"data_parallel"}
    with pytest.raises(
        BadConfig, match=r"table 'table_0': its module sharder .* allows table_wise on fused, the rules"
    ):
        planner(sharding_types=["row_wise"]).plan(model, [TableWise()])


def test_tables_that_never_fit() -> None:
    with pytest.raises(PlannerError) as caught:
        planner().plan(Sparse(bags(2, rows=10_000_000, dim=4096)), [TableOrRowWise()])
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_a_planner_that_failed_plans_again() -> None:
    """A table as large as a rank: whole it fits neither; by rows it fits both."""
    one, model = planner(dense_gb=0, reserved_gb=0), Sparse(bags(1, rows=2 * 4096, dim=64))
    one = planner(two_gpus(1.5), dense_gb=0, reserved_gb=0)
    with pytest.raises(PlannerError) as caught:
        one.plan(model, [TableWise()])
    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS
    plan = one.plan(model, [TableOrRowWise()])
    assert [(entry.sharding_type, entry.ranks) for entry in entries(plan).values()] == [("row_wise", [0, 1])]


def test_without_sharders_or_tables_the_plan_is_empty() -> None:
    assert planner().plan(Sparse(bags(4)), []) == ShardingPlan({})
    assert planner().plan(nn.Linear(2, 2)) == ShardingPlan({})


class Named(TableWise):
    """Takes tables with a name of its list alone."""

    def shardable_parameters(self, module: EmbeddingBagCollection) -> dict[str, nn.Parameter]:
        found = super().shardable_parameters(module)
        return {name: one for name, one in found.items() if name in ("table_0", "table_1")}


def test_the_plan_has_the_modules_whose_tables_are_sharded() -> None:
    """TorchRec 1.8 checks that, where it has a function for it."""
    model = Sparse(bags(2))
    model.other = EmbeddingBagCollection(
        tables=[replace(bags(1)[0], name="other", feature_names=["other"])], is_weighted=True, device=META
    )
    plan = planner().plan(model, [Named()])
    assert list(plan.plan) == ["sparse.ebc"] and list(planner().plan(model).plan) == ["sparse.ebc", "other"]
    check = getattr(planners, "validate_modules_inclusion_in_sharding_plan", None)
    if check is not None:
        check(plan, model, [Named()])
        with pytest.raises(PlannerError):
            check(plan, model, [TableWise()])


def test_sequences_and_shared_features_are_planned_together() -> None:
    model = nn.Module()
    model.ebc = EmbeddingBagCollection(
        tables=[replace(one, feature_names=["f", one.name]) for one in bags(2)], device=META
    )
    model.ec = EmbeddingCollection(
        tables=[EmbeddingConfig(name="s", feature_names=["left", "right"], num_embeddings=50, embedding_dim=16)],
        device=META,
    )
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    one = planner(two_gpus(100))
    plan = one.plan(model, sharders)
    assert {path: sorted(of) for path, of in plan.plan.items()} == {"ebc": ["table_0", "table_1"], "ec": ["s"]}  # type: ignore[call-overload]
    assert [len(option.input_lengths) for option in one._best_plan or ()] == [2, 2, 2]


# The topology ---------------------------------------------------------------------------------------------------------


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


# Storage reservations -------------------------------------------------------------------------------------------------


def rooms_with(reservation: Any, machine: Topology | None = None, **given: Any) -> tuple[int, ...]:
    one = planner(machine or two_gpus(100), storage_reservation=reservation, **given)
    one.plan(Sparse(bags(2)))
    assert one.answer is not None and one.answer.request.dense_bytes == 0
    return one.answer.request.rooms_bytes


@WARNINGS
def test_tables_get_what_a_reservation_leaves() -> None:
    """25 % of the memory; the dense model six times, which is 440 bytes, and 20 times the inputs; all ranks alike."""
    inputs = 2 * 512 * 8
    assert rooms_with(FixedPercentageStorageReservation(0.25)) == (75 * MB,) * 2
    assert rooms_with(HeuristicalStorageReservation(0.25)) == (75 * MB - 6 * 440 - 20 * inputs,) * 2
    assert rooms_with(HeuristicalStorageReservation(0.25, dense_tensor_estimate=MB)) == (74 * MB - 20 * inputs,) * 2
    assert rooms_with(InferenceStorageReservation(0.25)) == (75 * MB - 440 - inputs,) * 2
    assert (
        rooms_with(None, heuristical_storage_reservation_percentage=0.25, batch_size=100)
        == (75 * MB - 6 * 440 - 20 * 2 * 100 * 8,) * 2
    )


def test_a_reservation_of_so_many_bytes() -> None:
    kind = pytest.importorskip("torchrec.distributed.planner.storage_reservations")
    if not hasattr(kind, "FixedAbsoluteStorageReservation"):
        pytest.skip("TorchRec has none before 1.8")
    assert rooms_with(kind.FixedAbsoluteStorageReservation(30 * MB)) == (70 * MB,) * 2


def test_a_reservation_leaves_each_rank_its_own_and_goes_with_a_cap() -> None:
    uneven = two_gpus(100)
    uneven.devices[1].storage.hbm = 10 * MB
    assert rooms_with(FixedPercentageStorageReservation(0.5), uneven) == (50 * MB, 5 * MB)
    assert rooms_with(FixedPercentageStorageReservation(0.5), memory_cap_gb=1) == (512 * MB,) * 2


@WARNINGS
def test_a_reservation_that_leaves_nothing_is_torchrecs_error() -> None:
    for reservation in (HeuristicalStorageReservation(1.0), FixedPercentageStorageReservation(1.0)):
        with pytest.raises(PlannerError) as caught:
            planner(storage_reservation=reservation).plan(Sparse(bags(2)))
        assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_memory_is_kept_once() -> None:
    with pytest.raises(BadConfig, match="storage_reservation and reserved_gb both say"):
        planner(storage_reservation=FixedPercentageStorageReservation(0.1), reserved_gb=1)
    with pytest.raises(BadConfig, match="storage_reservation is given, and a percentage"):
        planner(
            storage_reservation=FixedPercentageStorageReservation(0.1), heuristical_storage_reservation_percentage=0.1
        )


# Constraints ----------------------------------------------------------------------------------------------------------


def test_what_constraints_say_to_kernels_is_in_the_plan() -> None:
    constraints = {
        "table_0": ParameterConstraints(enforce_hbm=True, cache_params=CacheParams(algorithm=CacheAlgorithm.LFU)),
        "table_1": ParameterConstraints(enforce_hbm=False, stochastic_rounding=True),
        "table_2": ParameterConstraints(bounds_check_mode=BoundsCheckMode.FATAL, output_dtype=DataType.FP16),
    }
    one = planner(constraints=constraints)
    found = entries(one.plan(Sparse(bags(4))))
    said = [
        (of.enforce_hbm, of.stochastic_rounding, of.bounds_check_mode, of.output_dtype, of.cache_params)
        for of in (found[f"table_{at}"] for at in range(4))
    ]
    assert said == [
        (True, None, None, None, None),
        (False, True, None, None, None),
        (None, None, BoundsCheckMode.FATAL, DataType.FP16, None),
        (None,) * 5,
    ]
    assert one.notes == ("Of TorchRec's constraints, these change nothing in the placement: cache_params (table_0).",)
    for option in one._best_plan or ():
        assert option.enforce_hbm == found[option.name].enforce_hbm


def test_the_cache_of_a_table_has_the_constraints_algorithm_and_precision() -> None:
    """Its size is the search's."""
    cache = CacheParams(algorithm=CacheAlgorithm.LFU, load_factor=0.1, precision=DataType.FP16)
    constraints = {"table_0": ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=cache)}
    one = planner(two_gpus(100, ddr_cap_bytes=100 * MB), constraints=constraints, host_memory_gb=None)
    found = entries(one.plan(Sparse(bags(2))))["table_0"]
    assert found.compute_kernel == "fused_uvm_caching"
    assert (found.cache_params.algorithm, found.cache_params.precision) == (CacheAlgorithm.LFU, DataType.FP16)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"sharding_types": ["row_wise"]}, {"row_wise"}),
        ({"sharding_types": ["table_wise", "data_parallel"], "compute_kernels": ["dense"]}, {"data_parallel"}),
        ({"sharding_types": ["column_wise"], "min_partition": 32}, {"column_wise"}),
    ],
)
def test_types_kernels_and_widths_are_kept(constraint: dict[str, Any], expected: set[str]) -> None:
    constraints = {f"table_{at}": ParameterConstraints(**constraint) for at in range(2)}
    found = entries(planner(two_gpus(100), constraints=constraints).plan(Sparse(bags(2, rows=5000))))
    assert {entry.sharding_type for entry in found.values()} == expected
    for entry in found.values():
        least = constraint.get("min_partition", 4)
        assert entry.sharding_spec is None or all(one.shard_sizes[1] >= least for one in entry.sharding_spec.shards)


def test_lookups_and_weights_are_the_constraints() -> None:
    constraints = {"table_0": ParameterConstraints(pooling_factors=[7.5], is_weighted=True, num_poolings=[2.0])}
    one = planner(two_gpus(100), constraints=constraints)
    one.plan(Sparse(bags(2)))
    assert one.answer is not None
    assert [table.pooling_factor for table in one.answer.request.tables] == [7.5, 1.0]
    assert [table.is_weighted for table in one.answer.request.tables] == [True, False]
    assert "num_poolings (table_0)" in one.notes[0]
    assert [option.input_lengths for option in one._best_plan or ()] == [[7.5], [1.0]]


def test_tables_of_another_group_of_devices_are_refused_or_left_to_torchrec() -> None:
    constraints = {"table_0": ParameterConstraints(device_group="cpu")}
    model = Sparse(bags(2))
    with pytest.raises(BadConfig, match="device_group is 'cpu', the devices are cuda"):
        planner(constraints=constraints).plan(model)
    plan = planner(constraints=constraints, fallback=True).plan(model)
    assert list(entries(plan)) == ["table_1"], "TorchRec plans each group by itself"


# What decides nothing, and what bounds the search ---------------------------------------------------------------------


def test_proposer_and_partitioner_decide_nothing_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = Sparse(bags(2))
    alone, several = (
        planner(partitioner=GreedyPerfPartitioner()),
        planner(proposer=[GreedyProposer(), UniformProposer()]),
    )
    assert alone.plan(model) == several.plan(model) == planner().plan(model)
    assert alone.notes == (
        "partitioner (GreedyPerfPartitioner) decides nothing: evenshard's own search proposes and places.",
    )
    assert several.notes[0].startswith("proposer (GreedyProposer, UniformProposer) decides nothing")
    assert several.answer is not None and several.answer.notes[-1:] == several.notes
    assert several.notes[0] in caplog.messages


def test_an_enumerator_bounds_the_ways() -> None:
    """This one's constraints leave whole tables, which evenshard would replicate; its estimates fill the statistics."""
    machine, model = two_gpus(100), Sparse(bags(2))
    constraints = {f"table_{at}": ParameterConstraints(sharding_types=["table_wise"]) for at in range(2)}
    enumerator = EmbeddingEnumerator(machine, batch_size=512, constraints=constraints)
    found = planner(machine, enumerator=enumerator).plan(model)
    assert {entry.sharding_type for entry in entries(found).values()} == {"table_wise"}
    assert {entry.sharding_type for entry in entries(planner(machine).plan(model)).values()} == {"data_parallel"}


def test_a_performance_model_rates_the_plan() -> None:
    machine = two_gpus(100)
    one = planner(machine, performance_model=NoopStorageModel(machine))
    one.plan(Sparse(bags(2)), [TableWise()])
    assert one._best_plan is not None
    most = max(NoopStorageModel(machine).rate([option]) for option in one._best_plan)
    assert one.notes[0].startswith(f"performance_model (NoopStorageModel) rates the plan {most:.4g}; it chose nothing")


def test_the_search_ends_after_the_timeout() -> None:
    one = planner(two_gpus(100), timeout_seconds=1e-6)
    assert len(entries(one.plan(Sparse(bags(20, rows=5000))))) == 20
    assert one.notes[-1] == "The search ended after timeout_seconds=1e-06: this is the best plan until then."
    patient = planner(two_gpus(100), timeout_seconds=1000)
    patient.plan(Sparse(bags(2)))
    assert patient.notes == ()


# Callbacks ------------------------------------------------------------------------------------------------------------


def on_rank_0(options: list[ShardingOption]) -> list[ShardingOption]:
    for option in options:
        for shard in option.shards:
            shard.rank = 0
    return options


def test_callbacks_get_the_plan_and_may_change_it() -> None:
    seen: list[list[str]] = []

    def look(options: list[ShardingOption]) -> list[ShardingOption]:
        seen.append([option.name for option in options])
        return options

    model, more = Sparse(bags(4)), {"sharding_types": ["table_wise"]}
    same = planner(callbacks=[look, look], **more)
    assert same.plan(model) == planner(**more).plan(model)
    assert seen == [[f"table_{at}" for at in range(4)]] * 2 and same.notes == ()
    moved = planner(callbacks=[on_rank_0], **more)
    assert [entry.ranks for entry in entries(moved.plan(model)).values()] == [[0]] * 4
    assert moved.answer is not None
    before = f"{moved.answer.predicted_ms:.4g} before"
    assert moved.notes[0].startswith("callbacks changed the plan: ") and before in moved.notes[0]


# Statistics -----------------------------------------------------------------------------------------------------------


class Kept(Stats):
    """Statistics that keep what they are given."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def log(self, **given: Any) -> None:  # type: ignore[override]
        self.given = given


class Old(Stats):
    """Statistics of somebody's own, with the arguments of years ago."""

    def __init__(self) -> None:
        self.plan: ShardingPlan | None = None

    def log(self, sharding_plan: ShardingPlan, topology: Topology, debug: bool = False) -> None:  # type: ignore[override]
        self.plan = sharding_plan


def test_statistics_are_torchrecs(caplog: pytest.LogCaptureFixture) -> None:
    """The usual table is logged, of evenshard's plan."""
    one = planner()
    with caplog.at_level(logging.INFO, logger="torchrec"):
        one.plan(Sparse(bags(4)), [TableWise()])
    (stats,) = one._stats
    assert isinstance(stats, EmbeddingStats)
    rows = stats._stats_table
    assert rows[0].startswith("####") and set(rows) <= set(caplog.messages)
    for word in ("--- Planner Statistics ---", "Parameter Info:", "sparse.ebc.table_3", "TW: 2", "fused: 4"):
        assert any(word in row for row in rows), word


def test_short_statistics() -> None:
    one = planner(debug=False)
    one.plan(Sparse(bags(4)), [TableWise()])
    rows = one._stats[0]._stats_table  # type: ignore[attr-defined]
    assert rows and not any("Parameter Info:" in row for row in rows)


def test_other_statistics_none_and_several() -> None:
    model = Sparse(bags(2))
    for stats, number in (([], 0), (NoopEmbeddingStats(), 1), ([NoopEmbeddingStats(), EmbeddingStats()], 2)):
        one = planner(stats=stats)
        one.plan(model)
        assert len(one._stats) == number
    kept, old = Kept(), Old()
    one = planner(
        two_gpus(100), stats=[kept, old], batch_size=64, storage_reservation=FixedPercentageStorageReservation(0.5)
    )
    plan = one.plan(model)
    assert old.plan == kept.given["sharding_plan"] == plan
    assert kept.given["best_plan"] is one._best_plan and kept.given["batch_size"] == 64
    assert kept.given["storage_reservation"]._percentage == 0.5 and kept.given["num_plans"] >= 1
    for option in kept.given["best_plan"]:
        assert all(shard.perf.total > 0 and shard.storage.hbm > 0 for shard in option.shards)


@pytest.mark.parametrize(
    "ways", [["table_wise"], ["column_wise"], ["row_wise"], ["data_parallel"], ["table_row_wise"], ["grid_shard"]]
)
def test_statistics_know_every_type(ways: list[str]) -> None:
    one = planner(topology(4, local_world_size=2, hbm_cap_bytes=100 * MB), sharding_types=ways)
    plan = one.plan(Sparse(bags(4, rows=4000)))
    assert {entry.sharding_type for entry in entries(plan).values()} == set(ways)
    assert one._stats[0]._stats_table and one.notes == ()  # type: ignore[attr-defined]


def test_torchrec_rates_the_options_as_its_own() -> None:
    """Shards that TorchRec's enumerator has too get the same times and memory there."""
    machine, model = two_gpus(100), Sparse(bags(3))
    enumerator = EmbeddingEnumerator(machine, batch_size=512)
    theirs = {
        (one.name, one.sharding_type, one.compute_kernel): one
        for one in enumerator.enumerate(model, [TableOrRowWise()])
    }
    one = planner(machine)
    one.plan(model, [TableOrRowWise()])
    assert one._best_plan
    for option in one._best_plan:
        same = theirs[option.name, option.sharding_type, option.compute_kernel]
        assert [(shard.perf, shard.storage) for shard in option.shards] == [
            (shard.perf, shard.storage) for shard in same.shards
        ]
    assert NoopPerfModel(machine).rate(one._best_plan) > 0


# Falling back ---------------------------------------------------------------------------------------------------------


@WARNINGS
def test_torchrecs_planner_plans_where_evenshard_cannot_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Without a cost model, and where tables find no room by evenshard's count; with the same arguments."""
    model, machine = Sparse(bags(2)), two_gpus(100)
    constraints = {"table_0": ParameterConstraints(sharding_types=["row_wise"])}
    with pytest.raises(BadFile):
        planner(machine, model="no/such/model").plan(model)
    one = planner(machine, model="no/such/model", fallback=True, constraints=constraints, batch_size=64)
    plan = one.plan(model)
    theirs = EmbeddingShardingPlanner(machine, constraints=constraints, batch_size=64)
    assert plan == theirs.plan(model, get_default_sharders())
    assert one.answer is None and len(one.notes) == 1
    assert one.notes[0].startswith("TorchRec's planner makes this plan (fallback=True), as evenshard cannot: ")
    assert "no/such/model" in one.notes[0] and one.notes[0] in caplog.messages
    assert one._best_plan is not None
    tight = planner(machine, dense_gb=10, fallback=True)
    assert entries(tight.plan(model)) and "Raise memory_cap_gb" in tight.notes[0]


def test_an_error_of_both_is_torchrecs() -> None:
    one = planner(fallback=True)
    with pytest.raises(PlannerError, match="Unable to find a plan") as caught:
        one.plan(Sparse(bags(2, rows=10_000_000, dim=4096)))
    assert isinstance(caught.value.__context__, PlannerError), "evenshard's"


def test_a_fallback_that_is_not_needed_changes_nothing() -> None:
    model = Sparse(bags(2))
    one = planner(fallback=True)
    assert one.plan(model) == planner().plan(model) and one.notes == () and one.answer is not None


# Stored plans ---------------------------------------------------------------------------------------------------------

types = pytest.importorskip("torchrec.distributed.planner.types")
HAS_LOADER = hasattr(types, "PlanLoader")


class Stored(getattr(types, "PlanLoader", object)):  # type: ignore[misc]
    """A stored plan, or none."""

    def __init__(self, options: dict[int, ShardingOption] | None, context: str | None = None) -> None:
        self.options, self.context = options, context

    def load(self) -> dict[int, ShardingOption] | None:
        return self.options

    def plan_context_hash(self) -> str | None:
        return self.context

    def get_plan_id(self) -> str:
        return "stored"


@pytest.mark.skipif(not HAS_LOADER, reason="TorchRec 1.4 or newer")
def test_a_stored_plan_is_loaded_by_torchrec() -> None:
    """A plan of evenshard's own, with the ranks changed by hand: it is what counts."""
    machine, model, sharders = two_gpus(100), Sparse(bags(4)), [TableWise()]
    first = planner(machine)
    plan = first.plan(model, sharders)
    stored = {option.storage_hash(): option for option in first._best_plan or ()}
    for option in stored.values():
        for shard in option.shards:
            shard.rank = 1 - shard.rank
    context = first.hash_planner_context_inputs_str()
    second = planner(machine, plan_loader=Stored(stored, context))
    loaded = entries(second.plan(model, sharders))
    assert {name: entry.ranks for name, entry in loaded.items()} == {
        name: [1 - rank for rank in entry.ranks] for name, entry in entries(plan).items()
    }
    assert second.notes == (
        "plan_loader has a stored plan: TorchRec's planner loads it, and evenshard decides nothing.",
    )
    with pytest.raises(PlannerError) as caught:
        planner(machine, plan_loader=Stored(stored, "another")).plan(model, sharders)
    assert caught.value.error_type is PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH
    nothing = planner(machine, plan_loader=Stored(None, context))
    assert nothing.plan(model, sharders) == plan and nothing.notes == ()


@WARNINGS
@pytest.mark.skipif(
    not hasattr(EmbeddingShardingPlanner, "hash_planner_context_inputs"), reason="TorchRec 1.3 or newer"
)
def test_the_hash_of_the_context_is_torchrecs() -> None:
    machine, model, sharders = two_gpus(100), Sparse(bags(2)), get_default_sharders()
    enumerator = EmbeddingEnumerator(machine, batch_size=128)
    enumerator.enumerate(model, sharders)
    reservation = HeuristicalStorageReservation(0.15)
    reservation.reserve(machine, 128, model, sharders)
    given = {"batch_size": 128, "enumerator": enumerator, "storage_reservation": reservation}
    own, theirs = planner(machine, **given), EmbeddingShardingPlanner(machine, **given)
    assert own.hash_planner_context_inputs() == theirs.hash_planner_context_inputs()
    other = planner(machine, **{**given, "batch_size": 256})
    assert other.hash_planner_context_inputs() != own.hash_planner_context_inputs()


# The page -------------------------------------------------------------------------------------------------------------


def test_the_pages_snippet_runs() -> None:
    tables = [*bags(1), replace(bags(1)[0], name="clicks", feature_names=["clicks"])]
    named: dict[str, Any] = {"model": Sparse(tables), "sharders": get_default_sharders()}
    exec(snippet(PAGE, "fallback=True"), named)
    one = named["planner"]
    assert set(entries(named["plan"])) == {"table_0", "clicks"} and one.notes == ()
    assert one.answer.request.batch_size == 8 * 1024 and one.answer.request.tables[1].pooling_factor == 37.5


def test_the_page_says_of_every_argument_what_it_does() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for name in (*inspect.signature(EmbeddingShardingPlanner.__init__).parameters, "plan_loader"):
        assert name == "self" or f"`{name}`" in page, name


def test_without_torchrec_nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    with pytest.raises(MissingPackage):
        EvenshardPlanner(world_size=2, fallback=True)
