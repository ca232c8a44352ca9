"""The order of pooled outputs under a plan: the one that TorchRec's sharded collection has."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.sharding import SHARDING_TYPES, TYPES
from evenshard.planner.output_order import output_orders
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from evenshard.torchrec import EvenshardPlanner, sharding_plan, tables_of
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.plan.plans import plan_orders, warn_of_unsharded_order
from support.ranks import run_ranks

ROWS, TABLES = 16, 7
CPU = torch.device("cpu")


def collection(choice: random.Random) -> EmbeddingBagCollection:
    """Tables of two widths, data types and poolings, some of which share a feature."""
    means = choice.random() < 0.3  # with means, no table is cut by rows
    return EmbeddingBagCollection(
        device=CPU,
        tables=[
            EmbeddingBagConfig(
                name=f"t{number}",
                num_embeddings=ROWS,
                embedding_dim=choice.choice((16, 32)),
                feature_names=[f"f{number}", *(["shared"] if choice.random() < 0.3 else [])],
                pooling=PoolingType.MEAN if means and choice.random() < 0.5 else PoolingType.SUM,
                data_type=choice.choice((DataType.FP32, DataType.FP32, DataType.FP16)),
            )
            for number in range(TABLES)
        ],
    )


def parts_of(table: Table, machine: Nodes, way: str, choice: random.Random) -> list[TablePart]:
    """A table sharded in a type, anywhere."""
    own = TYPES[way]
    if own.is_replicated:
        return [TablePart(table.name, Span(0, ROWS), Span(0, table.embedding_dim), tuple(range(machine.num_devices)))]
    homes = choice.choice(own.homes(machine))
    places = [place for place in own.places(machine) if place[0] in homes]
    count = 2 if own.cuts_columns else 1
    width = table.embedding_dim // count
    found = []
    for number, place in enumerate(choice.sample(places, count)):
        for at, device in enumerate(place):
            rows = Span(at * ROWS // len(place), (at + 1) * ROWS // len(place))
            found.append(TablePart(table.name, rows, Span(number * width, (number + 1) * width), (device,)))
    return found


def orders(seed: int, machine: Nodes, env: ShardingEnv) -> tuple[Any, Sequence[str], Sequence[str]]:
    """TorchRec's sharded collection of random parts, and the two predictions: of the plan, and of the placement."""
    choice = random.Random(seed)
    whole = collection(choice)
    tables = tables_of({"e": whole})
    has_means = any(one.pooling == "mean" for one in tables)
    ways = [
        one for one in SHARDING_TYPES if TYPES[one].is_distinct_on(machine) and not (has_means and TYPES[one].cuts_rows)
    ]
    found = {table.name: parts_of(table, machine, choice.choice(ways), choice) for table in tables}
    parts = [part for own in found.values() for part in own]
    plan = sharding_plan(
        parts,
        tables,
        {"e": whole},
        machine.num_devices,
        compute_device="cpu",
        local_world_size=machine.devices_per_node,
    )
    request = PlacementRequest(tables, (2**30,) * machine.num_devices, 8, machine=machine)
    of_plan, of_parts = (
        [key for one in tables_in_order for key in one.keys]
        for (tables_in_order,) in (
            plan_orders(plan, locate_tables({"e": whole})).values(),
            output_orders(request, found).values(),
        )
    )
    return EmbeddingBagCollectionSharder().shard(whole, plan.plan["e"], env, CPU), of_plan, of_parts


@pytest.fixture
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardingEnv]:
    """One process that TorchRec takes for rank 0 of two nodes of two ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield ShardingEnv.from_process_group(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")  # TorchRec passes it to torch
def test_the_order_is_that_of_torchrec_for_mixes_of_all_types_on_two_nodes(four_ranks: ShardingEnv) -> None:
    reordered = 0
    for seed in range(40):
        sharded, of_plan, of_parts = orders(seed, Nodes(4, 2, inter="infiniband_ndr"), four_ranks)
        assert (list(of_plan), list(of_parts)) == (sharded._embedding_names,) * 2, seed
        reordered += of_plan != sorted(of_plan, key=lambda key: (key.partition("@")[2] or f"t{key[1:]}", key))
    assert reordered > 20


def process(rank: int, out: Path) -> Any:
    """One of two ranks: keys of real outputs beside both predictions."""
    env, found = ShardingEnv.from_process_group(dist.group.WORLD), []
    for seed in range(8):
        sharded, *predicted = orders(seed, Nodes(2, 2), env)
        features = list(dict.fromkeys(key.partition("@")[0] for key in sharded._embedding_names))
        lengths = torch.ones(len(features) * 2, dtype=torch.long)
        output = sharded(KeyedJaggedTensor(features, torch.zeros(len(lengths), dtype=torch.long), lengths=lengths))
        found.append((output.keys(), output.length_per_key(), [list(one) for one in predicted]))
    return found


@pytest.mark.slow
def test_keys_of_outputs_on_two_ranks_are_in_the_predicted_order(tmp_path: Path) -> None:
    for of_rank in run_ranks(process, 2, tmp_path, LOCAL_WORLD_SIZE="2"):
        for seed, (keys, dims, predicted) in enumerate(of_rank):
            assert predicted == [keys, keys]
            dim_of = {one.name: one.embedding_dim for one in collection(random.Random(seed)).embedding_bag_configs()}
            own = [(key, dim) for key, dim in zip(keys, dims, strict=True) if "shared" not in key]
            assert [dim for _, dim in own] == [dim_of[f"t{key[1:]}"] for key, _ in own]  # nothing is padded


def test_loading_a_plan_names_both_orders(caplog: pytest.LogCaptureFixture) -> None:
    tables = [EmbeddingBagConfig(name=one, num_embeddings=8, embedding_dim=8, feature_names=[one]) for one in "abc"]
    model = {"e": EmbeddingBagCollection(device=torch.device("meta"), tables=tables)}
    known = tables_of(model)
    parts = [TablePart(one.name, Span(0, 8), Span(0, 8), (rank,)) for one, rank in zip(known, (1, 0, 1), strict=True)]
    plan = sharding_plan(parts, known, model, 2, compute_device="cpu")
    with caplog.at_level(logging.WARNING):
        warn_of_unsharded_order(plan, locate_tables(model))
    assert "The order of the pooled output of e changes: a b c -> b a c." in caplog.text
    caplog.clear()
    in_order = [replace(one, devices=(0,)) for one in parts]
    warn_of_unsharded_order(sharding_plan(in_order, known, model, 2, compute_device="cpu"), locate_tables(model))
    assert not caplog.text


@pytest.mark.slow
def test_the_planner_keeps_the_order_of_the_unsharded_model() -> None:
    tables = [
        EmbeddingBagConfig(name=f"t{at}", num_embeddings=1_000 * (at + 1), embedding_dim=16, feature_names=[f"f{at}"])
        for at in range(5)
    ]
    model = torch.nn.ModuleDict({"e": EmbeddingBagCollection(device=torch.device("meta"), tables=tables)})
    asked: dict[str, Any] = {"hardware": "h100", "memory_cap_gb": 1.0, "effort": "quick", "intra": "nvlink_h100"}
    asked |= {"pooling_factors": {f"t{at}": 30.0 / (at + 1) for at in range(5)}}
    planner = EvenshardPlanner(world_size=2, compute_device="cuda", keep_output_order=True, **asked)
    plan = planner.plan(model)
    (found,) = plan_orders(plan, locate_tables(model)).values()
    assert [key for one in found for key in one.keys] == ["f0", "f1", "f2", "f3", "f4"]
    assert planner.answer is not None and "order f0 f1 f2 f3 f4" in planner.answer.notes[-1]
