"""The best-known reference: the optimum of tiny tasks, the hardware's own number, never worse than its starts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.references.annealing import AnnealConfig, Population, Start
from benchmarks.references.annealing_starts import best_of_kinds, greedy_starts, ranked_starts, within_its_limits
from benchmarks.references.best_known import BestKnownSharder
from benchmarks.references.shard_times import ShardTimes
from benchmarks.references.steepest import descend
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated.device_model import RADIX_BITS, ROW_LIMITS, sort_passes
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.measure.simulated.shard_work import MAXIMA
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.random import random_placement
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from support.builders import READ_ONCE, capped, every_placement
from support.builders import task as make_task

H200 = "simulated:h200"
BATCH = 65536
POOL = generate_tables(GeneratorConfig(120, (4, 16, 64, 256), weight_bits=16), BATCH, seed=3)
HARDWARE = SimulatedHardware(MeasureConfig(hardware=H200))
RTX = SimulatedHardware(MeasureConfig(hardware="simulated:rtx_2080_ti"))
QUICK = AnnealConfig(evaluations=20_000, stages=10)


def some_task(count: int, devices: int, first: int = 0, batch_size: int = BATCH) -> ShardingTask:
    return make_task(POOL[first : first + count], devices, batch_size=batch_size)


def tight(of_task: ShardingTask, room: float = 1.1) -> ShardingTask:
    """Devices that together hold ``room`` times the tables."""
    sizes = [table.size_bytes for table in of_task.tables]
    return capped(of_task, max(int(room * sum(sizes) / of_task.num_devices), max(sizes)))


def ms_of(of_task: ShardingTask, placement: Placement) -> float:
    return HARDWARE.measure(of_task, placement).max_device_ms


def random_devices(of_task: ShardingTask, seed: int) -> np.ndarray:
    return np.array(random_placement(of_task, np.random.default_rng(seed)).device_of_table)


def huge(rows: int, name: str) -> Table:
    return Table(name, rows, 4, 5.0, READ_ONCE, 16)


# The sharder ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("count", "devices", "first"), [(9, 2, 0), (7, 3, 20), (6, 4, 40), (8, 2, 60)])
def test_it_finds_the_optimum_of_tiny_tasks(count: int, devices: int, first: int) -> None:
    of_task = tight(some_task(count, devices, first), 1.3)
    all_ms = [
        cost.max_device_ms
        for placement, cost in zip(
            every_placement(of_task),
            HARDWARE.measure_many([(of_task, one) for one in every_placement(of_task)]),
            strict=True,
        )
        if is_legal(of_task, placement)
    ]
    assert BestKnownSharder(H200, QUICK).improve(of_task, ())[1] == min(all_ms)


def is_legal(of_task: ShardingTask, placement: Placement) -> bool:
    try:
        check_placement(of_task, placement)
    except InfeasibleTask:
        return False
    return True


@pytest.mark.parametrize("batch_size", [BATCH, 512])
@pytest.mark.parametrize("room", [1.05, 10.0])
def test_the_answer_is_legal_and_costs_what_the_hardware_says(batch_size: int, room: float) -> None:
    of_task = tight(some_task(40, 5, batch_size=batch_size), room)
    placement, ms = BestKnownSharder(H200, QUICK).improve(of_task, ())
    check_placement(of_task, placement)
    assert ms == ms_of(of_task, placement)
    assert ms <= min(ms_of(of_task, one.place(of_task)) for one in expert_sharders() if answers(one, of_task))


def answers(sharder: object, of_task: ShardingTask) -> bool:
    try:
        sharder.place(of_task)  # type: ignore[attr-defined]
    except InfeasibleTask:
        return False
    return True


@pytest.mark.slow
def test_it_is_never_worse_than_its_starts_and_goes_on_from_them() -> None:
    of_task = some_task(40, 4)
    good, good_ms = BestKnownSharder(H200, replace(QUICK, evaluations=200_000)).improve(of_task, ())
    hardly = BestKnownSharder(H200, AnnealConfig(evaluations=1, stages=1))
    assert hardly.improve(of_task, ())[1] > good_ms
    bad = Placement((0,) * 40, 4)
    assert hardly.improve(of_task, (bad, good))[1] <= good_ms


def test_the_same_seed_gives_the_same_answer_and_noise_is_left_out() -> None:
    of_task = some_task(30, 4)
    noisy = MeasureConfig(hardware=H200, noise=0.1)
    placement, ms = BestKnownSharder(H200, QUICK).improve(of_task, ())
    assert BestKnownSharder(noisy, QUICK).improve(of_task, ()) == (placement, ms)
    assert BestKnownSharder(H200, QUICK).place(of_task) == placement


def test_one_device_leaves_nothing_to_decide() -> None:
    assert BestKnownSharder(H200, QUICK).place(some_task(5, 1)) == Placement((0,) * 5, 1)


def test_more_devices_than_tables() -> None:
    placement = BestKnownSharder(H200, QUICK).place(some_task(3, 7))
    assert len(set(placement.device_of_table)) == 3


def test_real_hardware_is_refused() -> None:
    with pytest.raises(BadConfig, match="noise-free cost, which cpu does not have"):
        BestKnownSharder("cpu")


@pytest.mark.parametrize(
    "setting", [{"evaluations": 0}, {"stages": 0}, {"cold": 0.0}, {"warm": 1.0}, {"culled_share": 0.6}]
)
def test_settings_without_sense_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(BadConfig, match=r"anneal\."):
        AnnealConfig(**setting)  # type: ignore[arg-type]


def test_what_fits_nowhere_is_infeasible() -> None:
    of_task = some_task(12, 3)
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        BestKnownSharder(H200, QUICK).place(capped(of_task, 10**4))
    crowded = Placement((0,) * 12, 3)
    with pytest.raises(InfeasibleTask, match="device 0 would hold"):
        BestKnownSharder(H200, QUICK).improve(tight(of_task), (crowded,))


def test_the_memory_of_the_gpu_counts_too() -> None:
    """Three tables of 75 GB on two H200: the cap lets two share a device, the GPU does not."""
    tables = [Table(f"t{number}", 10**8, 400, 1.0, READ_ONCE, 16) for number in range(3)]
    with pytest.raises(InfeasibleTask, match=r"found no placement of 223\.52 GB on 2 devices of 139"):
        BestKnownSharder(H200, QUICK).place(make_task(tables, 2, batch_size=BATCH))
    assert set(BestKnownSharder(H200, QUICK).place(make_task(tables, 3, batch_size=BATCH)).device_of_table) == {0, 1, 2}


# Times from sums -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "tolerance"), [(BATCH, 2e-3), (16384, 1e-9)])
@pytest.mark.parametrize("devices", [1, 4])
def test_times_from_sums_are_those_of_the_hardware(batch_size: int, tolerance: float, devices: int) -> None:
    """At large batches but for the competition for the L2, which only costs."""
    a100 = SimulatedHardware(MeasureConfig(hardware="simulated:a100_80gb"))
    of_task = some_task(30, devices, batch_size=batch_size)
    times, device_of_T = ShardTimes(a100, of_task), random_devices(of_task, 1)
    cost = a100.measure(of_task, Placement(tuple(device_of_T.tolist()), devices))
    totals = np.array([device.total_ms for device in cost.devices])
    found = times.device_ms(times.sums(device_of_T))
    assert found == pytest.approx(totals, rel=tolerance)
    assert (found <= totals * (1 + 1e-9)).all()
    assert times.slowest_ms(device_of_T) == found.max()


def test_the_slowest_device_waits_for_the_one_that_exchanges_most() -> None:
    of_task = some_task(8, 3)
    times, device_of_T = ShardTimes(RTX, of_task), random_devices(of_task, 1)
    cost = RTX.measure(of_task, Placement(tuple(device_of_T.tolist()), 3))
    sums_DC = times.sums(device_of_T)
    totals_D = np.array([device.total_ms for device in cost.devices])
    waits_D = times.wait_ms(sums_DC)
    dims_D = np.bincount(device_of_T, [table.embedding_dim for table in of_task.tables], 3)
    assert waits_D == pytest.approx(dims_D * waits_D.max() / dims_D.max()) and waits_D.max() > 1
    assert times.device_ms(sums_DC) + waits_D.max() == pytest.approx(totals_D, rel=2e-3)
    assert times.slowest_ms(device_of_T) == pytest.approx(cost.max_device_ms, rel=2e-3)


def test_sums_after_moves_and_swaps_are_those_of_the_new_placement_exactly() -> None:
    of_task = some_task(12, 3)
    times, rng = ShardTimes(HARDWARE, of_task), np.random.default_rng(0)
    none, device_of_T = 12, random_devices(of_task, 2)
    for _ in range(300):
        i, j = (int(one) for one in rng.choice(13, size=2, replace=False))
        if none in (i, j):  # a move of the other table
            i = min(i, j)
            j, target = none, (device_of_T[i] + 1) % 3
        else:
            target = device_of_T[j]
        source = device_of_T[i]
        if source == target:
            continue
        both, before = np.array([source, target]), times.sums(device_of_T)
        members = np.array([np.where(device_of_T == device, np.arange(12), none) for device in both])
        after = times.after_exchange(before[both], np.array([i, j]), np.array([j, i]), members)
        device_of_T[i] = target
        if j != none:
            device_of_T[j] = source
        assert (after == times.sums(device_of_T)[both]).all()
    hottest, most_lookups, _, is_cached = before[:, MAXIMA].T
    assert (hottest > 0).all() and (most_lookups > 0).all() and not is_cached.any()


def test_the_sort_takes_another_pass_beyond_each_limit() -> None:
    limits = np.array(ROW_LIMITS)
    assert sort_passes(limits).tolist() == [1, 2, 3, 4, 5]
    assert sort_passes(limits + 1).tolist() == [2, 3, 4, 5, 6]
    assert ROW_LIMITS[0] == 2**RADIX_BITS - 1


# Annealing -----------------------------------------------------------------------------------------------------------


def population_of(of_task: ShardingTask, limit: float = np.inf, seed: int = 0) -> tuple[ShardTimes, Population]:
    times = ShardTimes(HARDWARE, of_task)
    starts = [Start(random_devices(of_task, number), np.full(of_task.num_devices, limit)) for number in range(3)]
    config = replace(QUICK, seed=seed, pairs_at_once=16)
    return times, Population(times, of_task.num_devices, starts, config)


@pytest.mark.parametrize("devices", [2, 5])
def test_chains_report_what_their_placements_cost_and_stay_within_memory(devices: int) -> None:
    of_task = tight(some_task(24, devices, 30), 1.3)
    times, population = population_of(of_task)
    before = population.best()
    population.run()
    after = population.best()
    assert after[0][0] < 0.9 * before[0][0]
    assert [ms for ms, _ in after] == sorted(ms for ms, _ in after)
    assert len({one.tobytes() for _, one in after}) == len(after) > 1
    for ms, device_of_T in after:
        check_placement(of_task, Placement(tuple(device_of_T.tolist()), devices))
        assert ms == times.slowest_ms(device_of_T)


def test_cold_chains_go_downhill() -> None:
    """A random walk of as many steps ends 20 % above."""
    of_task = some_task(24, 3, 30)
    times, population = population_of(of_task)
    population.run()
    now = [times.slowest_ms(one) for one in population._devices_of(np.arange(16))]
    assert np.median(now) < 1.1 * population.best()[0][0]


def test_culling_makes_the_worst_chains_copies_of_the_best() -> None:
    times, population = population_of(some_task(24, 3, 30))
    population._config = replace(QUICK, culled_share=0.25)
    for _ in range(3):
        population._measure_energy()
        population._step(np.ones(16))
    before = sorted(times.slowest_ms(one) for one in population._devices_of(np.arange(16)))
    population._cull()
    after = sorted(times.slowest_ms(one) for one in population._devices_of(np.arange(16)))
    assert after == sorted([*before[:4], *before[:12]])
    assert len(set(before)) > 8


def test_chains_keep_to_row_limits() -> None:
    of_task = some_task(24, 3)
    starts_within = max(
        ShardTimes(HARDWARE, of_task).rows(ShardTimes(HARDWARE, of_task).sums(random_devices(of_task, n))).max()
        for n in range(3)
    )
    times, population = population_of(of_task, limit=starts_within)
    population.run()
    assert all(times.rows(times.sums(one)).max() <= starts_within for _, one in population.best())


def test_a_descent_ends_where_no_move_or_swap_of_the_slowest_device_helps() -> None:
    of_task = tight(some_task(16, 3, 50), 1.5)
    times, start = ShardTimes(HARDWARE, of_task), random_devices(tight(some_task(16, 3, 50), 1.5), 5)
    end = descend(times, 3, start)
    lowest = times.slowest_ms(end)
    assert lowest < times.slowest_ms(start)
    check_placement(of_task, Placement(tuple(end.tolist()), 3))
    for i, j in product(range(16), range(16)):
        swapped = end.copy()
        swapped[i], swapped[j] = end[j], end[i]
        assert times.slowest_ms(swapped) >= lowest
    for i, device in product(range(16), range(3)):
        moved = end.copy()
        moved[i] = device
        assert times.slowest_ms(moved) >= lowest


# Starts --------------------------------------------------------------------------------------------------------------


def test_starts_keep_large_tables_together() -> None:
    """Two tables of 12 M rows and four small ones: apart, both devices sort in 3 passes; together, in 4 and 2."""
    tables = [huge(12_000_000, "a"), huge(12_000_000, "b"), *(huge(1000, f"small {n}") for n in range(4))]
    times = ShardTimes(HARDWARE, make_task(tables, 2, batch_size=BATCH))
    starts = greedy_starts(times, 2)
    assert times.row_limits == ROW_LIMITS[:3]
    assert not np.isfinite(starts[0].row_limit_D).any()
    assert any(set(start.device_of_T[:2]) == {0} and start.row_limit_D[1] == ROW_LIMITS[1] for start in starts)
    assert any(len(set(start.device_of_T[:2])) == 2 for start in starts)
    for start in starts:
        assert (times.rows(times.sums(start.device_of_T)) <= start.row_limit_D).all()


@pytest.mark.parametrize("room", [1.7, 9.0])
def test_starts_are_legal_keep_to_their_limits_and_balance(room: float) -> None:
    of_task = tight(some_task(60, 6), room)
    times = ShardTimes(HARDWARE, of_task)
    rows_T = np.array([float(table.num_rows) for table in of_task.tables])
    starts = greedy_starts(times, 6)
    for start in starts:
        check_placement(of_task, Placement(tuple(start.device_of_T.tolist()), 6))
        assert (times.rows(times.sums(start.device_of_T)) <= start.row_limit_D).all()
        few = np.flatnonzero(np.isfinite(start.row_limit_D))
        if few.size:
            held = np.isin(start.device_of_T, few)
            limit = len(few) * start.row_limit_D[few[0]]
            assert any(
                rows_T[criterion_T <= criterion_T[held].max(initial=0)].sum() <= limit
                for criterion_T in (rows_T, rows_T / times.alone_ms_T)
            )
    assert len({np.isfinite(start.row_limit_D).sum() for start in starts}) > 1
    # The longest table came first: the unlimited start is close to balanced.
    ms_D = times.device_ms(times.sums(starts[0].device_of_T))
    assert ms_D.max() < (1.05 if room > 2 else 1.5) * ms_D.mean()


def test_a_placement_keeps_to_the_lowest_limits_it_is_within() -> None:
    tables = [huge(100, "a"), huge(ROW_LIMITS_INT[1], "b"), huge(ROW_LIMITS_INT[1] + 1, "c"), huge(10**8, "d")]
    times = ShardTimes(HARDWARE, make_task(tables, 4, batch_size=BATCH))
    kept = within_its_limits(times, np.arange(4))
    assert kept.row_limit_D.tolist() == [ROW_LIMITS[0], ROW_LIMITS[1], ROW_LIMITS[2], np.inf]


ROW_LIMITS_INT = [int(limit) for limit in ROW_LIMITS]


def test_a_share_of_the_kinds_goes_on_with_a_few_starts_each() -> None:
    kinds = [np.array([np.inf, 1.0]), np.array([1.0, np.inf]), np.array([1.0, 1.0]), np.array([np.inf, np.inf])]
    ranked = [(float(number), Start(np.array([number]), kinds[number % 4])) for number in range(16)]
    numbers = [int(start.device_of_T[0]) for start in best_of_kinds(ranked, 0.5)]
    assert numbers == [0, 1, 4, 2, 6, 10]  # the first two are one kind; a third is all that goes on
    assert len(best_of_kinds(ranked, 1.0)) == 9
    assert len(best_of_kinds(ranked, 0.01)) == 3


def test_starts_are_ranked_and_slow_or_overfull_ones_left_out() -> None:
    of_task = some_task(10, 2)
    times = ShardTimes(HARDWARE, of_task)
    free = np.full(2, np.inf)
    good, all_on_one = descend(times, 2, random_devices(of_task, 0)), np.zeros(10, dtype=np.int64)
    ranked = ranked_starts(times, [Start(all_on_one, free), Start(good, free)], slack=1.3)
    assert [start.device_of_T.tolist() for _, start in ranked] == [good.tolist()]
    assert len(ranked_starts(times, [Start(all_on_one, free), Start(good, free)], slack=99.0)) == 2
    crowded = ShardTimes(HARDWARE, tight(of_task))
    assert ranked_starts(crowded, [Start(all_on_one, free)], slack=1.3) == []
