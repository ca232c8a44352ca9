"""A campaign in a process of its own, made to be killed: ``python killable_campaign.py JOURNAL``.

Tells each finished visit to stdout, as its job's key and its number, after the journal has taken it. Imports no torch,
so that it starts in a fraction of a second.
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import Any

from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import TimeShare
from evenshard.measure.journal import Journal, Visit
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import DeviceCost, PlacementCost, Provenance
from evenshard.tables.table import Table

PAUSE_S = 1e-3
CONFIG = MeasureConfig(visits=2, repeats=1)
POOL = tuple(Table(f"t{number}", 10 + number, 4, 1.0) for number in range(6))


def _job(number: int) -> Job:
    task = ShardingTask.whole(f"task-{number % 20}", POOL, num_devices=3, memory_cap_bytes=10**9, batch_size=64)
    placement = Placement(tuple(number // 3**position % 3 for position in range(len(POOL))), 3)
    return Job(f"m{number}", task, placement.parts(task.tables), 1, "random", task.task_id)


JOBS = [_job(number) for number in range(600)]


class DeterministicHardware:
    """Its times have no meaning, but each placement always has the same; some shards never fit."""

    provenance = Provenance("simulated: fixed", "none", "none 0", "ethernet_25g", seed=0, repeats=1)
    time_share = TimeShare(0.0, 0.0)

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        time.sleep(self._pause_s)
        return PlacementCost(tuple(self._device(task, placement, device) for device in range(3)), "modelled")

    def _device(self, task: ShardingTask, placement: Placement, device: int) -> DeviceCost:
        drawn = zlib.crc32(repr((task.task_id, placement.device_of_table, device)).encode())
        return DeviceCost(*[drawn / part for part in range(3, 10)]) if drawn % 20 else DeviceCost.out_of_memory()

    def close(self) -> None:
        pass


class _InTwoHalves:
    """A file that takes its time in the middle of every write, when a kill leaves half a line."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        time.sleep(PAUSE_S)
        self._file.write(data[len(data) // 2 :])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _TellingJournal(Journal):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = _InTwoHalves(self._file)  # type: ignore[assignment]

    def append(self, visit: Visit) -> None:
        super().append(visit)
        print(visit.job, visit.number, flush=True)


if __name__ == "__main__":
    with _TellingJournal(Path(sys.argv[1])) as journal:
        measure_jobs(DeterministicHardware(PAUSE_S), JOBS, CONFIG, journal)
