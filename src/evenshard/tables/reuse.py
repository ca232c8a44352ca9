"""Index-reuse histograms (how often a batch looks up the same index), and their default.

A histogram has 17 bins. Bin 0 has the indices that a batch looks up once, bin k those that it looks up more than
2**(k-1) and at most 2**k times, and the last bin those that it looks up more than 32768 times. The values are shares of
the UNIQUE indices of the batch and add up to 1.

Legend: T tables, K = 17 bins, R blocks of rows, ranked by frequency.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
ReuseBins = tuple[float, ...]

NUM_REUSE_BINS = 17
MAX_COUNT_OF_BIN = tuple(2**k for k in range(NUM_REUSE_BINS - 1))
MIN_COUNT_OF_BIN = (1, *(count + 1 for count in MAX_COUNT_OF_BIN))
OCTAVES_OF_LAST_BIN = 3  # octaves that the open last bin is assumed to span, from 2**15 to 2**18 lookups


def _mean_counts() -> FloatArray:
    """Compute the mean count in each bin, [K], for indices with frequencies proportional to count**-2.

    This law reproduces the published ratio of access share to unique share within 3 % in bins 0..7 of the 2021 data.
    """
    counts = np.arange(1, 2 ** (NUM_REUSE_BINS - 2 + OCTAVES_OF_LAST_BIN) + 1, dtype=np.float64)
    bins = np.searchsorted(MAX_COUNT_OF_BIN, counts, side="left")
    return np.bincount(bins, weights=1 / counts) / np.bincount(bins, weights=1 / counts**2)


# [K] representative lookups of one index of each bin: 1, 2, 3.4, 6.1, 11.6, ...
BIN_MEAN_COUNTS = _mean_counts()
BIN_MEAN_COUNTS.setflags(write=False)


def _complete_shares(uniques: tuple[float, ...], accesses: tuple[float, ...], lookups_per_unique: float) -> ReuseBins:
    """Compute all shares of unique indices from published shares with three decimals.

    Three decimals are too few for the last bins. Their shares of unique indices are computed from their shares of
    accesses: times the mean lookups per unique index, divided by the mean count of the bin.
    """
    tail = lookups_per_unique * np.array(accesses)[len(uniques) :] / BIN_MEAN_COUNTS[len(uniques) :]
    shares = np.concatenate([uniques, tail])
    return tuple(float(share) for share in shares / shares.sum())


# Shares of unique indices and of accesses, and lookups per unique index, from facebookresearch/dlrm_datasets.
DLRM_2021_REUSE: ReuseBins = _complete_shares(
    (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011),
    (.069, .044, .068, .101, .121, .104, .073, .058, .052, .050, .049, .048, .048, .043, .031, .023, .019),
    887_017_990 / 128_435_723,
)  # fmt: skip


def reuse_bins_of_counts(counts: npt.NDArray[np.integer[Any]]) -> ReuseBins:
    """Build the histogram from the lookups of each index; raise ValueError if there are none, or a negative number."""
    array = counts[counts != 0]
    if array.size == 0:
        raise ValueError("no index was looked up, so there is no reuse histogram")
    if array.min() < 0:
        raise ValueError(f"an index cannot be looked up {array.min()} times")
    bins = np.searchsorted(MAX_COUNT_OF_BIN, array, side="left")
    return tuple((np.bincount(bins, minlength=NUM_REUSE_BINS) / array.size).tolist())


def feasible_reuse_bins(
    num_rows: int, num_lookups: float, tilt: float = 0.0, base: ReuseBins = DLRM_2021_REUSE
) -> ReuseBins:
    """Return the default histogram of a table, feasible for its rows and lookups.

    It is the base histogram times ``exp(tilt * k)``, without the bins that need more lookups than the batch has. If its
    unique indices (lookups / mean count) exceed the rows, it is tilted further towards reuse until they fit. Without
    lookups, all the mass is in bin 0.
    """
    shares_TK = np.asarray(base, dtype=np.float64)[None] * np.exp(tilt * np.arange(NUM_REUSE_BINS))
    rows_T, lookups_T = np.array([num_rows], dtype=np.float64), np.array([num_lookups], dtype=np.float64)
    return tuple(tilt_to_feasible(shares_TK, rows_T, lookups_T)[0].tolist())


def mean_counts(shares_TK: FloatArray, num_lookups_T: FloatArray) -> FloatArray:
    """Return the mean lookups per unique index, [T]; a bin's mean count is capped at the lookups of the batch."""
    return np.asarray((shares_TK * _cap_means(num_lookups_T)).sum(axis=1))


def rows_and_counts(
    bins_TK: FloatArray, num_rows_T: FloatArray, num_lookups_T: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the distinct rows of each bin and the lookups of each such row, at least 1, [T, K] each.

    Their product adds up to all lookups. The mean counts are ``BIN_MEAN_COUNTS``; if these need more rows than the
    table has, all rows are looked up and the counts are scaled up. The histograms need not be normalised.
    """
    means_TK = _cap_means(num_lookups_T)
    shares_TK = bins_TK / bins_TK.sum(axis=1, keepdims=True)
    mean_T = (shares_TK * means_TK).sum(axis=1)
    uniques_T = np.minimum(num_lookups_T / mean_T, num_rows_T)
    scale_T = np.where(uniques_T > 0, num_lookups_T / np.where(uniques_T > 0, uniques_T * mean_T, 1.0), 1.0)
    return uniques_T[:, None] * shares_TK, means_TK * scale_T[:, None]


def tilt_to_feasible(shares_TK: FloatArray, num_rows_T: FloatArray, num_lookups_T: FloatArray) -> FloatArray:
    """Tilt [T, K] histograms just enough to be feasible for [T] rows and lookups; see ``feasible_reuse_bins``.

    They need not be normalised; the results add up to 1. If even the highest possible bin has more unique indices than
    rows (such as a single row that is read a million times), all the mass is in that bin.
    """
    allowed_TK = np.array(MIN_COUNT_OF_BIN) <= num_lookups_T[:, None]
    allowed_TK[:, 0] = True
    top_T = allowed_TK.sum(axis=1) - 1
    weights_TK = np.where(allowed_TK, shares_TK, 0.0)
    no_mass_T = weights_TK.sum(axis=1) <= 0
    weights_TK[no_mass_T, top_T[no_mass_T]] = 1.0
    result_TK = weights_TK / weights_TK.sum(axis=1, keepdims=True)

    means_TK = _cap_means(num_lookups_T)
    needed_T = num_lookups_T / num_rows_T
    binding = np.flatnonzero((result_TK * means_TK).sum(axis=1) < needed_T)
    if binding.size:
        result_TK[binding] = _tilt_up(result_TK[binding], means_TK[binding], needed_T[binding], top_T[binding])
    return np.asarray(result_TK)


def _tilt_up(shares_TK: FloatArray, means_TK: FloatArray, needed_T: FloatArray, top_T: npt.NDArray[Any]) -> FloatArray:
    with np.errstate(divide="ignore"):
        logs_TK = np.log(shares_TK)

    def tilt_bins(tilt_T: FloatArray) -> FloatArray:
        exponents_TK = logs_TK + tilt_T[:, None] * np.arange(NUM_REUSE_BINS)
        weights_TK = np.exp(exponents_TK - exponents_TK.max(axis=1, keepdims=True))
        return np.asarray(weights_TK / weights_TK.sum(axis=1, keepdims=True))

    low_T, high_T = np.zeros_like(needed_T), np.full_like(needed_T, 64.0)  # at 64 the top bin has all but 1e-20
    for _ in range(40):  # to 64 / 2**40 = 6e-11
        middle_T = (low_T + high_T) / 2
        enough_T = (tilt_bins(middle_T) * means_TK).sum(axis=1) >= needed_T
        low_T, high_T = np.where(enough_T, low_T, middle_T), np.where(enough_T, middle_T, high_T)
    result_TK = tilt_bins(high_T)
    beyond_T = (result_TK * means_TK).sum(axis=1) < needed_T
    result_TK[beyond_T] = np.eye(NUM_REUSE_BINS)[top_T[beyond_T]]
    return result_TK


def _cap_means(num_lookups_T: FloatArray) -> FloatArray:
    return np.minimum(BIN_MEAN_COUNTS, np.maximum(num_lookups_T, 1.0)[:, None])


def power_law_reuse_bins(num_rows: int, num_lookups: float, alpha: float) -> ReuseBins:
    """Return the expected histogram if rows are read with probabilities proportional to ``rank**-alpha``.

    The count of a row is Poisson. Ranks above 1000 are grouped in blocks of about 1 % width, so that two billion rows
    take milliseconds. Without lookups, all the mass is in bin 0.
    """
    if num_lookups <= 0:
        return (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1)
    exact = min(num_rows, 1000)
    blocks = int(np.ceil(100 * np.log(num_rows / exact)))
    wide = np.geomspace(exact, num_rows, blocks + 1).round()[1:]
    starts = np.unique(np.concatenate([np.arange(1.0, exact + 1), wide, [num_rows + 1.0]]))
    sizes_R = np.diff(starts)
    # The sum over a block is nearly the integral from half a rank before it to half a rank after it. For the first
    # ranks, the two differ by several percent, so single ranks are exact.
    weights_R = _power_integral(starts[:-1] - 0.5, starts[1:] - 0.5, alpha)
    weights_R = np.where(sizes_R == 1, starts[:-1] ** -alpha, weights_R)
    rates_R = num_lookups * weights_R / weights_R.sum() / sizes_R
    uniques_K = sizes_R @ poisson_at_least(np.array(MIN_COUNT_OF_BIN, dtype=np.float64), rates_R[:, None])
    uniques_K[:-1] -= uniques_K[1:]
    uniques_K = np.maximum(uniques_K, 0.0)
    return tuple((uniques_K / uniques_K.sum()).tolist())


def thin_reuse_bins(bins: ReuseBins, share: float) -> ReuseBins:
    """Return the histogram of a random sample of a batch's lookups; ``share`` is the sampled fraction, above 0."""
    if share >= 1:
        return bins
    uniques_K = np.asarray(bins) @ _thinning_matrix(share)
    return tuple((uniques_K / uniques_K.sum()).tolist())


@lru_cache(maxsize=64)
def _thinning_matrix(share: float) -> FloatArray:
    """Return the probabilities, [K, K], that random sampling moves an index from one bin to another.

    An index with count c has a binomial count in the sample; with 0 it is in no bin. In a bin, frequencies are
    proportional to count**-2.
    """
    exact_KK = np.zeros((_EXACT_BINS, NUM_REUSE_BINS))
    counts = np.arange(1, MAX_COUNT_OF_BIN[_EXACT_BINS - 1] + 1)
    bin_of_count = np.searchsorted(MAX_COUNT_OF_BIN, counts, side="left")
    chances = np.zeros(len(counts) + 1)  # probabilities of each count in the sample, from 0
    chances[0] = 1.0
    for count, own_bin in zip(counts.tolist(), bin_of_count.tolist(), strict=True):
        chances[1:] = chances[1:] * (1 - share) + chances[:-1] * share
        chances[0] *= 1 - share
        exact_KK[own_bin] += np.bincount(bin_of_count, weights=chances[1:], minlength=NUM_REUSE_BINS) / count**2
    exact_KK /= np.bincount(bin_of_count, weights=1 / counts**2)[:, None]

    # Higher bins are evaluated at a few counts, midpoints of equal steps of the logarithm, as Poisson variables.
    octaves_K1 = np.array([1] * (NUM_REUSE_BINS - 1 - _EXACT_BINS) + [OCTAVES_OF_LAST_BIN])[:, None]
    steps_KS = 2.0 ** (octaves_K1 * (np.arange(_STEPS) + 0.5) / _STEPS)
    counts_KS = np.array(MIN_COUNT_OF_BIN[_EXACT_BINS:])[:, None] * steps_KS
    chances_KSK = poisson_at_least(np.array(MIN_COUNT_OF_BIN, dtype=np.float64), (counts_KS * share)[..., None])
    chances_KSK[..., :-1] -= chances_KSK[..., 1:]
    weights_KS = 1 / counts_KS  # 1 / count**2, times a step as wide as the count
    high_KK = (weights_KS[..., None] * chances_KSK).sum(axis=1) / weights_KS.sum(axis=1)[:, None]
    return np.asarray(np.maximum(np.concatenate([exact_KK, high_KK]), 0.0))


_EXACT_BINS, _STEPS = 7, 8  # bins with exact binomial counts, up to 64; steps in each higher bin


def poisson_at_least(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """Return the probability that Poisson variables with these rates (above 0) reach the counts (at least 1).

    This is the regularized lower incomplete gamma function, computed by its series if the rate is below the count, and
    by Lentz's continued fraction otherwise. NumPy lacks it, and a machine that only measures lacks SciPy.
    """
    counts, rates = (each.astype(np.float64) for each in np.broadcast_arrays(counts, rates))
    scale = np.exp(counts * np.log(rates) - rates - np.vectorize(math.lgamma)(counts))
    found, is_low = np.empty_like(scale), rates < counts + 1
    low_n, low_x = counts[is_low], rates[is_low]
    total = term = 1 / low_n
    step = 0
    while len(term) and (term > _PRECISION * total).any():
        step += 1
        term = term * low_x / (low_n + step)
        total = total + term
    found[is_low] = scale[is_low] * total
    high_n, high_x = counts[~is_low], rates[~is_low]
    b = high_x + 1 - high_n
    c, d = np.full_like(b, 1 / _TINY), 1 / b
    fraction, change, step = d, np.full_like(b, 2.0), 0
    while len(b) and (np.abs(change - 1) > _PRECISION).any():
        step += 1
        a = -step * (step - high_n)
        b = b + 2
        d = 1 / _away_from_0(a * d + b)
        c = _away_from_0(b + a / c)
        change = c * d
        fraction = fraction * change
    found[~is_low] = 1 - scale[~is_low] * fraction
    return np.asarray(found)


def _away_from_0(values: FloatArray) -> FloatArray:
    return np.asarray(np.where(np.abs(values) < _TINY, _TINY, values))


_PRECISION, _TINY = 1e-13, 1e-300  # relative error at which both expansions stop; replaces a denominator of 0


def deduplicate_reuse(bins: ReuseBins, num_devices: int) -> tuple[ReuseBins, float]:
    """Return the histogram of a batch, and the share of lookups that are sent, after index deduplication.

    Each device sends every distinct index of its samples once; all devices have the same number of samples.
    """
    shares_K = np.asarray(bins)
    devices_K = num_devices * (1 - (1 - 1 / num_devices) ** BIN_MEAN_COUNTS)  # devices that look up an index
    sent_K = np.searchsorted(MAX_COUNT_OF_BIN, devices_K.round(), side="left")
    histogram = np.bincount(sent_K, weights=shares_K, minlength=NUM_REUSE_BINS)
    return tuple(histogram.tolist()), float(shares_K @ devices_K / (shares_K @ BIN_MEAN_COUNTS))


def _power_integral(low: FloatArray, high: FloatArray, alpha: float) -> FloatArray:
    """Integrate ``x**-alpha`` from low to high, also at and near alpha = 1."""
    logs = np.log(high / low)
    if alpha == 1:
        return np.asarray(logs)
    return np.asarray(low ** (1 - alpha) * np.expm1((1 - alpha) * logs) / (1 - alpha))
