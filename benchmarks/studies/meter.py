"""Measurement for a study: simulated devices at once, real devices job by job, with a journal that survives a kill."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from evenshard.base.console import progress
from evenshard.loop.propose import mix_controls
from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware, TimeShare
from evenshard.measure.journal import Journal
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.noise import Noise, estimate_noise, find_controls
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import MeasuredPlacement, PlacementCost, Provenance

Jobs = Sequence[tuple[ShardingTask, Placement]]


class Meter:
    """Context manager that measures for one unit. After a kill, the same calls find their costs in the journal."""

    def __init__(self, measure: MeasureConfig, journal: Path, description: str) -> None:
        """Open the hardware."""
        self._measure, self._description, self._num_calls = measure, description, 0
        self._stack = ExitStack()
        self._hardware: Hardware = open_hardware(measure)
        self._stack.callback(self._hardware.close)
        self._journal: Journal | None = None
        if not isinstance(self._hardware, SimulatedHardware):
            try:
                self._journal = self._stack.enter_context(Journal(journal))
            except BaseException:
                self._stack.close()
                raise

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of the hardware."""
        return self._hardware.provenance

    @property
    def time_share(self) -> TimeShare:
        """Return the time share of the hardware."""
        return self._hardware.time_share

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """Measure a placement once, with the interface of ``Hardware``."""
        return self.quick_costs([(task, placement)])[0]

    def close(self) -> None:
        """Close hardware and journal."""
        self._stack.close()

    def costs(self, jobs: Jobs) -> list[PlacementCost]:
        """Return the costs, each measured with the configured number of visits."""
        return self._costs(jobs, self._measure)

    def quick_costs(self, jobs: Jobs) -> list[PlacementCost]:
        """Return the costs, each measured in one visit."""
        return self._costs(jobs, replace(self._measure, visits=1))

    def _costs(self, jobs: Jobs, measure: MeasureConfig) -> list[PlacementCost]:
        if isinstance(self._hardware, SimulatedHardware):
            return self._hardware.measure_many(jobs)
        numbered = self._number(jobs)
        return [one.cost for one in self._measure_jobs(numbered, measure)]

    def costs_and_noise(
        self, jobs: Jobs, train_tasks: Sequence[ShardingTask]
    ) -> tuple[list[PlacementCost], Noise | None]:
        """Return costs to compare, and on real hardware their noise, estimated from controls."""
        if isinstance(self._hardware, SimulatedHardware):
            return self._hardware.measure_many(jobs), None
        numbered = self._number(jobs)
        measured = self._measure_jobs(mix_controls(numbered, train_tasks, self._measure), self._measure)
        by_id = {one.measurement_id: one.cost for one in measured}
        return [by_id[job.measurement_id] for job in numbered], estimate_noise([find_controls(measured)])

    def _number(self, jobs: Jobs) -> list[Job]:
        """Convert to jobs; jobs of a task are one group, so they are measured right after each other."""
        self._num_calls += 1
        return [
            Job(f"{self._num_calls}-{number}", task, placement.parts(task.tables), 0, "bench", task.task_id)
            for number, (task, placement) in enumerate(jobs)
        ]

    def _measure_jobs(self, jobs: Sequence[Job], measure: MeasureConfig) -> list[MeasuredPlacement]:
        assert self._journal is not None
        track = partial(progress, description=self._description)
        return measure_jobs(self._hardware, jobs, measure, self._journal, track=track)

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
