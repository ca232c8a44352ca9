"""Hardware with one device, which measures the shards of a placement one after the other.

The all-to-all times come from the link model, and every row of a cost dataset records this.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from evenshard.measure.clock import CacheFlush, Stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import OutOfDeviceMemory, ShardKernels, kernel_provenance
from evenshard.measure.hardware import TimedHardware
from evenshard.measure.sequential import combine_whole_tables
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import DeviceCost, PlacementCost, interquartile_range
from evenshard.price.link import link, resolve_link
from evenshard.tables.table import Table


class SequentialHardware(TimedHardware):
    """One device, a GPU or a thread of the CPU, that measures shards one after another."""

    def __init__(self, config: MeasureConfig, device: torch.device) -> None:
        super().__init__()
        self._config = config
        self._kernels = ShardKernels(config, device)
        self._flush = CacheFlush(device, config.keep_cache_warm)
        self._link = link(resolve_link(config.link))
        self.provenance = kernel_provenance(config, device, resolve_link(config.link))

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """Measure each device's shard; the all-to-all times come from the link model."""
        computes = [self._measure_shard(shard, task.batch_size) for shard in placement.shards_of(task.tables)]
        return combine_whole_tables(task, placement, computes, self._link)

    def close(self) -> None:
        """Free the device."""
        self._kernels.free()

    def _measure_shard(self, shard: Sequence[Table], batch_size: int) -> DeviceCost:
        if not shard:
            return DeviceCost(0.0, 0.0, 0.0, 0.0)
        # Memory of earlier shards may cause a failure: retry with all memory free.
        times = self._try_time_shard(shard, batch_size) or self._try_time_shard(shard, batch_size)
        if times is None:
            return DeviceCost.out_of_memory()
        forward, backward = zip(*times, strict=True)
        return DeviceCost(
            fwd_compute_ms=median(forward),
            fwd_all_to_all_ms=0.0,
            bwd_all_to_all_ms=0.0,
            bwd_compute_ms=median(backward),
            fwd_compute_spread_ms=interquartile_range(forward),
            bwd_compute_spread_ms=interquartile_range(backward),
        )

    def _try_time_shard(self, shard: Sequence[Table], batch_size: int) -> list[tuple[float, float]] | None:
        """Return the times of a shard; if it does not fit, free all memory and return None."""
        try:
            return self._time_shard(shard, batch_size)
        except OutOfDeviceMemory:
            pass  # inside this block the exception's frames would keep the allocated memory alive
        self._kernels.free()
        return None

    def _time_shard(self, shard: Sequence[Table], batch_size: int) -> list[tuple[float, float]]:
        """Return (forward ms, backward ms) of every timed repeat."""
        times: list[tuple[float, float]] = []
        with self._kernels.load_shard(shard, batch_size) as loaded:
            for number in range(self._config.warmup + self._config.repeats):
                self._flush()
                watch = Stopwatch(self._kernels.device)
                watch.mark()
                pooled = loaded.forward(number)
                watch.mark()
                loaded.backward(pooled)
                watch.mark()
                forward_ms, backward_ms = watch.laps_ms()
                times.append((forward_ms, backward_ms))
        self._kernel_s += sum(map(sum, times)) / 1e3
        return times[self._config.warmup :]
