"""The search over every way to shard: sums that stay right, rules that hold, and a bound below everything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from evenshard.sharders.search.construction import Construction, Works
from evenshard.sharders.search.neighbours import MOST_COUNTED
from evenshard.sharders.search.starts import construct_starts
from evenshard.sharders.search.usual_cuts import MOST_SLOWER

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import DeviceKind, PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import ON_DEVICE, Span, TablePart, row_spans, whole_tables
from evenshard.placement.plan import check_sharding, parts_by_table
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
    sharding_type,
)
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.search import neighbours
from evenshard.sharders.search.choices import choices_of
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort, PlanSearchResult
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace, column_cuts
from evenshard.sharders.search.state import State
from evenshard.tables.table import Table
from support.builders import column_parts

pytestmark = pytest.mark.full_search

TWO_NODES = Machine(8, 4, inter="infiniband_ndr")
BATCH = 16_384
SHORT = PlanSearchEffort(changes=300, idle_kicks=10)


@cache
def kind() -> DeviceKind:
    return simulated_kind(gpu_profile("h200"), Machine(1, 1))


def some_tables(count: int = 10) -> tuple[Table, ...]:
    rng = np.random.default_rng(5)
    return tuple(
        Table(f"t{n}", int(10 ** rng.uniform(2, 6.5)), int(rng.choice([16, 64, 128])), float(rng.choice([1, 5, 40])))
        for n in range(count)
    )


def costs_of(tables: tuple[Table, ...], machine: Machine = TWO_NODES, **changes: object) -> PartCosts:
    room = (64 * 2**30,) * machine.num_devices
    task = replace(ShardingTask(tables, machine, room, BATCH), **changes)  # type: ignore[arg-type]
    inter = LINKS["infiniband_ndr"] if machine.num_domains > 1 else None
    return PartCosts(task, [kind()], [0] * machine.num_devices, Links(LINKS["nvlink_h200"], inter))


def random_choices(space: SearchSpace, rng: np.random.Generator) -> list[Choice]:
    """Any way of every unit, anywhere."""
    machine, found = space.task.machine, []
    for group in space.groups:
        number = int(rng.integers(len(group.options)))
        option = group.options[number]
        places = rng.permutation(machine.num_devices // option.span)[: len(option.pieces)]
        found.append(Choice(number, tuple(int(place) for place in places)))
    return found


def test_an_option_that_a_start_brings_has_its_own_kernel_call() -> None:
    """A start may be sharded in a type that the search does not try by itself; its collective counts all the same."""
    tables = some_tables()
    limits = tuple(TableLimits(types=frozenset({TABLE_WISE})) for _ in tables)
    whole, free = SearchSpace(costs_of(tables, limits=limits)), SearchSpace(costs_of(tables))
    costs_ms = []
    for space in (whole, free):
        space.add_options(0, [(ROW_WISE, (tables[0].embedding_dim,), ON_DEVICE)])
        in_rows = Choice(len(space.groups[0].options) - 1)
        on_first = [
            next(n for n, option in enumerate(group.options) if option.sharding_type == TABLE_WISE)
            for group in space.groups
        ]
        costs_ms.append(State(space, [in_rows, *(Choice(number, (0,)) for number in on_first[1:])]).cost_ms)
    assert costs_ms[0] == pytest.approx(costs_ms[1])


@pytest.mark.parametrize("pipeline", ["none", "sparse_dist"])
def test_a_state_costs_what_is_predicted_of_its_parts(pipeline: str) -> None:
    space, rng = SearchSpace(costs_of(some_tables(), pipeline=pipeline)), np.random.default_rng(0)
    for _ in range(8):
        state = State(space, random_choices(space, rng))
        predicted = space.costs.predict(state.parts())
        expected = [device.predicted_total_ms for device in predicted.devices]
        assert state.device_ms_D == pytest.approx(expected, rel=2e-3)
        assert state.cost_ms == pytest.approx(predicted.predicted_ms, rel=2e-3)
        waited = [device.predicted_total_ms + device.predicted_wait_ms for device in predicted.devices]
        assert waited == pytest.approx([predicted.predicted_ms] * len(waited))
        assert choices_of(space, state.parts()) == state.choices


def test_changes_leave_the_sums_that_a_new_state_has() -> None:
    space, rng = SearchSpace(costs_of(some_tables())), np.random.default_rng(1)
    state, other = State(space, random_choices(space, rng)), random_choices(space, rng)
    for group, choice in enumerate(other):
        state.replace(group, choice)
    again = State(space, other)
    assert state.device_ms_D == pytest.approx(again.device_ms_D, rel=1e-4)
    assert (state.used_3D == again.used_3D).all() and (state.loads.calls_D == again.loads.calls_D).all()


def test_the_answer_is_legal_and_better_than_its_starts() -> None:
    search = PlanSearch(costs_of(some_tables()), SHORT)
    starts = construct_starts(search.construction)
    found = search.run()
    check_sharding(search.costs.task, found.best.parts)
    assert found.best.predicted_ms <= min(start.cost_ms for start in starts) * (1 + 1e-6)
    least_ms = min(search.costs.predict(parts).predicted_ms for parts in found.candidates)
    assert found.best.parts == found.candidates[0] and found.best.predicted_ms <= least_ms * (1 + MOST_SLOWER)


def test_changes_that_are_tried_at_once_count_up_to_a_limit() -> None:
    search = PlanSearch(costs_of(some_tables()), SHORT)
    state = State(search.space, construct_starts(search.construction)[0].choices)
    for count, counted in ((3, 3), (MOST_COUNTED, MOST_COUNTED), (MOST_COUNTED + 1, MOST_COUNTED)):
        before = search.neighbours.tried
        search.neighbours.scores(state, [[(0, state.choices[0])]] * count)
        assert search.neighbours.tried - before == counted


def test_of_many_swaps_the_most_promising_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that leave least on the busier of the two devices, as each piece by itself saves time."""
    tables = tuple(Table(f"t{at}", 10**6, 64, 4.0 + 3 * (at * 5 % 7)) for at in range(12))
    search = PlanSearch(costs_of(tables, Machine.one_node(2)), SHORT)
    state = State(search.space, [Choice(0, (int(at >= 7),)) for at in range(12)])
    slow = state.slow_devices[0]
    own, theirs = (
        search.neighbours._find_pieces(state, [(one, at) for at in sorted(state.on_device[one])]) for one in (0, 1)
    )
    own, theirs = (own, theirs) if slow == 0 else (theirs, own)
    may_go = np.ones((len(own.groups), 2), dtype=bool)
    promised: list[float] = []
    for most in (1_000, 5):
        monkeypatch.setattr(neighbours, "MOST_SWAPS", most)
        pairs = zip(*search.neighbours._swaps(state, slow, own, theirs, may_go), strict=True)
        saved = {
            (a, b): search.neighbours._gains(state, own)[a] - search.neighbours._gains(state, theirs)[b]
            for a, b in pairs
        }
        ahead = state.device_ms_D[slow] - state.device_ms_D[1 - slow]
        left = sorted(max(-one, one - ahead) for one in saved.values())
        promised = promised or left[:5]
    assert len(left) == 5 and left == pytest.approx(promised)


def test_a_step_makes_the_score_better_within_the_memory_or_is_none() -> None:
    """Two equal tables on one of two devices: one of them moves to the other, if that has memory for it."""
    tables = (Table("a", 10**6, 64, 20.0), Table("b", 10**6, 64, 20.0))
    two = Machine.one_node(2)
    for room, moves in ((2 * tables[0].size_bytes, True), (tables[0].size_bytes - 1, False)):
        search = PlanSearch(costs_of(tables, two, room_bytes=(2 * tables[0].size_bytes, room)), SHORT)
        state = State(search.space, [Choice(0, (0,)), Choice(0, (0,))])
        there, back = [(0, Choice(0, (1,)))], [(0, Choice(0, (0,)))]
        assert search.neighbours.best(state, [back]) is None  # as good as before
        assert search.neighbours.best(state, [back, there]) == (there if moves else None)
        before = state.score
        state.replace_all(there)
        assert state.fits() == moves and state.score < before
        if moves:
            assert search.neighbours.best(state, [back]) is None


@pytest.mark.slow
def test_the_same_seed_gives_the_same_placement() -> None:
    one, two = (PlanSearch(costs_of(some_tables()), SHORT, seed=3).run().best.parts for _ in range(2))
    assert one == two


@pytest.mark.parametrize("allowed", [(TABLE_WISE,), (COLUMN_WISE,), (ROW_WISE,), (TABLE_ROW_WISE,), (DATA_PARALLEL,)])
def test_only_allowed_types_are_used(allowed: tuple[str, ...]) -> None:
    tables = some_tables(6)
    costs = costs_of(tables, limits=(TableLimits(frozenset(allowed)),) * len(tables))
    found = PlanSearch(costs, SHORT).run().best
    by_table = parts_by_table(costs.task, found.parts)
    assert {sharding_type(by_table[one.name], one, TWO_NODES) for one in tables} == set(allowed)


def test_rules_hold() -> None:
    tables = some_tables(8)
    limits = [TableLimits() for _ in tables]
    limits[0] = TableLimits(devices=frozenset({2}))
    limits[1] = TableLimits(min_columns=tables[1].embedding_dim)
    costs = costs_of(tables, limits=tuple(limits), together=((3, 4),), apart=((5, 6, 7),))
    check_sharding(costs.task, PlanSearch(costs, SHORT).run().best.parts)


@pytest.mark.slow
def test_a_tiny_task_is_solved() -> None:
    """Three tables on two devices: every way and place is tried by hand."""
    machine, tables = Machine.one_node(2), some_tables(3)
    costs = costs_of(tables, machine)
    space = SearchSpace(costs)
    per_group = [
        [
            Choice(number, places)
            for number, option in enumerate(group.options)
            for places in ([(0,), (1,)] if len(option.pieces) == 1 and option.span == 1 else [(0, 1), (1, 0)])
            if option.span == 1
        ]
        + [Choice(number) for number, option in enumerate(group.options) if option.span > 1]
        for group in space.groups
    ]
    best = min(State(space, choices).cost_ms for choices in product(*per_group))
    assert PlanSearch(costs, PlanSearchEffort(changes=2000)).run().best.predicted_ms <= best * 1.005


@pytest.mark.slow
def test_nothing_is_below_the_bound() -> None:
    for machine in (TWO_NODES, Machine.one_node(4)):
        space = SearchSpace(costs_of(some_tables(), machine))
        bound, rng = lower_bound_ms(space), np.random.default_rng(7)
        costs = [State(space, random_choices(space, rng)).cost_ms for _ in range(200)]
        best = PlanSearch(space.costs, SHORT).run().best.predicted_ms
        assert 0 < bound <= min(*costs, best)


def test_less_memory_raises_the_bound() -> None:
    tables = some_tables()
    total = sum(table.size_bytes for table in tables)
    roomy, tight = (
        lower_bound_ms(SearchSpace(costs_of(tables, room_bytes=(int(total * share / 8),) * 8))) for share in (20, 1.02)
    )
    assert roomy <= tight


def test_parts_of_one_table_are_on_devices_of_their_own() -> None:
    """Room for little more than everything: cuts by columns have to spread."""
    tables = tuple(Table(f"big{n}", 10**6, 128, 2.0) for n in range(5))
    room = (int(1.05 * sum(table.size_bytes for table in tables) / 8),) * 8
    costs = costs_of(tables, room_bytes=room)
    check_sharding(costs.task, PlanSearch(costs, SHORT).run().best.parts)


def test_column_cuts_are_even_multiples_of_four() -> None:
    assert list(column_cuts(128, 4, 4)) == [(64, 64), (44, 44, 40), (32, 32, 32, 32)]
    assert list(column_cuts(128, 8, 64)) == [(64, 64)]
    assert list(column_cuts(6, 8, 4)) == []


def test_rows_are_cut_as_torchrec_cuts_them() -> None:
    table = Table("t", 10, 4, 1.0)
    assert row_spans(table, 4) == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]
    assert row_spans(replace(table, num_rows=2), 4) == [Span(0, 1), Span(1, 2)]


def test_a_limit_on_the_time_of_a_piece_cuts_what_is_longer() -> None:
    space = SearchSpace(costs_of(some_tables()))
    works = Works.of(space)
    construction = Construction(space, works)
    rows = np.arange(len(space.groups))
    for limit in (2.0, 0.5, 0.1):
        options_G = construction.options(limit * construction.even_ms, SHARDING_TYPES)
        least_G = works.piece_GW.min(axis=1)
        assert (works.piece_GW[rows, options_G] <= np.maximum(limit * construction.even_ms, least_G) * (1 + 1e-9)).all()


def test_a_construction_uses_the_types_that_it_is_asked_for_where_a_table_may() -> None:
    tables = some_tables()
    limits = (TableLimits(types=frozenset({TABLE_WISE})), *(TableLimits() for _ in tables[1:]))
    space = SearchSpace(costs_of(tables, limits=limits))
    construction = Construction(space, Works.of(space))

    def types(*asked: str, **more: float) -> set[str]:
        options_G = construction.options(np.inf, asked, **more)
        pairs = zip(space.groups[1:], options_G[1:], strict=True)
        assert space.groups[0].options[options_G[0]].sharding_type == TABLE_WISE
        return {group.options[number].sharding_type for group, number in pairs}

    assert types(TABLE_WISE) == {TABLE_WISE} and types(DATA_PARALLEL) == {DATA_PARALLEL}
    assert types(ROW_WISE) <= {ROW_WISE, TABLE_WISE} and ROW_WISE in types(ROW_WISE)  # of one row, none is cut
    both = TABLE_WISE, DATA_PARALLEL
    assert types(*both, replica_price=1e-6) == {DATA_PARALLEL} and types(*both, replica_price=1e6) == {TABLE_WISE}


def test_time_of_each_part_beside_the_others() -> None:
    tables = some_tables(4)
    costs = costs_of(tables, Machine.one_node(4))
    parts = [replace(column_parts(table)[0], devices=(n % 2,)) for n, table in enumerate(tables[:3])]
    parts.append(TablePart("t3", Span(0, tables[3].num_rows), Span(0, tables[3].embedding_dim), (0, 1, 2, 3)))
    alone, adds = costs.part_ms(parts)
    devices = costs.predict(parts).devices
    assert all(0 < more <= one + 1e-6 for more, one in zip(adds[:3], alone[:3], strict=True))
    assert max(alone) <= max(device.predicted_total_ms for device in devices) * 1.05


def test_rows_are_cut_only_where_every_device_gets_some() -> None:
    """A sum over devices without rows would be a wrong one; where nothing else is allowed, it has to do."""
    few, many = Table("few", 3, 16, 5.0), Table("many", 8, 16, 5.0)
    options = [
        {option.sharding_type for option in group.options} for group in SearchSpace(costs_of((few, many))).groups
    ]
    assert not options[0] & {ROW_WISE, TABLE_ROW_WISE} and options[1] >= {ROW_WISE, TABLE_ROW_WISE}
    limits = (TableLimits(frozenset({ROW_WISE})),)
    assert {option.sharding_type for option in SearchSpace(costs_of((few,), limits=limits)).groups[0].options} == {
        ROW_WISE
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_more_effort_never_answers_worse(seed: int) -> None:
    """It is told what the same search answers that ends earlier, and goes on as if it had not been asked."""
    rng, shares = np.random.default_rng(seed), (0.1, 0.5, 1.0, 4.0)
    costs = costs_of(some_tables(int(rng.integers(4, 12))))
    known = [PlanSearch(costs, replace(SHORT, share=0.1), seed + 100).run().best.parts]  # improved by changes at random
    searches = [
        PlanSearch(costs, replace(SHORT, share=share), seed, stops=shares[:at]) for at, share in enumerate(shares)
    ]
    found = [search.run(known) for search in searches]
    assert [one.best.parts for one in found[-1].by_effort] == [one.best.parts for one in found]
    found_ms = [one.best.predicted_ms for one in found]
    assert found_ms == sorted(found_ms, reverse=True)
    tried = [search.neighbours.tried for search in searches]
    assert tried == sorted(tried) and tried[0] < tried[1] < tried[2] and tried[3] > 1.5 * tried[2]


@pytest.mark.slow
def test_a_search_goes_on_as_if_nothing_had_been_noted() -> None:
    """Though what it would have answered was improved at random, too."""
    costs, effort = costs_of(some_tables(4)), PlanSearchEffort(changes=1_500)
    known = [PlanSearch(costs, SHORT, 100).run().best.parts]
    quick, alone, noting = (
        PlanSearch(costs, replace(effort, share=share), stops=stops)
        for share, stops in ((0.7, ()), (1.0, ()), (1.0, (0.7,)))
    )
    short, later, both = quick.run(known), alone.run(known), noting.run(known)
    assert later.random_state == both.random_state != both.at_stops[0].random_state
    assert set(later.candidates) <= set(both.candidates)
    (improved, again) = (
        search.with_known(one, known, 2.0) for search, one in ((quick, short), (noting, both.at_stops[0]))
    )
    assert improved.random_state == again.random_state != short.random_state
    assert improved.candidates == again.candidates


def test_the_answer_of_less_effort_stays_where_more_is_slower() -> None:
    costs = costs_of(some_tables(3))
    wholes = whole_tables(costs.task.tables)
    fast, middle, slow = (
        PlanSearchResult(
            costs.predict([replace(one, devices=(device,)) for one, device in zip(wholes, on, strict=True)]), ()
        )
        for on in ((0, 1, 2), (0, 0, 1), (0, 0, 0))
    )
    assert fast.best.predicted_ms < middle.best.predicted_ms < slow.best.predicted_ms
    found = PlanSearchResult.of_efforts((middle, fast, slow))
    assert [one.best for one in found.by_effort] == [middle.best, fast.best, fast.best]
    assert found.candidates == (fast.best.parts,)
