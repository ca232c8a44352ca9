"""Every sharding type, proven by training: 4 ranks on 2 nodes and 2 ranks on one, with gloo on the CPU."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torchrec.distributed.types import ShardingPlan

from evenshard.base.errors import BadConfig
from evenshard.placement.parts import ON_DEVICE, Storage
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.torchrec import shards_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.ranks import run_ranks
from support.sharding_cases import META, MIXED, TABLES, TWO_NODES, TWO_RANKS, Case, everything
from support.torchrec_training import Everything, sharded_losses, unsharded_losses

OFFLOADED = {
    "p_sum": Storage("fused_uvm_caching", 0.1),
    "p_mean": Storage("fused_uvm_caching", 0.3),
    "p_shared": Storage("fused_uvm"),
    "m_long": Storage("fused_uvm"),
    "m_short": Storage("fused_uvm_caching", 0.5),
    "w_long": Storage("fused_uvm_caching", 1.0),
    "s_shared": Storage("fused_uvm_caching", 0.01),
    "s_own": Storage("fused_uvm"),
}
# What trains with the losses of the model in one piece.
RIGHT: dict[str, Case] = {
    **{f"4 {way}": everything(way) for way in SHARDING_TYPES},
    **{f"2 {way}": everything(way, TWO_RANKS) for way in ("table_wise", "column_wise", "row_wise", "data_parallel")},
    "4 mixed": Case(MIXED),
    "4 columns of unequal widths": Case(
        {"p_sum": "column_wise", "p_shared": "grid_shard", "w_short": "column_wise"},
        {"p_sum": (8, 4, 4), "p_shared": (12, 4), "w_short": (4, 12)},
    ),
    "4 rows of all tables": Case(
        {"p": "row_wise", "p_shared": "table_row_wise", "p_tiny": "table_row_wise", "m": "row_wise", "s": "row_wise"}
    ),
    "4 mixed, out of device memory": Case(MIXED, storages=OFFLOADED),
    "4 mixed, with rows prefetched": Case(MIXED, storages=OFFLOADED, prefetched=True),
    "2 out of device memory": Case({}, {}, TWO_RANKS, OFFLOADED, False),
    "2 on the host's processor and on SSDs": Case(
        {}, {}, TWO_RANKS, {"p_sum": Storage("host"), "p_mean": Storage("key_value", 0.1)}
    ),
}
# Those of all seven types together.
EVERY_TYPE = ("4 mixed", "4 table_wise")
# What TorchRec trains with other losses, and without a word.
WRONG: dict[str, Case] = {
    "4 rows of one mean table": Case({"p_mean": "row_wise"}),
    "4 rows of sums and of means, the others whole": Case({"p": "row_wise", "p_tiny": "table_wise"}),
    "4 means in a grid": Case({"m_long": "grid_shard"}),
    "4 rows that leave a rank without any": Case({"p_tiny": "row_wise", "p_sum": "row_wise"}),
}
# What TorchRec refuses.
IMPOSSIBLE: dict[str, Case] = {
    "4 sequences on a node": Case({"s_own": "table_row_wise"}),
    "4 sequences in a grid": Case({"s_own": "grid_shard"}),
    "4 sequences replicated on the CPU": Case({"s_own": "data_parallel"}),
    "2 sequences of unequal widths": Case({"s": "column_wise"}, {"s_shared": (12, 4), "s_own": (12, 4)}, TWO_RANKS),
}
MESSAGES = {
    "4 rows of one mean table": "table 'p_mean' is sharded row_wise: TorchRec trains row-wise MEAN correctly only if",
    "4 rows of sums and of means, the others whole": "cut by rows, but 'p_tiny' is table_wise. Leave it whole",
    "4 means in a grid": "table 'm_long' is sharded grid_shard, with which TorchRec trains MEAN pooling incorrectly",
    "4 rows that leave a rank without any": "table 'p_tiny' is sharded row_wise, and its 3 rows leave a rank empty",
    "4 sequences on a node": "'s_own' of an EmbeddingCollection is sharded table_row_wise, which TorchRec does not",
    "4 sequences in a grid": "'s_own' of an EmbeddingCollection is sharded grid_shard, which TorchRec does not",
    "4 sequences replicated on the CPU": "is data_parallel, which FBGEMM does not support on the CPU",
    "2 sequences of unequal widths": r"shards have different widths, \[4, 12\]. Use one width",
}


def uneven_rows() -> ShardingPlan:
    """A plan with other blocks of rows than ceil(rows / ranks), as its own list of shards would allow."""
    plan = Case({"p_sum": "row_wise"}).plan()
    shards = plan.plan["pooled"]["p_sum"].sharding_spec.shards
    for shard, (start, size) in zip(shards, [(0, 20), (20, 10), (30, 10), (40, 10)], strict=True):
        shard.shard_offsets, shard.shard_sizes = [start, 0], [size, 16]
    return plan


CHOSEN = "chosen.json"


# In the ranks ---------------------------------------------------------------------------------------------------------


def process(rank: int, out: Path) -> Any:
    """One rank of the session. The first two are a group of their own, too."""
    import torch.distributed as dist

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    group_of = {TWO_RANKS: dist.new_group([0, 1]), TWO_NODES: dist.group.WORLD}
    plans = {name: (case.machine, case.plan()) for name, case in RIGHT.items()}
    with patch("evenshard.torchrec.plan.plans.check_trainable"):  # what is refused is tried
        plans |= {name: (case.machine, case.plan()) for name, case in (WRONG | IMPOSSIBLE).items()}
    plans["uneven rows"] = (TWO_NODES, uneven_rows())
    notes: dict[str, Any] = {}
    chosen = json.loads((out / CHOSEN).read_text())
    # In this order: TorchRec numbers process groups as it makes them, those of nodes with the first plan on 4 ranks.
    for name, (machine, plan) in plans.items():
        if name in chosen and rank < machine.num_devices:
            try:
                notes[name] = sharded_losses(plan, group_of[machine])
            except Exception as error:
                notes[name] = error
    return notes


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw of the plans whose tests were chosen, in one launch."""
    out = tmp_path_factory.mktemp("ranks")
    tests = (one for one in request.session.items if isinstance(one, pytest.Function) and one.path == request.path)
    chosen = {one.callspec.params["name"] for one in tests if "notes" in one.fixturenames}
    (out / CHOSEN).write_text(json.dumps(sorted(chosen)))
    return run_ranks(process, TWO_NODES.num_devices, out)


@pytest.fixture(scope="module")
def expected() -> dict[int, list[float]]:
    """The losses of the model in one piece, by the number of ranks whose batches it gets."""
    return {world_size: unsharded_losses(world_size) for world_size in (2, 4)}


@pytest.mark.parametrize(
    "name", [*EVERY_TYPE, *(pytest.param(name, marks=pytest.mark.slow) for name in RIGHT if name not in EVERY_TYPE)]
)
def test_losses_are_those_of_the_model_in_one_piece(
    notes: list[dict[str, Any]], expected: dict[int, list[float]], name: str
) -> None:
    num_ranks = RIGHT[name].machine.num_devices
    for of_rank in notes[:num_ranks]:
        assert of_rank[name] == pytest.approx(expected[num_ranks], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRONG, "uneven rows"])
def test_what_is_refused_as_wrong_trains_with_other_losses(
    notes: list[dict[str, Any]], expected: dict[int, list[float]], name: str
) -> None:
    """From the first step on, before any weight is updated; beside a table without rows, from the first update on."""
    step = 1 if "without any" in name else 0
    assert notes[0][name][step] != pytest.approx(expected[4][step], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_refused_as_impossible_fails(notes: list[dict[str, Any]], name: str) -> None:
    for of_rank in notes[: IMPOSSIBLE[name].machine.num_devices]:
        assert isinstance(of_rank[name], ValueError | RuntimeError | AssertionError)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_plan_that_torchrec_cannot_train_is_refused(name: str) -> None:
    with pytest.raises(BadConfig, match=MESSAGES[name]):
        (WRONG | IMPOSSIBLE)[name].plan()


def test_rows_live_where_torchrec_looks_them_up() -> None:
    plan = uneven_rows()
    with pytest.raises(BadConfig, match="table 'p_sum' has rows 0:20 on rank 0, 20:30 on rank 1, 30:40 on rank 2"):
        plan_of_parts(
            shards_of(plan, list(TABLES.values())), list(TABLES.values()), Everything(META), TWO_NODES, "cpu", {}
        )


@pytest.mark.parametrize("name", RIGHT)
def test_a_plan_comes_back_as_it_went(name: str) -> None:
    case = RIGHT[name]
    parts = sorted(case.parts, key=lambda part: (list(TABLES).index(part.table), part.columns, part.rows))
    on_cpu = [replace(one, storage=ON_DEVICE) if one.storage.kernel in ("host", "key_value") else one for one in parts]
    assert list(shards_of(case.plan(), list(TABLES.values()))) == on_cpu


def test_types_and_kernels_by_hand() -> None:
    """The whole table beside one that is cut by columns is looked up with it; so are rows of a node beside a grid."""
    plan = Case(MIXED).plan().plan
    found = {name: (one.sharding_type, one.compute_kernel) for of in plan.values() for name, one in of.items()}
    assert found == {
        **{name: (way, "fused") for name, way in MIXED.items()},
        "p_shared": ("grid_shard", "fused"),
        "p_tiny": ("data_parallel", "dense"),
    }
    columns = Case({"p_sum": "column_wise", "s_shared": "column_wise"}).plan().plan
    assert {name: one.sharding_type for name, one in columns["pooled"].items()} == dict.fromkeys(
        ("p_sum", "p_mean", "p_shared", "p_tiny"), "column_wise"
    )
    assert columns["sequences"]["s_own"].sharding_type == columns["weighted"]["w_long"].sharding_type == "table_wise"
