"""What the cost model says of whole tables: its times, its intervals, and its lower bounds against all placements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import all_to_all_ms
from evenshard.search.chains import chains_of
from evenshard.search.sharding_option import Choice
from evenshard.search.space import SearchSpace
from evenshard.sharders.cost_model.cost_model import INPUTS, JUMPS, Calibration, CostModel, ExchangeTime
from evenshard.sharders.cost_model.price import LOOKED_UP, ROWS, LearnedPrice, SharedPasses, predict_whole, whole_costs
from evenshard.sharders.simple import random_placement
from evenshard.tables.reuse import FloatArray
from support.builders import BATCH_SIZE, some_tables, task
from support.convex_builders import EXCHANGE, TABLES, best_ms, bound_ms, predicted, predicted_ms, random_model


def by_hand(model: CostModel, of_task: ShardingTask, placement: Placement) -> tuple[FloatArray, FloatArray]:
    """[K, D, 2] forward and backward compute of devices by each member, and [D] each of their two exchanges, ms."""
    represented = model.represent(of_task.tables, of_task.batch_size)
    sums = torch.stack([represented[list(shard)].sum(dim=0) for shard in placement.shards()])
    with torch.no_grad():
        compute = model.net.member_ms(sums[:, INPUTS], sums[:, JUMPS]).permute(1, 0, 2).double().numpy()
    dims = [sum(of_task.tables[at].embedding_dim for at in shard) for shard in placement.shards()]
    compute[:, [not shard for shard in placement.shards()]] = 0.0
    link = model.exchange.link("by hand")
    return compute, all_to_all_ms(link, dims, of_task.batch_size)


@pytest.mark.parametrize("devices", [1, 3])
def test_devices_take_what_the_network_and_the_link_say(devices: int) -> None:
    model, of_task = random_model(), task(TABLES[:9], devices)
    placement = Placement((0, devices - 1, 0) * 3, devices)  # of three, one is empty and takes no time
    compute_KD2, exchange_D = by_hand(model, of_task, placement)
    found = predicted(model, of_task, placement)
    assert [one.predicted_fwd_compute_ms for one in found.devices] == pytest.approx(compute_KD2[..., 0].mean(axis=0))
    assert [one.predicted_bwd_compute_ms for one in found.devices] == pytest.approx(compute_KD2[..., 1].mean(axis=0))
    for name in ("predicted_fwd_all_to_all_ms", "predicted_bwd_all_to_all_ms"):
        assert [getattr(one, name) for one in found.devices] == pytest.approx(exchange_D)
    members_KD = compute_KD2.sum(axis=2) + 2 * exchange_D
    assert found.members_ms == pytest.approx(members_KD.max(axis=1))
    assert found.predicted_ms == pytest.approx(members_KD.mean(axis=0).max())


def test_tasks_of_several_sizes_are_predicted_at_once_as_alone() -> None:
    model = random_model()
    tasks = [task(TABLES[:4], 2), task(TABLES[4:], 4), task(TABLES[:4], 2, batch_size=8 * BATCH_SIZE)]
    rng = np.random.default_rng(0)
    placed = [(tasks[n], random_placement(tasks[n], rng)) for n in (0, 1, 2, 0, 1)]
    for (of_task, placement), found in zip(placed, predict_whole(model, placed), strict=True):
        assert found.parts == placement.parts(of_task.tables)
        assert found.predicted_ms == pytest.approx(predicted_ms(model, of_task, placement), rel=1e-5)
    assert predict_whole(model, []) == []


def test_a_search_scores_placements_as_the_model_does() -> None:
    """From columns that only add up, also where a table brings another pass or lanes, and with an empty device."""
    model = with_jumps("lane", 0.3)
    wide = {3: 48, 7: 128, 8: 200}
    tables = tuple(
        replace(one, num_rows=one.num_rows * 40, embedding_dim=wide.get(at, one.embedding_dim))
        for at, one in enumerate(TABLES)
    )
    of_task, rng = task(tables, devices=3), np.random.default_rng(1)
    space = SearchSpace(whole_costs(model, of_task))
    placements = [*rng.integers(3, size=(20, len(tables))).tolist(), [at % 2 for at in range(len(tables))]]
    chains = chains_of(space, [[Choice(0, (device,)) for device in devices] for devices in placements])
    means_ms = [predicted_ms(model, of_task, Placement(tuple(devices), 3)) for devices in placements]
    assert chains.cost_N == pytest.approx(means_ms, rel=1e-5)


def test_an_interval_is_the_spread_of_the_members_and_the_floor_together() -> None:
    model, of_task = random_model(), task(TABLES[:4], devices=2)
    model.calibration = Calibration(factor=2.0, floor=0.1)
    found = predicted(model, of_task, Placement((0, 1, 0, 1), 2))
    half = 2.0 * math.hypot(np.log(found.members_ms).std(ddof=1), 0.1)
    assert found.low_ms == pytest.approx(found.predicted_ms * math.exp(-half), rel=1e-5)
    assert found.high_ms == pytest.approx(found.predicted_ms * math.exp(half), rel=1e-5)
    model.calibration = Calibration(factor=1e-9, floor=1e-9)  # no interval is narrower than 0.5 % to either side
    found = predicted(model, of_task, Placement((0, 1, 0, 1), 2))
    assert math.log(found.high_ms / found.predicted_ms) == pytest.approx(0.005, rel=1e-3)
    assert math.log(found.predicted_ms / found.low_ms) == pytest.approx(0.005, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("num_tables", "devices"), [(6, 3), (5, 4), (3, 5), (4, 1)])
def test_no_placement_is_below_the_bound(num_tables: int, devices: int) -> None:
    for seed, exchange in enumerate((ExchangeTime(), EXCHANGE, ExchangeTime(0.0, 1e-3), ExchangeTime(0.0, 0.0, 1e-3))):
        model = random_model(seed, exchange)
        of_task = task(some_tables(num_tables, seed), devices)
        best, bound = best_ms(model, of_task), bound_ms(model, of_task)
        assert 0 < bound <= best
        if devices == 1:
            assert bound == pytest.approx(best, rel=2e-4)


def with_jumps(kind: str, weight: float, seed: int = 0) -> CostModel:
    model = random_model(seed)
    with torch.no_grad():
        getattr(model.net, f"{kind}_weight").fill_(weight)
    return model


@pytest.mark.parametrize("kind", ["pass", "lane"])
def test_no_placement_is_below_the_bound_where_jumps_cost_most(kind: str) -> None:
    """Of tables of 100 to 200 rows, two share a device for one pass, or none needs any; each second table is wide."""
    for seed in range(2):
        tables = [
            replace(one, num_rows=100 + 20 * n) if kind == "pass" else replace(one, embedding_dim=16 + n % 2 * 112)
            for n, one in enumerate(some_tables(6, seed))
        ]
        model, of_task = with_jumps(kind, 1.0, seed), task(tables, 3)
        best = best_ms(model, of_task)
        assert 0.3 * best < bound_ms(model, of_task) <= best


@pytest.mark.parametrize(
    ("kind", "weight", "rows", "dim"), [("pass", 0.02, 100, 16), ("pass", 1.0, 70_000, 16), ("lane", 1.0, 100, 128)]
)
def test_equal_tables_that_divide_evenly_meet_the_bound(kind: str, weight: float, rows: int, dim: int) -> None:
    """Also where each table alone needs passes or lanes."""
    tables = [replace(TABLES[0], name=f"t{n}", num_rows=rows, embedding_dim=dim) for n in range(6)]
    model, of_task = with_jumps(kind, weight), task(tables, devices=3)
    assert bound_ms(model, of_task) == pytest.approx(best_ms(model, of_task), rel=2e-4)


def test_the_bound_counts_what_a_device_receives_that_sends_little() -> None:
    """The slowest device holds 4 of 196 dims; its exchanges take as long as those of an even share, 49 on each of 4."""
    narrow = replace(TABLES[0], name="narrow", embedding_dim=4, pooling_factor=900.0)
    wide = [replace(TABLES[1], name=f"wide{n}", embedding_dim=64, pooling_factor=0.1) for n in range(3)]
    model, of_task = random_model(exchange=ExchangeTime(0.0, 1e-3)), task([narrow, *wide], devices=4)
    first = predicted(model, of_task, Placement((0, 1, 2, 3), 4)).devices[0]
    compute_ms = first.predicted_fwd_compute_ms + first.predicted_bwd_compute_ms
    even_ms = 2 * 49 * 3 * BATCH_SIZE / 4 * 4 * 1e-3
    assert 0.98 * (compute_ms + even_ms) < bound_ms(model, of_task) <= compute_ms + even_ms


def test_passes_that_no_placement_saves_by_hand() -> None:
    """Of tables of 100, 100, 100 and 300 rows on two devices, the last needs the pass, and one device has 256 or more.

    There is room for the table of 500 lookups, one of those with 100, and 56 rows of the other: 44 are left.
    """
    columns_PH = np.zeros((4, LOOKED_UP + 1), dtype=np.float32)
    columns_PH[:, ROWS] = 100, 100, 100, 300
    columns_PH[:, LOOKED_UP] = 100, 500, 100, 300
    pass_ms_L2 = np.zeros((4, 2))
    pass_ms_L2[0] = 1, 2
    shared = SharedPasses(pass_ms_L2, columns_PH, 2, 600)
    assert shared.compute_work(columns_PH).tolist() == [[100, 100, 100, 0], [200, 200, 200, 0]]
    assert (2 * shared.at_0_2 + shared.compute_work(columns_PH).sum(axis=1)).tolist() == [44, 88]
    roomy = SharedPasses(pass_ms_L2, columns_PH[:3], 4, 300)
    assert not roomy.compute_work(columns_PH[:3]).any() and not roomy.at_0_2.any()


def test_a_device_takes_at_least_its_empty_calls() -> None:
    price = LearnedPrice(random_model())
    times_QGN = np.zeros((2, 1, 3), dtype=np.float32)
    times_QGN[:, 0, 2] = 100.0
    found_2N = price.device_ms(times_QGN, np.array([0, 2, 2]))
    assert found_2N[:, 0].tolist() == [0.0, 0.0] and found_2N[:, 2].tolist() == [100.0, 100.0]
    assert found_2N[:, 1] == pytest.approx(2 * price.empty_ms_2)
