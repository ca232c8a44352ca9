"""The space of a search: the sharding options of tables, and those that known placements add."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.placement.parts import FUSED_UVM_CACHING, ON_DEVICE, Span, Storage, row_spans, whole_part
from evenshard.placement.sharding import COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from evenshard.placement.task import TableLimits
from evenshard.sharders.search.chains import chains_of
from evenshard.sharders.search.choices import choices_of, parts_of
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace, column_cuts
from evenshard.tables.table import Table
from support.builders import column_parts
from support.search_builders import TWO_NODES, costs_of, of_types, some_tables

CUT = Table("cut", 10**6, 128, 40.0)


def test_column_cuts_are_even_multiples_of_four() -> None:
    assert list(column_cuts(128, 4, 4)) == [(64, 64), (44, 44, 40), (32, 32, 32, 32)]
    assert list(column_cuts(128, 8, 64)) == [(64, 64)]
    assert list(column_cuts(6, 8, 4)) == []


def test_rows_are_cut_as_torchrec_cuts_them() -> None:
    table = Table("t", 10, 4, 1.0)
    assert row_spans(table, 4) == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]
    assert row_spans(replace(table, num_rows=2), 4) == [Span(0, 1), Span(1, 2)]


def test_rows_are_cut_only_where_every_device_gets_some() -> None:
    """A sum over devices without rows would be a wrong one; where nothing else is allowed, it has to do."""
    few, many = Table("few", 3, 16, 5.0), Table("many", 7, 16, 5.0)

    def types(*tables: Table, **changes: object) -> list[set[str]]:
        groups = SearchSpace(costs_of(tables, TWO_NODES, **changes)).groups
        return [{option.sharding_type for option in group.options} for group in groups]

    of_few, of_many = types(few, many)
    assert ROW_WISE not in of_few and of_many >= {ROW_WISE, TABLE_ROW_WISE}
    assert types(few, limits=of_types([few], ROW_WISE)) == [{ROW_WISE}]


@pytest.mark.parametrize(
    ("cut_at", "is_usual"),
    [((), True), ((64,), True), ((84,), False), ((44, 88), False), ((32, 64, 96), True), ((8, 64, 96), False)],
)
def test_halves_and_powers_of_two_are_usual(cut_at: tuple[int, ...], is_usual: bool) -> None:
    space = SearchSpace(costs_of((CUT,), limits=(TableLimits(frozenset({COLUMN_WISE, TABLE_WISE})),)))
    parts = [replace(part, devices=(device,)) for device, part in enumerate(column_parts(CUT, cut_at))]
    choices = choices_of(space, parts)
    assert choices is not None
    assert space.groups[0].options[choices[0].option].is_usual == is_usual
    assert parts_of(space, choices) == tuple(parts)


@pytest.mark.parametrize(
    ("columns", "parts", "is_usual"),
    [(128, 1, True), (128, 2, True), (100, 2, True), (128, 3, False), (96, 3, True), (120, 5, False)],
)
def test_parts_as_wide_as_a_power_of_two_are_usual(columns: int, parts: int, is_usual: bool) -> None:
    space = SearchSpace(costs_of((replace(CUT, embedding_dim=columns),)))
    widths = [columns // parts // 4 * 4] * parts
    widths[0] += columns - sum(widths)
    assert space.option_of(0, COLUMN_WISE, widths).is_usual is is_usual


def test_an_option_that_a_start_brings_has_its_own_kernel_call() -> None:
    """A start may be sharded in a type that the search does not try by itself; its collective counts all the same."""
    tables = some_tables(4)
    whole, free = (
        SearchSpace(costs_of(tables, TWO_NODES, limits=of_types(tables, TABLE_WISE))),
        SearchSpace(costs_of(tables, TWO_NODES)),
    )
    costs_ms = []
    for space in (whole, free):
        space.add_options(0, [space.option_of(0, ROW_WISE, (tables[0].embedding_dim,))])
        in_rows = Choice(len(space.groups[0].options) - 1)
        wholes = [
            next(at for at, option in enumerate(group.options) if option.sharding_type == TABLE_WISE)
            for group in space.groups[1:]
        ]
        chains = chains_of(space, [[in_rows, *(Choice(number, (0,)) for number in wholes)]])
        costs_ms.append(float(chains.cost_N[0]))
    assert costs_ms[0] == pytest.approx(costs_ms[1])


def test_a_cache_of_any_size_can_be_where_a_search_begins() -> None:
    odd = Storage(FUSED_UVM_CACHING, 0.1234)
    parts = (whole_part(CUT, (0,), odd),)
    space = SearchSpace(costs_of((CUT,)))
    choices = choices_of(space, parts)
    assert choices is not None and parts_of(space, choices) == parts
    assert space.number_of(0, TABLE_WISE, (128,), ON_DEVICE) == 0
