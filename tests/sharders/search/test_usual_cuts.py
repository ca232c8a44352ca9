"""Halves and powers of two in the place of other cuts by columns, wherever they cost next to nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts, PredictedParts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import ON_DEVICE, TablePart, whole_tables
from evenshard.placement.sharding import COLUMN_WISE, TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.choices import choices_of
from evenshard.sharders.search.search import SHARE_FOR_CUTS, PlanSearch, PlanSearchEffort, PlanSearchResult, _Run
from evenshard.sharders.search.starts import Start, construct_starts
from evenshard.sharders.search.state import State
from evenshard.sharders.search.usual_cuts import MOST_SLOWER, UsualCuts, num_odd_cuts
from evenshard.tables.table import Table
from support.builders import column_parts

CUT, BUSY = Table("cut", 1_000_000, 128, 40.0), Table("busy", 100_000, 128, 400.0)
SHORT = PlanSearchEffort(changes=300, idle_kicks=10)


def search_of(*tables: Table, devices: int = 4, gb: float = 64, min_columns: int = 4) -> PlanSearch:
    """All tables whole but the first, which may be cut by columns."""
    whole = [TableLimits(frozenset({TABLE_WISE}))] * (len(tables) - 1)
    limits = (TableLimits(frozenset({COLUMN_WISE}), min_columns=min_columns), *whole)
    task = ShardingTask(tables, Machine.one_node(devices), (int(gb * 2**30),) * devices, 16_384, limits=limits)
    kind = simulated_kind(gpu_profile("h200"), Machine(1, 1))
    return PlanSearch(PartCosts(task, [kind], [0] * devices, Links(LINKS["nvlink_h200"])), SHORT)


def in_thirds(*others: Table) -> list[TablePart]:
    """44 + 44 + 40 columns on the first three devices, other tables whole on the last one."""
    parts = [replace(part, devices=(device,)) for device, part in enumerate(column_parts(CUT, (44, 88)))]
    return [*parts, *(replace(part, devices=(3,)) for part in whole_tables(others))]


def settled(search: PlanSearch, parts: list[TablePart]) -> tuple[State, float]:
    """The state with usual cuts, and the cost before."""
    choices = choices_of(search.space, parts)
    assert choices is not None
    state = State(search.space, choices)
    before = state.cost_ms
    assert num_odd_cuts(state) == 1
    UsualCuts(search.neighbours, partial(search.improve, changes=20)).apply(state, before * (1 + MOST_SLOWER))
    return state, before


def widths(state: State, group: int = 0) -> list[int]:
    return [piece.columns for piece in state.option(group).pieces]


@pytest.mark.parametrize(
    ("cut_at", "is_usual"),
    [((), True), ((64,), True), ((84,), False), ((44, 88), False), ((32, 64, 96), True), ((8, 64, 96), False)],
)
def test_usual_cuts_are_even(cut_at: tuple[int, ...], is_usual: bool) -> None:
    search = search_of(CUT)
    parts = [replace(part, devices=(device,)) for device, part in enumerate(column_parts(CUT, cut_at))]
    choices = choices_of(search.space, parts)
    assert choices is not None
    assert State(search.space, choices).option(0).is_usual == is_usual


def test_a_cut_that_costs_hardly_more_takes_the_place_of_thirds() -> None:
    search = search_of(CUT, BUSY)
    state, before = settled(search, in_thirds(BUSY))
    assert widths(state) in ([64, 64], [32, 32, 32, 32]) and num_odd_cuts(state) == 0
    assert state.cost_ms <= before * (1 + MOST_SLOWER)
    assert state.device_ms_D == pytest.approx(State(search.space, state.choices).device_ms_D, rel=1e-4)


def test_a_cut_that_costs_more_leaves_the_placement_as_it_was() -> None:
    search = search_of(CUT, devices=3)
    state, before = settled(search, in_thirds())
    halves = State(search.space, [replace(state.choices[0], option=0, places=(0, 1))])
    assert halves.option(0).is_usual and halves.cost_ms > before * (1 + MOST_SLOWER)
    assert widths(state) == [44, 44, 40] and state.choices[0].places == (0, 1, 2) and state.cost_ms == before


def test_memory_that_halves_do_not_fit_keeps_the_thirds() -> None:
    """Halves of 244 MB; the rules forbid quarters."""
    found = {}
    for gb in (1.0, 0.2):
        state, _ = settled(search_of(CUT, BUSY, gb=gb, min_columns=40), in_thirds(BUSY))
        assert state.fits()
        found[gb] = widths(state)
    assert found == {1.0: [64, 64], 0.2: [44, 44, 40]}


@pytest.mark.parametrize(
    ("columns", "parts", "usual"),
    [(128, 1, True), (128, 2, True), (100, 2, True), (128, 3, False), (96, 3, True), (128, 4, True), (120, 5, False)],
)
def test_halves_powers_of_two_and_parts_as_wide_as_one_are_usual(columns: int, parts: int, usual: bool) -> None:
    table = replace(CUT, embedding_dim=columns)
    space = search_of(table, devices=8).space
    cut = [columns // parts // 4 * 4] * parts
    cut[0] += columns - sum(cut)
    (number,) = space.add_options(0, [(COLUMN_WISE, cut, ON_DEVICE)])
    assert space.groups[0].options[number].is_usual is usual


def test_the_search_answers_with_usual_cuts() -> None:
    found = PlanSearch(search_of(CUT, BUSY).costs, SHORT).run([in_thirds(BUSY)]).best
    assert len([part for part in found.parts if part.table == "cut"]) in (2, 4)


# Halves of CUT beside it cost 0.6 % more than thirds.
QUIET = replace(BUSY, pooling_factor=10.0)


def begun_in_thirds(search: PlanSearch) -> tuple[PredictedParts, State]:
    parts = in_thirds(QUIET)
    choices = choices_of(search.space, parts)
    assert choices is not None
    return search.costs.predict(parts), State(search.space, choices)


def test_usual_cuts_do_not_make_an_answer_slower_than_what_the_search_began_with() -> None:
    search = search_of(CUT, QUIET)
    thirds, state = begun_in_thirds(search)
    assert search._with_usual_cuts([(thirds, state)], thirds.predicted_ms) == thirds
    thirds, state = begun_in_thirds(search)
    usual = search._with_usual_cuts([(thirds, state)], float("inf"))
    assert thirds.predicted_ms < usual.predicted_ms <= thirds.predicted_ms * (1 + MOST_SLOWER)


def test_usual_cuts_leave_what_the_search_began_with_for_the_next_answer() -> None:
    """One search answers at several stops."""
    search, parts = search_of(CUT, BUSY), in_thirds(BUSY)
    choices = choices_of(search.space, parts)
    assert choices is not None
    state = State(search.space, choices)
    slower = [choices[0], replace(choices[1], places=(0,))]
    start = Start(slower, {COLUMN_WISE, TABLE_WISE}, State(search.space, slower).cost_ms)
    begun = (search.costs.predict(parts), state)
    found = [search._end(_Run([start], (), begun, start), [start]).best.parts for _ in range(2)]
    assert found[0] == found[1] != begun[0].parts
    assert widths(state) == [44, 44, 40]


def test_a_known_placement_with_odd_cuts_is_no_better_than_the_answer() -> None:
    search = search_of(CUT, QUIET)
    thirds, state = begun_in_thirds(search)
    halves = search._with_usual_cuts([(thirds, state)], float("inf"))
    found = search.with_known(PlanSearchResult(halves, (halves.parts,)), [thirds.parts])
    assert halves.predicted_ms > thirds.predicted_ms >= found.best.predicted_ms


def test_an_improvement_that_fails_leaves_the_best_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of a state are rounded, so what it takes for better may be predicted to take longer."""
    search = search_of(CUT, replace(QUIET, name="quiet"), BUSY)
    starts = [State(search.space, start.choices) for start in construct_starts(search.construction)]
    least_ms = min(search.costs.predict(state.parts()).predicted_ms for state in starts)

    def crowd(state: State, most_idle: int) -> None:
        for group in (1, 2):
            state.replace(group, replace(state.choices[group], places=(0,)))

    monkeypatch.setattr(search, "_improve", crowd)
    assert search.run().best.predicted_ms == pytest.approx(least_ms, rel=1e-9)


def test_all_attempts_at_usual_cuts_share_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(CUT, QUIET)
    tried: list[int] = []
    monkeypatch.setattr(search, "improve", lambda state, changes: tried.append(changes))
    search._with_usual_cuts([begun_in_thirds(search) for _ in range(3)], 0.0)
    assert len(tried) == 3 and 0 < sum(tried) <= SHARE_FOR_CUTS * search.tries
