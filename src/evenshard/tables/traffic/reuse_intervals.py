"""How many batches ago the rows of a batch were looked up last, counted while they are read: the misses of caches.

Of the distinct rows of a batch, those that none of the k batches before looked up are missed by an LRU cache that holds
just what k batches look up. In a sample of W batches, a row's interval is known where it was looked up before; where it
was not, the interval is known to be longer than the batches that stand before in the sample, nothing else. So only the
W - k batches with k batches before them count for k: a row that comes late for the first time is a miss for caches that
hold fewer batches than stand before it, and no hit and no miss for others.

Few batches have many before them: k ends where W / 8 are left. Larger caches are not seen at work. The rows that they
leave out were not looked up for longer and are in the next batch less likely; so the misses are taken to fall with the
rows left out, in proportion, to none where the cache holds all rows: at most that many under independent lookups.

The last batch of each row is remembered for a part of the rows only where there are many: those whose hash is below a
limit, which is halved where they become too many. What is counted then counts for so many more (Waldspurger et al.,
SHARDS, 2015).

Legend: U distinct rows of a batch, P pairs of a row and a batch, W batches, D intervals in batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenshard.tables.cache import LOAD_FACTORS
from evenshard.tables.reuse import FloatArray
from evenshard.tables.traffic.sample import IntArray

# Rows remembered of all tables together: 64 MiB, and half as much for what is yet to be counted.
REMEMBERED_ROWS = 1 << 22
# Most and fewest rows remembered of one table.
MAX_REMEMBERED, MIN_REMEMBERED = 1 << 16, 1 << 10
ROWS_AT_A_TIME = 1 << 17
# One in so many batches has to be left to count for an interval.
LAST_BATCHES = 8


class ReuseIntervals:
    """Counts of one table.

    Args:
        max_rows: whose last batch is remembered.
    """

    def __init__(self, max_rows: int = MAX_REMEMBERED) -> None:
        self._max_rows = max_rows
        self._distinct_W: list[int] = []
        self._halvings = 0  # of the limit to hashes
        self._count_D = np.zeros(1, dtype=np.int64)  # distinct rows of all batches by interval, or the least it can be
        self._forget()

    def add(self, rows_U: IntArray) -> None:
        """The distinct rows of the next batch."""
        for start in range(0, rows_U.size, ROWS_AT_A_TIME):
            rows_P = rows_U[start : start + ROWS_AT_A_TIME]
            rows_P = rows_P[self._is_remembered(rows_P)]
            self._pending.append((rows_P, np.full(rows_P.size, len(self._distinct_W))))
            self._num_pending += rows_P.size
            if self._num_pending > self._max_rows // 2:
                self._count()
        self._distinct_W.append(rows_U.size)

    def finish(self) -> None:
        """Counts what is pending, and forgets the rows."""
        self._count()
        self._forget()

    def miss_ratios(self, num_rows: int) -> tuple[float, ...] | None:
        """Miss ratios of caches of ``LOAD_FACTORS`` of the rows; None without two batches, or without lookups."""
        num_batches, num_distinct = len(self._distinct_W), sum(self._distinct_W)
        if num_batches < 2 or not num_distinct:
            return None
        depth = num_batches - -(-num_batches // LAST_BATCHES)
        missed = _sums_from(self._count_D, depth + 2)[1:]  # by batches held, 0 to depth: with a longer interval
        looked_up = _sums_from(self._distinct_W, depth + 1)  # in batches with so many before them
        ratios = np.minimum(missed / np.maximum(looked_up, 1), 1.0)
        ratios[0] = 1.0
        ratios = np.maximum.accumulate(ratios[::-1])[::-1]  # a larger cache misses no more; what it seems to is chance
        held = np.concatenate([[0.0], np.cumsum(ratios)[:-1]]) * num_distinct / num_batches
        held = np.minimum(held, num_rows)
        found = np.interp(np.array(LOAD_FACTORS[:-1]) * num_rows, [*held, num_rows], [*ratios, 0.0])
        return (*np.round(found, 5).tolist(), 0.0)

    def _forget(self) -> None:
        self._pending: list[tuple[IntArray, IntArray]] = []
        self._num_pending = 0
        self._rows = self._last = np.zeros(0, dtype=np.int64)

    def _is_remembered(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        if not self._halvings:
            return np.ones(rows.size, dtype=np.bool_)
        return np.asarray(_hashes(rows) >> np.uint64(64 - self._halvings) == 0)

    def _count(self) -> None:
        if not self._num_pending:
            return
        rows_P, batches_P = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        # Behind what is remembered, so that of equal rows it comes first, and then the batches in their order.
        rows_P, batches_P = np.concatenate([self._rows, rows_P]), np.concatenate([self._last, batches_P])
        is_new = np.arange(rows_P.size) >= self._rows.size
        order_P = np.argsort(rows_P, kind="stable")
        rows_P, batches_P, is_new = rows_P[order_P], batches_P[order_P], is_new[order_P]
        is_first = np.diff(rows_P, prepend=-1) != 0
        intervals_P = np.where(is_first, batches_P + 1, np.diff(batches_P, prepend=0))
        counts_D = np.bincount(intervals_P[is_new], minlength=len(self._count_D)) << self._halvings
        counts_D[: len(self._count_D)] += self._count_D
        self._count_D = counts_D
        is_last = np.append(is_first[1:], True)
        self._rows, self._last = rows_P[is_last], batches_P[is_last]
        while self._rows.size > self._max_rows:
            self._halvings += 1
            kept = self._is_remembered(self._rows)
            self._rows, self._last = self._rows[kept], self._last[kept]


def remembered_rows(num_tables: int) -> int:
    """Rows whose last batch is remembered, of each of so many tables."""
    return min(max(REMEMBERED_ROWS // max(num_tables, 1), MIN_REMEMBERED), MAX_REMEMBERED)


def _sums_from(counts: Sequence[int] | IntArray, size: int) -> FloatArray:
    """Sum the counts from each position on."""
    padded = np.zeros(max(size, len(counts)))
    padded[: len(counts)] = counts
    return np.asarray(np.cumsum(padded[::-1])[::-1][:size])


def _hashes(rows: IntArray) -> npt.NDArray[np.uint64]:
    """Spread row numbers evenly over 64 bits by the last steps of MurmurHash3."""
    mixed = rows.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(33)))
