"""Miss ratios of caches: counted, bounded, assumed, and beside simulated caches; hot rows side by side or scattered.

Legend: R rows, K = 17 bins.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.measure.workload import draw_lookups
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.locality import (
    ASSUMED,
    BOUND,
    COUNTED,
    arrange_hot_rows,
    contiguous_share,
    distinct_rows,
    max_new_rows,
    mean_miss_ratio,
    miss_curve,
    miss_ratio,
    miss_source,
    set_miss_ratio,
)
from evenshard.tables.reuse import (
    BIN_MEAN_COUNTS,
    MAX_COUNT_OF_BIN,
    NUM_REUSE_BINS,
    feasible_reuse_bins,
)
from evenshard.tables.table import LOAD_FACTORS, Table
from evenshard.tables.traffic.counts import RowRuns
from support.traffic_builders import bins

FloatArray = npt.NDArray[np.float64]

ONCE = Table("t", 1000, 4, 1.0, bins(1))
HALVES = tuple(round((1 - share) / 2, 6) for share in LOAD_FACTORS)


# By hand -------------------------------------------------------------------------------------------------------------


def test_distinct_rows_are_lookups_by_mean_count_and_at_most_all_rows() -> None:
    assert distinct_rows(ONCE, 300) == 300
    assert distinct_rows(replace(ONCE, reuse_bins=bins(0, 1)), 300) == 150
    assert distinct_rows(replace(ONCE, reuse_bins=bins(0.5, 0.5)), 300) == pytest.approx(200)
    assert distinct_rows(ONCE, 3000) == 1000
    assert distinct_rows(replace(ONCE, pooling_factor=0.0), 300) == 0


def test_the_bound_by_hand() -> None:
    """Of 1000 rows 200 are read, all once: 800 are not, which the batch has read at a mean rate of 200 / 800."""
    new = 800 * (1 - np.exp(-1 / 4))
    assert miss_curve(ONCE, 200) == ((0.0, 0.2, 1.0), (1.0, pytest.approx(new / 200), 0.0))
    assert miss_ratio(ONCE, 200, 0.6) == pytest.approx(new / 200 / 2)  # half of those that one batch leaves out
    assert miss_ratio(ONCE, 200, 0.1) == pytest.approx((1 + new / 200) / 2)
    assert mean_miss_ratio(ONCE, 200) == pytest.approx(0.2 * (1 + new / 200) / 2 + 0.8 * new / 200 / 2)


def test_rows_that_are_read_often_are_read_again() -> None:
    """Only those read once may be new; those read twice say that some of these are no rare rows."""
    mostly_once = replace(ONCE, num_rows=10**9, reuse_bins=bins(0.6, 0, 0, 0, 0.4))
    assert miss_ratio(mostly_once, 200, 0.001) == pytest.approx(0.6, abs=0.01)
    some_twice = replace(mostly_once, reuse_bins=bins(0.6, 0.2, 0, 0, 0.2))
    assert miss_ratio(some_twice, 200, 0.001) < 0.45
    assert miss_ratio(replace(mostly_once, reuse_bins=bins(0, 0, 0, 0, 1)), 200, 0.001) == 0


@pytest.mark.parametrize("rate", [0.5, 2.0, 4.0])
def test_the_bound_is_exact_for_rows_of_one_rate_beside_those_that_are_never_read(rate: float) -> None:
    """A thousand rows: each one's chance to be read in a batch and not in the one before is all that counts."""
    seen = [1000 * np.exp(-rate) * rate**times / math.factorial(times) for times in range(1, 40)]
    rows_K = np.array([seen[0], seen[1], seen[2] + seen[3], sum(seen[4:]), *[0.0] * 13])
    assert max_new_rows(rows_K, 10**12) == pytest.approx(1000 * np.exp(-rate) * -np.expm1(-rate))


def test_batches_that_read_all_rows_and_batches_that_read_none() -> None:
    assert miss_curve(replace(ONCE, reuse_bins=bins(0, 1)), 2000)[1][1] == 0
    assert miss_ratio(replace(ONCE, reuse_bins=bins(0, 1)), 2000, 0.25) == 0.75
    for lookups in (0.0, 5e-324, 1e-300):
        assert miss_ratio(replace(ONCE, pooling_factor=lookups), 64, 0.25) == 0.75
        assert miss_ratio(replace(ONCE, pooling_factor=lookups), 64, 0.0) == 1


def test_counted_ratios_are_straight_between_the_load_factors() -> None:
    counted = replace(ONCE, miss_ratios=HALVES)
    assert counted.problem() is None
    assert miss_ratio(counted, 64, 0.2) == 0.4 and miss_ratio(counted, 64, 0.7) == pytest.approx(0.15)
    assert miss_ratio(counted, 64, 0.0005) == pytest.approx((1 + HALVES[0]) / 2)
    assert (miss_ratio(counted, 64, 0.0), miss_ratio(counted, 64, 1.0), miss_ratio(counted, 64, 1.5)) == (1, 0, 0)


def test_without_a_histogram_it_is_the_bound_of_the_assumed_one() -> None:
    uncounted = replace(ONCE, num_rows=10**6, pooling_factor=3.0, reuse_bins=None)
    assumed = replace(uncounted, reuse_bins=feasible_reuse_bins(10**6, 3.0 * 4096))
    assert miss_curve(uncounted, 4096) == miss_curve(assumed, 4096)
    assert miss_source(replace(ONCE, miss_ratios=HALVES)) == COUNTED
    assert miss_source(ONCE) == BOUND
    assert miss_source(replace(ONCE, reuse_bins=None)) == ASSUMED


# Properties ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    rows=st.integers(1, 10**12),
    lookups=st.floats(0, 1e8),
    shares=st.none() | st.lists(st.floats(0, 1), min_size=NUM_REUSE_BINS, max_size=NUM_REUSE_BINS),
)
def test_any_curve_falls_from_1_to_0(rows: int, lookups: float, shares: list[float] | None) -> None:
    bins_K = tuple(share / sum(shares) for share in shares) if shares and sum(shares) > 1e-6 else None
    one = Table("t", rows, 4, lookups, bins_K)
    ratios = np.array([miss_ratio(one, 1, share) for share in (0.0, *LOAD_FACTORS)])
    assert ratios[0] == 1 and ratios[-1] == 0 and (np.diff(ratios) <= 0).all()
    assert 0 <= mean_miss_ratio(one, 1) <= 1 and 0 <= distinct_rows(one, 1) <= min(rows, lookups) * (1 + 1e-9)


# Simulated caches ----------------------------------------------------------------------------------------------------

NUM_ROWS = 20_000


def looked_up(rates_R: FloatArray) -> Table:
    """A table whose rows are looked up at these rates, with the expected histogram of a batch of one sample."""
    counts = np.arange(1, MAX_COUNT_OF_BIN[-1] + 1)
    unique_K = np.zeros(NUM_REUSE_BINS)
    log_rates_R = np.log(np.maximum(rates_R, 1e-300))
    log_factorial = 0.0
    for count in counts[:256]:
        log_factorial += np.log(count)
        seen = np.exp(count * log_rates_R - rates_R - log_factorial).sum()
        unique_K[np.searchsorted(MAX_COUNT_OF_BIN, count)] += seen
    distinct = float(-np.expm1(-rates_R).sum())
    unique_K[9] += max(distinct - unique_K.sum(), 0.0)  # hundreds of times: what is more does not matter here
    shares_K = unique_K / unique_K.sum()
    lookups = distinct * float(shares_K @ BIN_MEAN_COUNTS)
    # No row is looked up more often than there are lookups, which BIN_MEAN_COUNTS leave aside here.
    table = Table("t", len(rates_R), 4, lookups, tuple(shares_K.tolist()))
    assert distinct_rows(table, 1) == pytest.approx(distinct, rel=1e-3)
    return table


def simulated_misses(
    rates_R: FloatArray, size: int, rng: np.random.Generator, keeps_hits: bool, batches: int = 40
) -> FloatArray:
    """Miss ratio of each batch: LRU, rows of one batch in any order, or (FBGEMM) those that were there first."""
    seen_again_R = -np.expm1(-rates_R)
    last_R = -rng.geometric(np.maximum(seen_again_R, 1e-15)) + rng.random(len(rates_R))
    held_R = np.zeros(len(rates_R), dtype=bool)
    held_R[np.argsort(last_R)[len(rates_R) - size :]] = True
    found = []
    for number in range(batches + 20):
        batch_R = rng.random(len(rates_R)) < seen_again_R
        found.append((batch_R & ~held_R).sum() / batch_R.sum())
        last_R[batch_R] = number + rng.random(int(batch_R.sum())) / 2
        if keeps_hits:
            last_R[batch_R & held_R] += 0.5
        wanted_R = np.flatnonzero(held_R | batch_R)
        held_R[:] = False
        held_R[wanted_R[np.argsort(last_R[wanted_R])[max(len(wanted_R) - size, 0) :]]] = True
    return np.array(found[20:])


def power_law(alpha: float, lookups: float) -> FloatArray:
    weights_R = np.arange(1.0, NUM_ROWS + 1) ** -alpha
    return np.asarray(lookups * weights_R / weights_R.sum())


RATES = {
    "power 0.5": power_law(0.5, 4_000),
    "power 1.2": power_law(1.2, 30_000),
    "even": power_law(0.0, 4_000),
    "steps": np.repeat(np.geomspace(1e-4, 5, 20), NUM_ROWS // 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RATES)
def test_no_simulated_cache_misses_more_than_the_bound(name: str) -> None:
    rng = np.random.default_rng(7)
    table = looked_up(RATES[name])
    for load_factor, keeps_hits in product((0.01, 0.1, 0.4, 0.8), (False, True)):
        ratios = simulated_misses(RATES[name], round(load_factor * NUM_ROWS), rng, keeps_hits)
        noise = 3 * ratios.std() / len(ratios) ** 0.5 + 1e-3
        assert ratios.mean() <= miss_ratio(table, 1, load_factor) + noise, load_factor


@settings(max_examples=30)
@given(
    rates=st.lists(st.tuples(st.floats(1e-5, 30.0), st.integers(1, 10**6)), min_size=1, max_size=6),
    never=st.integers(0, 10**6),
)
def test_the_bound_holds_for_any_rates_at_the_size_of_any_number_of_batches(
    rates: list[tuple[float, int]], never: int
) -> None:
    """What k batches look up, and what the next one looks up beside that, are sums over the rows."""
    rate, count = np.array(rates).T
    distinct = float(count @ -np.expm1(-rate))
    bins_K = np.zeros(NUM_REUSE_BINS)
    seen = [float(count @ (rate**times * np.exp(-rate) / np.prod(np.arange(1, times + 1)))) for times in (1, 2, 3, 4)]
    bins_K[:3] = seen[0], seen[1], seen[2] + seen[3]
    bins_K[3] = max(distinct - bins_K.sum(), 0.0)
    num_rows = int(count.sum()) + never
    new = max_new_rows(bins_K, num_rows)
    for batches in (1, 2, 5, 20, 100):
        held = float(count @ -np.expm1(-batches * rate))
        missed = float(count @ (np.exp(-batches * rate) * -np.expm1(-rate)))
        assert missed <= new * (num_rows - held) / max(num_rows - distinct, 1e-9) * (1 + 1e-9) + 1e-6


# A cache of sets -----------------------------------------------------------------------------------------------------


def test_a_cache_of_sets_misses_some_of_what_a_whole_one_of_its_size_holds() -> None:
    counted = replace(ONCE, miss_ratios=HALVES)
    assert set_miss_ratio(counted, 64, 0.0) == 1
    # Half of the sets are fuller than the mean: of those that one batch leaves out, 0.5 / sqrt(32) x 0.4 are missed.
    assert set_miss_ratio(counted, 64, 1.0) == pytest.approx(0.5 * 0.4 / 32**0.5, abs=0.003)
    for load_factor in (0.01, 0.2, 0.5):  # on a straight line the mean of sizes is the ratio of the mean
        assert set_miss_ratio(counted, 64, load_factor) == pytest.approx(
            miss_ratio(counted, 64, load_factor), abs=0.002
        )


# Hot rows ------------------------------------------------------------------------------------------------------------

BATCH_SIZE = 512
# Nine of ten distinct rows are read once, one 5 to 8 times.
BINS = bins(0.9, 0, 0, 0.1)
POOL = generate_tables(GeneratorConfig(60, max_rows=300_000, hot_rows_together=0.5), BATCH_SIZE, 3)


def share_in_traffic(table: Table, batches: int = 8) -> float | None:
    """The contiguous share of the runs that a table's drawn lookups have in traffic."""
    runs = RowRuns(table.num_rows)
    for number in range(batches):
        rows = draw_lookups(table, BATCH_SIZE, seed=1, batch_number=number).indices.numpy()
        runs.add(rows, int(rows.max()))
    return contiguous_share(replace(table, row_shares=runs.shares(table.num_rows)), BATCH_SIZE)


def test_hot_rows_by_hand() -> None:
    """5,120 lookups of 3,388 rows: 3,049 once, 339 on average 6.11 times (5 to 8, as often as 1 / count**2)."""
    one = arrange_hot_rows(Table("t", 100_000, 16, 10.0, BINS), BATCH_SIZE, together=True)
    assert one.problem() is None and one.row_shares is not None
    hot = 339 * 6.11 / 5_120  # and what the first of 32 runs has of the other rows
    assert one.row_shares[0] == pytest.approx(hot + (1 - hot) * (3_125 - 339) / (100_000 - 339), abs=0.001)
    assert max(one.row_shares[1:]) < 0.025
    assert contiguous_share(one, BATCH_SIZE) == 1.0
    assert contiguous_share(arrange_hot_rows(one, BATCH_SIZE, together=False), BATCH_SIZE) == 0.0
    assert contiguous_share(replace(one, row_shares=None), BATCH_SIZE) is None
    half = tuple((np.array(one.row_shares) + 1 / 32) / 2)
    assert 0.4 < (contiguous_share(replace(one, row_shares=half), BATCH_SIZE) or 0.0) < 0.6


def test_traffic_tells_which_hot_rows_were_drawn_together() -> None:
    shares = [contiguous_share(one, BATCH_SIZE) or 0.0 for one in POOL]
    assert 15 < shares.count(0.0) < 45 and 15 < sum(share > 0.9 for share in shares) < 45
    for one, said in list(zip(POOL, shares, strict=True))[:20]:
        assert one.problem() is None
        if one.pooling_factor * BATCH_SIZE >= 100:
            assert share_in_traffic(one) == pytest.approx(said, abs=0.3), one.name


def test_where_it_makes_no_difference_they_are_scattered() -> None:
    """As many runs as rows; and no row that is read twice."""
    small = Table("s", 20, 16, 10.0, row_shares=tuple(np.arange(1, 21) / 210))
    once = Table("o", 10**6, 16, 1.0, bins(1), row_shares=(0.9, 0.1))
    assert contiguous_share(small, BATCH_SIZE) == contiguous_share(once, BATCH_SIZE) == 0.0
