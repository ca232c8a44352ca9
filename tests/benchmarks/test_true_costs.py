"""The true costs: what the networks learn, what a placement costs by them, and the best placement by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.references.others_measurements import BATCH_SIZE, EXCHANGES, SHARDS, TABLES, Measurements, read
from benchmarks.references.true_best import TrueAnnealConfig, best_true
from benchmarks.references.true_costs import FitConfig, TrueCosts, cache_file, fit_true_costs, load_true_costs
from benchmarks.references.true_costs_errors import NetworkError, load_errors
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.greedy import expert_sharders
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.utils.errors import BadConfig, BadFile
from support.builders import capped, every_placement
from support.builders import task as make_task
from support.truth import truth_file

QUICK = FitConfig(num_networks=2, shard_epochs=20, exchange_epochs=200)
POOL = generate_tables(GeneratorConfig(60, (16, 64), weight_bits=32), BATCH_SIZE, seed=3)


def invented(count: int = 1500) -> Measurements:
    """Shards that cost 1 ms, a tenth for each table, and 1 ns a lookup; exchanges by the own and the most dims."""
    rng = np.random.default_rng(0)
    shards = tuple(
        tuple(POOL[number] for number in rng.choice(len(POOL), rng.integers(1, 12), replace=False).tolist())
        for _ in range(count)
    )
    lookups = [sum(table.pooling_factor for table in shard) * BATCH_SIZE for shard in shards]
    dims = rng.integers(16, 1000, (count, 4)).astype(float)
    start = rng.uniform(0, 8, (count, 4)) * (np.arange(count)[:, None] % 2)  # every other begins at once
    exchange = 1 + 0.005 * dims + 0.01 * dims.max(axis=1, keepdims=True)
    shard_ms = np.array([1 + 0.1 * len(shard) + each * 1e-6 for shard, each in zip(shards, lookups, strict=True)])
    waiting = start.max(axis=1, keepdims=True) - start
    return Measurements(POOL, shards, shard_ms, dims, start, exchange + waiting, exchange)


@pytest.fixture(scope="module")
def costs() -> TrueCosts:
    return fit_true_costs(invented(), QUICK)


def some_task(count: int = 12, first: int = 0) -> ShardingTask:
    return make_task(POOL[first : first + count], 4, batch_size=BATCH_SIZE)


@pytest.mark.slow
def test_the_networks_learn_what_was_measured(costs: TrueCosts) -> None:
    measured = invented()
    tasks = [make_task(shard, 1, batch_size=BATCH_SIZE) for shard in measured.shards[:200]]
    found = costs.measure_many([(task, Placement((0,) * len(task.tables), 1)) for task in tasks])
    error = NetworkError.of(np.array([cost.max_device_ms for cost in found]), measured.shard_ms[:200])
    assert error.median_pct < 5
    fwd, bwd = costs.exchange_ms(torch.tensor(measured.dims_ND, dtype=torch.float32))
    for one in (fwd, bwd):  # begun at once, so without the waiting
        assert NetworkError.of(one.numpy().ravel(), measured.bwd_ms_ND.ravel()).median_pct < 8


@pytest.mark.slow
def test_a_device_costs_its_compute_and_both_exchanges(costs: TrueCosts) -> None:
    task = some_task()
    devices = costs.measure(task, Placement((0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2), 4)).devices
    alone = make_task(task.tables[:4], 1, batch_size=BATCH_SIZE)
    compute_ms = costs.measure(alone, Placement((0, 0, 0, 0), 1)).max_device_ms
    assert devices[0].fwd_compute_ms + devices[0].bwd_compute_ms == pytest.approx(compute_ms, rel=1e-4)
    assert devices[0].total_ms > compute_ms + 2
    assert devices[3].fwd_compute_ms == devices[3].bwd_compute_ms == 0  # holds nothing, and still exchanges
    assert devices[3].fwd_all_to_all_ms > 0


@pytest.mark.slow
def test_what_was_not_measured_is_refused(costs: TrueCosts) -> None:
    for task in (make_task(POOL[:4], 4, batch_size=512), make_task(POOL[:4], 2, batch_size=BATCH_SIZE)):
        with pytest.raises(BadConfig, match="were not measured"):
            costs.measure(task, Placement((0, 1, 0, 1), task.num_devices))


@pytest.mark.slow
def test_the_best_placement_of_a_small_task_is_found(costs: TrueCosts) -> None:
    task = some_task(6)
    lowest = min(cost.max_device_ms for cost in costs.measure_many([(task, one) for one in every_placement(task)]))
    placement, ms = best_true(costs, task, [expert_sharders()[0].place(task)], TrueAnnealConfig(steps=300))
    assert ms == pytest.approx(lowest, rel=1e-5)
    assert costs.measure(task, placement).max_device_ms == ms


@pytest.mark.slow
def test_the_best_placement_beats_its_starts_and_fits(costs: TrueCosts) -> None:
    roomy = some_task(20, 6)
    task = capped(roomy, int(0.3 * sum(roomy.table_bytes)))
    starts = [expert.place(task) for expert in expert_sharders()]
    _, ms = best_true(costs, task, starts, TrueAnnealConfig(steps=200))
    assert ms < min(cost.max_device_ms for cost in costs.measure_many([(task, start) for start in starts]))


def test_a_missing_measurement_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=TABLES):
        read(tmp_path)


@pytest.mark.slow
def test_the_real_measurements_are_learned_once(tmp_path: Path) -> None:
    truth = truth_file(SHARDS).parent
    assert truth_file(EXCHANGES).parent == truth
    measured = read(truth)
    assert (len(measured.tables), len(measured.shards), len(measured.dims_ND)) == (856, 8000, 3000)
    assert not [table.problem() for table in measured.tables if table.problem()]
    config = FitConfig(num_networks=1, shard_epochs=4, exchange_epochs=30)
    costs = load_true_costs(truth, tmp_path, config)
    kept = cache_file(truth, tmp_path, config, "networks", ".pt")
    written = kept.stat().st_mtime_ns
    again = load_true_costs(truth, tmp_path, config)
    task = make_task(measured.tables[:40], 4, batch_size=BATCH_SIZE)
    placement = expert_sharders()[2].place(task)
    assert costs.measure(task, placement) == again.measure(task, placement)
    assert kept.stat().st_mtime_ns == written
    errors = load_errors(truth, tmp_path, config)
    assert errors["shards, 5 folds"].median_pct < 20
    assert errors["forward exchanges"].median_pct < 5
