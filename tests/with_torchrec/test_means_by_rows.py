"""Collections with MEAN tables that evenshard cuts by rows as a whole: losses and weights are the unsharded model's.

Two ranks with gloo on the CPU.
"""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.distributed.types import ShardingPlan

from evenshard.torchrec import EvenshardPlanner
from support.ranks import run_ranks
from support.torchrec_training import Everything, sharded_losses, unsharded_losses

# Types of single MEAN tables, which the tables of their collections must then have too.
ASKED: dict[str, dict[str, str]] = {
    "means alone": {"m_long": "row_wise"},
    "sums with means": {"p_mean": "row_wise"},
    "both": {"m_short": "row_wise", "p_mean": "row_wise"},
}
NAMES = ("m_long", "m_short", "p_mean", "p_shared", "p_sum", "p_tiny")
# TorchRec adds 1e-6 to each number that it divides by; wrong means differ by a tenth.
ALIKE = 1e-4
# First letters of the tables that are cut by rows.
CUT = {"means alone": "m", "sums with means": "p", "both": "mp"}
PLANS = "plans.pickle"


@cache
def planned(name: str) -> ShardingPlan:
    planner = EvenshardPlanner(world_size=2, compute_device="cpu", memory_cap_gb=1.0, table_types=ASKED[name])
    return planner.plan(Everything(torch.device("meta")))


def process(rank: int, out: Path) -> Any:
    """One rank: the losses of each plan, which pytest has made, and its shards at the end."""
    import torch.distributed as dist

    notes: dict[str, Any] = {}
    for name, plan in pickle.loads((out / PLANS).read_bytes()).items():
        shards: list[tuple[str, list[int], torch.Tensor]] = []

        def look(model: Any, shards: list[tuple[str, list[int], torch.Tensor]] = shards) -> None:
            for key, value in model.state_dict().items():
                for one in value.local_shards() if hasattr(value, "local_shards") else ():
                    shards.append((key, one.metadata.shard_offsets, one.tensor.detach().clone()))

        notes[name] = (sharded_losses(plan, dist.group.WORLD, look), shards)
    return notes


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    (out / PLANS).write_bytes(pickle.dumps({name: planned(name) for name in ASKED}))
    return run_ranks(process, 2, out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_losses_and_weights_are_those_of_the_model_in_one_piece(notes: list[dict[str, Any]], name: str) -> None:
    whole: dict[str, torch.Tensor] = {}
    expected = unsharded_losses(2, lambda model: whole.update(model.state_dict()))
    seen: set[str] = set()
    for of_rank in notes:
        losses, shards = of_rank[name]
        assert losses == pytest.approx(expected, rel=ALIKE)
        for key, (row, column), tensor in shards:
            rows, columns = tensor.shape
            torch.testing.assert_close(
                tensor, whole[key][row : row + rows, column : column + columns], rtol=ALIKE, atol=ALIKE
            )
            seen.add(key.split(".")[-2])
    assert {one for one in NAMES if one[0] in CUT[name]} <= seen


@pytest.mark.parametrize("name", ASKED)
def test_all_tables_of_the_collection_are_cut_by_rows(name: str) -> None:
    found = {table: one.sharding_type for of in planned(name).plan.values() for table, one in of.items()}
    assert {way for table, way in found.items() if table[0] in CUT[name]} == {"row_wise"}
    assert not {"row_wise", "table_row_wise"} & {
        found[table] for table in ("m_long", "p_mean") if table[0] not in CUT[name]
    }
