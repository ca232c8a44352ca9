"""What a part costs alone, and what it adds to its device: an answer says both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evenshard.placement.placement import Placement
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.sharders.convex_search.cost_model import ExchangeTime
from evenshard.sharders.convex_search.prediction import PredictedPlacement
from support.convex_builders import random_model
from support.request_builders import QUICK, request, untrained

MODEL = untrained().cost_model


def answer(devices: int = 3) -> PlacementAnswer:
    return place_request(request(8, 16, 64, 32, 8, 128, caps=(2**30,) * devices), untrained(), PlaceConfig(QUICK))


def test_no_device_takes_less_than_its_tables_alone() -> None:
    one = answer()
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        where = tuple(torch.randint(0, 3, (6,), generator=rng).tolist())
        devices = PredictedPlacement.of(MODEL, one.task, Placement(where, 3)).devices
        for device, alone_ms in zip(where, one.alone_ms, strict=True):
            assert devices[device].predicted_total_ms >= alone_ms * (1 - 1e-4)


def test_a_table_with_the_even_share_of_the_dims_takes_exactly_that() -> None:
    one = place_request(request(64, 64, 64, caps=(2**30,) * 3), untrained(), PlaceConfig(QUICK))
    assert [device.predicted_total_ms for device in one.devices] == pytest.approx(list(one.alone_ms))
    assert one.adds_ms == pytest.approx(one.alone_ms)


def test_a_table_with_more_than_the_even_share_takes_that_on_a_device_of_its_own() -> None:
    one = place_request(request(128, 8), untrained(), PlaceConfig(QUICK))
    assert one.devices[one.device_of_table[0]].predicted_total_ms == pytest.approx(one.alone_ms[0])


def test_a_narrow_table_alone_does_not_wait_for_what_others_send() -> None:
    slow_link = random_model(exchange=ExchangeTime(0.0, 1.0))
    one = place_request(request(8, 64, 64), replace(untrained(), cost_model=slow_link), PlaceConfig(QUICK))
    # The even share is 68 of 136 dims; on its own device, the narrow table would receive 128.
    exchange_ms = 2 * 68 * one.task.batch_size / 2 * 4
    assert one.alone_ms[0] == pytest.approx(exchange_ms, rel=0.05)


def test_what_a_table_adds_is_what_its_device_saves_without_it() -> None:
    one = answer()
    for position, device in enumerate(one.device_of_table):
        there = [table for table, where in enumerate(one.device_of_table) if where == device and table != position]
        represented_TH = MODEL.represent(one.task.tables, one.task.batch_size)
        without_H = represented_TH[there].sum(dim=0)
        dims = [0] * 3
        for table, where in enumerate(one.device_of_table):
            dims[where] += one.task.tables[table].embedding_dim * (table != position)
        total = float(represented_TH[:, 0].sum())
        left_ms = float(MODEL.device_ms(without_H, total, 3, one.task.batch_size, max(dims)))
        saved_ms = one.devices[device].predicted_total_ms - left_ms
        assert one.adds_ms[position] == pytest.approx(saved_ms, abs=1e-4)


def test_the_costs_follow_their_tables() -> None:
    asked = request(8, 128, caps=(2**30,) * 2)
    turned = replace(asked, tables=asked.tables[::-1])
    one, other = (place_request(which, untrained(), PlaceConfig(QUICK)) for which in (asked, turned))
    assert one.alone_ms[1] > one.alone_ms[0]
    assert other.alone_ms == pytest.approx(one.alone_ms[::-1])
