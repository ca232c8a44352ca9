"""Annealing of chains: the energy by hand, changes made at once, memory of noted placements, descents without heat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import COLUMN_WISE
from evenshard.search import annealing
from evenshard.search.annealing import (
    CLOSENESS,
    OVERFLOW,
    PHASES,
    UNUSUAL,
    Annealing,
    Best,
    Phases,
    _energy,
    _energy_of,
    _keep_apart,
)
from evenshard.search.chains import Chains
from evenshard.search.greedy import GreedyStarts
from evenshard.search.proposals import Proposals
from evenshard.search.sharding_option import arrays_of, choices_from
from evenshard.search.space import choices_of, parts_of
from evenshard.tables.table import Table
from support.additive_price import Additive
from support.builders import sized, task
from support.search_builders import costs_of, of_types, some_tables, starts_of

WEIGHTS = (5.0, 4.0, 3.0, 3.0)


def additive(devices: int = 2, room_bytes: int = 1_000) -> GreedyStarts:
    """Tables of 4 bytes each that must stay whole; a device takes the sum of its tables' weights and 0.5."""
    return starts_of(Additive(task(sized(1, 1, 1, 1), devices, room_bytes), WEIGHTS).costs)


def chains_at(of: GreedyStarts, *placements: tuple[int, ...]) -> Chains:
    """Chains of whole tables on these devices."""
    parts = [Placement(one, of.space.task.num_devices).parts(of.space.task.tables) for one in placements]
    arrays = [arrays_of(of.table, choices_of(of.space, one) or []) for one in parts]
    return Chains(of.space, *map(np.stack, zip(*arrays, strict=True)))


def devices_of(of: GreedyStarts, best: Best) -> tuple[int, ...]:
    """The devices of whole tables in the first placement."""
    choices = choices_from(of.table, best.option_NG[0], best.place_NGS[0])
    return Placement.of(of.space.task, parts_of(of.space, choices)).device_of_table


def energies(chains: Chains, mean: float = 0.0, overflow: float = 0.0) -> list[float]:
    return _energy_of(chains, (mean, overflow)).tolist()


def annealed(
    of: GreedyStarts,
    start: Chains,
    changes: int = 3_000,
    note: Callable[[Chains, Best], None] | None = None,
    phases: Phases = PHASES,
) -> list[Best]:
    """The best of each phase; ``note`` is called with the chains and their best after each batch."""
    rng, made = np.random.default_rng(0), []

    def make(option_NG: np.ndarray, place_NGS: np.ndarray) -> Chains:
        made.append(Chains(of.space, option_NG, place_NGS))
        return made[-1]

    def noted(tried: int, best: Best) -> None:
        if note is not None:
            note(made[-1], best)

    return Annealing(Proposals(of.placer, rng), rng, lambda: False, noted).run(Best.of(start), changes, make, phases)


def test_energy_is_the_slowest_device_and_a_little_closeness() -> None:
    """9.5 and 6.5, of which all but the other devices' closeness is the time of a step."""
    chains = chains_at(additive(), (0, 0, 1, 1))
    close = 1 + CLOSENESS * (1 + (6.5 / 9.5) ** 16) / 2
    assert chains.cost_N.tolist() == pytest.approx([9.5])
    assert energies(chains) == pytest.approx([9.5 * close])
    assert energies(chains, mean=3.0) == pytest.approx([9.5 * close + 3 * 8.0])


def test_overflow_and_unusual_cuts_cost_shares_of_the_step() -> None:
    """Two tables of four bytes where there is memory for seven: a seventh is too much."""
    chains = chains_at(additive(room_bytes=7), (0, 0, 1, 1))
    assert energies(chains, overflow=OVERFLOW)[0] - energies(chains)[0] == pytest.approx(9.5 * OVERFLOW * 2 / 7)
    tables = (Table("cut", 10**6, 128, 40.0), Table("whole", 10**6, 128, 40.0))
    of = starts_of(costs_of(tables, Nodes.one_node(3), limits=of_types(tables, COLUMN_WISE)))
    thirds = of.table.count_O == 3
    option_NG = np.array([of.choose_options(frozenset({COLUMN_WISE}))] * 2)
    option_NG[1, 0] = np.flatnonzero(thirds & (of.table.group_O == 0))[0]
    chains = Chains(of.space, option_NG, of.placer.place(option_NG, np.zeros(2, dtype=bool)))
    assert chains.unusual_N.tolist() == [0, 0.5]
    plain = _energy(chains, chains.windows_BND, chains.overflow_N, np.zeros(2), chains.moved_N, (0.0, 0.0))
    assert energies(chains) == pytest.approx((plain + np.array([0, 0.5 * UNUSUAL]) * chains.cost_N).tolist())


@pytest.mark.parametrize("seed", range(3))
def test_changes_that_are_made_at_once_touch_other_devices_and_groups(seed: int) -> None:
    of, rng = starts_of(costs_of(some_tables(8, seed), Nodes.one_node(8))), np.random.default_rng(seed)
    names = ("table_wise", "column_wise", "data_parallel")
    option_NG = np.stack([of.choose_options(frozenset({name})) for name in names])
    chains = Chains(of.space, option_NG, of.placer.place(option_NG, np.zeros(3, dtype=bool)))
    chain_M, edits = Proposals(of.placer, rng).draw(chains, 32)
    shards = chains.list_changed_shards(chain_M, edits)
    passes_M = np.bincount(shards.change_F, minlength=len(chain_M)) > 0
    chosen_M = _keep_apart(chains, chain_M, edits, shards, passes_M)
    each = chains.expand_to_devices(shards)
    for number in range(3):
        own = [change for change in chosen_M.tolist() if chain_M[change] == number]
        assert own[0] == np.flatnonzero(passes_M & (chain_M == number))[0]
        devices = [set(each.device_F[each.change_F == change].tolist()) for change in own]
        groups = [set(edits.group_E[edits.change_E == change].tolist()) for change in own]
        for touched in (devices, groups):
            assert sum(map(len, touched)) == len(set().union(*touched))


def test_placements_beyond_the_memory_are_never_noted() -> None:
    """5 + 4 + 3 + 3 on three devices, with memory for two tables on each: all begin on one device."""
    of = additive(3, room_bytes=8)

    def note(chains: Chains, best: Best) -> None:
        noted = Chains(of.space, best.option_NG, best.place_NGS)
        fits_N = noted.overflow_N == 0
        assert (fits_N | np.isinf(best.cost_N)).all()

    start = chains_at(of, (0, 0, 0, 0))
    assert Best.of(start).cost_N.tolist() == [np.inf]
    assert annealed(of, start, note=note)[-1].cost_N.tolist() == pytest.approx([6.5])


def test_the_energy_rises_with_heat_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 + 4 against 3 + 3 ends with the 4 in the place of a 3."""
    hot: list[float] = []
    of, phase = additive(), ((1.0, None, 0.0, 1.0),)
    monkeypatch.setattr(annealing, "HEAT", 1.0)
    annealed(of, chains_at(of, (0, 0, 1, 1)), 600, lambda chains, best: hot.extend(energies(chains)), phase)
    assert hot != sorted(hot, reverse=True)
    for name, value in (("HEAT", 0.0), ("COOLEST_START", 1e-12), ("END", 1e-12)):
        monkeypatch.setattr(annealing, name, value)
    of, found = additive(), []

    def note(chains: Chains, best: Best) -> None:
        found.append(energies(chains)[0])

    (best,) = annealed(of, chains_at(of, (0, 0, 1, 1)), 600, note, ((1.0, None, 0.0, 1.0),))
    assert found == sorted(found, reverse=True)
    assert best.cost_N.tolist() == pytest.approx([8.5])
    assert devices_of(of, best)[0] != devices_of(of, best)[1]


def test_fewer_chains_are_kept_in_later_phases_and_end_no_worse() -> None:
    of = additive()
    found = annealed(of, chains_at(of, *[(0, 0, 1, 1), (0, 0, 0, 0), (1, 1, 1, 0), (0, 1, 1, 1), (1, 0, 0, 0)]), 2_000)
    assert [len(one.cost_N) for one in found] == [min(kept or 5, 5) for _, kept, *_ in PHASES]
    least = [one.cost_N.min() for one in found]
    assert least == sorted(least, reverse=True) and least[-1] == pytest.approx(8.5)
