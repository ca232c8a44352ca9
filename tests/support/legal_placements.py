"""Whether a task has a legal placement: an integer program of the tests' own, which shares nothing with ``src``'s.

It knows every type, kernel and rule; of rows even cuts, and any cut where lookups are even over them; of caches
the one that takes the least memory. What it finds is checked by the rule of what is legal, so that it is a proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenshard.placement.parts import CACHED_KERNELS, COMPUTE_KERNELS, FUSED, Span, Storage, TablePart
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.task import ShardingTask, memory_of_part
from evenshard.tables.table import Table
from support.integer_program import Program, total

STEP = 4
# Share of a table's rows: smaller caches are not asked for.
LEAST_CACHE = 0.01


@dataclass(frozen=True)
class Ended:
    """How the program ended.

    Attributes:
        parts: a legal placement; None where none was found.
        is_proof: it is certain: there is this one, or none of those that the program knows.
    """

    parts: tuple[TablePart, ...] | None
    is_proof: bool


@dataclass
class _Program:
    """The program while it is made: what is taken of devices, hosts and SSDs, and who is where."""

    task: ShardingTask
    model: Program = field(default_factory=Program)
    taken: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    present: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    found: list[Any] = field(default_factory=list)

    def take(self, position: int, device: int, part: TablePart, times: Any) -> None:
        """A part of fixed bytes on a device, if its variable is 1."""
        self.add(device, _bytes(self.task, self.task.tables[position], part), times)
        self.present.setdefault((position, device), []).append(times)

    def add(self, device: int, sizes: tuple[int, int, int], times: Any) -> None:
        node = self.task.machine.node_of(device)
        for what, place, size in zip(("device", "host", "ssd"), (device, node, node), sizes, strict=True):
            if size:
                self.taken.setdefault((what, place), []).append(size * times)


def legal_placement(task: ShardingTask, seconds: float = 10.0) -> Ended:
    """Some legal placement of a task, if there is one.

    Args:
        seconds: the solver's, at most.
    """
    program = _Program(task)
    model = program.model
    ways_of = [list(_ways(program, position)) for position in range(len(task.tables))]
    if not all(ways_of):
        return Ended(None, True)
    for ways in ways_of:
        model.add(total(way for _, way in ways) == 1)
    for group in task.together:
        for kernel in COMPUTE_KERNELS:  # they are kept alike
            first, *others = ([way for one, way in ways_of[position] if one == kernel] for position in group)
            for other in others:
                model.add(total(first) == total(other))
        for device in range(task.num_devices):
            first, *others = (program.present.get((position, device), [0]) for position in group)
            for other in others:
                model.add(total(first) == total(other))
    for group in task.apart:
        for device in range(task.num_devices):
            model.add(total(one for position in group for one in program.present.get((position, device), ())) <= 1)
    machine = task.machine
    rooms = {"device": task.room_bytes, "host": machine.host_bytes, "ssd": machine.ssd_bytes}
    for (what, place), taken in program.taken.items():
        model.add(total(taken) <= (rooms[what][place] if rooms[what] else 0))
    answer = model.solve(seconds)
    if answer.values is None:
        return Ended(None, answer.is_infeasible)
    parts = tuple(part for found in program.found for part in found(answer))
    check_sharding(task, parts)
    return Ended(parts, True)


def _bytes(task: ShardingTask, table: Table, part: TablePart) -> tuple[int, int, int]:
    memory = memory_of_part(task, table, part)
    return memory.device_bytes, memory.host_bytes, memory.ssd_weights


def _ways(program: _Program, position: int) -> Iterator[tuple[str, Any]]:
    """A kernel and a variable for each way of a table, of which one is taken."""
    task, table = program.task, program.task.tables[position]
    machine, limits, types = task.machine, task.limits_of(position), task.types[position]
    everywhere = range(task.num_devices)
    allowed = [device for device in everywhere if limits.devices is None or device in limits.devices]
    nodes = [machine.devices_of_node(node) for node in range(machine.num_nodes)]
    full = [node for node in nodes if set(node) <= set(allowed)]
    whole = TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim))
    kernels = task.kernels_of(position)
    for kernel in kernels:
        kept = replace(whole, storage=Storage(kernel, LEAST_CACHE if kernel in CACHED_KERNELS else 1.0))
        if types & {TABLE_WISE, TABLE_COLUMN_WISE} or task.num_devices == 1:
            for device in allowed:
                yield kernel, _fixed(program, position, [replace(kept, devices=(device,))])
        if task.num_devices == 1:
            continue
        for scope in [allowed] if COLUMN_WISE in types else [sorted(set(node) & set(allowed)) for node in nodes]:
            if types & {COLUMN_WISE, TABLE_COLUMN_WISE} and len(scope) > 1 and table.embedding_dim % STEP == 0:
                yield kernel, _by_columns(program, position, kept, [[device] for device in scope])
        row_scopes = [list(everywhere)] if ROW_WISE in types else []
        row_scopes += [list(node) for node in full if TABLE_ROW_WISE in types]
        for devices in row_scopes:
            cut = _even(kept, table, devices)
            yield kernel, _fixed(program, position, cut)
            if table.row_shares is None and not table.is_deduplicated and len(cut) == len(devices):
                yield kernel, _any_rows(program, position, kept, devices)
        if GRID_SHARD in types and len(full) > 1:
            yield kernel, _by_columns(program, position, kept, [list(node) for node in full])
    if DATA_PARALLEL in types and task.num_devices > 1 and FUSED in kernels:
        yield FUSED, _fixed(program, position, [replace(whole, devices=tuple(everywhere))])


def _fixed(program: _Program, position: int, parts: Sequence[TablePart]) -> Any:
    """Parts that are known."""
    way = program.model.variable()
    for part in parts:
        for device in part.devices:
            program.take(position, device, part, way)
    program.found.append(lambda answer: parts if answer.value(way) else ())
    return way


def _even(whole: TablePart, table: Table, devices: Sequence[int]) -> list[TablePart]:
    """Rows in equal blocks; of few rows, the last devices have none."""
    block = -(-table.num_rows // len(devices))
    starts = range(0, table.num_rows, block)
    return [
        replace(whole, rows=Span(start, min(start + block, table.num_rows)), devices=(device,))
        for start, device in zip(starts, devices, strict=False)
    ]


def _any_rows(program: _Program, position: int, whole: TablePart, devices: Sequence[int]) -> Any:
    """Rows on each device, as many as there is room for: their bytes are a line, but for what is rounded.

    A part with every row is another matter: its outputs are sent.
    """
    task, table, model = program.task, program.task.tables[position], program.model
    way = model.variable()
    one = _bytes(task, table, replace(whole, rows=Span(0, 1), devices=(0,)))
    many = max(table.num_rows - 1, 1)
    most = _bytes(task, table, replace(whole, rows=Span(0, many), devices=(0,)))
    rounded = 8 + 2 * table.embedding_dim * (2 if whole.storage.is_cached else 1) * 4
    counts = {device: model.variable(table.num_rows) for device in devices}
    for device, count in counts.items():
        model.add(count >= way)
        program.present.setdefault((position, device), []).append(way)
        slopes = tuple(-(-(more - less) // max(many - 1, 1)) for less, more in zip(one, most, strict=True))
        program.add(device, slopes, count)
        rest = tuple(less + rounded * bool(less) - slope for less, slope in zip(one, slopes, strict=True))
        program.add(device, rest, way)
    model.add(total(counts.values()) == table.num_rows * way)

    def found(answer: Any) -> Iterator[TablePart]:
        stop = 0
        for device, count in counts.items():
            if size := answer.value(count):
                start, stop = stop, stop + size
                yield replace(whole, rows=Span(start, stop), devices=(device,))

    program.found.append(found)
    return way


def _by_columns(program: _Program, position: int, whole: TablePart, scopes: Sequence[Sequence[int]]) -> Any:
    """Fours of columns on some of the scopes, at least two; the rows of each are cut evenly over its devices."""
    task, table, model = program.task, program.task.tables[position], program.model
    way, fours = model.variable(), table.embedding_dim // STEP
    least = max(-(-task.limits_of(position).min_columns // STEP), 1)
    counts = [model.variable(fours) for _ in scopes]
    chosen = [model.variable() for _ in scopes]
    for devices, count, held in zip(scopes, counts, chosen, strict=True):
        model.add(count <= fours * held)
        model.add(count >= least * held)
        model.add(held <= way)
        for part in _even(whole, table, devices):
            narrow, wide = (
                _bytes(task, table, replace(part, columns=Span(0, columns))) for columns in (STEP, 2 * STEP)
            )
            slopes = tuple(more - less for less, more in zip(narrow, wide, strict=True))
            program.add(part.device, slopes, count)
            program.add(part.device, tuple(less - slope for less, slope in zip(narrow, slopes, strict=True)), held)
            program.present.setdefault((position, part.device), []).append(held)
    model.add(total(counts) == fours * way)
    model.add(total(chosen) >= 2 * way)

    def found(answer: Any) -> Iterator[TablePart]:
        stop = 0
        for devices, count in zip(scopes, counts, strict=True):
            if size := answer.value(count):
                start, stop = stop, stop + size
                for part in _even(whole, table, devices):
                    yield replace(part, columns=Span(STEP * start, STEP * stop))

    program.found.append(found)
    return way
