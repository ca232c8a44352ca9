"""Simulated GPUs as ``Hardware``: costs come from a device model and a link model.

Every row of a cost dataset records the simulated device. benchmarks/ reports the accuracy of the models.

Letters in array names: T tables, C work quantities per table (``WorkCounter.columns``), N shards.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import TimedHardware
from evenshard.measure.sequential import combine_whole_tables
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask, whole_task_text
from evenshard.price.costs import DeviceCost, PlacementCost, Provenance
from evenshard.price.device_model import backward_ms, forward_ms
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.link import link, resolve_link
from evenshard.price.link_model import Link
from evenshard.price.shard_work import ShardWork, WorkCounter
from evenshard.tables.reuse import FloatArray
from evenshard.version import __version__

CHUNK = 256  # placements per batch: 256 of 100 tables are 17 MB
MAX_CACHED_TASKS = 1024  # tasks whose work is kept; the oldest is dropped
QUARTILE_Z = 0.6744897501960817  # 75th percentile of the standard normal distribution

PlacementJob = tuple[ShardingTask, Placement]


@dataclass(frozen=True)
class _TaskTables:
    """Work of a task's tables; keeps the task alive, so that its id(), which is the cache's key, stays unique."""

    task: ShardingTask
    columns_TC: FloatArray
    digest: bytes


class SimulatedHardware(TimedHardware):
    """Simulated GPUs of one profile; every pass begins with a cold L2.

    Forward and backward compute times have log-normal noise (``MeasureConfig.noise``) around the model's time. The
    noise depends only on the seed, the task, the placement and the number of earlier measurements of the placement.
    All-to-all times come from the link model, without noise.
    """

    def __init__(self, config: MeasureConfig) -> None:
        super().__init__()
        self.profile: GpuProfile = gpu_profile(config.hardware_name.device)
        link_name = resolve_link(config.link, self.profile.link)
        self.link: Link = link(link_name)
        self.optimizer = config.optimizer
        self.counter = WorkCounter(self.profile, self.optimizer)
        self._tasks: OrderedDict[int, _TaskTables] = OrderedDict()
        self._times_measured: dict[bytes, int] = {}
        self._seed = config.seed
        # Sigma of a log-normal distribution whose relative standard deviation is ``noise``.
        self._sigma = math.sqrt(math.log1p(config.noise**2))
        error = self.profile.error_of(self.optimizer)
        self.provenance = Provenance(
            hardware=config.hardware_name.provenance,
            driver="none",
            versions=f"evenshard {__version__}",
            link=link_name,
            seed=config.seed,
            repeats=config.repeats * config.visits,
            device_error_percent=error.percent,
            device_error_points=error.points,
            optimizer=self.optimizer,
        )

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """Simulate the cost of one placement."""
        return self.measure_many([(task, placement)])[0]

    def measure_many(self, jobs: Sequence[PlacementJob]) -> list[PlacementCost]:
        """Simulate the cost of each (task, placement); the results equal those of successive calls of ``measure``."""
        chunks = (jobs[first : first + CHUNK] for first in range(0, len(jobs), CHUNK))
        return [cost for chunk in chunks for cost in self._measure_chunk(chunk)]

    def close(self) -> None:
        """Clear the caches."""
        self._tasks.clear()

    def shard_work(self, jobs: Sequence[PlacementJob]) -> ShardWork:
        """Return the work of every device of every placement, ordered by placement, then device id."""
        columns = [self._count_work(task).columns_TC for task, _ in jobs]
        devices_N = np.array([placement.num_devices for _, placement in jobs])
        first_N = np.cumsum(devices_N) - devices_N
        shard_of_T = [
            np.array(placement.device_of_table, dtype=np.int64) + first
            for (_, placement), first in zip(jobs, first_N.tolist(), strict=True)
        ]
        return self.counter.shard_work(np.concatenate(columns), np.concatenate(shard_of_T), int(devices_N.sum()))

    def _measure_chunk(self, jobs: Sequence[PlacementJob]) -> list[PlacementCost]:
        work = self.shard_work(jobs)
        fits_N = work.size_bytes <= self.profile.memory_bytes
        backward_N = backward_ms(self.profile, work, self.optimizer)
        times_N2 = np.stack([forward_ms(self.profile, work), backward_N], axis=1)
        if self._sigma:
            times_N2 *= np.concatenate([self._draw_noise(task, placement) for task, placement in jobs])
        # Interquartile range of the noise, relative to the time.
        spread = math.exp(self._sigma * QUARTILE_Z) - math.exp(-self._sigma * QUARTILE_Z)
        times, fits = times_N2.tolist(), fits_N.tolist()
        costs, first = [], 0
        for task, placement in jobs:
            own = slice(first, first + placement.num_devices)
            computes = [
                DeviceCost(fwd, 0.0, 0.0, bwd, fwd * spread, bwd * spread) if fit else DeviceCost.out_of_memory()
                for (fwd, bwd), fit in zip(times[own], fits[own], strict=True)
            ]
            costs.append(combine_whole_tables(task, placement, computes, self.link))
            first += placement.num_devices
        return costs

    def _draw_noise(self, task: ShardingTask, placement: Placement) -> FloatArray:
        where = np.array(placement.device_of_table, dtype=np.int64).tobytes()
        key = hashlib.blake2b(self._count_work(task).digest + where, digest_size=16).digest()
        visit = self._times_measured.get(key, 0)
        self._times_measured[key] = visit + 1
        rng = np.random.default_rng([self._seed, visit, int.from_bytes(key, "little")])
        return np.exp(self._sigma * rng.standard_normal((placement.num_devices, 2)))

    def _count_work(self, task: ShardingTask) -> _TaskTables:
        """Return the work of a task's tables, cached by the task's id() because hashing many tables is slower."""
        known = self._tasks.get(id(task))
        if known is None:
            columns_TC = self.counter.columns(task.tables, task.batch_size)
            known = _TaskTables(task, columns_TC, hashlib.blake2b(whole_task_text(task).encode()).digest())
            self._tasks[id(task)] = known
            if len(self._tasks) > MAX_CACHED_TASKS:
                self._tasks.popitem(last=False)
        return known
