"""The whole search: answers that are legal, best where that can be counted out, and never worse than known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM_CACHING, USUAL_KERNELS, Storage, whole_part
from evenshard.placement.placement import Placement, check_sharding
from evenshard.placement.sharding import COLUMN_WISE, TABLE_WISE
from evenshard.placement.task import TableLimits, used_bytes
from evenshard.price.step import PartCosts
from evenshard.search.annealing import UNUSUAL
from evenshard.search.legal_parts import legal_parts
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.search import PlanSearch, PlanSearchEffort
from evenshard.search.space import SearchSpace
from evenshard.tables.table import Table
from support.builders import column_parts
from support.search_builders import (
    FOUR,
    GB,
    TWO_NODES,
    costs_of,
    least_ms,
    of_types,
    parts_of_start,
    some_tables,
    starts_of,
)

pytestmark = pytest.mark.full_search

SHORT, QUICK = PlanSearchEffort(4_000), PlanSearchEffort(10_000)
TWO = Nodes.one_node(2)


@pytest.mark.parametrize(("count", "machine"), [(4, TWO), (3, Nodes.one_node(3)), (2, TWO_NODES)])
def test_a_tiny_task_is_solved(count: int, machine: Nodes) -> None:
    costs = costs_of(some_tables(count), machine)
    space, found_ms = SearchSpace(costs), PlanSearch(costs, QUICK).run().best.predicted_ms
    assert found_ms == pytest.approx(least_ms(space), rel=1e-6)
    assert 0 < lower_bound_ms(SearchSpace(costs)) <= found_ms


def test_candidates_are_distinct_legal_and_sorted_after_the_answer() -> None:
    limits = [TableLimits()] * 8
    limits[:2] = TableLimits(devices=frozenset({2})), TableLimits(min_columns=128)
    costs = costs_of(some_tables(8), TWO_NODES, limits=tuple(limits), together=((3, 4),), apart=((5, 6, 7),))
    found = PlanSearch(costs, SHORT).run()
    assert found.candidates[0] == found.best.parts
    assert 1 < len(found.candidates) == len(set(found.candidates))
    for parts in found.candidates:
        check_sharding(costs.task, parts)
    found_ms = [costs.predict(parts).predicted_ms for parts in found.candidates]
    assert found_ms == pytest.approx(sorted(found_ms), rel=UNUSUAL)


@pytest.mark.parametrize("seed", range(3))
def test_no_rule_of_thumb_is_better_than_the_answer(seed: int) -> None:
    costs = costs_of(some_tables(3 + 2 * seed, seed), TWO_NODES if seed % 2 else FOUR)
    starts, found_ms = starts_of(costs), PlanSearch(costs, PlanSearchEffort(0)).run().best.predicted_ms
    for rule in starts.make_rules():
        assert found_ms <= costs.predict(parts_of_start(starts, rule)).predicted_ms * (1 + 1e-6)


def test_a_known_placement_is_improved_and_never_better_than_the_answer() -> None:
    costs = costs_of(some_tables(8))
    good = PlanSearch(costs, QUICK).run().best
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


def test_progress_tells_falling_times_and_rising_shares() -> None:
    told: list[tuple[float, float]] = []
    costs = costs_of(some_tables(8))
    found = PlanSearch(costs, QUICK, progress=lambda best_ms, done: told.append((best_ms, done))).run()
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


def test_a_search_ends_where_the_answer_is_as_good_as_the_bound() -> None:
    """Two equal tables on two devices: the bound stops the search after the changes of the quick one."""
    tables = tuple(Table(name, 10**6, 64, 20.0) for name in "ab")
    search = PlanSearch(costs_of(tables, TWO, limits=of_types(tables, TABLE_WISE)))
    search.run()
    assert search._tried < 0.5 * search._planned


HOT = Table("hot", 2**21, 128, 40.0)
# 1 GB each.
COLD = Table("cold", 2**21, 128, 0.5)


def short_costs(
    tables: tuple[Table, ...], devices: int, room_gb: float, host_gb: float = 64.0, nodes: int = 1, **changes: object
) -> PartCosts:
    """Of H100s in so many hosts; tables may leave their memory."""
    inter = "infiniband_ndr" if nodes > 1 else ""
    machine = Nodes(devices, devices // nodes, inter=inter, host_bytes=(int(host_gb * GB),) * nodes)
    changes.setdefault("kernels", USUAL_KERNELS)
    return costs_of(tables, machine, int(room_gb * GB), "h100", **changes)


def test_without_host_memory_there_is_no_option() -> None:
    costs = short_costs((HOT, COLD), 1, 1.2)
    alone = replace(costs.task, machine=replace(costs.task.machine, host_bytes=()))
    with pytest.raises(InfeasibleTask):
        PlanSearch(PartCosts(alone, costs.kinds, [0], costs.links), SHORT).run()
    with pytest.raises(InfeasibleTask, match=r"1\.20 GB on devices, 0\.50 GB on hosts"):
        legal_parts(short_costs((HOT, COLD), 1, 1.2, host_gb=0.5).task)


@pytest.mark.parametrize("seed", range(2))
def test_a_tiny_task_that_is_short_of_memory_is_solved(seed: int) -> None:
    """Two tables on two devices with room for half of them."""
    tables = some_tables(2, seed)
    costs = short_costs(tables, 2, 0.25 * sum(table.size_bytes for table in tables) / GB)
    space = SearchSpace(costs)
    assert space.offloads
    assert PlanSearch(costs, PlanSearchEffort(10_000)).run().best.predicted_ms == pytest.approx(
        least_ms(space), rel=1e-6
    )


@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_fits_is_below_the_bound(seed: int) -> None:
    tables = some_tables(6, seed)
    size = sum(table.size_bytes for table in tables) / GB
    costs = short_costs(tables, 4, 0.15 * size, nodes=2)
    space, rng = SearchSpace(costs), np.random.default_rng(seed)
    bound, found = lower_bound_ms(space), []
    for _ in range(100):
        parts = [
            replace(part, storage=Storage(FUSED_UVM_CACHING, float(10 ** rng.uniform(-3, 0))))
            if rng.random() < 0.85
            else part
            for part in Placement(tuple(rng.integers(4, size=6).tolist()), 4).parts(tables)
        ]
        if max(used_bytes(costs.task, parts)) <= costs.task.room_bytes[0]:
            found.append(costs.predict(parts).predicted_ms)
    assert len(found) > 8
    assert 0 < bound <= min(found)
