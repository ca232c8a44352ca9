"""The price of a simulated device: sums of columns take what the device model says of the tables themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenshard.price.device_model import backward_ms, forward_ms, outside_kernels_ms
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.kernel_calls import Lookup, alone_ms
from evenshard.price.loads import CellChanges, Loads, LookupColumns
from evenshard.price.shard_work import WorkCounter
from evenshard.price.simulated_price import LOOKUPS, DeviceModelPrice, work_columns
from evenshard.search.bound_lines import price_bounds
from evenshard.tables.table import Table

PROFILE = gpu_profile("h100")
PRICE = DeviceModelPrice(PROFILE)
BOUNDS = price_bounds(PRICE)
COUNTER = WorkCounter(PROFILE)
BATCH = 8_192


def drawn(count: int, seed: int = 0, optimizer: str = "sgd") -> list[Lookup]:
    rng = np.random.default_rng(seed)
    rows, dims = 10 ** rng.uniform(1, 7, count), 4 * rng.integers(1, 64, count)
    tables = [
        Table(f"t{at}", int(rows[at]), int(dims[at]), float(rng.uniform(0.1, 60)), weight_bits=16)
        for at in range(count)
    ]
    return [Lookup(one, BATCH, optimizer) for one in tables]


def device_model_ms(lookups: list[Lookup], optimizer: str = "sgd") -> float:
    """Forward and backward time of one call, counted as a whole."""
    return float(device_model_ms_2(lookups, optimizer).sum())


def device_model_ms_2(lookups: list[Lookup], optimizer: str = "sgd") -> np.ndarray:
    work = COUNTER.shard_work(work_columns(COUNTER, lookups), np.zeros(len(lookups), dtype=np.int64), 1)
    return np.array([forward_ms(PROFILE, work)[0], backward_ms(PROFILE, work, optimizer)[0]])


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_a_table_alone_takes_what_the_device_model_says(optimizer: str) -> None:
    lookups = drawn(20, optimizer=optimizer)
    expected = [device_model_ms([one], optimizer) for one in lookups]
    assert alone_ms(PRICE, PRICE.columns(lookups)) == pytest.approx(expected, rel=1e-9)


def test_a_sequence_and_a_cache_take_what_the_device_model_says() -> None:
    lookups = [
        one._replace(table=replace(one.table, pooling="none"), is_cached=number % 2 == 0)
        for number, one in enumerate(drawn(6))
    ]
    lookups.append(Lookup(replace(lookups[0].table, pooling_factor=0.0), BATCH))
    assert alone_ms(PRICE, PRICE.columns(lookups)) == pytest.approx([device_model_ms([one]) for one in lookups])
    assert loaded(lookups).compute_2ND[:, 0, 0].sum() == pytest.approx(device_model_ms(lookups), rel=1e-3)


def test_tables_of_a_call_share_the_l2_as_in_the_device_model() -> None:
    """But for the grid of windows: far less than a device model is off by."""
    for seed in range(9):
        lookups = drawn((2, 5, 30)[seed % 3], seed)
        loads = loaded(lookups)
        assert loads.compute_2ND[:, 0, 0] == pytest.approx(device_model_ms_2(lookups), rel=1e-3)


def loaded(lookups: list[Lookup], calls: int = 1, devices: int = 2) -> Loads:
    """All on device 0, in calls by turns."""
    columns = LookupColumns([PRICE])
    rows = [columns.row((one,)) for one in lookups]
    columns.update()
    loads = Loads(columns, [PRICE], np.zeros(devices, dtype=np.int64), [1] * calls, 1)
    loads.recompute(cells_of([(0, row % calls, row, 0, 1) for row in rows]))
    return loads


def cells_of(rows: list[tuple[int, ...]]) -> CellChanges:
    """Cells by change, call, row, device and sign."""
    return CellChanges(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def test_times_after_changes_are_those_of_making_them() -> None:
    """Each table goes to the other device; then the two, three and four with the largest maxima go together.

    Five tables have the widest rows: their maximum counts until all of them are gone.
    """
    lookups = [one._replace(table=replace(one.table, embedding_dim=256)) for one in drawn(5)] + drawn(9)[5:]
    loads, order = loaded(lookups, 3), np.argsort(-PRICE.columns(lookups)[:, -2]).tolist()
    changed = [*([row] for row in range(9)), *(order[:count] for count in (2, 3, 4, 9))]
    rows = [
        (change, row % 3, row, device, sign)
        for change, own in enumerate(changed)
        for row in own
        for device, sign in ((0, -1), (1, 1))
    ]
    found_2MD = loads.try_out(np.zeros(len(changed), dtype=np.int64), cells_of(rows))
    for change, own in enumerate(changed):
        made = loaded(lookups, 3)
        changes = cells_of([(0, *row[1:]) for row in rows if row[0] == change])
        made.apply(changes, cells_of([(0, row % 3, row, int(row in own), 1) for row in range(9)]))
        assert found_2MD[:, change] == pytest.approx(made.compute_2ND[:, 0], rel=1e-9)
    assert loads.compute_2ND == pytest.approx(loaded(lookups, 3).compute_2ND, rel=1e-12)


def test_calls_take_launches_and_only_one_overhead() -> None:
    """Two calls with next to nothing take the host twice, the overhead of a pass once."""
    tiny = [Lookup(Table(name, 1, 4, 1e-3), BATCH, "sgd") for name in ("a", "b")]
    one, two = (loads.compute_2ND[:, 0, 0].sum() for loads in (loaded(tiny[:1], 1), loaded(tiny, 2)))
    launched_ms = (PROFILE.fwd_host_us + PROFILE.bwd_host_us) / 1e3
    assert two - one == pytest.approx(launched_ms, rel=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_a_line_lies_below_all_loads_and_touches_near_its_own(seed: int) -> None:
    lookups = [one._replace(table=replace(one.table, num_rows=10**6)) for one in drawn(40, seed)]
    columns_PH = PRICE.columns(lookups)
    steps_2P = BOUNDS.own_steps_ms(columns_PH)
    line = BOUNDS.line_at(columns_PH.sum(axis=0) / 2)
    rng = np.random.default_rng(seed)
    gaps = []
    for _ in range(20):
        some = np.flatnonzero(rng.random(40) < rng.random())
        if len(some):
            took_2 = loaded([lookups[at] for at in some], int(rng.integers(1, 4))).compute_2ND[:, 0, 0]
            gaps.append(took_2 - line.at_0_2 - (line.compute_work(columns_PH[some]) + steps_2P[:, some]).sum(axis=1))
    assert np.min(gaps) > -1e-9 and np.sum(gaps, axis=1).min() < 1.0


@pytest.mark.parametrize("seed", range(4))
def test_a_call_takes_what_any_of_its_tables_needs_once(seed: int) -> None:
    """Above a line and its own steps: the most that one of its tables needs, nearly all of it where that is alone."""
    lookups = drawn(12, seed)
    columns_PH = PRICE.columns(lookups)
    once_2P = BOUNDS.least_call_ms(columns_PH)
    line = BOUNDS.line_at(columns_PH.sum(axis=0))
    works_2P = line.compute_work(columns_PH) + BOUNDS.own_steps_ms(columns_PH)
    took_2 = loaded(lookups, 1).compute_2ND[:, 0, 0]
    assert (took_2 >= line.at_0_2 + works_2P.sum(axis=1) + once_2P.max(axis=1)).all()
    for at in range(len(lookups)):
        own = BOUNDS.line_at(columns_PH[at])
        least_2 = own.at_0_2 + own.compute_work(columns_PH[at : at + 1])[:, 0] + BOUNDS.own_steps_ms(columns_PH)[:, at]
        kernels_2 = PRICE.call_ms(columns_PH[at : at + 1])[:2, 0] + PRICE.overhead_ms_2
        assert (kernels_2 >= least_2 + once_2P[:, at] - 1e-9).all()
        assert kernels_2[1] == pytest.approx(least_2[1] + once_2P[1, at], rel=0.02)


def test_devices_of_a_place_look_up_the_same_and_each_kind_at_its_own_speed() -> None:
    """Calls of one device, of two and of all four, which are of two kinds; two placements side by side."""
    lookups, prices = drawn(12), [PRICE, DeviceModelPrice(gpu_profile("a100_80gb"))]
    spans, kind_of_D = [1, 2, 4], np.array([0, 0, 0, 1])
    columns = LookupColumns(prices)
    row_P = [columns.row((one,)) for one in lookups]
    columns.update()

    def loads_of(placements: Sequence[dict[int, int]]) -> Loads:
        """Placements that have rows on devices."""
        loads = Loads(columns, prices, kind_of_D, spans, len(placements))
        loads.recompute(
            cells_of([(at, row % 3, row, on, 1) for at, own in enumerate(placements) for row, on in own.items()])
        )
        return loads

    first, second = dict.fromkeys(row_P, 0), {row: (3, 2, 1)[row % 3] for row in row_P}
    both = loads_of([first, second])
    for at, own in enumerate((first, second)):
        assert both.compute_2ND[:, at] == pytest.approx(loads_of([own]).compute_2ND[:, 0], rel=1e-12)
    to = (3, 3, 2)  # any device stands for its place; from all devices a table goes and comes again
    goes = [(row, row % 3, row, 0, -1) for row in row_P]
    comes = [(row, row % 3, row, to[row % 3], 1) for row in row_P]
    placement_M = np.zeros(12, dtype=np.int64)
    left_2MD = both.try_out(placement_M, cells_of(goes))
    found_2MD = both.try_out(placement_M, cells_of(goes + comes))
    back_2MD = both.try_out(placement_M + 1, cells_of([(row, row % 3, row, second[row], -1) for row in row_P]))
    for row in row_P:
        left = {one: on for one, on in first.items() if one != row}
        assert left_2MD[:, row] == pytest.approx(loads_of([left]).compute_2ND[:, 0], rel=1e-9)
        assert found_2MD[:, row] == pytest.approx(loads_of([{**first, row: to[row % 3]}]).compute_2ND[:, 0], rel=1e-9)
        left = {one: on for one, on in second.items() if one != row}
        assert back_2MD[:, row] == pytest.approx(loads_of([left]).compute_2ND[:, 0], rel=1e-9)
    alone_ms_K = [alone_ms(price, price.columns(lookups[2:3])) for price in prices]
    only = loads_of([{2: 0}]).compute_2ND[:, 0]
    assert only.sum(axis=0) == pytest.approx([*[alone_ms_K[0][0]] * 3, alone_ms_K[1][0]])


def test_what_calls_take_beside_their_kernels_counts_once_and_backward() -> None:
    profile = replace(PROFILE, short_call_us=50.0, medium_call_us=50.0)
    columns_PH, one_2 = PRICE.columns(drawn(2)), np.ones(2, dtype=np.int64)
    calls_QP = DeviceModelPrice(profile).call_ms(columns_PH)
    beside_P = outside_kernels_ms(profile, columns_PH[:, LOOKUPS])
    assert (calls_QP[2] == beside_P).all() and beside_P.all() and beside_P[0] != beside_P[1]
    times_QGN = np.stack([calls_QP, calls_QP[:, ::-1]], axis=1)  # both calls on each of two devices
    more_2N = DeviceModelPrice(profile).device_ms(times_QGN, 2 * one_2) - PRICE.device_ms(
        times_QGN * np.array([1.0, 1.0, 0.0])[:, None, None], 2 * one_2
    )
    assert more_2N == pytest.approx(np.array([[0.0, 0.0], [beside_P.max()] * 2]))
