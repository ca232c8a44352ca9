"""Features: what a network sees of a table, and the normalizer that travels with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from evenshard.sharders.features import NUM_FEATURES, FeatureNormalizer, raw_features_TF
from evenshard.tables.reuse import feasible_reuse_bins
from support.builders import BATCH_SIZE, READ_ONCE, some_tables, table, task

POOL = some_tables(12)


def test_the_21_features_by_hand_where_counted_and_uncounted_tables_each_get_their_own_bins() -> None:
    bins = (0.25, 0.75) + (0.0,) * 15
    one = replace(table(rows=1000, dim=16, pooling=2.25, bits=16), reuse_bins=bins)
    expected = [4.0, 3.0, 1.5, np.log10(32_000), *bins]
    np.testing.assert_allclose(raw_features_TF([one], BATCH_SIZE), [expected])
    assert NUM_FEATURES == 21
    bins = (0.25, 0.75) + (0.0,) * 15
    pool = [replace(one, reuse_bins=bins if number % 2 else None) for number, one in enumerate(POOL)]
    for one, found in zip(pool, raw_features_TF(pool, BATCH_SIZE), strict=True):
        expected = one.reuse_bins or feasible_reuse_bins(one.num_rows, round(one.pooling_factor * BATCH_SIZE))
        assert found[4:].tolist() == list(expected)
    assert raw_features_TF([table(pooling=3.0)], 1000)[0, 4:].tolist() == list(READ_ONCE)


def test_scalars_are_normalised_over_the_training_pool_and_bins_stay_shares() -> None:
    """Dims are alike, so only centred; log10 of rows has mean 2 and deviation 1."""
    pool = [table("a", rows=10, dim=4), table("b", rows=1000, dim=4)]
    normalizer = FeatureNormalizer.fit(pool, BATCH_SIZE)
    features = normalizer([*pool, table("c", rows=100_000, dim=16)], BATCH_SIZE)
    torch.testing.assert_close(features[:, 0], torch.tensor([0.0, 0.0, 2.0]))
    torch.testing.assert_close(features[:, 1], torch.tensor([-1.0, 1.0, 3.0]))
    assert features[:, 4:].tolist() == [list(READ_ONCE)] * 3
    bins = (0.25, 0.75) + (0.0,) * 15
    counted = [pool[0], replace(pool[1], reuse_bins=bins)]
    assert FeatureNormalizer.fit(counted, BATCH_SIZE)(counted, BATCH_SIZE)[1, 4:].tolist() == list(bins)
    assert normalizer([], BATCH_SIZE).shape == (0, NUM_FEATURES)


def test_a_normalizer_of_other_numbers_is_refused() -> None:
    fine = (1.0,) * NUM_FEATURES
    for mean, scale, why in (
        (fine, fine[1:], "does not have 21 features"),
        (fine, (0.0, *fine[1:]), "a scale of 0 or below"),
        ((math.nan, *fine[1:]), fine, "a mean that is not finite"),
    ):
        with pytest.raises(ValueError, match=why):
            FeatureNormalizer(mean, scale)


def test_tables_of_tasks_are_encoded_once_and_share_a_batch_size() -> None:
    normalizer = FeatureNormalizer.fit(POOL, BATCH_SIZE)
    rows, features_PF = normalizer.of_tasks([task(POOL[:3]), task(POOL[2:5])])
    assert rows == {one: number for number, one in enumerate(POOL[:5])}
    torch.testing.assert_close(features_PF, normalizer(POOL[:5], BATCH_SIZE))
    with pytest.raises(AssertionError, match="batch size"):
        normalizer.of_tasks([task(POOL[:3]), task(POOL[:3], batch_size=2 * BATCH_SIZE)])
