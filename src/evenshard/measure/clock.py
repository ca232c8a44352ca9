"""Timing of work on one device, by the host's clock or by events in the GPU's stream."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch

from evenshard.base.units import seconds_to_ms

L2_FLUSH_BYTES = 256 * 1024**2  # more than the L2 of any GPU on sale


class Stopwatch:
    """Timer of work on one device: the time between successive calls of ``mark``.

    On the CPU, work is finished when its call returns. On a GPU, a call only queues its work, so ``mark`` records an
    event in the stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """End the current interval and begin the next."""
        if self._on_gpu:
            self._marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def laps_ms(self) -> list[float]:
        """Wait for all work, and return the time between successive marks, ms."""
        if not self._on_gpu:
            return [seconds_to_ms(end - start) for start, end in pairwise(self._marks)]
        self._marks[-1].synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairwise(self._marks)]


class CacheFlush:
    """Flush of a GPU's L2 cache before a timed pass, because the dense layers of a model evict tables from L2.

    CPU caches are not flushed; the other input batches replace their content before a batch is repeated.
    """

    def __init__(self, device: torch.device, keep_warm: bool) -> None:
        self._block = (
            torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device=device)
            if device.type == "cuda" and not keep_warm
            else None
        )

    def __call__(self) -> None:
        """Queue the flush on the stream, before all later work."""
        if self._block is not None:
            self._block.zero_()
