"""Columns that move from one part of a table to another, which cuts it unevenly: in long searches alone."""

from __future__ import annotations

import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import FUSED_UVM, ON_DEVICE, Storage
from evenshard.placement.plan import check_sharding, parts_by_table
from evenshard.placement.sharding import COLUMN_WISE, ROW_WISE, TABLE_COLUMN_WISE, TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.column_shifts import column_shifts
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.state import State, scores_of
from evenshard.tables.table import Table

CUT, BUSY = Table("cut", 1_000_000, 128, 40.0), Table("busy", 1_000_000, 128, 15.0)
NODES = Machine(4, 2)


def search_of(machine: Machine, limits: TableLimits, effort: PlanSearchEffort | None = None) -> PlanSearch:
    """Of a table with these limits, and of one that stays whole."""
    both = (limits, TableLimits(frozenset({TABLE_WISE})))
    task = ShardingTask((CUT, BUSY), machine, (2**36,) * machine.num_devices, 16_384, limits=both)
    links = Links(link("nvlink_h200"), link("infiniband_ndr"))
    return PlanSearch(
        PartCosts(task, [simulated_kind(gpu_profile("h200"), machine)], [0] * machine.num_devices, links), effort
    )


def state_of(search: PlanSearch, name: str, widths: list[int], places: tuple[int, ...]) -> State:
    number = search.space.number_of(0, name, widths, search.space.groups[0].options[0].storage)
    assert number is not None
    return State(search.space, [Choice(number, places), Choice(0, (3,))])


def widths_at(state: State) -> dict[int, int]:
    """Columns of the first table by device."""
    own = state.choices[0]
    return dict(zip(own.places, (piece.columns for piece in state.option(0).pieces), strict=True))


@pytest.mark.parametrize(
    ("machine", "limits", "name", "elsewhere"),
    [
        (Machine.one_node(4), TableLimits(frozenset({COLUMN_WISE})), COLUMN_WISE, {1, 2, 3}),
        (Machine.one_node(4), TableLimits(frozenset({COLUMN_WISE}), min_columns=32), COLUMN_WISE, {1, 2, 3}),
        (Machine.one_node(4), TableLimits(frozenset({COLUMN_WISE}), devices=frozenset({0, 1, 2})), COLUMN_WISE, {1, 2}),
        (NODES, TableLimits(frozenset({COLUMN_WISE, TABLE_WISE})), COLUMN_WISE, {1, 2, 3}),
        (NODES, TableLimits(frozenset({TABLE_COLUMN_WISE})), TABLE_COLUMN_WISE, {1}),
    ],
)
def test_columns_go_wherever_rules_let_them(
    machine: Machine, limits: TableLimits, name: str, elsewhere: set[int]
) -> None:
    search = search_of(machine, limits)
    state = state_of(search, name, [64, 64], (0, 1))
    changes = list(column_shifts(search.neighbours.pieces, state, 0, [0]))
    scores_N = scores_of(state.after(state.piece_changes(changes), len(changes))[0])
    gained: set[int] = set()
    for number, change in enumerate(changes):
        after = state.copy()
        after.replace_all(change)
        check_sharding(search.space.task, after.parts())
        widths = widths_at(after)
        assert sum(widths.values()) == 128 and min(widths.values()) >= limits.min_columns
        assert widths.get(0, 0) < 64
        gained |= {device for device, width in widths.items() if width > widths_at(state).get(device, 0)}
        assert scores_N[number] == pytest.approx(State(search.space, after.choices).score, rel=1e-9)
    assert gained == elsewhere
    wholes = [
        change for change in changes if search.space.groups[0].options[change[0][1].option].pieces[0].columns == 128
    ]
    assert bool(wholes) == bool({TABLE_WISE, TABLE_COLUMN_WISE} & set(limits.types or ()))


def test_rows_and_what_lies_elsewhere_keep_their_columns() -> None:
    search = search_of(Machine.one_node(4), TableLimits(frozenset({ROW_WISE, TABLE_WISE})))
    state = State(search.space, [Choice(0, (0,)), Choice(0, (3,))])
    assert list(column_shifts(search.neighbours.pieces, state, 0, [0])) == []


def test_a_long_search_alone_cuts_unevenly() -> None:
    """The device without the other table takes more columns."""
    found = {}
    for share in (1.0, 3.0):
        effort = PlanSearchEffort(changes=400, idle_kicks=10, share=share)
        search = search_of(Machine.one_node(2), TableLimits(frozenset({COLUMN_WISE})), effort)
        best, task = search.run().best, search.space.task
        cut = parts_by_table(task, best.parts)["cut"]
        (busy,) = parts_by_table(task, best.parts)["busy"]
        found[share] = best.predicted_ms, {part.devices == busy.devices: part.columns.size for part in cut}
    assert found[1.0][1] in ({True: 64, False: 64}, {False: 128})
    assert found[3.0][0] < 0.97 * found[1.0][0]
    assert 64 > found[3.0][1][True] > 0


def test_options_that_shifts_made_are_for_shifts_alone() -> None:
    """Until a placement that was given has one; and while cuts are tidied, there are no shifts."""
    search = search_of(Machine.one_node(4), TableLimits(frozenset({COLUMN_WISE})))
    space, neighbours = search.space, search.neighbours
    state = state_of(search, COLUMN_WISE, [64, 64], (0, 1))
    neighbours.shifts_columns = neighbours.usual_cuts_only = True
    assert list(neighbours._others(state, 0)) and not space.shifted
    neighbours.usual_cuts_only = False
    changes = list(neighbours._others(state, 0))
    made = {(group, choice.option) for change in changes for group, choice in change} & space.shifted
    assert made == space.shifted and not any(neighbours.may_be(*one) for one in made)
    group, number = min(made)
    widths = [piece.columns for piece in space.groups[group].options[number].pieces]
    assert space.number_of(group, COLUMN_WISE, widths, ON_DEVICE) == number
    assert neighbours.may_be(group, number) and space.shifted == made - {(group, number)}


def test_columns_outside_of_device_memory_stay_as_they_are() -> None:
    search = search_of(Machine.one_node(4), TableLimits(frozenset({COLUMN_WISE})))
    number = search.space.number_of(0, COLUMN_WISE, [64, 64], Storage(FUSED_UVM))
    assert number is not None
    state = State(search.space, [Choice(number, (0, 1)), Choice(0, (3,))])
    assert list(column_shifts(search.neighbours.pieces, state, 0, [0])) == []
