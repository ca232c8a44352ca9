"""Fitting the cost model: a world of additive limits, intervals, and what is left out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from evenshard.base.errors import BadConfig
from evenshard.measure.cost_dataset import load_costs
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import all_to_all_ms
from evenshard.price.costs import RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.price.link_model import Link
from evenshard.sharders.cost_model.cost_model import Calibration, CostModel, ExchangeTime, log_spread_N
from evenshard.sharders.cost_model.fit import (
    CostModelFitConfig,
    CostModelFitMetrics,
    DeviceRows,
    _Minibatches,
    _share_of_rate,
    assign_held_out_members,
    calibrate,
    calibrate_for_chosen,
    conformal_factor,
    fit_cost_model,
    fit_exchange,
)
from evenshard.sharders.cost_model.network import ConvexNet, EnsembleSizes
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.simple import random_placement
from evenshard.tables.files import load_tables
from evenshard.tables.locality import arrange_hot_rows, contiguous_share
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, cost, measured, some_tables, table, task
from support.convex_builders import bound_ms, predicted, predicted_ms, random_model
from support.dvc_store import stored

TRAIN_TABLES, TEST_TABLES = some_tables(60, seed=1), some_tables(60, seed=2)
LINK = Link(latency_us=50.0, source="by hand", bandwidth_gb_s=0.01, slowest_gb_s=0.05, shared_gb_s=0.1)
CONFIG, QUICK = CostModelFitConfig(num_updates=500), CostModelFitConfig(num_updates=10)


def measure(of_task: ShardingTask, placement: Placement, number: int = 0) -> MeasuredPlacement:
    """In a world where a kernel takes an overhead and the longer of two additive limits: bytes and lookups."""
    held = [[of_task.tables[position] for position in shard] for shard in placement.shards()]
    exchange = all_to_all_ms(LINK, [sum(t.embedding_dim for t in shard) for shard in held], of_task.batch_size)
    devices = []
    for shard, moving in zip(held, exchange, strict=True):
        lookups = sum(t.pooling_factor for t in shard) * of_task.batch_size / 64
        num_bytes = sum(t.pooling_factor * t.embedding_dim for t in shard) * of_task.batch_size / 16
        fwd = 0.1 + max(num_bytes / 1000, lookups / 14) if shard else 0.0
        bwd = 0.2 + max(num_bytes / 400, lookups / 9) + 0.05 * len(shard) if shard else 0.0
        devices.append(DeviceCost(fwd, moving, moving, bwd))
    of_cost = PlacementCost(tuple(devices), "by hand")
    return measured(of_task, placement.device_of_table, of_cost, measurement_id=f"m{number}")


def placements(pool: Sequence[Table], count: int, sizes: Sequence[int] = (BATCH_SIZE,)) -> list[MeasuredPlacement]:
    """Random placements of tasks of 10 tables on 2 to 4 devices, with these batch sizes in turn."""
    rng, found = np.random.default_rng(0), []
    for number in range(count):
        chosen = [pool[n] for n in rng.choice(len(pool), 10, replace=False)]
        of_task = task(chosen, 2 + number % 3, task_id=f"task-{number}", batch_size=sizes[number % len(sizes)])
        found.append(measure(of_task, random_placement(of_task, rng), number))
    return found


def shards(pool: Sequence[Table], count: int) -> list[MeasuredPlacement]:
    """Random shards of 1 to 12 tables, each measured alone."""
    rng, found = np.random.default_rng(1), []
    for number in range(count):
        chosen = [pool[n] for n in rng.choice(len(pool), int(rng.integers(1, 13)), replace=False)]
        alone = measure(task(chosen, 1, task_id=f"shard-{number}"), Placement((0,) * len(chosen), 1))
        found.append(replace(alone, proposed_by=RANDOM_SHARD))
    return found


@cache
def fitted() -> tuple[CostModel, CostModelFitMetrics]:
    return fit_cost_model(placements(TRAIN_TABLES, 60), replace(CONFIG, num_updates=250))


@pytest.mark.slow
def test_a_world_of_additive_limits_is_foretold_for_unseen_tables() -> None:
    model, metrics = fit_cost_model(placements(TRAIN_TABLES, 100), CONFIG)
    test = placements(TEST_TABLES, 60)
    errors = [predicted_ms(model, one.task, one.placement) / one.cost.max_device_ms - 1 for one in test]
    assert np.median(np.abs(errors)) < 0.02
    assert metrics.held_out_pct_error < 2 and len(metrics.losses) == CONFIG.num_updates


def test_the_parts_are_foretold_one_by_one() -> None:
    model, metrics = fitted()
    assert metrics.losses[-1] < metrics.losses[0] / 5 and metrics.held_out_pct_error < 3
    (one,) = placements(TEST_TABLES, 1)
    for found, device in zip(predicted(model, one.task, one.placement).devices, one.cost.devices, strict=True):
        assert found.predicted_fwd_compute_ms == pytest.approx(device.fwd_compute_ms, rel=0.15)
        assert found.predicted_bwd_compute_ms == pytest.approx(device.bwd_compute_ms, rel=0.15)
        assert found.predicted_fwd_all_to_all_ms == pytest.approx(device.fwd_all_to_all_ms, rel=1e-4)
        assert found.predicted_bwd_all_to_all_ms == pytest.approx(device.bwd_all_to_all_ms, rel=1e-4)


def test_the_same_seed_gives_the_same_model_and_another_another() -> None:
    data, config, seen = placements(TRAIN_TABLES, 12), replace(QUICK, num_updates=5), list[int]()

    def track(updates: range) -> range:
        seen.extend(updates)
        return updates

    (one, metrics), (same, same_metrics) = fit_cost_model(data, config, track), fit_cost_model(data, config)
    assert metrics == same_metrics and one.calibration == same.calibration and seen == list(range(5))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert fit_cost_model(data, replace(config, seed=1))[1].losses != metrics.losses
    assert one.net.is_convex()


def test_a_model_across_batches_comes_back_and_its_bound_holds(tmp_path: Path) -> None:
    data = placements(TRAIN_TABLES, 18, sizes=[64 * 2**n for n in range(9)])
    model, _ = fit_cost_model(data, replace(QUICK, across_batches=True))
    model.save(tmp_path / "model")
    for size in (100, 3000):
        of_task = task(TEST_TABLES[:12], 3, batch_size=size)
        found = [random_placement(of_task, np.random.default_rng(seed)) for seed in range(20)]
        assert bound_ms(model, of_task) <= min(predicted_ms(model, of_task, one) for one in found)
        assert bound_ms(CostModel.load(tmp_path / "model"), of_task) == bound_ms(model, of_task)


def test_a_table_at_two_batch_sizes_is_two_tables() -> None:
    tables = TRAIN_TABLES[:2]
    data = [measured(task(tables, 2, batch_size=size), (0, 1), cost(4.0, 2.0)) for size in (64, 128, 64)]
    rows = DeviceRows.of(data)
    assert rows.tables == (*tables, *tables) and rows.batch_sizes == (64, 64, 128, 128)
    assert rows.held.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 0], [5, 1]]
    net = ConvexNet(EnsembleSizes(across_batches=True), FeatureNormalizer.fit(tables, 64))
    features_PF, work_PA = rows.inputs(net)
    for position, (one, size) in enumerate(zip(rows.tables, rows.batch_sizes, strict=True)):
        own_features, own_work = net.table_inputs([one], size)
        assert torch.equal(features_PF[position], own_features[0]) and torch.equal(work_PA[position], own_work[0])


def test_across_batches_tables_and_dims_count_once_for_each_sample() -> None:
    one, normalizer = table(dim=12, pooling=0.0), FeatureNormalizer.fit(TRAIN_TABLES, 64)
    for is_across, tables, dims in ((True, 700, 12 * 700), (False, 1, 12)):
        net = ConvexNet(EnsembleSizes(across_batches=is_across), normalizer)
        assert net.unscaled_work_TA([one], 700)[0].tolist() == [tables, dims, 0, 0, 0, 0, 0, 0]


def test_minibatches_hold_what_their_devices_hold() -> None:
    rows = DeviceRows.of(placements(TRAIN_TABLES, 12, sizes=(64, 512)))
    rows_M = torch.tensor([3, 0, 3, len(rows.times_R3) - 1])
    held = [sorted(pair for device, pair in rows.held.tolist() if device == row) for row in rows_M.tolist()]
    for only_used in (False, True):
        holds_MQ, pair_Q = _Minibatches(rows, only_used).of(rows_M)
        assert [sorted(pair_Q[row > 0].tolist()) for row in holds_MQ] == held and holds_MQ.max() == 1
        assert (len(pair_Q) < len(rows.tables)) == only_used


def test_a_model_sees_hot_rows_where_the_costs_tell_of_them() -> None:
    bins = (0.9, 0.0, 0.0, 0.1) + (0.0,) * 13  # one of ten distinct rows of a batch is read 5 to 8 times
    not_told = [replace(one, num_rows=10**6, pooling_factor=20.0, reuse_bins=bins) for one in TRAIN_TABLES]
    pool = [arrange_hot_rows(one, BATCH_SIZE, together=number % 2 == 0) for number, one in enumerate(not_told)]
    net = fit_cost_model(placements(pool, 12), QUICK)[0].net
    assert net.sizes.sees_hot_rows
    shares = net.table_inputs([pool[0], pool[1], not_told[0]], BATCH_SIZE)[0][:, -1]
    assert shares.tolist() == pytest.approx([contiguous_share(one, BATCH_SIZE) for one in pool[:2]] + [0.5])
    assert not fit_cost_model(placements(not_told, 3), QUICK)[0].net.sizes.sees_hot_rows


def test_rows_are_the_devices_that_held_tables_and_ran() -> None:
    tables, full = TRAIN_TABLES[:3], DeviceCost.out_of_memory()
    costs = PlacementCost((DeviceCost(1.0, 9.0, 9.0, 2.0), cost(0.0).devices[0], full), "modelled")
    data = [measured(task(tables, 3), (0, 2, 0), costs), measured(task(tables[1:], 2), (1, 0), cost(4.0, 8.0))]
    rows = DeviceRows.of(data)
    assert rows.tables == tables and rows.held.tolist() == [[0, 0], [0, 2], [1, 2], [2, 1]]
    assert rows.times_R3.tolist() == [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0], [2.0, 2.0, 4.0]]
    assert rows.placement_R.tolist() == [0, 1, 1]


def timed_as_a_whole(one: MeasuredPlacement) -> MeasuredPlacement:
    return replace(one, cost=PlacementCost((DeviceCost.of_total(one.cost.max_device_ms),), "modelled"))


@pytest.mark.slow
def test_a_sum_counts_beside_parts_and_leaves_the_parts_to_those_who_know_them() -> None:
    known = shards(TRAIN_TABLES, 150)
    rows = DeviceRows.of([timed_as_a_whole(known[0]), known[1]])
    assert rows.times_R3.isnan().tolist() == [[True, True, False], [False] * 3]
    mixed = [timed_as_a_whole(one) if n % 2 else one for n, one in enumerate(known)]
    model, _ = fit_cost_model(mixed, CONFIG)
    forwards = [predicted(model, one.task, one.placement).devices[0].predicted_fwd_compute_ms for one in known]
    errors = [forward / one.cost.devices[0].split_ms[0] - 1 for forward, one in zip(forwards, known, strict=True)]
    assert np.median(np.abs(errors)) < 0.06


def test_what_cannot_be_learned_from_is_refused() -> None:
    full = PlacementCost((DeviceCost.out_of_memory(),), "modelled")
    for data, problem in (
        ([], "no measured device with tables"),
        ([measured(task(TRAIN_TABLES[:2], 1), (0, 0), full)], "no measured device with tables"),
        (placements(TRAIN_TABLES, 6, sizes=(64, 128)), "across_batches"),
    ):
        with pytest.raises(BadConfig, match=problem):
            fit_cost_model(data, CONFIG)
    for name, value in (("num_members", 1), ("minibatch_size", 0), ("learning_rate", 0.0)):
        with pytest.raises(BadConfig, match=name):
            replace(CONFIG, **{name: value})


def test_what_ran_out_of_memory_and_tables_that_are_never_read_do_not_break_the_fit() -> None:
    data = placements(TRAIN_TABLES, 12)
    lost = replace(data[0], cost=PlacementCost((DeviceCost.out_of_memory(), *data[0].cost.devices[1:]), "modelled"))
    idle = task([table(f"idle{n}", pooling=0.0) for n in range(4)], 2, task_id="idle")
    data = [lost, *data[1:], *[measured(idle, (0, 1, 1, 0), cost(0.0, 4.0))] * 3]
    model, metrics = fit_cost_model(data, QUICK)
    assert all(map(math.isfinite, (*metrics.losses, model.calibration.factor, metrics.held_out_pct_error)))
    assert math.isfinite(predicted_ms(model, idle, data[-1].placement))


def test_the_learning_rate_rises_and_falls_along_cosines() -> None:
    found = [_share_of_rate(progress) for progress in (0, 0.025, 0.05, 0.1, 0.55, 1)]
    assert found == pytest.approx([0, 0.5 - 0.5**1.5, 0.5, 1, 0.5, 0])


def test_a_modelled_link_is_found_exactly() -> None:
    exchange, error = fit_exchange(placements(TRAIN_TABLES, 10))
    assert exchange.latency_ms == pytest.approx(0.05)
    assert exchange.ms_per_byte == pytest.approx(1e3 / 0.01e9)
    assert exchange.slowest_ms_per_byte == pytest.approx(1e3 / 0.05e9)
    assert exchange.total_ms_per_byte == pytest.approx(1e3 / 0.1e9)
    assert error < 1e-6


def test_where_all_tasks_exchange_alike_bytes_take_the_time_and_a_single_device_tells_nothing() -> None:
    """One table of 8 on each of two devices: no count differs, and own bytes come first."""
    one = measured(task([table("a", dim=8), table("b", dim=8)], 2), (0, 1), cost(4.0, 4.0))
    exchange, error = fit_exchange([one])
    assert exchange.ms_per_byte > 0 and exchange == ExchangeTime(ms_per_byte=exchange.ms_per_byte)
    assert error < 1e-6
    alone = measured(task([table()], 1), (0,), cost(4.0))  # one millisecond each, the exchanges too
    exchange, error = fit_exchange([alone])
    assert exchange == ExchangeTime() and not exchange.takes_time and math.isnan(error)
    data = placements(TRAIN_TABLES, 5)
    assert fit_exchange([*data, alone]) == fit_exchange(data)


def test_all_placements_of_a_task_are_held_out_of_the_same_member() -> None:
    data = [one for one in placements(TRAIN_TABLES, 20) for _ in range(3)]
    held_out = assign_held_out_members(data, 5, torch.Generator().manual_seed(0))
    assert held_out.reshape(20, 3).unique(dim=1).shape == (20, 1)
    assert held_out.bincount().tolist() == [12] * 5
    few = [placements(TRAIN_TABLES, 1)[0]] * 10  # of one task: one by one
    assert assign_held_out_members(few, 5, torch.Generator().manual_seed(0)).bincount().tolist() == [2] * 5


def test_no_member_learns_from_what_it_is_held_out_of() -> None:
    """The first member must not notice that a placement of its own held-out part is nonsense; the others must."""
    data, config = placements(TRAIN_TABLES, 20), CostModelFitConfig(num_updates=60)
    generator = torch.Generator().manual_seed(config.seed)
    CostModel(fitted()[0].net.sizes, fitted()[0].net.normalizer, generator)  # draws what the fit draws first
    held_out = assign_held_out_members(data, 5, generator).tolist()
    spoiled = next(n for n, one in enumerate(data) if held_out[n] == 0 and all(one.placement.shards()))
    devices = data[spoiled].cost.devices
    # The compute times of each device are the next one's: wrong, with all means as before.
    swapped = tuple(
        replace(own, fwd_compute_ms=other.fwd_compute_ms, bwd_compute_ms=other.bwd_compute_ms)
        for own, other in zip(devices, devices[1:] + devices[:1], strict=True)
    )
    nonsense = [*data[:spoiled], replace(data[spoiled], cost=PlacementCost(swapped, "by hand")), *data[spoiled + 1 :]]
    test = placements(TEST_TABLES, 1)[0]
    before, after = (
        np.array(predicted(fit_cost_model(seen, config)[0], test.task, test.placement).members_ms)
        for seen in (data, nonsense)
    )
    changed = np.abs(before / after - 1)
    assert changed[0] < 1e-4 and (changed[1:] > 3e-4).all()


def constant_model(always_ms: float) -> CostModel:
    """Every member predicts the same time for any shard on one device."""
    net = fitted()[0].net
    model = CostModel(net.sizes, net.normalizer)
    with torch.no_grad():
        model.net.linear_weight.zero_()
        model.net.output_weight.zero_()
        model.net.pass_weight.zero_()
        model.net.overhead.fill_(always_ms / 2)
    return model


def test_calibration_by_hand_in_which_random_shards_count_only_by_themselves() -> None:
    """All members say the same: the floor is the median error, and the factor brings nine tenths of them inside."""
    off = [0.01 * n for n in range(1, 20)]  # of 19 errors, the 18th is the conformal quantile of 90 %
    of_task = task(TRAIN_TABLES[:1], 1)
    data = [measured(of_task, (0,), cost(4 * math.exp(error))) for error in off]
    calibration, pct_error = calibrate(constant_model(4.0), data, torch.zeros(19, dtype=torch.int64))
    assert calibration.floor == pytest.approx(0.10, rel=1e-3)
    assert calibration.factor == pytest.approx(1.8, rel=1e-3)
    assert pct_error == pytest.approx(100 * (1 - math.exp(-0.10)), rel=1e-3)
    of_task, model, by_member = task(TRAIN_TABLES[:1], 1), constant_model(4.0), torch.zeros(10, dtype=torch.int64)
    good = [measured(of_task, (0,), cost(4 * math.exp(0.01)))] * 5
    bad = [replace(measured(of_task, (0,), cost(8.0)), proposed_by=RANDOM_SHARD)] * 5
    assert calibrate(model, good + bad, by_member)[0].floor == pytest.approx(0.01, rel=1e-3)
    assert calibrate(model, bad, by_member[:5])[0].floor == pytest.approx(math.log(2), rel=1e-3)


def test_errors_of_the_previous_model_on_its_choices_widen_the_intervals_by_hand() -> None:
    """One choice that took exp(3) times as long as the previous model predicted: the interval reaches just there."""
    model, previous = random_model(0), random_model(1)
    model.calibration = Calibration(factor=1.0, floor=0.1)
    of_task, placement = task(TRAIN_TABLES[:6]), Placement((0, 1, 0, 1, 0, 1), 2)
    expected_ms = predicted_ms(previous, of_task, placement)
    off, right = (
        measured(of_task, placement.device_of_table, cost(expected_ms * math.exp(error), 0.0)) for error in (3.0, 0.0)
    )
    members_K1 = torch.tensor(predicted(model, of_task, placement).members_ms)[:, None]
    deviation = float(model.calibration.deviation_N(log_spread_N(members_K1)))
    calibrate_for_chosen(model, previous, [])
    assert model.calibration == Calibration(factor=1.0, floor=0.1)
    calibrate_for_chosen(model, previous, [off])
    assert model.calibration.factor == pytest.approx(3.0 / deviation, rel=1e-4) and model.calibration.floor == 0.1
    wide = model.calibration
    calibrate_for_chosen(model, previous, [right])
    assert model.calibration == wide  # never narrower


@pytest.mark.nightly
@pytest.mark.parametrize(("gpu", "most_pct"), [("h100", 1.8), ("h200", 3.0)])
def test_shards_that_gpus_ran_are_predicted_by_members_that_did_not_see_them(
    gpu: str, most_pct: float, tmp_path: Path
) -> None:
    """Of mixed dims, as FBGEMM's kernels took them: without the lanes of the widest table, 2.3 and 4.1 %."""
    for name in ("costs.parquet", "tables.parquet"):
        shutil.copy(stored(f"hardware={gpu}/collection=gpu_dataset/{name}"), tmp_path / name)
    costs = load_costs(tmp_path / "costs.parquet", load_tables(tmp_path / "tables.parquet"))
    assert fit_cost_model(costs, CostModelFitConfig(num_updates=2000, seed=0))[1].held_out_pct_error < most_pct


def test_a_new_error_counts_among_those_of_the_quantile() -> None:
    """Of 10 errors, the 9th covers only 9 of 11 new ones: the 90 % quantile is the 10th, 0.9 x 11 rounded up."""
    errors = torch.arange(1.0, 11.0)
    assert conformal_factor(errors, torch.ones(10)) == 10.0
