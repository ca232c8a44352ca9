"""The index-reuse histogram: counted, assumed, and expected of a power law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.tables.reuse import (
    BIN_MEAN_COUNTS,
    DLRM_2021_REUSE,
    MAX_COUNT_OF_BIN,
    MIN_COUNT_OF_BIN,
    NUM_REUSE_BINS,
    ReuseBins,
    deduplicate_reuse,
    feasible_reuse_bins,
    poisson_at_least,
    power_law_reuse_bins,
    reuse_bins_of_counts,
    thin_reuse_bins,
)


def one_hot(position: int) -> ReuseBins:
    return tuple(1.0 if number == position else 0.0 for number in range(NUM_REUSE_BINS))


def num_unique(bins: ReuseBins, num_lookups: float) -> float:
    """Unique indices that a histogram implies; no index is read more often than there are lookups."""
    return num_lookups / float(np.minimum(BIN_MEAN_COUNTS, max(num_lookups, 1)) @ np.array(bins))


# Counting ------------------------------------------------------------------------------------------------------------


def test_a_power_of_two_is_the_last_count_of_its_bin() -> None:
    for count, position in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32768, 15), (32769, 16), (10**9, 16)):
        assert reuse_bins_of_counts(np.array([count])) == one_hot(position), count


def test_shares_are_of_unique_indices_not_of_lookups() -> None:
    bins = reuse_bins_of_counts(np.array([1, 1, 1, 100]))
    assert bins[0] == 0.75 and bins[7] == 0.25 and sum(bins) == 1


@pytest.mark.parametrize(("counts", "words"), [([], "no index"), ([0, 0], "no index"), ([3, -1], "-1 times")])
def test_counts_without_a_histogram_are_refused(counts: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reuse_bins_of_counts(np.array(counts, dtype=np.int64))


def test_mean_counts_lie_inside_their_bins() -> None:
    assert len(BIN_MEAN_COUNTS) == len(MIN_COUNT_OF_BIN) == NUM_REUSE_BINS
    assert (np.array(MIN_COUNT_OF_BIN) <= BIN_MEAN_COUNTS).all()
    assert (BIN_MEAN_COUNTS[:-1] <= np.array(MAX_COUNT_OF_BIN)).all()
    # Bin 2 holds counts 3 and 4, with frequencies as 1/9 to 1/16.
    assert BIN_MEAN_COUNTS[2] == pytest.approx((3 / 9 + 4 / 16) / (1 / 9 + 1 / 16))


# The published histograms --------------------------------------------------------------------------------------------

# fmt: off
UNIQUES_2021 = (.473, .152, .139, .112, .072, .032, .011, .005, .002, .001)
ACCESSES_2021 = (.069, .044, .068, .101, .121, .104, .073, .058, .052, .050, .049, .048, .048, .043, .031, .023, .019)
# fmt: on


def test_the_published_histogram_agrees_with_all_three_published_figures() -> None:
    shares = np.array(DLRM_2021_REUSE)
    assert shares.sum() == pytest.approx(1) and (shares > 0).all()
    np.testing.assert_allclose(shares[: len(UNIQUES_2021)], UNIQUES_2021, atol=6e-4)
    assert shares[len(UNIQUES_2021) :].max() < 5.5e-4  # printed as 0.000
    mean_count = float(shares @ BIN_MEAN_COUNTS)
    assert mean_count == pytest.approx(6.906, rel=0.01)
    np.testing.assert_allclose(shares * BIN_MEAN_COUNTS / mean_count, ACCESSES_2021, atol=0.004)


# The default of a table without a count ----------------------------------------------------------------------------


def test_a_table_with_room_keeps_the_published_histogram() -> None:
    np.testing.assert_allclose(feasible_reuse_bins(10**7, 10**6), DLRM_2021_REUSE, rtol=1e-12)


def test_a_count_above_all_the_lookups_is_impossible() -> None:
    for num_lookups in (0, 0.5, 1.9):
        assert feasible_reuse_bins(5, num_lookups) == one_hot(0)
    bins = feasible_reuse_bins(10**6, 8)
    assert bins[3] > 0 and sum(bins[4:]) == 0
    assert sum(feasible_reuse_bins(10**6, 9)[5:]) == 0 < feasible_reuse_bins(10**6, 9)[4]


def test_one_row_takes_all_lookups() -> None:
    assert feasible_reuse_bins(1, 1000) == one_hot(10)  # 513..1024
    assert feasible_reuse_bins(1, 10_000_000) == one_hot(16)


def test_scarce_rows_are_just_used_up() -> None:
    """1000 rows for 200,000 lookups need a mean count of 200, far above the published 6.9."""
    bins = feasible_reuse_bins(1000, 200_000)
    assert num_unique(bins, 200_000) == pytest.approx(1000, rel=1e-6)
    ratios = np.log(np.array(bins) / np.array(DLRM_2021_REUSE))
    np.testing.assert_allclose(np.diff(ratios), np.diff(ratios)[0])  # tilted exponentially, nothing else


def test_no_index_is_read_more_often_than_there_are_lookups() -> None:
    """2 rows for 600 lookups: a row in the bin 513..1024 is read 600 times, not the 710 of that bin elsewhere."""
    assert num_unique(feasible_reuse_bins(2, 600), 600) == pytest.approx(2, rel=1e-6)


def test_a_base_that_is_impossible_gives_the_most_reuse_there_can_be() -> None:
    assert feasible_reuse_bins(10**6, 10, base=one_hot(16)) == one_hot(4)  # 9..16


@settings(max_examples=40)
@given(
    num_rows=st.integers(1, 10**9),
    num_lookups=st.floats(0, 1e9),
    tilt=st.floats(-3, 3),
    base=st.sampled_from([DLRM_2021_REUSE, one_hot(0), one_hot(16)]),
)
def test_the_default_is_always_possible(num_rows: int, num_lookups: float, tilt: float, base: ReuseBins) -> None:
    bins = np.array(feasible_reuse_bins(num_rows, num_lookups, tilt, base))
    assert bins.sum() == pytest.approx(1) and (bins >= 0).all()
    assert not bins[1:][np.array(MIN_COUNT_OF_BIN[1:]) > num_lookups].any()
    highest = np.flatnonzero(np.array(MIN_COUNT_OF_BIN) <= max(num_lookups, 1))[-1]
    fits = num_unique(tuple(bins), num_lookups) <= num_rows * (1 + 1e-6)
    assert fits or bins[highest] == 1


# Power law -----------------------------------------------------------------------------------------------------------


def test_power_law_of_two_rows_by_hand() -> None:
    """alpha 1: the rows get 2/3 and 1/3 of 3 lookups, so their counts are Poisson(2) and Poisson(1)."""
    once = 2 * np.exp(-2) + np.exp(-1)
    twice = 2 * np.exp(-2) + np.exp(-1) / 2
    three_or_four = (8 / 6 + 16 / 24) * np.exp(-2) + (1 / 6 + 1 / 24) * np.exp(-1)
    seen = 2 - np.exp(-2) - np.exp(-1)
    expected = np.array([once, twice, three_or_four]) / seen
    np.testing.assert_allclose(power_law_reuse_bins(2, 3, 1.0)[:3], expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_power_law_matches_drawn_lookups(alpha: float) -> None:
    num_rows, num_lookups = 10_000, 150_000
    weights = np.arange(1, num_rows + 1) ** -alpha
    counts = np.random.default_rng(0).multinomial(num_lookups, weights / weights.sum())
    drawn = reuse_bins_of_counts(counts)
    error = 5 * np.sqrt(0.25 / np.count_nonzero(counts))
    np.testing.assert_allclose(power_law_reuse_bins(num_rows, num_lookups, alpha), drawn, atol=error)


@pytest.mark.parametrize("num_lookups", [1, 200_000])
def test_power_law_in_blocks_of_ranks_agrees_with_rank_by_rank(num_lookups: int) -> None:
    weights = np.arange(1, 20_001) ** -1.05
    rates = torch.from_numpy(num_lookups * weights / weights.sum())[:, None]
    at_least = torch.special.gammainc(torch.tensor([MIN_COUNT_OF_BIN], dtype=torch.float64), rates).sum(dim=0).numpy()
    expected = -np.diff(at_least, append=0.0) / at_least[0]
    np.testing.assert_allclose(power_law_reuse_bins(20_000, num_lookups, 1.05), expected, rtol=1e-4, atol=1e-9)


def test_power_law_edges() -> None:
    assert power_law_reuse_bins(10, 0, 1.05) == one_hot(0)
    assert power_law_reuse_bins(1, 10**6, 1.05) == one_hot(16)
    assert power_law_reuse_bins(10**9, 1e-3, 1.05)[0] == pytest.approx(1, abs=1e-3)
    bins = power_law_reuse_bins(2_000_000_000, 65_536 * 301, 1.05)
    assert sum(bins) == pytest.approx(1) and bins[0] > bins[1] > bins[2]
    exact = power_law_reuse_bins(10**6, 10**6, 1.0)
    np.testing.assert_allclose(power_law_reuse_bins(10**6, 10**6, 1 + 1e-9), exact, atol=1e-8)


# Parts of a batch ----------------------------------------------------------------------------------------------------


def counted(kind: str) -> np.ndarray:
    """How often a batch looks up each of its indices."""
    rng = np.random.default_rng(0)
    counts = {
        "once": np.ones(50_000, dtype=np.int64),
        "even": rng.poisson(5, 50_000),
        "hot": np.bincount((rng.random(400_000) ** 4 * 200_000).astype(np.int64)),
        "some hotter": np.bincount(rng.zipf(1.3, 400_000).clip(max=10**6)),
    }[kind]
    return counts[counts > 0]


@pytest.mark.parametrize(("kind", "share"), [("once", 1 / 8), ("even", 1 / 2), ("hot", 1 / 8), ("some hotter", 1 / 64)])
def test_a_thinned_histogram_is_that_of_a_real_part_of_the_lookups(kind: str, share: float) -> None:
    """At most 2.5 % of the indices in another bin than where a draw puts them."""
    counts = counted(kind)
    drawn = np.random.default_rng(1).binomial(counts, share)
    expected = np.array(reuse_bins_of_counts(drawn))
    thinned = np.array(thin_reuse_bins(reuse_bins_of_counts(counts), share))
    assert thinned.sum() == pytest.approx(1)
    assert np.abs(thinned - expected).sum() / 2 < 0.025


def test_thinning_by_hand() -> None:
    """Two lookups of an index: both in a half with 1/4, one with 1/2."""
    np.testing.assert_allclose(thin_reuse_bins(one_hot(1), 0.5)[:3], (2 / 3, 1 / 3, 0), atol=1e-12)
    assert thin_reuse_bins(DLRM_2021_REUSE, 1.0) == DLRM_2021_REUSE
    # 513 to 1024 lookups, as often as 1 / count**2: Poisson variables of 1 to 2 in a 512th of them.
    rates = np.arange(513, 1025) / 512
    parts = (rates * np.exp(-rates), rates**2 / 2 * np.exp(-rates), -np.expm1(-rates))
    once, twice, seen = (rates**-2 @ part for part in parts)
    np.testing.assert_allclose(thin_reuse_bins(one_hot(10), 1 / 512)[:2], (once / seen, twice / seen), atol=2e-3)


@pytest.mark.parametrize(("kind", "num_devices"), [("hot", 1), ("even", 2), ("hot", 8), ("once", 64)])
def test_deduplication_leaves_what_a_real_one_leaves(kind: str, num_devices: int) -> None:
    """Every lookup dealt to a device; each device sends the indices that it has."""
    counts = counted(kind)
    indices = np.repeat(np.arange(len(counts)), counts)
    devices = np.random.default_rng(2).integers(num_devices, size=len(indices))
    sent = np.unique(indices * num_devices + devices) // num_devices
    bins, share = deduplicate_reuse(reuse_bins_of_counts(counts), num_devices)
    assert share == pytest.approx(len(sent) / len(indices), rel=0.12)
    assert sum(bins) == pytest.approx(1)
    expected = np.array(reuse_bins_of_counts(np.bincount(sent)))
    assert np.array(bins) @ BIN_MEAN_COUNTS == pytest.approx(expected @ BIN_MEAN_COUNTS, rel=0.2)


def test_the_chance_of_a_poisson_variable_is_the_incomplete_gamma_function() -> None:
    """As torch has it, on both sides of the mean, from rare to sure."""
    counts = np.array(MIN_COUNT_OF_BIN, dtype=np.float64)
    rates = np.geomspace(0.01, 2e5, 60)[:, None]
    wide = np.broadcast_to(counts, (60, len(counts))), np.broadcast_to(rates, (60, len(counts)))
    expected = torch.special.gammainc(*(torch.from_numpy(one.copy()) for one in wide)).numpy()
    assert poisson_at_least(counts, rates) == pytest.approx(expected, abs=1e-8)
