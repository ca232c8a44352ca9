"""The order of pooled outputs under a plan: the one that TorchRec's sharded collection has."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.sharding import SHARDING_TYPES, TYPES
from evenshard.planner.output_order import output_orders
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from evenshard.torchrec import sharding_plan, tables_of
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.plan.plans import plan_orders, warn_of_unsharded_order

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
    node = machine.devices_per_node
    plan = sharding_plan(parts, tables, {"e": whole}, machine.num_devices, compute_device="cpu", local_world_size=node)
    request = PlacementRequest(tables, (2**30,) * machine.num_devices, 8, machine=machine)
    predicted = plan_orders(plan, locate_tables({"e": whole})), output_orders(request, found)
    of_plan, of_parts = ([key for table in one["e"] for key in table.keys] for one in predicted)
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
    for seed in range(20):
        sharded, of_plan, of_parts = orders(seed, Nodes(4, 2, inter="infiniband_ndr"), four_ranks)
        assert (list(of_plan), list(of_parts)) == (sharded._embedding_names,) * 2, seed
        reordered += of_plan != sorted(of_plan, key=lambda key: (key.partition("@")[2] or f"t{key[1:]}", key))
    assert reordered > 10


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
