"""What a state remembers is what a new state of the same choices tells."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.cluster import simulated_kind
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.sharding import DEVICE
from evenshard.placement.task import ShardingTask
from evenshard.sharders.plan_search.search import PlanSearch
from evenshard.sharders.plan_search.starts import constructed
from evenshard.sharders.plan_search.state import State
from evenshard.tables.table import Table

DEVICES = 4


@pytest.fixture(scope="module")
def search() -> PlanSearch:
    """Six tables of unlike sizes, in every way."""
    tables = tuple(Table(f"t{at}", 10 ** (3 + at % 4), 32, 4.0 + 3 * at) for at in range(6))
    machine = Machine.one_node(DEVICES)
    task = ShardingTask(tables, machine, (10**10,) * DEVICES, 65_536)
    kind = simulated_kind(gpu_profile("h200"), machine)
    return PlanSearch(PartCosts(task, [kind], [0] * DEVICES, Links(link("nvlink_h200"))))


def all_gains(search: PlanSearch, state: State) -> list[float]:
    """What each device saves without each unit that has a piece there."""
    return [
        float(gain)
        for device in range(DEVICES)
        for gain in search.pieces.gains_ms(state, sorted(state.on_device[device]), device)
    ]


def test_gains_are_those_of_the_choices_of_now(search: PlanSearch) -> None:
    """After changes, after changes that were undone, and however many have been asked for before."""
    rng = np.random.default_rng(0)
    state = State(search.options, constructed(search.construction)[0].choices)
    several = 0
    for _ in range(60):
        all_gains(search, state)
        unit = int(rng.integers(len(search.options.units)))
        number = int(rng.integers(len(search.options.units[unit].ways)))
        choice = search.pieces.placed(state, unit, number, rng.random(DEVICES))
        if choice is None or choice == state.choices[unit]:
            continue
        times, old = state.times(), state.choices[unit]
        state.replace(unit, choice)
        several += search.options.units[unit].ways[choice.way].scope == DEVICE
        assert all_gains(search, state) == pytest.approx(all_gains(search, State(search.options, state.choices)))
        if rng.random() < 0.5:
            state.undo([(unit, old)], times)
            assert all_gains(search, state) == pytest.approx(all_gains(search, State(search.options, state.choices)))
    assert several > 10


def test_pieces_are_added_to_several_devices_at_once_as_one_by_one(search: PlanSearch) -> None:
    state = State(search.options, constructed(search.construction)[0].choices)
    pieces = [way.pieces[0] for unit in search.options.units for way in unit.ways if way.scope == DEVICE]
    devices = np.arange(DEVICES)
    alone = [search.pieces.adds_ms(state, [piece], devices[[at]])[0, 0] for piece in pieces for at in devices]
    assert search.pieces.adds_ms(state, pieces, devices).ravel() == pytest.approx(alone)
    assert min(alone) > 0
