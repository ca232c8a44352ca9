"""Greedy starts: what they are made of, the memory and the rules that they keep, and rules of thumb by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, USUAL_KERNELS
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
from evenshard.search.greedy import SHARES_OF_MEMORY, GreedyStarts, Placed, Start, select_starts
from evenshard.tables.table import Table
from support.additive_price import Additive
from support.builders import sized, task
from support.constraint_builders import limited, only
from support.search_builders import (
    FOUR,
    GB,
    TWO_NODES,
    costs_of,
    of_types,
    parts_of_start,
    some_tables,
    starts_of,
    types_of,
)

# By hand: the costliest is the last one, the first one is small.
BY_HAND = (
    Table("small", 625, 16, 1.0),
    Table("cold", 10**6, 64, 2.0),
    Table("warm", 10**6, 64, 80.0),
    Table("hot", 10**6, 64, 200.0),
)
EIGHT = tuple(Table(f"t{at}", 10**6, 64, 4.0 + at) for at in range(8))


def placed(starts: GreedyStarts, option_G: np.ndarray, by_width: bool = False) -> Placed:
    (found,) = starts._place([Start("", option_G, by_width)])
    return found


def whole(starts: GreedyStarts) -> np.ndarray:
    return starts.choose_options(frozenset({TABLE_WISE}))


def loads(starts: GreedyStarts, one: Placed) -> np.ndarray:
    """The work of whole tables on each device, as the placer counts it."""
    works_G = starts.times.total_O[one.start.option_G]
    return np.bincount(one.place_GS[:, 0], works_G, starts.space.task.num_devices)


def test_whole_tables_go_longest_first_to_the_lightest_device() -> None:
    starts = starts_of(costs_of(EIGHT))
    works_ms = starts.times.total_O[whole(starts)]
    expected = np.zeros(4)
    for work_ms in sorted(works_ms, reverse=True):
        expected[expected.argmin()] += work_ms
    assert sorted(loads(starts, placed(starts, whole(starts)))) == pytest.approx(sorted(expected))


@pytest.mark.parametrize("machine", [FOUR, TWO_NODES])
def test_every_start_keeps_the_rules_of_tables(machine: Nodes) -> None:
    tables = some_tables(12)
    limits = [TableLimits() for _ in tables]
    limits[0], limits[2] = TableLimits(devices=only(2)), TableLimits(devices=only(0, 1))
    limits[1] = TableLimits(frozenset({TABLE_ROW_WISE}))
    starts = starts_of(costs_of(tables, machine, limits=tuple(limits), together=((3, 4),), apart=((5, 6, 7),)))
    found = starts.make_all()
    assert len(found) > 20
    for one in found:
        assert one.overflow == 0
        check_sharding(starts.space.task, parts_of_start(starts, one))


def test_a_start_that_breaks_a_rule_is_none() -> None:
    """Two hot tables that stay apart, each cut over all devices."""
    tables = (BY_HAND[3], replace(BY_HAND[3], name="other"))
    starts = starts_of(costs_of(tables, apart=((0, 1),)))
    quarters = np.array([np.flatnonzero(starts.table.count_O[: len(starts.table.group_O)] == 4)[0]] * 2)
    quarters[1] += starts.table.first_option_G[1]
    assert np.isinf(placed(starts, quarters).overflow)
    options = [one.start.option_G.tolist() for one in starts.make_all()]
    assert options and quarters.tolist() not in options


def test_pinned_tables_are_placed_first() -> None:
    """By cost alone, 9 and 8 would fill the two devices, and the pinned 1 would find no memory on device 0."""
    of_task = limited(task(sized(2, 2, 1), 2, 4 * 4), allowed=(None, None, only(0)), room_bytes=(4 * 2, 4 * 4))
    starts = starts_of(Additive(of_task, (9.0, 8.0, 1.0)).costs)
    one = placed(starts, whole(starts))
    assert Placement.of(of_task, parts_of_start(starts, one)).device_of_table == (1, 1, 0)


def test_each_class_of_widths_has_devices_of_its_own() -> None:
    """Narrow tables on the first devices, wide ones on the last, with an equal share of the work each."""
    tables = tuple(Table(f"t{at}", 10**5, (128, 16)[at % 2], 8.0) for at in range(16))
    starts = starts_of(costs_of(tables, profile="h100"))
    one = placed(starts, whole(starts), by_width=True)
    widths = [{tables[group].embedding_dim for group in np.flatnonzero(one.place_GS[:, 0] == at)} for at in range(4)]
    assert [max(own) for own in widths] == sorted(max(own) for own in widths)
    assert sum(len(own) > 1 for own in widths) <= 1 and widths[0] != widths[-1]
    assert loads(starts, one).max() < 2 * loads(starts, one).mean()


def test_a_limit_on_the_work_of_a_shard_cuts_what_is_longer() -> None:
    starts = starts_of(costs_of(some_tables(8)))
    times, table = starts.times, starts.table
    least_G = np.minimum.reduceat(times.longest_O, table.first_option_G)
    counts = []
    for limit in (2.0, 0.5, 0.1):
        option_G = starts.choose_options(frozenset(SHARDING_TYPES), limit * times.even_ms)
        assert (times.longest_O[option_G] <= np.maximum(limit * times.even_ms, least_G) * (1 + 1e-9)).all()
        counts.append(int(table.count_O[option_G].sum()))
    assert counts == sorted(counts)


@pytest.mark.parametrize("share", SHARES_OF_MEMORY)
def test_memory_at_a_price_keeps_on_devices_what_is_looked_up_most(share: float) -> None:
    """Eight tables of 1 GB, for half of which there is memory, and a host that holds all of them."""
    tables = tuple(Table(f"t{at}", 2**21, 128, 0.5 * 4**at) for at in range(8))
    machine = Nodes(4, 4, host_bytes=(64 * GB,))
    starts = starts_of(costs_of(tables, machine, GB + GB // 16, kernels=USUAL_KERNELS))
    option_G = starts._choose_by_price(frozenset(SHARDING_TYPES), np.inf, share)
    used = (starts.table.bytes_O * starts.table.count_O * starts.table.span_O)[option_G].sum()
    assert (share - 0.3) * 4 * GB < used <= share * 4 * (GB + GB // 16)
    kernels = [starts.table.option(at).storage.kernel for at in option_G]
    assert kernels[0] != FUSED == kernels[-1]


def test_rules_of_thumb_are_what_they_say() -> None:
    """Four tables on two nodes of two devices, which may be of every type."""
    starts = starts_of(costs_of(BY_HAND, TWO_NODES, limits=of_types(BY_HAND, *SHARDING_TYPES)))
    rules, of_task = {one.start.rule: one for one in starts.make_rules()}, starts.space.task

    def types(rule: str) -> list[str]:
        return list(types_of(of_task, parts_of_start(starts, rules[rule])).values())

    small = "tables of up to 10,000 weights replicated"
    assert types("whole") == [TABLE_WISE] * 4
    assert types(small) == [DATA_PARALLEL, *[TABLE_WISE] * 3]
    assert types("tables of up to 100,000,000 weights replicated") == [DATA_PARALLEL] * 4
    assert types(f"{small}, 1 row-wise") == [DATA_PARALLEL, TABLE_WISE, TABLE_WISE, ROW_WISE]
    assert types(f"{small}, 2 row-wise in a node") == [DATA_PARALLEL, TABLE_WISE, TABLE_ROW_WISE, TABLE_ROW_WISE]
    assert types(f"{small}, the rest column-wise in 2 shards") == [DATA_PARALLEL, *[COLUMN_WISE] * 3]
    both = f"{small}, 1 row-wise, the rest column-wise in 4 shards"
    assert types(both) == [DATA_PARALLEL, COLUMN_WISE, COLUMN_WISE, ROW_WISE]
    by_table = parts_by_table(of_task, parts_of_start(starts, rules[both]))
    assert [len(by_table[name]) for name in ("cold", "warm", "hot")] == [4, 4, 4]


def test_half_of_the_chosen_starts_are_rules_of_thumb_and_families_differ() -> None:
    starts = starts_of(costs_of(some_tables(8)))
    found = starts.make_all()
    ranks = [one.rank for one in found]
    assert ranks == sorted(ranks)
    families = dict.fromkeys(one.start.family for one in found)
    chosen = select_starts(found, 6)
    assert chosen[0] is found[0]
    assert [one.rank for one in chosen] == sorted(one.rank for one in chosen)
    assert len({one.start.family for one in chosen}) == 6
    assert sum(bool(one.start.cuts) for one in chosen) == 3
    assert {one.start.family for one in select_starts(found, len(families))} == families.keys()
    assert select_starts([], 3) == []


def test_the_costliest_tables_are_in_rows_beside_the_best_limits() -> None:
    starts = starts_of(costs_of(BY_HAND))
    one = next(one for one in starts.make_all() if one.start.family.startswith("1 row_wise in 1 beside"))
    assert types_of(starts.space.task, parts_of_start(starts, one))["hot"] == ROW_WISE
