"""Every sharding type, proven by training: 4 ranks on 2 nodes and 2 ranks on one, with gloo on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torchrec.distributed.types import ShardingPlan

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import ON_DEVICE, Storage, TablePart
from evenshard.placement.sharding import SEQUENCE_TYPES, SHARDING_TYPES
from evenshard.torchrec import shards_of, tables_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.ranks import run_ranks
from support.torchrec_builders import META
from support.torchrec_training import Everything, Job, in_one_piece, in_parts

TABLES = {table.name: table for table in tables_of(Everything(META))}
TWO_RANKS, TWO_NODES = Nodes(2, 2), Nodes(4, 2)


@dataclass(frozen=True)
class Case:
    """How to shard ``TABLES``: by name, or by the letter that their collection begins with; table_wise by default."""

    ways: Mapping[str, str]
    widths: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the parts of a table that is cut by columns
    machine: Nodes = TWO_NODES
    storages: Mapping[str, Storage] = field(default_factory=dict)

    def way(self, name: str) -> str:
        return self.ways.get(name, self.ways.get(name[0], "table_wise"))

    @property
    def parts(self) -> tuple[TablePart, ...]:
        """Each table begins one rank after the one before it."""
        return tuple(
            replace(part, storage=self.storages.get(name, ON_DEVICE))
            for at, (name, table) in enumerate(TABLES.items())
            for part in in_parts(
                table, self.way(name), self.machine, at % self.machine.num_devices, self.widths.get(name, ())
            )
        )

    def plan(self) -> ShardingPlan:
        """Types within a node are the only ones that are allowed where they are asked for."""
        allowed = {name: frozenset({self.way(name)}) for name in TABLES if self.way(name) == "table_column_wise"}
        return plan_of_parts(self.parts, list(TABLES.values()), Everything(META), self.machine, "cpu", allowed)


def everything(way: str, machine: Nodes = TWO_NODES) -> Case:
    """All tables sharded in a way, as far as TorchRec trains them so on the CPU."""
    ways = dict.fromkeys("pmw", way)
    if way in ("row_wise", "table_row_wise", "grid_shard"):
        ways["p_mean"] = "table_wise"
    if way == "row_wise" and machine == TWO_NODES:
        ways["p_tiny"] = "table_row_wise"
    if way == "grid_shard":
        ways["m"] = "column_wise"
    if way in SEQUENCE_TYPES and way != "data_parallel":
        ways["s"] = way
    return Case(ways, machine=machine)


MIXED = {
    "p_sum": "grid_shard",
    "p_mean": "column_wise",
    "p_shared": "table_row_wise",
    "p_tiny": "data_parallel",
    "m_long": "table_row_wise",
    "m_short": "row_wise",
    "w_long": "table_column_wise",
    "w_short": "row_wise",
    "s_shared": "row_wise",
    "s_own": "column_wise",
}
OFFLOADED = {
    "p_sum": Storage("fused_uvm_caching", 0.1),
    "p_mean": Storage("fused_uvm_caching", 0.3),
    "p_shared": Storage("fused_uvm"),
    "m_short": Storage("fused_uvm_caching", 0.5),
    "w_long": Storage("fused_uvm_caching", 1.0),
    "s_shared": Storage("fused_uvm_caching", 0.01),
    "s_own": Storage("fused_uvm"),
}
# What trains with the losses of the model in one piece.
RIGHT: dict[str, Case] = {
    **{f"4 {way}": everything(way) for way in SHARDING_TYPES},
    **{f"2 {way}": everything(way, TWO_RANKS) for way in ("column_wise", "row_wise", "data_parallel")},
    "4 mixed": Case(MIXED),
    "4 columns of unequal widths": Case(
        {"p_sum": "column_wise", "p_shared": "grid_shard", "w_short": "column_wise"},
        {"p_sum": (8, 4, 4), "p_shared": (12, 4), "w_short": (4, 12)},
    ),
    "4 rows of all tables": Case(
        {"p": "row_wise", "p_shared": "table_row_wise", "p_tiny": "table_row_wise", "m": "row_wise", "s": "row_wise"}
    ),
    "4 mixed, out of device memory": Case(MIXED, storages=OFFLOADED),
    "2 on the host's processor and on SSDs": Case(
        {}, {}, TWO_RANKS, {"p_sum": Storage("host"), "p_mean": Storage("key_value", 0.1)}
    ),
}
# What TorchRec trains with other losses, and without a word; and what is said of it.
WRONG: dict[str, tuple[Case, str]] = {
    "4 rows of one mean table": (
        Case({"p_mean": "row_wise"}),
        "table 'p_mean' is sharded row_wise: TorchRec trains row-wise MEAN correctly only if",
    ),
    "4 rows of sums and of means, the others whole": (
        Case({"p": "row_wise", "p_tiny": "table_wise"}),
        "cut by rows, but 'p_tiny' is table_wise. Leave it whole",
    ),
    "4 means in a grid": (
        Case({"m_long": "grid_shard"}),
        "table 'm_long' is sharded grid_shard, with which TorchRec trains MEAN pooling incorrectly",
    ),
    "4 rows that leave a rank without any": (
        Case({"p_tiny": "row_wise", "p_sum": "row_wise"}),
        "table 'p_tiny' is sharded row_wise, and its 3 rows leave a rank empty",
    ),
}
# What TorchRec refuses.
IMPOSSIBLE: dict[str, tuple[Case, str]] = {
    "4 sequences on a node": (
        Case({"s_own": "table_row_wise"}),
        "'s_own' of an EmbeddingCollection is sharded table_row_wise, which TorchRec does not",
    ),
    "4 sequences replicated on the CPU": (
        Case({"s_own": "data_parallel"}),
        "is data_parallel, which FBGEMM does not support on the CPU",
    ),
    "2 sequences of unequal widths": (
        Case({"s": "column_wise"}, {"s_shared": (12, 4), "s_own": (12, 4)}, TWO_RANKS),
        r"shards have different widths, \[4, 12\]. Use one width",
    ),
}
UNEVEN = "uneven rows"


def uneven_rows() -> ShardingPlan:
    """A plan with other blocks of rows than ceil(rows / ranks), as its own list of shards would allow."""
    plan = Case({"p_sum": "row_wise"}).plan()
    shards = plan.plan["pooled"]["p_sum"].sharding_spec.shards
    for shard, (start, size) in zip(shards, [(0, 20), (20, 10), (30, 10), (40, 10)], strict=True):
        shard.shard_offsets, shard.shard_sizes = [start, 0], [size, 16]
    return plan


def process(rank: int, out: Path) -> Any:
    """One rank: losses, or an error. The first two are a group of their own, too."""
    import torch.distributed as dist

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    group_of = {TWO_RANKS: dist.new_group([0, 1]), TWO_NODES: dist.group.WORLD}
    cases = RIGHT | {name: case for name, (case, _) in (WRONG | IMPOSSIBLE).items()}
    with patch("evenshard.torchrec.plan.plans.check_trainable"):  # what is refused is tried
        plans = {name: (case.machine, case.plan()) for name, case in cases.items()}
    plans[UNEVEN] = (TWO_NODES, uneven_rows())
    notes: dict[str, Any] = {}
    # In this order: TorchRec numbers process groups as it makes them, those of nodes with the first plan on 4 ranks.
    for name, (machine, plan) in plans.items():
        if rank < machine.num_devices:
            try:
                notes[name] = Job(plan, group_of[machine]).steps()
            except Exception as error:
                notes[name] = error
    return notes


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    return run_ranks(process, TWO_NODES.num_devices, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def expected() -> dict[int, list[float]]:
    """The losses of the model in one piece, by the number of ranks whose batches it gets."""
    return {world_size: in_one_piece(world_size)[0] for world_size in (2, 4)}


@pytest.mark.parametrize("name", RIGHT)
def test_losses_are_those_of_the_model_in_one_piece(
    notes: list[dict[str, Any]], expected: dict[int, list[float]], name: str
) -> None:
    num_ranks = RIGHT[name].machine.num_devices
    for of_rank in notes[:num_ranks]:
        assert of_rank[name] == pytest.approx(expected[num_ranks], rel=1e-5)
    assert expected[num_ranks][0] != pytest.approx(expected[num_ranks][-1], rel=1e-3), "it learns"


@pytest.mark.parametrize("name", [*WRONG, UNEVEN])
def test_what_is_refused_as_wrong_trains_with_other_losses(
    notes: list[dict[str, Any]], expected: dict[int, list[float]], name: str
) -> None:
    """From the first step on, before any weight is updated; beside a table without rows, from the first update on."""
    first = 1 if "without any" in name else 0
    assert notes[0][name][first:] != pytest.approx(expected[4][first:], rel=1e-5)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_refused_as_impossible_fails(notes: list[dict[str, Any]], name: str) -> None:
    for of_rank in notes[: IMPOSSIBLE[name][0].machine.num_devices]:
        assert isinstance(of_rank[name], ValueError | RuntimeError | AssertionError)


@pytest.mark.parametrize(("case", "message"), (WRONG | IMPOSSIBLE).values(), ids=WRONG | IMPOSSIBLE)
def test_a_plan_that_torchrec_cannot_train_is_refused(case: Case, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        case.plan()


def test_rows_live_where_torchrec_looks_them_up() -> None:
    tables = list(TABLES.values())
    with pytest.raises(BadConfig, match="table 'p_sum' has rows 0:20 on rank 0, 20:30 on rank 1, 30:40 on rank 2"):
        plan_of_parts(shards_of(uneven_rows(), tables), tables, Everything(META), TWO_NODES, "cpu", {})


@pytest.mark.parametrize("name", [name for name in RIGHT if name.startswith("4")])
def test_a_plan_comes_back_as_it_went(name: str) -> None:
    parts = sorted(RIGHT[name].parts, key=lambda part: (list(TABLES).index(part.table), part.columns, part.rows))
    assert list(shards_of(RIGHT[name].plan(), list(TABLES.values()))) == parts


def test_types_and_kernels_by_hand() -> None:
    """The whole table beside one that is cut by columns is looked up with it; so are rows of a node beside a grid."""
    plan = Case(MIXED).plan().plan
    found = {name: (one.sharding_type, one.compute_kernel) for of in plan.values() for name, one in of.items()}
    of_mixed = {name: (way, "fused") for name, way in MIXED.items()}
    assert found == of_mixed | {"p_shared": ("grid_shard", "fused"), "p_tiny": ("data_parallel", "dense")}
    columns = Case({"p_sum": "column_wise", "s_shared": "column_wise"}).plan().plan
    assert {one.sharding_type for one in columns["pooled"].values()} == {"column_wise"}
    assert columns["sequences"]["s_own"].sharding_type == columns["weighted"]["w_long"].sharding_type == "table_wise"
