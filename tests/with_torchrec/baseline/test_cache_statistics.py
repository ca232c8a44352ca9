"""TorchRec's planner asks a table for its misses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.types import CacheParams

from evenshard.tables.locality import distinct_rows, miss_ratio
from evenshard.tables.table import LOAD_FACTORS, Table
from evenshard.torchrec.baseline.sharder import TableStatistics
from support.traffic_builders import bins

LINEAR = Table("t", 1000, 16, 2.0, bins(1), miss_ratios=tuple(round(1 - share, 6) for share in LOAD_FACTORS))


def test_it_says_what_the_curve_says() -> None:
    found = TableStatistics(LINEAR, 64)
    assert found.expected_lookups == distinct_rows(LINEAR, 64) == 128
    assert found.expected_miss_rate(0.0) == 1 and found.expected_miss_rate(1.0) == 0
    assert found.expected_miss_rate(0.35) == pytest.approx(0.65) == miss_ratio(LINEAR, 64, 0.35)
    assert found.cacheability == pytest.approx(0.5)
    hot = TableStatistics(replace(LINEAR, miss_ratios=(0.0,) * 15), 64)
    cold = TableStatistics(replace(LINEAR, miss_ratios=(1.0,) * 14 + (0.0,)), 64)
    assert hot.cacheability < 0.001 and cold.cacheability > 0.89


def test_it_says_what_torchrec_makes_of_the_same_curve() -> None:
    """Lookups at even stack distances: a straight curve."""
    theirs = EmbeddingOffloadStats(0.5, 128, torch.ones(1000), 1000)
    ours = TableStatistics(LINEAR, 64)
    for load_factor in (0.0, 0.01, 0.2, 0.5, 0.9, 1.0):
        assert ours.expected_miss_rate(load_factor) == pytest.approx(theirs.expected_miss_rate(load_factor), abs=0.002)


def test_plans_with_it_are_copied_and_travel() -> None:
    params = CacheParams(load_factor=0.1, stats=TableStatistics(LINEAR, 64))
    for one in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert one == params and one.stats.expected_miss_rate(0.1) == pytest.approx(0.9)
