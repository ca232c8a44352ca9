"""A TorchRec model with a table for every change of sharding type, each with losses of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.placement.sharding import COLUMN_WISE, ROW_WISE, SHARDING_TYPES, TABLE_ROW_WISE, TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.torchrec import tables_of
from support.explain_builders import ROOM, answered
from support.sharding_cases import META, TWO_NODES
from support.torchrec_training import LOCAL_BATCH, NUM_STEPS, bag, in_parts, jagged

# Those that sequences have on the CPU.
SEQUENCE_WAYS = (TABLE_WISE, COLUMN_WISE, ROW_WISE)
PAIRS = {f"{old}_to_{new}": (old, new) for old, new in permutations(SHARDING_TYPES, 2)}
PAIRS |= {f"sequence_{old}_to_{new}": (old, new) for old, new in permutations(SEQUENCE_WAYS, 2)}
"""The type that a table has and the one that it gets, by the table's name."""
ROWS, DIM = 11, 8


class EveryPair(nn.Module):
    """A prediction for each table. Tables share no weights, so that an error of one stays its own.

    Where a collection has tables that are cut by columns, evenshard writes whole ones as such, and ``table_row_wise``
    beside grids. So pooled tables that become one of these have a collection of their own.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        merged = [name for name, (_, new) in PAIRS.items() if new in (TABLE_WISE, TABLE_ROW_WISE)]
        sequences = [name for name in PAIRS if name.startswith("sequence")]
        bags = {name: bag(name, ROWS, dim=DIM) for name in PAIRS if name not in sequences}
        self.bags = EmbeddingBagCollection([one for name, one in bags.items() if name not in merged], device=device)
        self.merged = EmbeddingBagCollection([one for name, one in bags.items() if name in merged], device=device)
        tables = [
            EmbeddingConfig(name=one, feature_names=[one], num_embeddings=ROWS, embedding_dim=DIM) for one in sequences
        ]
        self.sequences = EmbeddingCollection(tables, device=device)
        self.over = nn.Parameter(torch.rand(len(PAIRS), DIM, device=device))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """[samples, tables]"""
        found = {**self.bags(features).to_dict(), **self.merged(features).to_dict()}
        for name, one in self.sequences(features).items():
            found[name] = torch.stack([rows.square().sum(dim=0) for rows in one.to_dense()])
        return (torch.stack([found[name] for name in PAIRS], dim=1) * self.over).sum(dim=2)


TABLES = {table.name: table for table in tables_of(EveryPair(META))}


def pair_batches(world_size: int) -> list[tuple[list[tuple[Any, ...]], tuple[Any, ...], torch.Tensor]]:
    """As ``batches`` of ``torchrec_training``; the labels are [global batch, 1]."""
    rng = torch.Generator().manual_seed(5)
    samples = world_size * LOCAL_BATCH
    result = []
    for _ in range(NUM_STEPS):
        lengths = {name: torch.randint(0, 4, (samples,), generator=rng).tolist() for name in PAIRS}
        bags = {
            name: [torch.randint(0, ROWS, (length,), generator=rng) for length in of_samples]
            for name, of_samples in lengths.items()
        }
        local = [
            (jagged(bags, list(PAIRS), slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)),)
            for rank in range(world_size)
        ]
        result.append((local, (jagged(bags, list(PAIRS), slice(samples)),), torch.rand(samples, 1, generator=rng)))
    return result


def pair_answer(number: int, optimizer: str) -> PlacementAnswer:
    """The placement before, number 0, or after, number 1; each table may have its type alone."""
    ways = {name: pair[number] for name, pair in PAIRS.items()}
    request = PlacementRequest(
        tables=tuple(TABLES.values()),
        caps_bytes=(ROOM,) * TWO_NODES.num_devices,
        batch_size=16,
        optimizer=optimizer,
        rules=Rules.of(table_types=ways),
        machine=replace(TWO_NODES, inter="infiniband_ndr"),
    )
    parts = [
        part
        for at, (name, table) in enumerate(TABLES.items())
        for part in in_parts(table, ways[name], TWO_NODES, _first(ways[name], at + number))
    ]
    return answered(request, (), parts=parts)


def _first(way: str, number: int) -> int:
    """The rank of a table's first part; columns then lie on two nodes, except where they are to stay on one."""
    return (2 * number + 1 if way == COLUMN_WISE else number) % TWO_NODES.num_devices
