"""L2 misses of a stream of row lookups, by Che's approximation on reuse histograms.

The rows of a bin are looked up c times at random moments of a pass. A row is still in an LRU cache if it was looked
up within the last share x of the pass, which is one x for all rows (Che, Tung and Wang, 2002). That no lookup of a
row falls into such a window has probability (1 - x)**c, so the cache is full when

    sum over bins of unique_bytes * (1 - (1 - x)**c) = capacity,

and a lookup after the first misses with probability (1 - x)**c. The first lookup of a row always misses: the cache
is flushed before a pass. Che's exp(-c * x) is the limit of many lookups; (1 - x)**c is right at c = 2 too, and at
x = 1, where everything fits and nothing is missed twice.

Legend: N streams, K = 17 reuse bins.
"""

from __future__ import annotations

import numpy as np

from evenshard.tables.reuse import FloatArray

MAX_STEPS = 100
TOLERANCE = 1e-11


def missed_bytes(
    unique_bytes_NK: FloatArray, looked_up_bytes_NK: FloatArray, counts_NK: FloatArray, capacity_N: FloatArray
) -> FloatArray:
    """[N] bytes that each stream fetches from memory.

    Args:
        unique_bytes_NK: [N, K] bytes of the distinct rows.
        looked_up_bytes_NK: [N, K] bytes of all lookups, at least those of the distinct rows.
        counts_NK: [N, K] lookups of one row, at least 1.
        capacity_N: [N] bytes that the cache holds, above 0.
    """
    forgotten_NK = np.exp(-counts_NK * _window(unique_bytes_NK, counts_NK, capacity_N)[:, None])
    again_NK = np.maximum(looked_up_bytes_NK - unique_bytes_NK, 0.0)
    return np.asarray((unique_bytes_NK + again_NK * forgotten_NK).sum(axis=1))


def _window(unique_bytes_NK: FloatArray, counts_NK: FloatArray, capacity_N: FloatArray) -> FloatArray:
    """[N] the window as -log(1 - x), in which the cached bytes are concave; large where everything fits.

    Newton's steps from 0 never overshoot on a concave function. A stream that has converged stays as it is, so that
    its result does not depend on the others.
    """
    window_N = np.zeros(len(capacity_N))
    fits_N = unique_bytes_NK.sum(axis=1) <= capacity_N
    active = np.flatnonzero(~fits_N)
    for _ in range(MAX_STEPS):
        if not active.size:
            break
        counts_AK, bytes_AK = counts_NK[active], unique_bytes_NK[active]
        absent_AK = bytes_AK * np.exp(-counts_AK * window_N[active, None])
        cached_A = (bytes_AK - absent_AK).sum(axis=1)
        step_A = (capacity_N[active] - cached_A) / (counts_AK * absent_AK).sum(axis=1)
        window_N[active] += step_A
        active = active[step_A > TOLERANCE * window_N[active]]
    window_N[fits_N] = 700.0  # exp(-700) is nothing, and 0 * inf cannot arise
    return window_N


class WindowGrid:
    """Misses of streams that share a cache, by what each of their parts misses at some windows: these add up.

    Between two windows of the grid the misses are taken to fall in a straight line with the bytes in the cache. Where
    parts of unlike counts share a bin, ``missed_bytes`` takes their mean, and this takes each as it is.
    """

    edges_W = np.concatenate([[0.0], np.geomspace(1e-6, 32.0, 26)])

    @staticmethod
    def columns(unique_bytes_NK: FloatArray, looked_up_bytes_NK: FloatArray, counts_NK: FloatArray) -> FloatArray:
        """[N, 2 W] of streams: bytes in a cache at each window, then bytes fetched; arguments of ``missed_bytes``."""
        again_NK = np.maximum(looked_up_bytes_NK - unique_bytes_NK, 0.0)
        cached, fetched = [], []
        for edge in WindowGrid.edges_W.tolist():
            forgotten_NK = np.exp(-counts_NK * edge)
            cached.append((unique_bytes_NK * (1 - forgotten_NK)).sum(axis=1))
            fetched.append((unique_bytes_NK + again_NK * forgotten_NK).sum(axis=1))
        return np.stack([*cached, *fetched], axis=1)

    @staticmethod
    def missed_bytes(sums_WN: FloatArray, capacity: float) -> FloatArray:
        """[N] bytes that streams fetch together, from the sums of their columns.

        Args:
            sums_WN: [2 W, N].
            capacity: bytes that the cache holds.
        """
        count = len(WindowGrid.edges_W)
        after_N = (sums_WN[:count] < capacity).sum(axis=0)
        after_N = np.minimum(np.maximum(after_N, 1), count - 1)
        at_4N = after_N + np.array([[-1], [0], [count - 1], [count]])
        low_N, high_N, from_N, to_N = np.take_along_axis(sums_WN, at_4N, axis=0)
        share_N = np.minimum((capacity - low_N) / np.maximum(high_N - low_N, 1e-9), 1.0)
        return np.asarray(from_N + share_N * (to_N - from_N))
