"""Starts that keep devices for narrow pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import LOOKUPS, WIDEST, simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search.construction import Construction, Works
from evenshard.sharders.search.narrow_starts import (
    STEPS,
    _mean_devices,
    _neighbours,
    _place,
    _programme_of,
    narrow_starts,
)
from evenshard.sharders.search.programme import Programme, Solution
from evenshard.sharders.search.search import PlanSearch, _best_of_both_kinds
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.starts import Start, construct_starts
from evenshard.sharders.search.state import State
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table

GB = 10**9


def task_of(tables: tuple[Table, ...], devices: int, room_gb: float = 60.0, **limits: frozenset[str]) -> ShardingTask:
    task = ShardingTask(tables, Machine.one_node(devices), (int(room_gb * GB),) * devices, 65_536)
    return replace(task, limits=(TableLimits(**limits),) * len(tables)) if limits else task


def costs_of(task: ShardingTask) -> PartCosts:
    kind = simulated_kind(gpu_profile("h100"), task.machine)
    return PartCosts(task, [kind], [0] * task.num_devices, Links(LINKS["nvlink_h100"]))


def starts_of(task: ShardingTask) -> list[State]:
    space = SearchSpace(costs_of(task))
    return narrow_starts(Construction(space, Works.of(space)))


def programme_of(tables: tuple[Table, ...], devices: int, room_gb: float = 60.0) -> Programme:
    space = SearchSpace(costs_of(task_of(tables, devices, room_gb)))
    return _programme_of(space, [*space.lane_limits, int(space.widest_G.max())])


def drawn(count: int, seed: int = 0) -> tuple[Table, ...]:
    return tuple(generate_tables(GeneratorConfig(count, (4, 16, 32, 64, 128), 10**6, 32), 65_536, seed=seed))


def test_wide_tables_have_a_device_and_narrow_ones_another() -> None:
    """Of two devices; all are looked up as often, so that neither kind is worth a cut, and whole tables are allowed."""
    tables = tuple(Table(f"t{at}", 10**5, 128 if at < 4 else 32, 20.0) for at in range(11))
    best, *_ = starts_of(task_of(tables, 2, types=frozenset({TABLE_WISE})))
    device_of = [choice.places[0] for choice in best.choices]
    assert set(device_of[:4]).isdisjoint(device_of[4:])


def test_a_wide_table_that_is_hardly_looked_up_is_cut_for_narrow_devices() -> None:
    """Uncut it would make the many lookups of a device's others slower."""
    narrow = (Table(f"n{at}", 10**5, 32, 40.0) for at in range(9))
    best, *_ = starts_of(task_of((Table("wide", 10**5, 64, 0.5), *narrow), 3))
    assert [piece.columns for piece in best.option(0).pieces] == [32, 32]


@pytest.mark.parametrize("seed", range(3))
def test_no_other_start_of_many_tables_of_many_widths_is_as_good(seed: int) -> None:
    space = SearchSpace(costs_of(task_of(drawn(120, seed), 8)))
    starts = construct_starts(Construction(space, Works.of(space)))
    narrow, others = ([one.cost_ms for one in starts if one.is_narrow is wanted] for wanted in (True, False))
    assert min(narrow) < 0.98 * min(others)


def test_where_widths_or_devices_are_alike_there_are_none() -> None:
    alike = tuple(Table(f"t{at}", 10**5, 64, 5.0 + at) for at in range(6))
    assert starts_of(task_of(alike, 4)) == starts_of(task_of(drawn(6), 1)) == []
    below_any_limit = tuple(Table(f"t{at}", 10**5, 8 * (1 + at % 4), 5.0) for at in range(6))
    assert starts_of(task_of(below_any_limit, 4)) == []


def test_tables_that_stay_together_are_as_wide_as_the_widest() -> None:
    """The narrow one is in no class of its own: its group needs a device for wide ones."""
    tables = tuple(Table(f"t{at}", 10**5, dim, 5.0) for at, dim in enumerate((32, 128, 64)))
    task = replace(task_of(tables, 2), together=((0, 1),))
    space = SearchSpace(costs_of(task))
    assert space.lane_limits == (64,)
    found = narrow_starts(Construction(space, Works.of(space)))
    assert all(len(state.choices) == 2 for state in found)


@pytest.mark.parametrize("seed", range(3))
def test_starts_keep_to_memory_that_hardly_suffices(seed: int) -> None:
    tables = drawn(60, seed)
    task = task_of(tables, 4)
    roomy = sum(task.table_bytes) / 4 / GB
    found = starts_of(replace(task, room_bytes=(int(1.03 * roomy * GB),) * 4))
    assert found and all(state.fits() for state in found)


def test_starts_keep_to_devices_that_are_allowed() -> None:
    tables = drawn(30)
    limits = [TableLimits(devices=frozenset({1, 3}) if at % 3 == 0 else None) for at in range(30)]
    found = starts_of(replace(task_of(tables, 4), limits=tuple(limits)))
    for state in found:
        for group, choice in enumerate(state.choices):
            position, option = state.space.groups[group].tables[0], state.option(group)
            assert position % 3 or set(state.devices_of(option, choice)) <= {1, 3}


@pytest.mark.parametrize("division", [(3, 2, 3), (0, 4, 4), (8, 0, 0)])
@pytest.mark.parametrize("room_gb", [60.0, 1.7])
def test_the_bound_is_that_of_a_solver(division: tuple[int, ...], room_gb: float) -> None:
    """Never above what HiGHS finds for the whole programme, and hardly below; choices are hardly longer."""
    optimize = pytest.importorskip("scipy.optimize")
    programme = programme_of(drawn(80, 5), 8, room_gb)
    found = programme.solve(division, STEPS)
    devices_C = np.array(division)
    may_GM, shares_CM = programme.may_choose(devices_C, np.inf), programme.shares(devices_C)
    if not may_GM.any(axis=1).all():
        assert found is None
        return
    assert found is not None
    group_V, choice_V = np.nonzero(may_GM)
    windows = len(programme.works_WGM)
    works_WCV = programme.works_WGM[:, None, group_V, choice_V] * shares_CM[:, choice_V]
    slowest = -np.repeat(np.eye(windows), len(division), axis=0)
    upper = np.hstack([works_WCV.reshape(-1, len(group_V)), slowest])
    memory = np.hstack([programme.bytes_GM[group_V, choice_V] * shares_CM[:, choice_V], np.zeros((3, windows))])
    each = np.hstack([np.eye(may_GM.shape[0])[:, group_V], np.zeros((may_GM.shape[0], windows))])
    solved = optimize.linprog(
        np.append(np.zeros(len(group_V)), np.ones(windows)),
        np.vstack([upper, memory / programme.room]),
        np.append(np.zeros(len(upper)), np.full(len(memory), programme.full_share)),
        each,
        np.ones(len(each)),
    )
    assert 0.97 * solved.fun <= found.bound_ms <= solved.fun * (1 + 1e-9)
    assert found.windows_W.sum() >= solved.fun * (1 - 1e-9) or room_gb < 60.0


@pytest.mark.parametrize("division", [(3, 2, 3), (0, 4, 4)])
def test_all_devices_together_have_all_of_a_choice(division: tuple[int, ...]) -> None:
    programme = programme_of(drawn(20), 8)
    shares_CM = programme.shares(np.array(division))
    may_M = programme.may_choose(np.array(division), np.inf).any(axis=0)
    assert np.array(division) @ shares_CM[:, may_M] == pytest.approx(np.ones(may_M.sum()))


def test_a_class_is_measured_beside_its_widest_pieces() -> None:
    space = SearchSpace(costs_of(task_of(drawn(40), 8)))
    held_CH = _mean_devices(space, [*space.lane_limits, int(space.widest_G.max())])
    assert held_CH[:, WIDEST].tolist() == [32, 64, 128]


def test_a_class_is_measured_beside_its_own_tables() -> None:
    """A price without maxima, such as a learned model's, sees lanes by the tables that a device holds."""
    tables = tuple(Table(f"t{at}", 10**5, 128 if at < 6 else 32, 30.0 if at < 6 else 10.0) for at in range(8))
    space = SearchSpace(costs_of(task_of(tables, 4)))
    narrow_H, all_H = _mean_devices(space, [32, 128])
    assert narrow_H[LOOKUPS] == pytest.approx(8 * 10 * 65_536 / 4)
    assert all_H[LOOKUPS] == pytest.approx((6 * 30 + 2 * 10) * 65_536 / 4)


def test_a_narrow_piece_goes_to_a_device_for_wide_ones_if_its_own_are_full() -> None:
    """Each device holds one of these tables; the only one of the first class takes the first."""
    tables = tuple(Table(f"t{at}", 64 * 10**6 // dim, dim, 10.0 - at) for at, dim in enumerate((32, 32, 64)))
    of_tables = task_of(tables, 3, types=frozenset({TABLE_WISE}))
    space = SearchSpace(costs_of(replace(of_tables, room_bytes=(int(1.1 * max(of_tables.table_bytes)),) * 3)))
    programme = _programme_of(space, [32, 64])
    on_first = programme.class_M.tolist().index(0)
    on_second = programme.class_M.tolist().index(1)
    solution = Solution(np.array([on_first, on_first, on_second]), 0.0, np.ones(len(programme.works_WGM)))
    placed = _place(Construction(space, Works.of(space)), programme, (1, 2), solution)
    assert placed is not None and sorted(choice.places for choice in placed) == [(0,), (1,), (2,)]
    assert placed[0].places == (0,)


def test_one_class_gives_devices_to_another() -> None:
    assert sorted(_neighbours((1, 3), 2)) == [(0, 4), (3, 1)]
    assert list(_neighbours((0, 2), 1)) == [(1, 1)]


def test_both_kinds_of_starts_are_improved_as_far_as_they_are_good() -> None:
    def start(cost_ms: float, is_narrow: bool) -> Start:
        return Start([], set(), cost_ms, is_narrow)

    narrow = [start(1.0 + at / 100, True) for at in range(4)]
    near, far = start(1.08, False), start(1.2, False)
    starts = [*narrow, near, far]
    assert _best_of_both_kinds(starts, 4) == [*narrow[:3], near]
    assert _best_of_both_kinds(starts, 1) == [narrow[0], near]
    assert _best_of_both_kinds([*narrow, far], 1) == narrow[:1]
    assert _best_of_both_kinds(starts, 64) == starts
    assert _best_of_both_kinds([near, far], 1) == [near]


def test_whole_tables_of_many_widths_are_placed_better() -> None:
    """The search answers faster than from the other starts alone."""
    costs = costs_of(task_of(drawn(60, 2), 4, types=frozenset({TABLE_WISE})))
    with_narrow = PlanSearch(costs).run().best.predicted_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenshard.sharders.search.starts.narrow_starts", lambda construction, deadline: [])
        without = PlanSearch(costs).run().best.predicted_ms
    assert with_narrow <= without * (1 + 1e-9)
