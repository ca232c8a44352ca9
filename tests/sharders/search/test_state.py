"""What a state says of changes is what a new state of the changed choices tells."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.measure.step_time import LARGEST_SUM
from evenshard.placement.machine import Machine
from evenshard.placement.task import ShardingTask
from evenshard.sharders.search.neighbours import LEAST_STEP
from evenshard.sharders.search.search import PlanSearch, _is_better
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.starts import construct_starts
from evenshard.sharders.search.state import Change, State
from evenshard.tables.table import Table

DEVICES = 4


def search_of(nodes: int, profiles: tuple[str, ...], pipeline: str = "") -> PlanSearch:
    """Six tables of unlike sizes, in every way, on four devices of these kinds, one after the other."""
    tables = tuple(Table(f"t{at}", 10 ** (3 + at % 4), 32, 4.0 + 3 * at) for at in range(6))
    machine = Machine(DEVICES, DEVICES // nodes)
    task = ShardingTask(tables, machine, (10**8,) * DEVICES, 65_536)
    kinds = [simulated_kind(gpu_profile(one), machine) for one in profiles]
    links = Links(link("nvlink_h200"), link("infiniband_ndr") if nodes > 1 else None)
    return PlanSearch(PartCosts(task, kinds, [at % len(kinds) for at in range(DEVICES)], links, pipeline))


def random_changes(search: PlanSearch, state: State, rng: np.random.Generator) -> list[Change]:
    """Some units each, in ways and places drawn at random."""
    found: list[Change] = []
    for _ in range(30):
        change = []
        for group in rng.permutation(len(search.space.groups))[: 1 + rng.integers(3)].tolist():
            options = search.space.groups[group].options
            number = int(rng.integers(len(options)))
            choices = search.pieces.place_options(state, group, [number], rng.random(state.task.num_devices))
            if options[number].span == 1:  # memory left aside
                places = rng.permutation(state.task.num_devices)[: len(options[number].pieces)]
                choices = [Choice(number, tuple(places.tolist()))]
            change += [(group, choice) for choice in choices]
        if change:
            found.append(change)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("profiles", "pipeline"), [(("h200",), "base"), (("h200",), ""), (("h200", "a100_80gb"), LARGEST_SUM)]
)
def test_changes_that_are_tried_out_take_what_they_take_when_made(
    nodes: int, profiles: tuple[str, ...], pipeline: str
) -> None:
    """Several units each, of all types, also where devices are of two kinds: times, memory, and the state after."""
    search, rng = search_of(nodes, profiles, pipeline), np.random.default_rng(nodes)
    starts, fit = construct_starts(search.construction), []
    for start in starts[:2] + starts[-2:]:
        state = State(search.space, start.choices)
        for _ in range(3):
            changes = random_changes(search, state, rng)
            after_WND, fits_N = state.after(state.piece_changes(changes), len(changes))
            for change, after_WD, fits in zip(changes, after_WND.swapaxes(0, 1), fits_N, strict=True):
                own = dict(change)
                new = State(search.space, [own.get(group, one) for group, one in enumerate(state.choices)])
                assert after_WD == pytest.approx(new.windows_WD, rel=1e-9) and fits == new.fits()
                fit.append(bool(fits))
            state.replace_all(changes[0])
            again = State(search.space, state.choices)
            assert state.windows_WD == pytest.approx(again.windows_WD, rel=1e-9)
            assert (state.used_3D == again.used_3D).all()
    assert True in fit and False in fit


def test_a_copy_changes_by_itself() -> None:
    search, rng = search_of(1, ("h200",)), np.random.default_rng(0)
    state = State(search.space, construct_starts(search.construction)[0].choices)
    copied, before = state.copy(), state.device_ms_D.copy()
    for change in random_changes(search, state, rng):
        copied.replace_all(change)
    assert (state.device_ms_D == before).all()
    assert state.device_ms_D == pytest.approx(State(search.space, state.choices).device_ms_D, rel=1e-9)
    assert copied.device_ms_D == pytest.approx(State(search.space, copied.choices).device_ms_D, rel=1e-9)


def test_a_state_is_better_only_by_more_than_the_least_step() -> None:
    """Scores that differ by less are a tie: of both states neither is better, and the earlier one stays."""
    search, rng = search_of(1, ("h200",)), np.random.default_rng(0)
    state = State(search.space, construct_starts(search.construction)[-1].choices)
    ties = steps = 0
    for change in random_changes(search, state, rng):
        state.replace_all(change)
        before = state.copy()
        for group in range(len(search.space.groups)):
            for place in range(DEVICES):
                other = before.copy()
                other.replace(group, Choice(0, (place,)))
                low, high = sorted((before, other), key=lambda one: one.score)
                gain = 1 - low.score / high.score
                if 1e-9 < gain < 0.99 * LEAST_STEP:
                    assert not _is_better(low, high)
                    ties += 1
                elif gain > 1.01 * LEAST_STEP:
                    assert _is_better(low, high)
                    steps += 1
                assert not _is_better(high, low)
    assert ties and steps


def test_a_step_makes_the_score_better_and_the_best_change_is_taken() -> None:
    search, rng = search_of(1, ("h200",)), np.random.default_rng(0)
    state = State(search.space, construct_starts(search.construction)[-1].choices)
    changes = random_changes(search, state, rng)
    scores = [
        State(search.space, [dict(change).get(group, one) for group, one in enumerate(state.choices)]).score
        for change in changes
    ]
    best = search.neighbours.best(state, changes)
    assert best == (changes[int(np.argmin(scores))] if min(scores) < state.score * (1 - LEAST_STEP) else None)
    while (change := search.neighbours.step(state)) is not None:
        before = state.score
        state.replace_all(change)
        assert state.score < before
