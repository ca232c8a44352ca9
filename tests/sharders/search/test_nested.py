"""A search is told what fewer types answer: more types answer no worse, and what was given to it is improved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import DeviceKind, PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart, whole_tables
from evenshard.placement.sharding import (
    BY_COLUMNS,
    COLUMN_WISE,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search import nested
from evenshard.sharders.search.nested import MOST_NESTED, search_with_fewer_types, with_fewer_types
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort, PlanSearchResult
from evenshard.tables.table import Table

TWO_NODES = Machine(8, 4, inter="infiniband_ndr")
SHORT = PlanSearchEffort(changes=300, idle_kicks=10)


@cache
def kind() -> DeviceKind:
    return simulated_kind(gpu_profile("h200"), Machine(1, 1))


def costs_of(tables: Sequence[Table], machine: Machine = TWO_NODES, **changes: object) -> PartCosts:
    room = (64 * 2**30,) * machine.num_devices
    task = replace(ShardingTask(tuple(tables), machine, room, 16_384), **changes)  # type: ignore[arg-type]
    inter = LINKS["infiniband_ndr"] if machine.num_nodes > 1 else None
    return PartCosts(task, [kind()], [0] * machine.num_devices, Links(LINKS["nvlink_h200"], inter))


def some_tables(count: int = 12) -> tuple[Table, ...]:
    rng = np.random.default_rng(5)
    return tuple(
        Table(f"t{n}", int(10 ** rng.uniform(2, 6.5)), int(rng.choice([16, 64, 128])), float(rng.choice([1, 5, 40])))
        for n in range(count)
    )


def of_all_types() -> PartCosts:
    return costs_of(some_tables(), limits=(TableLimits(types=frozenset(SHARDING_TYPES)),) * 12)


def no_starts(*_: object) -> tuple[()]:
    return ()


def found(costs: PartCosts, effort: PlanSearchEffort = SHORT) -> PlanSearchResult:
    return search_with_fewer_types(costs, effort, 0, no_starts)[1]


def types_of(task: ShardingTask | None) -> set[frozenset[str]]:
    return set() if task is None else {limits.types for limits in task.limits}


def test_types_become_fewer_until_tables_are_whole() -> None:
    columns = with_fewer_types(of_all_types().task)
    assert columns is not None and types_of(columns) == {frozenset({TABLE_WISE, COLUMN_WISE, TABLE_COLUMN_WISE})}
    wholes = with_fewer_types(columns)
    assert wholes is not None and types_of(wholes) == {frozenset({TABLE_WISE})}
    assert with_fewer_types(wholes) is None


def test_a_table_that_may_be_none_of_the_fewer_types_keeps_its_own() -> None:
    task = costs_of(some_tables(2), limits=(TableLimits(types=frozenset({ROW_WISE})), TableLimits())).task
    fewer = with_fewer_types(task)
    assert fewer is not None and fewer.types[0] == {ROW_WISE} and fewer.types[1] <= {*BY_COLUMNS, TABLE_COLUMN_WISE}


def test_searches_for_fewer_types_end_where_rows_of_a_node_are_those_of_all_devices() -> None:
    tables, rows = some_tables(2), TableLimits(types=frozenset({TABLE_ROW_WISE}))
    assert found(costs_of(tables, Machine.one_node(2), limits=(rows, TableLimits()))).best.parts


def test_a_large_task_keeps_its_types() -> None:
    task = costs_of(some_tables(2)).task
    many = tuple(Table(f"t{n}", 100, 16, 1.0) for n in range(MOST_NESTED // task.num_devices + 1))
    assert with_fewer_types(replace(task, tables=many)) is None
    assert with_fewer_types(replace(task, tables=many[1:])) is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_more_types_answer_no_slower(seed: int) -> None:
    """However short the searches are: the same ones answer for fewer types."""
    effort = PlanSearchEffort(changes=20 + seed, idle_kicks=2)
    costs = of_all_types()
    fewer = with_fewer_types(costs.task)
    assert fewer is not None
    alone = found(costs.of_task(fewer), effort).best.predicted_ms
    assert found(costs, effort).best.predicted_ms <= alone * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_more_effort_answers_no_slower(seed: int) -> None:
    """However short the searches are: each knows what those with less effort answer."""
    efforts = [PlanSearchEffort(changes=40 * (1 + seed), idle_kicks=4, share=share) for share in (0.2, 1.0, 3.0)]
    answers = [found(of_all_types(), effort) for effort in efforts]
    assert [one.best.parts for one in answers[-1].by_effort] == [one.best.parts for one in answers]
    found_ms = [one.best.predicted_ms for one in answers]
    assert found_ms == sorted(found_ms, reverse=True)


@pytest.mark.slow
def test_the_answer_is_no_slower_than_without_fewer_types() -> None:
    costs = of_all_types()
    assert found(costs).best.predicted_ms <= PlanSearch(costs, SHORT).run().best.predicted_ms


@pytest.mark.slow
def test_fewer_types_are_not_searched_where_they_cannot_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[float] = []

    class Counted(PlanSearch):
        def run(self, known: Sequence[Sequence[TablePart]] = ()) -> PlanSearchResult:
            searched.append(self.effort.share)
            return super().run(known)

    monkeypatch.setattr(nested, "PlanSearch", Counted)
    found(of_all_types())
    assert len(searched) > 1 and set(searched) == {SHORT.share}
    searched.clear()
    monkeypatch.setattr(nested, "lower_bound_ms", lambda *_: float("inf"))
    found(of_all_types())
    assert len(searched) == 1


def test_an_interrupted_search_for_fewer_types_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, run = of_all_types(), PlanSearch.run

    def interrupted(self: PlanSearch, known: Sequence[Sequence[TablePart]] = ()) -> PlanSearchResult:
        if self.costs.task != costs.task:
            self.interrupt()
        return run(self, known)

    monkeypatch.setattr(PlanSearch, "run", interrupted)
    search, result = search_with_fewer_types(costs, SHORT, 0, no_starts)
    assert result.is_interrupted and search.is_interrupted


def test_no_time_left_is_no_search_for_fewer_types() -> None:
    costs = of_all_types()
    assert found(costs, replace(SHORT, time_limit_s=1e-9)).best.parts


def test_a_placement_that_was_given_is_improved() -> None:
    """Two tables on two of four devices: cut by columns, they are faster."""
    tables = (Table("a", 10**6, 128, 50.0), Table("b", 10**6, 128, 20.0))
    costs = costs_of(tables, Machine.one_node(4))
    search = PlanSearch(costs, SHORT)
    given = tuple(replace(part, devices=(device,)) for device, part in enumerate(whole_tables(tables)))
    slow = PlanSearchResult(costs.predict(tuple(replace(part, devices=(0,)) for part in given)), ())
    result = search.with_known(slow, [given])
    assert result.best.predicted_ms < costs.predict(given).predicted_ms
    assert given in result.candidates


def test_a_placement_that_was_given_and_is_slower_is_left_alone() -> None:
    tables = (Table("a", 10**6, 128, 50.0), Table("b", 10**6, 128, 20.0))
    costs = costs_of(tables, Machine.one_node(4))
    search = PlanSearch(costs, SHORT)
    good = search.run()
    together = tuple(replace(part, devices=(0,)) for part in whole_tables(tables))
    assert search.with_known(good, [together]) == good
