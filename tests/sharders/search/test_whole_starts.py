"""Starts of whole tables: devices that are kept for few rows."""

from __future__ import annotations

import numpy as np

from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import DeviceModelPrice
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.sharders.search.whole_starts import TRIED_PASSES, row_splits


def test_the_last_devices_hold_few_rows_and_no_large_table() -> None:
    """10, 20, 100 and 300 rows, 64 of them on a device with few: the last two have no place there."""
    rows_G, alone_G = np.array([10.0, 300.0, 20.0, 100.0]), np.ones(4)
    allowed_SGD, most_rows_SD = row_splits(rows_G, alone_G, 2, [64.0], most_splits=8)
    assert allowed_SGD[0].all() and np.isinf(most_rows_SD[0]).all()
    assert allowed_SGD[1].tolist() == [[True, True], [True, False], [True, True], [True, False]]
    assert most_rows_SD[1].tolist() == [np.inf, 64.0]
    assert allowed_SGD[2].tolist() == [[True, True], [False, False], [True, True], [False, False]]


def test_tables_of_many_rows_for_their_time_are_kept_off_too() -> None:
    rows_G, alone_G = np.array([30.0, 60.0, 60.0]), np.array([0.1, 1.0, 1.0])
    allowed_SGD, _ = row_splits(rows_G, alone_G, 2, [64.0], most_splits=1)
    by_rows, by_time = allowed_SGD[1:]
    assert by_rows[:, 1].tolist() == [True, False, False]
    assert by_time[:, 1].tolist() == [False, True, False]


def test_where_all_rows_are_few_no_device_is_kept() -> None:
    allowed_SGD, _ = row_splits(np.array([10.0, 20.0]), np.ones(2), 2, [64.0], most_splits=8)
    assert len(allowed_SGD) == 1


def test_where_a_price_has_no_limits_the_free_start_is_alone() -> None:
    allowed_SGD, _ = row_splits(np.array([100.0, 300.0]), np.ones(2), 2, (), most_splits=8)
    assert len(allowed_SGD) == 1


def test_prices_name_the_same_limits() -> None:
    """A learned model's passes begin where those of the device models do."""
    assert LearnedPrice.row_limits[TRIED_PASSES] == DeviceModelPrice.row_limits[TRIED_PASSES] == (2**16 - 1, 2**24 - 1)
    assert LearnedPrice.lane_limits == DeviceModelPrice(gpu_profile("h100")).lane_limits == (32, 64, 128)


def test_a_device_model_without_lanes_has_no_limits_on_them() -> None:
    assert DeviceModelPrice(gpu_profile("v100")).lane_limits == ()
