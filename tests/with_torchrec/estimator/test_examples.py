"""The random placements that an estimator is fitted to."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evenshard.placement.plan import check_sharding, parts_by_table
from evenshard.placement.sharding import SHARDING_TYPES, sharding_type
from evenshard.tables.table import Table
from evenshard.torchrec.estimator.examples import LARGEST_REPLICA_BYTES, FittedMachine, random_parts

ROWS = LARGEST_REPLICA_BYTES // (32 * 4)
SMALL, LARGE = Table("small", ROWS, 32, 3.0), Table("large", ROWS + 1, 32, 3.0)


def test_large_tables_are_never_replicated_and_small_ones_are() -> None:
    task = FittedMachine("simulated:h100", devices_per_node=2).request([SMALL, LARGE], 2).task()
    rng, seen = np.random.default_rng(0), Counter[tuple[str, str]]()
    for _ in range(200):
        parts = random_parts(task, rng)
        check_sharding(task, parts)
        by_table = parts_by_table(task, parts)
        seen.update((one.name, sharding_type(by_table[one.name], one, task.machine)) for one in (SMALL, LARGE))
    read_off = set(SHARDING_TYPES) - {"table_column_wise"}  # whose parts are read as column_wise
    assert {way for name, way in seen if name == "small"} == read_off
    assert {way for name, way in seen if name == "large"} == read_off - {"data_parallel"}
