"""Small samples of traffic, written as their users' tools write them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evenshard.base.errors import BadFile
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import LOAD_FACTORS
from evenshard.tables.traffic import tables_from_traffic

# Lookups of each sample, by table.
Samples = dict[str, list[list[int]]]

# Four samples in windows of two. ads: the first window reads 7 twice and 2 once; the second reads 1, 3 and 5 once.
# user: one lookup each; rows 0, 0 and 4, 5.
TRAFFIC: Samples = {"ads": [[7, 7], [2], [], [1, 3, 5]], "user": [[0], [0], [4], [5]]}
# Shares of the lookups of its 8 rows.
ADS_ROWS = (0.0, 0.1666667, 0.1666667, 0.1666667, 0.0, 0.1666667, 0.0, 0.3333333)
USER_ROWS = (0.5, 0.0, 0.0, 0.0, 0.25, 0.25)


def misses_of_new_rows(num_rows: int, distinct: float) -> tuple[float, ...]:
    """Miss ratios where the second window has nothing in common with the first."""
    return tuple(round(min(1.0, (1 - share) * num_rows / (num_rows - distinct)), 5) for share in LOAD_FACTORS)


ADS_MISSES, USER_MISSES = misses_of_new_rows(8, 2.5), misses_of_new_rows(6, 1.5)


def bins(*shares: float) -> tuple[float, ...]:
    return shares + (0.0,) * (NUM_REUSE_BINS - len(shares))


def write_parquet(folder: Path, traffic: Samples, *cuts: int, **options: Any) -> Path:
    """One file per stretch between the cuts."""
    folder.mkdir(exist_ok=True)
    borders = [0, *cuts, len(next(iter(traffic.values())))]
    for number, (first, last) in enumerate(pairwise(borders)):
        columns = {name: pa.array(samples[first:last], pa.list_(pa.int64())) for name, samples in traffic.items()}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", **options)
    return folder


def write_batches(folder: Path, traffic: Samples, *cuts: int) -> Path:
    folder.mkdir(exist_ok=True)
    borders = [0, *cuts, len(next(iter(traffic.values())))]
    for number, (first, last) in enumerate(pairwise(borders)):
        torch.save(jagged({name: samples[first:last] for name, samples in traffic.items()}), folder / f"{number}.pt")
    return folder


def jagged(traffic: Samples) -> dict[str, Any]:
    samples = [one for of_table in traffic.values() for one in of_table]
    return {
        "keys": list(traffic),
        "values": torch.tensor([row for one in samples for row in one], dtype=torch.int64),
        "lengths": torch.tensor([len(one) for one in samples], dtype=torch.int32),
    }


def dlrm(traffic: Samples) -> tuple[torch.Tensor, ...]:
    content = jagged(traffic)
    lengths = content["lengths"]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return content["values"], offsets, lengths.reshape(len(traffic), -1)


def write_column(path: Path, column: Any) -> Path:
    pq.write_table(pa.table({"ads": column}), path)
    return path


def complaint(source: Path, **options: Any) -> str:
    with pytest.raises(BadFile) as caught:
        tables_from_traffic(source, 2, **({"embedding_dim": 8} | options))
    message = str(caught.value)
    assert "\n" not in message
    return message
