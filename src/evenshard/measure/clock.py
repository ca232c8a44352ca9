"""A clock for work on one device: marks between pieces of work, on the host's clock or in the GPU's own stream."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Protocol

import torch

from evenshard.utils.units import seconds_to_ms

L2_FLUSH_BYTES = 256 * 1024**2  # more than the L2 of any GPU on sale


class Stopwatch(Protocol):
    """Takes the time between successive marks."""

    def mark(self) -> None:
        """The work called so far ends here, the next piece begins."""
        ...

    def laps_ms(self) -> list[float]:
        """Waits for all work, and gives the time between each mark and the next, ms."""
        ...


class HostStopwatch:
    """Work on the CPU is done when the call returns."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        self._marks.append(time.perf_counter())

    def laps_ms(self) -> list[float]:
        """See ``Stopwatch``."""
        return [seconds_to_ms(end - start) for start, end in pairwise(self._marks)]


class CudaStopwatch:
    """Work on a GPU is only queued when the call returns: events in the stream mark where it begins and ends."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def laps_ms(self) -> list[float]:
        """See ``Stopwatch``."""
        self._marks[-1].synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairwise(self._marks)]


def stopwatch(device: torch.device) -> Stopwatch:
    """A fresh stopwatch for work on ``device``."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


class CacheFlush:
    """Empties a GPU's L2 between passes: a training step comes back to its tables after the dense part has run.

    A CPU core's caches are left alone: between two repeats the other batches have passed through them.
    """

    def __init__(self, device: torch.device, keep_warm: bool) -> None:
        self._block = (
            torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device=device)
            if device.type == "cuda" and not keep_warm
            else None
        )

    def __call__(self) -> None:
        """Queues the flush; it is over before any work called after it begins."""
        if self._block is not None:
            self._block.zero_()
