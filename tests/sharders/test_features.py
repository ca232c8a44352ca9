"""Features: what a network sees of a table, and the normalizer that travels with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.sharders.features import NUM_FEATURES, FeatureNormalizer, raw_features_TF
from evenshard.tables.reuse import feasible_reuse_bins
from support.builders import BATCH_SIZE, READ_ONCE, some_tables, table

POOL = some_tables(12)


def test_the_21_features_of_a_table_by_hand() -> None:
    bins = (0.25, 0.75) + (0.0,) * 15
    one = replace(table(rows=1000, dim=16, pooling=2.25, bits=16), reuse_bins=bins)
    expected = [4.0, 3.0, 1.5, np.log10(32_000), *bins]
    np.testing.assert_allclose(raw_features_TF([one], BATCH_SIZE), [expected])
    assert NUM_FEATURES == 21


def test_pooling_factors_are_not_cut_to_whole_numbers() -> None:
    less, more = raw_features_TF([table(pooling=0.3), table(pooling=0.7)], BATCH_SIZE)[:, 2]
    assert (less, more) == pytest.approx((0.3**0.5, 0.7**0.5))


def test_a_table_nobody_has_counted_gets_the_stated_default_for_the_batch() -> None:
    uncounted = replace(table(rows=50, pooling=3.0), reuse_bins=None)
    for batch_size in (10, 1000):
        bins = raw_features_TF([uncounted], batch_size)[0, 4:]
        np.testing.assert_allclose(bins, feasible_reuse_bins(50, 3 * batch_size))
    assert raw_features_TF([table(pooling=3.0)], 1000)[0, 4:].tolist() == list(READ_ONCE)


def test_counted_and_uncounted_tables_among_each_other_each_get_their_own_bins() -> None:
    bins = (0.25, 0.75) + (0.0,) * 15
    pool = [replace(one, reuse_bins=bins if number % 2 else None) for number, one in enumerate(POOL)]
    for one, found in zip(pool, raw_features_TF(pool, BATCH_SIZE), strict=True):
        expected = one.reuse_bins or feasible_reuse_bins(one.num_rows, round(one.pooling_factor * BATCH_SIZE))
        assert found[4:].tolist() == list(expected)


def test_the_training_pool_has_mean_0_and_deviation_1_in_the_first_four_features() -> None:
    scalars_T4 = FeatureNormalizer.fit(POOL, BATCH_SIZE)(POOL, BATCH_SIZE)[:, :4]
    torch.testing.assert_close(scalars_T4.mean(dim=0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(scalars_T4.std(dim=0, correction=0), torch.ones(4))


def test_reuse_bins_stay_the_shares_they_are() -> None:
    pool = [replace(one, reuse_bins=None) for one in POOL]
    features = FeatureNormalizer.fit(pool, BATCH_SIZE)(pool, BATCH_SIZE)
    expected = [feasible_reuse_bins(one.num_rows, round(one.pooling_factor * BATCH_SIZE)) for one in pool]
    torch.testing.assert_close(features[:, 4:], torch.tensor(expected))


@pytest.mark.parametrize("pool", [[table()], [table("a"), table("b")]])
def test_identical_tables_are_not_divided_by_zero(pool: list[object]) -> None:
    normalizer = FeatureNormalizer.fit(pool, BATCH_SIZE)  # type: ignore[arg-type]
    assert normalizer([table()], BATCH_SIZE)[0, :4].tolist() == [0.0] * 4
    other = normalizer([table(dim=16, rows=10_000)], BATCH_SIZE)
    assert other.isfinite().all() and other.abs().max() < 10
    assert other[0, 0] == 2.0  # only centred: the square root of 16 less that of 4


def test_a_feature_that_all_tables_share_is_only_centred_while_the_others_are_scaled() -> None:
    pool = [table("a", rows=10, dim=4), table("b", rows=1000, dim=4)]
    features = FeatureNormalizer.fit(pool, BATCH_SIZE)(pool, BATCH_SIZE)
    torch.testing.assert_close(features[:, 0], torch.zeros(2))
    torch.testing.assert_close(features[:, 1], torch.tensor([-1.0, 1.0]))


def test_unseen_tables_are_measured_with_the_training_pool() -> None:
    pool = [table("a", rows=10), table("b", rows=1000)]  # log10: mean 2, deviation 1
    unseen = FeatureNormalizer.fit(pool, BATCH_SIZE)([table("c", rows=100_000)], BATCH_SIZE)
    assert unseen[0, 1] == pytest.approx(3.0)


@settings(deadline=None)
@given(st.permutations(range(len(POOL))))
def test_the_order_of_the_pool_does_not_matter(order: list[int]) -> None:
    shuffled = [POOL[number] for number in order]
    normalizer = FeatureNormalizer.fit(POOL, BATCH_SIZE)
    again = FeatureNormalizer.fit(shuffled, BATCH_SIZE)
    np.testing.assert_allclose([*again.mean, *again.scale], [*normalizer.mean, *normalizer.scale], rtol=1e-9)
    torch.testing.assert_close(normalizer(shuffled, BATCH_SIZE), normalizer(POOL, BATCH_SIZE)[order])


def test_no_tables_have_no_features() -> None:
    assert FeatureNormalizer.fit(POOL, BATCH_SIZE)([], BATCH_SIZE).shape == (0, NUM_FEATURES)
