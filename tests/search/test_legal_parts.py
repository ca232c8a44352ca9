"""Legal parts where memory is tight: by hand, and random small tasks against all their placements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import check_sharding, list_broken_rules, parts_by_table
from evenshard.placement.sharding import (
    BY_COLUMNS,
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
    sharding_problem,
    sharding_type,
)
from evenshard.placement.task import ShardingTask, TableLimits, used_bytes
from evenshard.search import items as room_items
from evenshard.search.items import KnownItems, PackedItems
from evenshard.search.legal_parts import legal_parts, quick_parts
from evenshard.tables.table import Table

EXAMPLES = int(os.environ.get("EVENSHARD_TIGHT_TASKS", "150"))
LINK = "infiniband_ndr"
ONE_NODE, TWO_NODES = Nodes.one_node(4), Nodes(4, 2, inter=LINK)


def table(name: str = "t", rows: int = 10, dim: int = 8, bits: int = 32) -> Table:
    return Table(name, rows, dim, 2.0, weight_bits=bits)


def task(*tables: Table, room: int | tuple[int, ...], machine: Nodes = ONE_NODE, **more: object) -> ShardingTask:
    rooms = room if isinstance(room, tuple) else (room,) * machine.num_devices
    if isinstance(types := more.pop("types", None), tuple):
        more["limits"] = (TableLimits(frozenset(types)),) * len(tables)
    return ShardingTask(tables, machine, rooms, 64, **more)  # type: ignore[arg-type]


def types_of(asked: ShardingTask, parts: tuple[TablePart, ...]) -> list[str]:
    by_table = parts_by_table(asked, parts)
    return [sharding_type(by_table[one.name], one, asked.machine) for one in asked.tables]


# By hand: 10 rows of 8 columns in fp32 are 320 bytes ------------------------------------------------------------------


COLUMNS, REPLICATED = TableLimits(frozenset(BY_COLUMNS)), TableLimits(frozenset({DATA_PARALLEL}))
BOTH = [TABLE_WISE, TABLE_WISE]
GRID_OR_ROWS = (TABLE_WISE, GRID_SHARD, TABLE_ROW_WISE)


@pytest.mark.parametrize(
    ("asked", "types", "used"),
    [
        (task(table("a"), table("b"), room=320), BOTH, [320, 320, 0, 0]),
        # Columns are cut in as few parts as there is room for, or in two where they must be cut.
        (task(table(dim=16), room=330, types=BY_COLUMNS), [COLUMN_WISE], [320, 320, 0, 0]),
        (task(table(dim=16), room=5000, types=(COLUMN_WISE,)), [COLUMN_WISE], [320, 320, 0, 0]),
        (task(table(dim=16), room=(320, 160, 160, 0), limits=(COLUMNS,)), [COLUMN_WISE], [320, 160, 160, 0]),
        # Rows follow the room that is left: 32 bytes a row, 12 exactly.
        (task(table(rows=12), room=(200, 100, 80, 32), types=(TABLE_WISE, ROW_WISE)), [ROW_WISE], [192, 96, 64, 32]),
        (task(table(), room=320, machine=Nodes.one_node(1), types=(ROW_WISE,)), [TABLE_WISE], [320]),
        # Rows of a node are on the node that has room; a grid takes what no node holds, 640 bytes where one has 340.
        (task(table(), room=(170, 100, 160, 160), machine=TWO_NODES, types=(TABLE_WISE, TABLE_ROW_WISE)),
         [TABLE_ROW_WISE], [160, 160, 0, 0]),
        (task(table(dim=16), room=170, machine=TWO_NODES, types=GRID_OR_ROWS), [GRID_SHARD], [160] * 4),
        # A replica takes its bytes of every device.
        (task(table("a"), table("b"), room=640, limits=(REPLICATED, TableLimits())), [DATA_PARALLEL, TABLE_WISE],
         [640, 320, 320, 320]),
        # Row-wise Adagrad keeps 4 bytes a row in each part by columns: 10 x (16 + 4) for four columns of ten rows.
        (task(table(), room=200, optimizer="rowwise_adagrad", types=BY_COLUMNS), [COLUMN_WISE], [200, 200, 0, 0]),
    ],
)  # fmt: skip
def test_tables_are_cut_no_more_than_the_room_demands(asked: ShardingTask, types: list[str], used: list[int]) -> None:
    for parts in (quick_parts(asked), legal_parts(asked)):
        assert parts is not None and types_of(asked, parts) == types
        check_sharding(asked, parts)
        assert sorted(used_bytes(asked, parts), reverse=True) == used


def test_rows_over_all_devices_of_two_nodes_are_on_each_of_them() -> None:
    asked = task(table(rows=12), room=(300, 100, 80, 32), machine=TWO_NODES, types=(ROW_WISE,))
    assert {part.device for part in legal_parts(asked)} == {0, 1, 2, 3}


WIDE = TableLimits(frozenset(BY_COLUMNS), min_columns=8)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (task(table(rows=12), room=(384, 100, 80, 31), machine=TWO_NODES, types=(ROW_WISE,)), "^no placement fits"),
        (task(table(dim=16), room=(320, 160, 160, 0), limits=(WIDE,)),
         "hold 8 of its 16 columns, in shards of at least 8"),
        (task(table("a"), room=(320, 320, 319, 320), limits=(REPLICATED,)),
         "replicas of 'a', .* need .* on every device; device 2 has"),
        (task(table(), room=199, optimizer="rowwise_adagrad", types=BY_COLUMNS), "hold 0 of its 8 columns"),
        (task(table("a"), table("b"), table("c"), room=10**6, machine=Nodes.one_node(2), apart=((0, 1, 2),)),
         "tables a, b, c must stay apart, but there are only 2 devices"),
        (task(replace(table("s"), pooling="none"), room=10**6, machine=TWO_NODES, types=(TABLE_ROW_WISE, GRID_SHARD)),
         "^table 's' allows only table_row_wise or grid_shard sharding, but its lookups are not pooled. Allow another "
         "sharding type, or drop one of these rules.$"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused_with_the_rule_or_the_memory(asked: ShardingTask, why: str) -> None:
    with pytest.raises(InfeasibleTask, match=why):
        legal_parts(asked)


def test_items_are_built_once_for_every_size_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is that of a task which is asked alone."""
    built: list[int] = []
    build = room_items._item

    def counted(*given: object) -> room_items.PackedItem:
        built.append(1)
        return build(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(room_items, "_item", counted)
    known: KnownItems = {}
    tables, answers = (table("a"), table("b", rows=30)), []
    for room in (100, 640, 700, 5_000):
        asked = task(*tables, room=room, machine=TWO_NODES)
        answers.append(quick_parts(asked, known=known))
        assert len(built) == (0 if room == 100 else 2)
        assert PackedItems.of(asked, known=known).memory_D.tolist() == [room] * 4
    assert [found is None for found in answers] == [True, False, False, False]
    assert answers == [quick_parts(task(*tables, room=room, machine=TWO_NODES)) for room in (100, 640, 700, 5_000)]


# Against all placements of small tasks --------------------------------------------------------------------------------


def shards(size: int, step: int) -> Iterator[tuple[Span, ...]]:
    inner = range(step, size, step)
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            yield tuple(map(Span, (0, *cuts), (*cuts, size)))


@cache
def all_parts(one: Table, machine: Nodes) -> tuple[tuple[TablePart, ...], ...]:
    """All ways to put a table onto a machine."""
    rows, columns, devices = Span(0, one.num_rows), Span(0, one.embedding_dim), range(machine.num_devices)
    found = [(TablePart(one.name, rows, columns, tuple(devices)),)]
    for spans in shards(one.embedding_dim, 4):
        for cuts in product(shards(one.num_rows, 1), repeat=len(spans)):
            both = [(span, rows) for span, of_span in zip(spans, cuts, strict=True) for rows in of_span]
            for homes in permutations(devices, len(both)):
                parts = (
                    TablePart(one.name, rows, span, (home,)) for (span, rows), home in zip(both, homes, strict=True)
                )
                found.append(tuple(parts))
    return tuple(parts for parts in found if not sharding_problem(parts, one, machine))


def can_be_placed(asked: ShardingTask) -> bool:
    """Whether any of all placements is legal, by checking each."""
    options = []
    for position, one in enumerate(asked.tables):
        alone = ShardingTask(
            (one,), asked.machine, asked.room_bytes, 64, asked.optimizer, limits=(asked.limits_of(position),)
        )
        kept: dict[tuple[tuple[int, ...], frozenset[int]], tuple[TablePart, ...]] = {}
        for parts in all_parts(one, asked.machine):
            used = used_bytes(alone, parts)
            fits = all(size <= room for size, room in zip(used, asked.room_bytes, strict=True))
            if fits and not [*list_broken_rules(alone, {one.name: parts})]:
                kept.setdefault((tuple(used), frozenset(d for part in parts for d in part.devices)), parts)
        options.append(kept)
    for chosen in product(*options):
        used = map(sum, zip(*(sizes for sizes, _ in chosen), strict=True))
        if any(size > room for size, room in zip(used, asked.room_bytes, strict=True)):
            continue
        by_table = {one.name: kept[key] for one, kept, key in zip(asked.tables, options, chosen, strict=True)}
        if not [*list_broken_rules(asked, by_table)]:
            return True
    return False


@st.composite
def tight_tasks(draw: st.DrawFn) -> ShardingTask:
    machine = draw(st.sampled_from([Nodes.one_node(2), Nodes.one_node(3), TWO_NODES, Nodes(2, 1, inter=LINK)]))
    small = machine.num_devices < 4
    count = draw(st.integers(1, 3))
    tables, limits = [], []
    for number in range(count):
        rows, dim = draw(st.integers(1, 4 if small else 3)), draw(st.sampled_from([3, 4, 8, 12] if small else [4, 8]))
        pooling = draw(st.sampled_from(["sum", "sum", "none"]))
        tables.append(Table(f"t{number}", rows, dim, 2.0, weight_bits=draw(st.sampled_from([8, 32])), pooling=pooling))
        types = frozenset(draw(st.sets(st.sampled_from(SHARDING_TYPES), min_size=1)))
        devices = draw(st.none() | st.frozensets(st.integers(0, machine.num_devices - 1), min_size=1))
        if draw(st.booleans()):
            types, devices = frozenset(SHARDING_TYPES), None
        limits.append(TableLimits(types, devices, draw(st.sampled_from([1, 4, 8]))))
    groups = tuple(combinations(range(count), 2))
    some = st.lists(st.sampled_from(groups), max_size=1).map(tuple) if groups else st.just(())
    optimizer = draw(st.sampled_from(["sgd", "rowwise_adagrad", "adam"]))
    plain = ShardingTask(tuple(tables), machine, (0,) * machine.num_devices, 64, optimizer)
    whole = [TablePart(one.name, Span(0, one.num_rows), Span(0, one.embedding_dim), (0,)) for one in tables]
    even = used_bytes(plain, whole)[0] / machine.num_devices
    room = tuple(int(even * draw(st.floats(0.8, 1.6))) for _ in range(machine.num_devices))
    together, apart = (draw(some) if draw(st.integers(0, 3)) == 0 else () for _ in range(2))
    return ShardingTask(
        tuple(tables), machine, room, 64, optimizer, limits=tuple(limits), together=together, apart=apart
    )


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(tight_tasks())
def test_a_placement_is_legal_and_a_refusal_is_true(asked: ShardingTask) -> None:
    try:
        parts = legal_parts(asked)
    except InfeasibleTask as error:
        if can_be_placed(asked):
            assert "was found" in str(error)
        return
    check_sharding(asked, parts)
    assert can_be_placed(asked)
