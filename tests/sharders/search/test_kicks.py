"""Kicks lead away from where a descent has ended."""

from __future__ import annotations

import numpy as np

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.kicks import Kicks
from evenshard.sharders.search.search import PlanSearch
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.state import State
from evenshard.tables.table import Table

DEVICES = 4


def whole_search(room: int = 10**10) -> PlanSearch:
    tables = tuple(Table(f"t{at}", 10**5, 32, 4.0 + at) for at in range(8))
    limits = (TableLimits(frozenset({TABLE_WISE})),) * len(tables)
    machine = Machine.one_node(DEVICES)
    task = ShardingTask(tables, machine, (room, *(10**10,) * (DEVICES - 1)), 65_536, limits=limits)
    kind = simulated_kind(gpu_profile("h200"), machine)
    return PlanSearch(PartCosts(task, [kind], [0] * DEVICES, Links(link("nvlink_h200"))))


def kicked(search: PlanSearch, at: tuple[int, ...]) -> set[tuple[int, int]]:
    """The units that single kicks of a placement change, each with where it goes."""
    kicks, found = Kicks(search.neighbours, np.random.default_rng(0), 1), set()
    for _ in range(600):
        state = State(search.space, [Choice(0, (device,)) for device in at])
        is_changed = kicks.kick(state)
        moved = {(group, own.places[0]) for group, own in enumerate(state.choices) if own.places[0] != at[group]}
        assert is_changed == bool(moved)
        found |= moved
    return found


def test_any_group_may_be_kicked_to_any_other_device() -> None:
    at = (0, 1, 2, 3, 0, 1, 2, 3)
    elsewhere = {(group, device) for group, home in enumerate(at) for device in range(DEVICES) if device != home}
    assert kicked(whole_search(), at) == elsewhere


def test_no_group_is_kicked_to_where_it_has_no_memory() -> None:
    """Device 0 has none."""
    found = kicked(whole_search(room=0), (1, 1, 2, 2, 3, 3, 1, 2))
    assert found and all(device for _, device in found)
