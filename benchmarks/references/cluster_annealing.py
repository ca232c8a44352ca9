"""Simulated annealing over every way to shard, on the true cost of a simulated cluster: the best known placements.

Types are decided together, as each costs kernel calls and collectives: placements are constructed with the heaviest
tables of one type, the small ones replicated and the rest of another, for many shares of each; the best ones are
annealed.

A move takes a table, more often than not one of the slowest device, and moves a part of it, swaps it with another's,
cuts or joins columns, shifts columns between two parts, or shards the table another way; or it shards all tables of one
type another way, which saves that type's kernel calls and collectives. What is minimized is a power mean over the
devices, close to their maximum, so that moves count that help one of several equally slow devices.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.references.cluster_state import ClusterState
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart
from evenshard.placement.plan import check_sharding
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    IN_ROWS,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    sharding_type,
)
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

Parts = tuple[TablePart, ...]
POWER = 100.0
CONSTRUCTION_POWER = 8.0
# Of the tables: those of the first type, and those that are replicated.
HEAVY_SHARES, REPLICATED_SHARES = (0.0, 0.15, 0.3, 0.5, 1.0), (0.4, 0.6, 0.75)
# First and last temperature, as shares of the cost.
HOTTEST, COLDEST = 0.02, 0.0001
ALL_WAYS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, GRID_SHARD, DATA_PARALLEL)


@dataclass(frozen=True)
class Annealed:
    """What annealing found.

    Attributes:
        ms: true cost.
        parts: the placement.
        moves: that were tried.
    """

    ms: float
    parts: Parts
    moves: int


def anneal(
    cluster: SimulatedCluster,
    task: ShardingTask,
    profile: GpuProfile,
    start: Sequence[TablePart],
    moves: int,
    seed: int = 0,
    hottest: float = HOTTEST,
    seconds: float = math.inf,
) -> Annealed:
    """The best placement that is found from a start.

    Args:
        start: a placement that fits.
        moves: to try.
        seconds: after which the search ends at the latest; the temperature falls with whatever is used up first.
    """
    state = ClusterState(cluster, task, profile)
    state.start(start)
    mover = Mover(state, random.Random(seed))
    energy = power_mean(state.windows_WD)
    best_ms, best = state.step_ms, list(state.parts)
    began, step = time.monotonic(), 0
    temperature = hottest
    while step < moves:
        if step % 64 == 0:
            used = max(step / moves, (time.monotonic() - began) / seconds)
            if used >= 1:
                break
            temperature = hottest * (COLDEST / hottest) ** used
        step += 1
        changes = mover.propose()
        if not changes:
            continue
        before = {position: state.parts[position] for position in changes}
        state.change(changes)
        after = power_mean(state.windows_WD)
        allowed = energy * (1 - temperature * math.log(max(mover.rng.random(), 1e-12)))
        if after <= allowed and state.fits():
            energy = after
            if state.step_ms < best_ms:
                best_ms, best = state.step_ms, list(state.parts)
        else:
            state.change(before)
    parts = tuple(part for of_table in best for part in of_table)
    check_sharding(task, parts)
    return Annealed(cluster.cost(task, parts).step_ms(task.pipeline), parts, step)


@dataclass(frozen=True)
class Effort:
    """How long to look for the best known placement.

    Attributes:
        first: starts that are annealed for ``first_moves``.
        last: of these, annealed for ``last_moves``.
        tries: places that a construction tries for each part.
    """

    first: int = 6
    first_moves: int = 12_000
    last: int = 2
    last_moves: int = 60_000
    tries: int = 3


def best_known(
    cluster: SimulatedCluster,
    task: ShardingTask,
    profile: GpuProfile,
    known: Sequence[Sequence[TablePart]] = (),
    effort: Effort | None = None,
    seed: int = 0,
) -> Annealed:
    """The best placement of several annealings.

    Args:
        known: placements that fit, such as those of others; they are starts too.
    """
    effort = effort or Effort()
    starts = [Annealed(cluster.cost(task, parts).step_ms(task.pipeline), tuple(parts), 0) for parts in known]
    starts += constructions(cluster, task, profile, effort.tries, seed)
    for count, moves in ((effort.first, effort.first_moves), (effort.last, effort.last_moves)):
        starts.sort(key=lambda one: one.ms)
        starts[:count] = [
            min(one, anneal(cluster, task, profile, one.parts, moves, seed), key=lambda each: each.ms)
            for one in starts[:count]
        ]
    return min(starts, key=lambda one: one.ms)


def constructions(
    cluster: SimulatedCluster, task: ShardingTask, profile: GpuProfile, tries: int, seed: int
) -> list[Annealed]:
    """Placements of mixed types that fit, the best one of every pair of types."""
    tables = task.tables
    heavy = sorted(range(len(tables)), key=lambda one: -tables[one].pooling_factor * tables[one].embedding_dim)
    sizes = sorted(table.num_rows * table.embedding_dim for table in tables)
    counts = sorted({round(len(tables) * share) for share in HEAVY_SHARES} | {1, 2})
    limits = sorted({0, *(sizes[min(round(len(sizes) * share), len(sizes) - 1)] for share in REPLICATED_SHARES)})
    best: dict[tuple[str, str, bool], Annealed] = {}
    for first, rest in product(ALL_WAYS, (TABLE_WISE, COLUMN_WISE)):
        if first == DATA_PARALLEL:
            continue
        for count, limit in product(counts, limits):
            ways = [rest] * len(tables)
            for position in heavy[:count]:
                ways[position] = first
            for position, table in enumerate(tables):
                if table.num_rows * table.embedding_dim < limit:
                    ways[position] = DATA_PARALLEL
            parts = _construct(cluster, task, profile, ways, heavy, tries, seed)
            if parts is None:
                continue
            found = Annealed(cluster.cost(task, parts).step_ms(task.pipeline), parts, 0)
            key = (first, rest, limit > 0)
            best[key] = min(best.get(key, found), found, key=lambda one: one.ms)
    return list(best.values())


def _construct(
    cluster: SimulatedCluster,
    task: ShardingTask,
    profile: GpuProfile,
    ways: Sequence[str],
    order: Sequence[int],
    tries: int,
    seed: int,
) -> Parts | None:
    """Table after table in this order, each at the best of several places; None where one has no room."""
    state = ClusterState(cluster, task, profile)
    state.start_empty()
    mover = Mover(state, random.Random(seed))
    for position in sorted(order, key=lambda one: ways[one] not in (ROW_WISE, DATA_PARALLEL)):
        way = ways[position]
        tried: list[tuple[float, Parts]] = []
        for parts in dict.fromkeys(mover.reshard(position, way) for _ in range(tries)):
            if parts is None:
                parts = mover.reshard(position, TABLE_WISE)
            assert parts is not None, "a table can be whole"
            state.change({position: parts})
            if state.fits():
                tried.append((float(np.mean(state.totals_D**CONSTRUCTION_POWER)), parts))
        if not tried:
            return None
        state.change({position: min(tried, key=lambda one: one[0])[1]})
    return tuple(part for parts in state.parts for part in parts)


def power_mean(windows_WD: FloatArray) -> float:
    """Close to the time of a step, a little less where few devices are as slow."""
    top_W1 = np.maximum(windows_WD.max(axis=1, keepdims=True), 1e-12)
    return float((top_W1[:, 0] * np.mean((windows_WD / top_W1) ** POWER, axis=1) ** (1 / POWER)).sum())


class Mover:
    """Proposes changes of a state."""

    def __init__(self, state: ClusterState, rng: random.Random) -> None:
        self.state, self.rng = state, rng
        self.task, self.machine = state.task, state.task.machine

    def propose(self) -> dict[int, Parts]:
        """New parts of one table or more; empty where the dice fell on what cannot be done."""
        rng = self.rng
        position = self._pick_table()
        kind = rng.random()
        if kind < 0.02:
            return self._retype_all()
        parts = self.state.parts[position]
        way = self._way(position, parts)
        if kind < 0.25 or way in (ROW_WISE, DATA_PARALLEL):
            found = self.reshard(position)
        elif kind < 0.45:
            return self._swap(position, way)
        elif way == TABLE_ROW_WISE:
            found = self._in_rows(position, (self.task.tables[position].embedding_dim,), [self._light_node()])
        elif way == GRID_SHARD:
            found = self._move_grid(position, parts)
        else:
            found = self._move_columns(position, parts)
        return {} if found is None or found == parts else {position: found}

    def _pick_table(self) -> int:
        if self.rng.random() < 0.6:
            slowest = int(self.state.totals_D.argmax())
            there = [
                position
                for position, parts in enumerate(self.state.parts)
                if any(slowest in part.devices for part in parts)
            ]
            if there:
                return self.rng.choice(there)
        return self.rng.randrange(len(self.task.tables))

    # Ways -------------------------------------------------------------------------------------------------------------

    def _way(self, position: int, parts: Parts) -> str:
        return sharding_type(parts, self.task.tables[position], self.machine)

    def reshard(self, position: int, way: str = "") -> Parts | None:
        """Other parts of a table, of a type or of any; None where it cannot be of that one."""
        table, rng = self.task.tables[position], self.rng
        way = way or rng.choice(ALL_WAYS)
        if way not in self.task.types[position] or (
            way in (TABLE_ROW_WISE, GRID_SHARD) and self.machine.num_nodes == 1
        ):
            return None
        if way == DATA_PARALLEL:
            return (self._part(table, range(self.task.num_devices)),)
        if way == TABLE_WISE:
            return (self._part(table, (self._light_device(),)),)
        if way == ROW_WISE:
            return self._rows(table, range(self.task.num_devices), Span(0, table.embedding_dim))
        if way == TABLE_ROW_WISE:
            return self._in_rows(position, (table.embedding_dim,), [self._light_node()])
        most = self.task.num_devices if way == COLUMN_WISE else self.machine.num_nodes
        widths = self._even_widths(table, most)
        if widths is None:
            return None
        if way == GRID_SHARD:
            return self._in_rows(position, widths, self._light_nodes(len(widths)))
        homes: list[int] = []
        for _ in widths:
            homes.append(self._light_device(homes))
        return self._columns(table, dict(zip(homes, widths, strict=True)))

    def _even_widths(self, table: Table, most: int) -> tuple[int, ...] | None:
        steps, rest = divmod(table.embedding_dim, COLUMN_STEP)
        counts = [count for count in (2, 3, 4, 6, 8, 16, 32) if count <= min(steps, most)]
        if rest or not counts:
            return None
        count = self.rng.choice(counts)
        return tuple(COLUMN_STEP * (steps // count + (number < steps % count)) for number in range(count))

    def _retype_all(self) -> dict[int, Parts]:
        by_way: dict[str, list[int]] = defaultdict(list)
        for position, parts in enumerate(self.state.parts):
            by_way[self._way(position, parts)].append(position)
        rare = min(by_way.values(), key=len)
        if len(rare) > 12:
            return {}
        way = self.rng.choice([one for one in ALL_WAYS if one in by_way])
        found = {position: self.reshard(position, way) for position in rare}
        return {position: parts for position, parts in found.items() if parts is not None}

    # Places -----------------------------------------------------------------------------------------------------------

    def _light_device(self, but: Sequence[int] = ()) -> int:
        drawn = [one for one in self.rng.choices(range(self.task.num_devices), k=4) if one not in but]
        if not drawn:
            drawn = [one for one in range(self.task.num_devices) if one not in but]
        return min(drawn, key=lambda device: self.state.totals_D[device])

    def _light_node(self, but: Sequence[int] = ()) -> int:
        drawn = [one for one in range(self.machine.num_nodes) if one not in but]
        drawn = self.rng.sample(drawn, min(2, len(drawn)))
        size = self.machine.devices_per_node
        return min(drawn, key=lambda node: self.state.totals_D[node * size : (node + 1) * size].max())

    def _light_nodes(self, count: int) -> list[int]:
        found: list[int] = []
        for _ in range(count):
            found.append(self._light_node(found))
        return found

    def _move_grid(self, position: int, parts: Parts) -> Parts:
        spans = sorted({part.columns for part in parts})
        node_of = {part.columns: self.machine.node_of(part.device) for part in parts}
        nodes = [node_of[span] for span in spans]
        free = len(nodes) < self.machine.num_nodes
        number = self.rng.randrange(len(nodes))
        if free:
            nodes[number] = self._light_node(nodes)
        return self._in_rows(position, [span.size for span in spans], nodes)

    def _move_columns(self, position: int, parts: Parts) -> Parts | None:
        """Moves, cuts, joins or shifts the columns of a table that is whole or cut by columns."""
        table, rng = self.task.tables[position], self.rng
        widths = {part.device: part.columns.size for part in parts}
        homes = sorted(widths, key=lambda device: self.state.totals_D[device])
        one = homes[-1] if rng.random() < 0.5 else rng.choice(homes)
        kind = rng.random()
        if kind < 0.5 or table.embedding_dim % COLUMN_STEP or COLUMN_WISE not in self.task.types[position]:
            if len(homes) == self.task.num_devices:
                return None
            widths[self._light_device(homes)] = widths.pop(one)
        elif kind < 0.65:
            if len(homes) == self.task.num_devices or widths[one] < 2 * COLUMN_STEP:
                return None
            moved = COLUMN_STEP * rng.randint(1, widths[one] // COLUMN_STEP - 1)
            if rng.random() < 0.7:
                moved = COLUMN_STEP * (widths[one] // COLUMN_STEP // 2)
            widths[one] -= moved
            widths[self._light_device(homes)] = moved
        elif len(homes) < 2:
            return None
        elif kind < 0.85:
            other = rng.choice([home for home in homes if home != one])
            moved = min(COLUMN_STEP * rng.choice((1, 1, 2, 4)), widths[one])
            widths[one] -= moved
            widths[other] += moved
            if not widths[one]:
                del widths[one]
        else:
            other = rng.choice([home for home in homes if home != one])
            widths[other] += widths.pop(one)
        return self._columns(table, widths)

    def _swap(self, position: int, way: str) -> dict[int, Parts]:
        """Two parts of whole tables or columns change places, or two tables in rows their nodes."""
        rng = self.rng
        other = rng.randrange(len(self.task.tables))
        first, second = self.state.parts[position], self.state.parts[other]
        other_way = self._way(other, second)
        if other == position:
            return {}
        if way == TABLE_ROW_WISE == other_way:
            nodes = [self.machine.node_of(parts[0].device) for parts in (first, second)]
            dims = [self.task.tables[one].embedding_dim for one in (position, other)]
            return {
                position: self._in_rows(position, dims[:1], nodes[1:]),
                other: self._in_rows(other, dims[1:], nodes[:1]),
            }
        if way in IN_ROWS or other_way in (*IN_ROWS, DATA_PARALLEL):
            return {}
        widths = [{part.device: part.columns.size for part in parts} for parts in (first, second)]
        here, there = rng.choice(list(widths[0])), rng.choice(list(widths[1]))
        if there in widths[0] or here in widths[1]:
            return {}
        widths[0][there], widths[1][here] = widths[0].pop(here), widths[1].pop(there)
        tables = self.task.tables
        return {position: self._columns(tables[position], widths[0]), other: self._columns(tables[other], widths[1])}

    # Parts ------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _part(table: Table, devices: Sequence[int]) -> TablePart:
        return TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), tuple(devices))

    @staticmethod
    def _columns(table: Table, widths: dict[int, int]) -> Parts:
        """Parts as wide as this on these devices; in the order of devices, so that equal ones are equal."""
        found, start = [], 0
        for device in sorted(widths):
            columns = Span(start, start + widths[device])
            found.append(TablePart(table.name, Span(0, table.num_rows), columns, (device,)))
            start = columns.stop
        return tuple(found)

    @staticmethod
    def _rows(table: Table, devices: Sequence[int], columns: Span) -> Parts:
        block = -(-table.num_rows // len(devices))
        return tuple(
            TablePart(table.name, Span(start, min(start + block, table.num_rows)), columns, (device,))
            for start, device in zip(range(0, table.num_rows, block), devices, strict=False)
        )

    def _in_rows(self, position: int, widths: Sequence[int], nodes: Sequence[int]) -> Parts:
        """Columns, each in rows on the devices of a node."""
        table, start = self.task.tables[position], 0
        found: list[TablePart] = []
        for node, width in sorted(zip(nodes, widths, strict=True)):
            found += self._rows(table, self.machine.devices_of_node(node), Span(start, start + width))
            start += width
        return tuple(found)
