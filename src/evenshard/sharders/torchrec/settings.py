"""What users of TorchRec's planner choose, and the sweep over it: TorchRec's planner with free hands.

Everybody who compares with TorchRec takes the settings from here: the studies all of them, ``place --report`` a part,
for which it takes about a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from evenshard.placement.sharding import CUT_COLUMNS, GRIDS, IN_ROWS, REPLICATED
from evenshard.placement.task import ShardingTask

OWN_MEMORY, OUR_MEMORY = "torchrec", "evenshard"
# Groups of TorchRec's proposers; its default ones are greedy, uniform, and a search through all where these are few.
SCALE_UP, ALL_PROPOSERS, DYNAMIC = "scale-up", "all", "dynamic programming"
# Columns of the narrowest part, TorchRec's own, which are 128, first; the last ones seldom help.
NARROW = (16, 8)
MIN_PARTITIONS = (None, 64, 32, *NARROW)


@dataclass(frozen=True)
class PlannerSetting:
    """What a user of TorchRec's planner chooses.

    Attributes:
        min_partition: columns of the narrowest part; None for TorchRec's own, which is 128.
        sort_by: order of its greedy partitioner, storage or perf.
        grid_shard: whether it may use grid_shard, which it only does where it is named.
        replicas: whether it may use data_parallel where the task allows another type, too.
        rows: whether it may use the types that cut rows where the task allows another type, too.
        lookups: whether it is told pooling factors; without constraints it takes each to be 1.
        own_constants: whether its estimator keeps its own bandwidths in place of those that the planner was made with.
        load_factor: of every cache, to begin with; None for device memory alone.
        only: the one way to shard every table that can be; empty for all ways.
        memory: who counts it where there are caches, ``OWN_MEMORY`` or ``OUR_MEMORY``.
        proposers: a group of them; empty for TorchRec's default ones, with caches for EmbeddingOffloadScaleupProposer.
    """

    min_partition: int | None = None
    sort_by: str = "storage"
    grid_shard: bool = False
    replicas: bool = field(default=True, kw_only=True)
    rows: bool = field(default=True, kw_only=True)
    lookups: bool = field(default=True, kw_only=True)
    own_constants: bool = field(default=False, kw_only=True)
    load_factor: float | None = field(default=None, kw_only=True)
    only: str = field(default="", kw_only=True)
    memory: str = field(default=OWN_MEMORY, kw_only=True)
    proposers: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        width = "default min_partition" if self.min_partition is None else f"min_partition {self.min_partition}"
        said = (
            *(() if self.load_factor is None else (f"load factor {self.load_factor:g}",)),
            *((self.only,) if self.only else ()),
            f"{width}, by {self.sort_by}",
            *(("grid_shard",) if self.grid_shard else ()),
            *(() if self.replicas else ("no replicas",)),
            *(() if self.rows else ("no cut rows",)),
            *(() if self.lookups else ("no pooling factors",)),
            *(("its own bandwidths",) if self.own_constants else ()),
        )
        if self.load_factor is not None:
            said = (*said, f"{self.proposers or SCALE_UP} proposers", f"memory by {self.memory}")
        elif self.proposers:
            said = (*said, f"{self.proposers} proposers")
        return ", ".join(said)


# TorchRec's planner as it comes: no constraints but of types, and its own bandwidths. The second is told lookups.
AS_IT_COMES = PlannerSetting(lookups=False, own_constants=True)
PLAIN = (AS_IT_COMES, PlannerSetting(own_constants=True))


def free_hands(task: ShardingTask) -> tuple[PlannerSetting, ...]:
    """Settings for tables in device memory that differ for a task, as it comes first.

    Each set of types has TorchRec's own width, and each width, order and bandwidths has all types. Those that seldom
    help come last.
    """
    types = {way for of_table in task.types for way in of_table}
    widest = max(table.embedding_dim for table in task.tables)
    widths = [one for one in MIN_PARTITIONS if one is None or (one < widest and types & {*CUT_COLUMNS})]

    def choices(ways: Iterable[str], wanted: bool) -> tuple[bool, ...]:
        return (wanted, not wanted) if types & {*ways} and types - {*ways} else (wanted,)

    grids = choices(GRIDS, False) if task.machine.num_nodes > 1 else (False,)
    sets = [
        PlannerSetting(grid_shard=grid, replicas=replicas, rows=rows)
        for grid, replicas, rows in product(grids, choices(REPLICATED, True), choices(IN_ROWS, True))
        if rows or not grid  # a grid cuts rows
    ]
    quick = [replace(one, proposers=DYNAMIC) for one in sets]
    of_types = [replace(one, own_constants=constants) for constants, one in product((False, True), sets)]
    of_widths = [
        replace(sets[0], min_partition=width, sort_by=order, own_constants=constants)
        for constants, order, width in product((False, True), ("storage", "perf"), widths)
    ]
    of_widths.sort(key=lambda one: one.min_partition in NARROW)
    return tuple(dict.fromkeys((*PLAIN, *quick, *of_types, *of_widths)))


def offload_settings(
    load_factors: Sequence[float] = (0.02, 0.05, 0.1, 0.2),
    min_partitions: Sequence[int | None] = (None, 32),
    only: Sequence[str] = ("", "table_wise", "column_wise", "row_wise", "table_row_wise"),
    memory: Sequence[str] = (OWN_MEMORY, OUR_MEMORY),
) -> tuple[PlannerSetting, ...]:
    """All combinations with caches that differ, TorchRec's own default first: those of the scale-up, then of all."""
    return tuple(
        PlannerSetting(columns, "storage", not way, load_factor=factor, only=way, memory=who, proposers=proposers)
        for proposers, way, columns, factor, who in product(
            ("", ALL_PROPOSERS), only, min_partitions, load_factors, memory
        )
        if not (proposers == ALL_PROPOSERS and way) and (columns == min_partitions[0] or way in ("", *CUT_COLUMNS))
    )


def hands_text(chosen: Sequence[PlannerSetting]) -> str:
    """What settings differ in, in words."""
    widths = dict.fromkeys("its own" if one.min_partition is None else str(one.min_partition) for one in chosen)
    factors = dict.fromkeys(f"{one.load_factor:g}" for one in chosen if one.load_factor is not None)
    ways = dict.fromkeys(one.only or "every sharding type" for one in chosen)
    said = [f"with caches and UVM, load factors {', '.join(factors)}"] if factors else []
    said += [" or ".join(ways)] if len(ways) > 1 else []
    said.append(f"min_partition {', '.join(widths)}")
    for name, words in _HANDS.items():
        if len({getattr(one, name) for one in chosen}) > 1:
            said.append(words)
    return "; ".join(said)


# Differences of the settings of TorchRec's planner, in words.
_HANDS = {
    "sort_by": "by storage and by perf",
    "replicas": "with replicas and without",
    "rows": "with cut rows and without",
    "grid_shard": "with grid_shard and without",
    "lookups": "told pooling factors and not",
    "own_constants": "its own bandwidths and those of these devices",
    "proposers": "its default proposers and others",
}
