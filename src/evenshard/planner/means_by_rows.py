"""Rows of MEAN tables: where TorchRec trains them right, and what they would save where it does not.

TorchRec takes means of rows by dividing a collection's whole output, which is right where all of its tables are cut by
rows. So a search leaves MEAN tables without rows at first. A second one, shorter, takes rows of them for right beside
all types: where that saves nothing, there is nothing more to do. Where it does, the collections that it cuts are cut by
rows as a whole, as far as a bound leaves hope, and what is faster is the answer. What remains is said in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from evenshard.measure.price.step import PartCosts
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import ROWS_ALONE, sharding_type
from evenshard.placement.task import ShardingTask, cut_by_rows, ruled_out
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.search.search import PlanSearch, PlanSearchResult
from evenshard.tables.table import MEAN
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.units import ms_text

# Share of a step that rows must promise for collections to be cut by rows as a whole.
LEAST_SAVING = 0.01
# Share of a step that rows would save for a note to say so.
WORTH_A_NOTE = 0.02
# Share of a step that a bound must leave open on a single node, where rows seldom save anything.
HOPE_ON_A_NODE = 0.1
# Effort of the further searches, as shares of the first one's; the second is for what nearly is the answer.
SHORT, LONG = 1 / 4, 1 / 2
# Times the first answer: what a short search finds within that is searched for longer.
NEARLY = 1.1
# Collections that are also cut by rows one by one.
MOST_ALONE = 3
# Times that a division by lengths as wide as the outputs moves each of them, forward and backward.
PASSES = 9

# The collections are as in ``Table.collection``.
Collections = frozenset[tuple[str, bool, bool]]


@dataclass(frozen=True)
class Searched:
    """A search, and what it found."""

    search: PlanSearch
    result: PlanSearchResult
    collections: Collections = frozenset()  # those with MEAN tables that it cuts by rows as a whole
    divided_ms: float = 0.0  # time of dividing sums of rows into means, which no other time counts

    @property
    def step_ms(self) -> float:
        """Time of a step with that division, ms."""
        return self.result.best.predicted_ms + self.divided_ms


@dataclass(frozen=True)
class MeansSearched:
    """Searches to choose the answer from."""

    # Searches of legal placements; the first one leaves MEAN tables without rows, if it found anything.
    found: tuple[Searched, ...]
    # No legal placement is predicted to take less; infinite where the searches' own bounds say all.
    bound_ms: float = float("inf")
    free_ms: float | None = None  # what was found with rows of MEAN tables beside all types; None where nothing was
    # Of each MEAN table that has no rows beside other types, its collection.
    restricted: tuple[tuple[str, bool, bool], ...] = ()


# A search for a task, with a share of the effort; raises InfeasibleTask where a table has no type left.
Make = Callable[[PartCosts, float], PlanSearch]


def search_means(costs: PartCosts, first: Searched | None, kept: Collections, make: Make) -> MeansSearched:
    """Return the first search, and those whose collections with MEAN tables are cut by rows.

    Args:
        first: without rows of MEAN tables; None where it found nothing.
        kept: collections to cut by rows whatever that promises, as an earlier placement does.
    """
    task = costs.task
    restricted = [at for at in range(len(task.tables)) if _is_restricted(task, at)]
    begun = () if first is None else (first,)
    if not restricted or (first is not None and first.result.is_interrupted):
        return MeansSearched(begun)
    of = tuple(task.tables[at].collection for at in restricted)
    try:
        free = make(costs.of_task(replace(task, means_of_rows=True)), SHORT)
    except InfeasibleTask:  # another table has no type at all
        return MeansSearched(begun)
    able = _able(task, restricted)
    now_ms = float("inf") if first is None else first.step_ms
    free_bound_ms = lower_bound_ms(free.space, now_ms)
    bound_ms = free_bound_ms if able else float("inf")
    hope = LEAST_SAVING if task.machine.num_nodes > 1 else HOPE_ON_A_NODE
    if free_bound_ms > now_ms * (1 - hope) and not kept:
        return MeansSearched(begun, bound_ms, None, of)
    try:
        result = free.run([one.result.best.parts for one in begun])
    except InfeasibleTask:
        return MeansSearched(begun, bound_ms, None, of)
    wanted = _in_rows(task, result.best.parts)
    free_ms = result.best.predicted_ms + divided_ms(costs, wanted)
    found = list(begun)
    if free_ms < now_ms * (1 - LEAST_SAVING) or kept:
        for collections in _sets(wanted & able, kept & able):
            narrowed = costs.of_task(cut_by_rows(task, collections))
            searched = _search_rows(narrowed, collections, now_ms, make, always=bool(kept))
            found += [] if searched is None else [searched]
    return MeansSearched(tuple(found), bound_ms, free_ms, of)


def _search_rows(
    costs: PartCosts, collections: Collections, now_ms: float, make: Make, *, always: bool
) -> Searched | None:
    try:
        short, divided = make(costs, SHORT), divided_ms(costs, collections)
    except InfeasibleTask:  # a rule of another collection asks for rows
        return None
    if not always and lower_bound_ms(short.space, now_ms - divided) + divided >= now_ms:
        return None
    try:
        found = Searched(short, short.run(), collections, divided)
        if found.step_ms < NEARLY * now_ms:
            full = make(costs, LONG)
            again = Searched(full, full.run((found.result.best.parts,)), collections, divided)
            found = min(found, again, key=lambda one: one.step_ms)
    except InfeasibleTask:
        return None
    return found


def _is_restricted(task: ShardingTask, position: int) -> bool:
    """Whether a MEAN table could have rows but for the other tables of its collection."""
    table = task.tables[position]
    if table.pooling != MEAN or table.is_weighted or position in task.in_rows:
        return False
    allowed = task.limits_of(position).types & {*ROWS_ALONE}
    return bool(allowed - ruled_out(replace(task, means_of_rows=True), position).keys())


def _able(task: ShardingTask, restricted: Collection[int]) -> Collections:
    collections = frozenset(task.tables[at].collection for at in restricted)
    types = cut_by_rows(task, collections).types
    return collections - {table.collection for table, own in zip(task.tables, types, strict=True) if not own}


def _in_rows(task: ShardingTask, parts: Sequence[TablePart]) -> Collections:
    by_table, machine = parts_by_table(task, parts), task.machine
    return frozenset(
        table.collection
        for table in task.tables
        if table.pooling == MEAN and sharding_type(by_table[table.name], table, machine) in ROWS_ALONE
    )


def _sets(wanted: Collections, kept: Collections) -> Iterator[Collections]:
    alone = sorted(wanted)[:MOST_ALONE] if len(wanted) > 1 else []
    yield from dict.fromkeys(one for one in (wanted, *(frozenset({each}) for each in alone), kept) if one)


def divided_ms(costs: PartCosts, collections: Collection[object]) -> float:
    """Time of dividing the outputs of collections, on the device whose memory is slowest."""
    task = costs.task
    columns = sum(table.embedding_dim * table.num_features for table in task.tables if table.collection in collections)
    moved = PASSES * 4 * task.local_batch * columns
    return moved / min(kind.bytes_per_ns for kind in costs.kinds) * 1e-6


# What is said of it ---------------------------------------------------------------------------------------------------


def means_notes(means: MeansSearched, chosen: Searched) -> Iterator[str]:
    """What rows of MEAN tables cost, and what they would save."""
    if chosen.collections:
        yield (
            f"All tables of collections with MEAN tables are cut by rows: TorchRec trains rows of means right only so. "
            f"It divides their sums, about {ms_text(chosen.divided_ms)} ms of a step that no time here counts."
        )
    if means.free_ms is None or means.free_ms > chosen.step_ms * (1 - WORTH_A_NOTE):
        return
    saved = 100 * (1 - means.free_ms / chosen.step_ms)
    count = sum(one not in chosen.collections for one in means.restricted)
    which = "" if not count else f" {count:,} MEAN table{'s have' if count > 1 else ' has'} no rows for that reason."
    yield (
        f"TorchRec trains rows of MEAN tables wrongly beside tables of their collection that are not cut by rows."
        f"{which} Otherwise a step would take {ms_text(means.free_ms)} ms or less, {saved:.2g} % less. SUM with "
        f"weights of 1/length has no such limit, and a collection of MEAN tables alone may be cut by rows as a whole "
        f"(docs/torchrec.md#means)."
    )
