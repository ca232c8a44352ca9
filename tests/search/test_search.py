"""The whole search: answers that are legal, best where that can be counted out, and never worse than known ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import whole_part
from evenshard.placement.placement import Placement, check_sharding, parts_by_table
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.task import TableLimits
from evenshard.planner.pricing import part_costs
from evenshard.search.annealing import UNUSUAL
from evenshard.search.infeasibility import require_types
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.search import EFFORTS, LONG, NORMAL, QUICK, PlanSearch, PlanSearchEffort, get_effort
from evenshard.search.space import SearchSpace
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table
from support.builders import column_parts
from support.random_requests import random_request
from support.search_builders import (
    FOUR,
    TWO_NODES,
    costs_of,
    least_ms,
    of_types,
    parts_of_start,
    some_tables,
    starts_of,
    types_of,
)

pytestmark = pytest.mark.full_search

SHORT = PlanSearchEffort(4_000)
TWO = Nodes.one_node(2)


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("count", "machine"), [(4, TWO), (3, Nodes.one_node(3)), (2, TWO_NODES)])
def test_a_tiny_task_is_solved(seed: int, count: int, machine: Nodes) -> None:
    costs = costs_of(some_tables(count, seed), machine)
    space = SearchSpace(costs)
    assert PlanSearch(costs).run().best.predicted_ms == pytest.approx(least_ms(space), rel=1e-6)


def test_the_same_arguments_give_the_same_placement() -> None:
    one, two = (PlanSearch(costs_of(some_tables(8)), SHORT, seed=3).run() for _ in range(2))
    assert one == two


def test_candidates_are_distinct_legal_and_sorted_after_the_answer() -> None:
    costs = costs_of(some_tables(8))
    found = PlanSearch(costs, SHORT).run()
    assert found.candidates[0] == found.best.parts
    assert 1 < len(found.candidates) == len(set(found.candidates))
    for parts in found.candidates:
        check_sharding(costs.task, parts)
    found_ms = [costs.predict(parts).predicted_ms for parts in found.candidates]
    assert found_ms == pytest.approx(sorted(found_ms), rel=UNUSUAL)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_below_the_bound(seed: int) -> None:
    costs = costs_of(some_tables(8, seed), TWO_NODES)
    assert 0 < lower_bound_ms(SearchSpace(costs)) <= PlanSearch(costs, SHORT).run().best.predicted_ms


def test_a_single_device_holds_all() -> None:
    tables = some_tables(3)
    found = PlanSearch(costs_of(tables, Nodes.one_node(1))).run()
    assert found.best.parts == Placement((0, 0, 0), 1).parts(tables)


# Known placements, effort and types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_no_rule_of_thumb_is_better_than_the_answer(seed: int) -> None:
    costs = costs_of(some_tables(3 + seed, seed), TWO_NODES if seed % 2 else FOUR)
    starts, found_ms = starts_of(costs), PlanSearch(costs, PlanSearchEffort(0)).run().best.predicted_ms
    for rule in starts.make_rules():
        assert found_ms <= costs.predict(parts_of_start(starts, rule)).predicted_ms * (1 + 1e-6)


def test_a_known_placement_is_improved_and_never_better_than_the_answer() -> None:
    costs = costs_of(some_tables(8))
    good = PlanSearch(costs).run().best
    poor = tuple(whole_part(table, (at % 2,)) for at, table in enumerate(costs.task.tables))
    none = PlanSearchEffort(0)
    alone = PlanSearch(costs, none).run()
    assert good.predicted_ms < 0.99 * alone.best.predicted_ms
    assert PlanSearch(costs, none).run([poor, good.parts]).best.predicted_ms <= good.predicted_ms
    assert PlanSearch(costs, SHORT).run([poor]).best.predicted_ms < 0.9 * costs.predict(poor).predicted_ms


def test_known_parts_that_no_option_makes_are_kept_where_they_are_best() -> None:
    """Uneven columns become an option. The device without the other table takes more of them."""
    cut, busy = Table("cut", 10**6, 128, 40.0), Table("busy", 10**6, 128, 15.0)
    limits = (TableLimits(frozenset({COLUMN_WISE})), TableLimits(frozenset({TABLE_WISE})))
    costs = costs_of((cut, busy), TWO, limits=limits)
    uneven = [replace(part, devices=(device,)) for device, part in enumerate(column_parts(cut, (88,)))]
    known = [*uneven, whole_part(busy, (1,))]
    alone, found = PlanSearch(costs, SHORT).run(), PlanSearch(costs, SHORT).run([known])
    assert found.best.predicted_ms <= costs.predict(known).predicted_ms < 0.98 * alone.best.predicted_ms


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_more_effort_never_answers_worse(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, changes in ((QUICK, 500), (NORMAL, 2_000), (LONG, 10_000)):
        monkeypatch.setitem(EFFORTS, name, PlanSearchEffort(changes))
    costs = costs_of(some_tables(6 + seed, seed), Nodes.one_node(8))
    found_ms = [PlanSearch(costs, effort).run().best.predicted_ms for effort in EFFORTS.values()]
    assert found_ms == sorted(found_ms, reverse=True)


@pytest.mark.slow
def test_fewer_types_and_less_memory_answer_no_better() -> None:
    """Of random requests, by no more than 1 %."""
    compared, effort = 0, EFFORTS[QUICK]
    for seed in range(20):
        asked = random_request(seed)
        wide = part_costs(replace(asked, sharding_types=()), DeviceModel("simulated:h100"))
        names = set(sorted(SHARDING_TYPES)[: 2 + seed % 4])
        limits = [replace(wide.task.limits_of(at), types=frozenset(names)) for at in range(len(wide.task.tables))]
        fewer = wide.of_task(replace(wide.task, limits=tuple(limits)))
        less = wide.of_task(replace(wide.task, room_bytes=tuple(room * 2 // 3 for room in wide.task.room_bytes)))
        found_ms = []
        for harder in (fewer, less):
            with suppress(InfeasibleTask):
                require_types(harder.task)
                found_ms.append(PlanSearch(harder, effort, packing_s=1.0).run().best.predicted_ms)
        if found_ms:
            compared += 1
            assert PlanSearch(wide, effort).run().best.predicted_ms <= 1.01 * min(found_ms), seed
    assert compared > 5


def test_an_effort_has_a_name() -> None:
    assert [get_effort(name).changes for name in (QUICK, NORMAL, LONG)] == [50_000, 200_000, 1_000_000]
    with pytest.raises(BadConfig, match=r"effort is 'lon'\. Choose from quick, normal, long\."):
        get_effort("lon")


# Memory and rules -----------------------------------------------------------------------------------------------------


def test_the_only_packing_that_fits_is_found() -> None:
    """5 + 1, 4 + 2 and 3 + 3 on three devices with memory for 6, of tables that must stay whole."""
    tables = tuple(Table(f"t{at}", size * 10**5, 64, 4.0) for at, size in enumerate((5, 4, 3, 3, 2, 1)))
    room = int(6.2 * tables[-1].size_bytes)
    costs = costs_of(tables, Nodes.one_node(3), room, limits=of_types(tables, TABLE_WISE))
    parts = PlanSearch(costs, SHORT).run().best.parts
    check_sharding(costs.task, parts)
    on: dict[int, list[int]] = {}
    for part in parts:
        on.setdefault(part.device, []).append(part.rows.size // 10**5)
    assert sorted(on.values()) == [[3, 3], [4, 2], [5, 1]]


def test_tables_larger_than_a_device_are_cut() -> None:
    """Devices have memory for little more than all tables."""
    tables = tuple(Table(f"big{n}", 10**6, 128, 2.0) for n in range(5))
    costs = costs_of(tables, FOUR, int(1.05 * sum(table.size_bytes for table in tables) / 4))
    check_sharding(costs.task, PlanSearch(costs, SHORT).run().best.parts)


def test_no_memory_is_refused() -> None:
    with pytest.raises(InfeasibleTask):
        PlanSearch(costs_of(some_tables(3), room_bytes=1_000), SHORT).run()


@pytest.mark.parametrize("allowed", [TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL])
def test_only_allowed_types_are_used(allowed: str) -> None:
    tables = some_tables(5)
    costs = costs_of(tables, TWO_NODES, limits=of_types(tables, allowed))
    assert set(types_of(costs.task, PlanSearch(costs, SHORT).run().best.parts).values()) == {allowed}


def test_rules_hold() -> None:
    tables = some_tables(8)
    limits = [TableLimits() for _ in tables]
    limits[0] = TableLimits(devices=frozenset({2}))
    limits[1] = TableLimits(min_columns=tables[1].embedding_dim)
    costs = costs_of(tables, TWO_NODES, limits=tuple(limits), together=((3, 4),), apart=((5, 6, 7),))
    for parts in PlanSearch(costs, SHORT).run().candidates:
        check_sharding(costs.task, parts)


def test_hot_tables_that_stay_apart_are_not_cut_over_the_same_devices() -> None:
    """Each by itself would be cut over all devices."""
    tables = (Table("a", 10**6, 128, 40.0), Table("b", 10**6, 128, 40.0), Table("c", 10**5, 16, 1.0))
    costs = costs_of(tables, FOUR, apart=((0, 1),))
    for parts in PlanSearch(costs, SHORT).run().candidates:
        check_sharding(costs.task, parts)


# Unusual cuts ---------------------------------------------------------------------------------------------------------


def widths_of_cut(others: tuple[Table, ...], devices: int) -> list[int]:
    """Widths of a table that may be cut by columns, beside others that stay whole."""
    cut = Table("cut", 10**6, 128, 40.0)
    limits = (TableLimits(frozenset({COLUMN_WISE})), *of_types(others, TABLE_WISE))
    costs = costs_of((cut, *others), Nodes.one_node(devices), limits=limits)
    by_table = parts_by_table(costs.task, PlanSearch(costs).run().best.parts)
    return [part.columns.size for part in by_table["cut"]]


def test_unusual_cuts_lose_ties_and_win_what_is_faster() -> None:
    busy = Table("busy", 100_000, 128, 400.0)
    assert widths_of_cut((busy,), 4) in ([64, 64], [32] * 4)  # the other table takes the time, whatever the cut
    assert widths_of_cut((), 3) == [44, 44, 40]


# Length of a search ---------------------------------------------------------------------------------------------------


def test_progress_tells_falling_times_and_rising_shares() -> None:
    told: list[tuple[float, float]] = []
    found = PlanSearch(costs_of(some_tables(8)), progress=lambda best_ms, done: told.append((best_ms, done))).run()
    times_ms, shares = zip(*told, strict=True)
    assert list(times_ms) == sorted(times_ms, reverse=True) and list(shares) == sorted(shares)
    assert shares[0] == 0 and 0 < shares[-1] <= 1
    assert times_ms[-1] == pytest.approx(found.best.predicted_ms, rel=2 * UNUSUAL)


def test_an_interrupted_search_answers_with_its_best() -> None:
    costs, told = costs_of(some_tables(8)), []

    def stop(best_ms: float, done: float) -> None:
        told.append(best_ms)
        if done > 0.1:
            search.interrupt()

    search = PlanSearch(costs, progress=stop)
    found = search.run()
    assert found.is_interrupted and not PlanSearch(costs, SHORT).run().is_interrupted
    assert search._tried < 0.2 * search._planned
    assert found.best.predicted_ms == pytest.approx(min(told), rel=2 * UNUSUAL)


def test_no_time_is_enough_for_an_answer() -> None:
    costs = costs_of(some_tables(8))
    found = PlanSearch(costs, PlanSearchEffort(time_limit_s=0.0)).run()
    check_sharding(costs.task, found.best.parts)
    assert not found.is_interrupted


def test_a_search_ends_where_the_answer_is_as_good_as_the_bound() -> None:
    """Two equal tables on two devices: the bound stops the search after the changes of the quick one."""
    tables = tuple(Table(name, 10**6, 64, 20.0) for name in "ab")
    search = PlanSearch(costs_of(tables, TWO, limits=of_types(tables, TABLE_WISE)))
    search.run()
    assert search._tried < 0.5 * search._planned
