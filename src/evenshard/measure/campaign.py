"""A campaign: measurement of a list of placements in several passes, recorded in a journal, within a time budget.

Each pass measures every job (one placement) once; one measurement of a job is called a visit (docs/decisions/0004).
If the time budget ends or the process is killed, a new start with the same journal continues where the campaign
stopped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evenshard.base.errors import BadFile
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal, Origin, Visit
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask, whole_task_text
from evenshard.price import costs

Placed = tuple[ShardingTask, tuple[TablePart, ...]]
# Settings that change measured times. If one of them changes, visits are measured again.
MEANING = ("link", "num_batches", "warmup", "repeats", "recorded_batch", "keep_cache_warm", "noise", "seed")


@dataclass(frozen=True)
class Job:
    """One placement to measure."""

    measurement_id: str  # unique within a campaign
    task: ShardingTask
    parts: tuple[TablePart, ...]  # of the task's tables, with devices
    round: int  # round of the loop; 0 for an evaluation
    proposed_by: str  # the sharder that made the placement, or ``costs.CONTROL``
    # Jobs of one group are measured right after each other, in random order, so that slow drift affects all compared
    # placements alike.
    group: str

    @cached_property
    def key(self) -> str:
        """Return the job's key in a journal: a hash of its id, tables, placement and batch size."""
        what = repr(self.task), repr(self.parts)
        if self.task.is_whole:
            what = whole_task_text(self.task), repr(self.placement.device_of_table)
        content = ", ".join((repr(self.measurement_id), *what))
        return hashlib.sha256(f"({content})".encode()).hexdigest()[:20]  # 80 bits: no collisions in a campaign

    @property
    def placement(self) -> Placement:
        """Return the placement of a job with whole tables only."""
        return Placement.of(self.task, self.parts)

    def measure_on(self, hardware: Hardware) -> costs.PlacementCost:
        """Measure whole tables once; ``ShardedJob`` measures sharded tables."""
        return hardware.measure(self.task, self.placement)


def insert_controls(jobs: Sequence[Job], controls: Sequence[Placed], repeats: int) -> list[Job]:
    """Insert each control (placement that is measured repeatedly) ``repeats`` times, spread evenly over the jobs."""
    round_number = jobs[0].round if jobs else 0
    extra = [
        Job(f"control-{number}-{repeat}", task, parts, round_number, costs.CONTROL, f"control-{repeat}")
        for repeat in range(repeats)
        for number, (task, parts) in enumerate(controls)
    ]
    # Equal distances, from before the first job to after the last. Later positions go first, as insertions shift them.
    positions = np.repeat(np.linspace(0, len(jobs), repeats).round().astype(int), len(controls))
    result = list(jobs)
    for position, job in reversed(list(zip(positions.tolist(), extra, strict=True))):
        result.insert(position, job)
    return result


def measure_jobs(
    hardware: Hardware,
    jobs: Sequence[Job],
    config: MeasureConfig,
    journal: Journal,
    budget_s: float | None = None,
    track: Callable[[list[tuple[int, int]]], Iterable[tuple[int, int]]] = iter,
) -> list[costs.MeasuredPlacement]:
    """Measure the jobs that the journal lacks, and return all measurements.

    Args:
        budget_s: no measurement is started after this time; None for no limit.
        track: wraps the list of (pass, job), for a progress bar.

    Returns:
        The jobs with at least one measurement, in the order of ``jobs``. Without a budget, these are all jobs.
    """
    origin = Origin(
        replace(hardware.provenance, repeats=config.repeats), {name: getattr(config, name) for name in MEANING}
    )
    deadline = time.monotonic() + budget_s if budget_s is not None else float("inf")
    # A pass takes the groups (``Job.group``) in turn, and a group's jobs at random.
    rng = np.random.default_rng(config.seed)
    groups: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault(job.group, []).append(number)
    missing = [
        (visit, number)
        for visit in range(config.visits)
        for members in groups.values()
        for number in rng.permutation(members).tolist()
        if journal.find(jobs[number].key, visit, origin) is None
    ]
    for visit, number in track(missing):
        if time.monotonic() >= deadline:
            break
        cost = jobs[number].measure_on(hardware)
        journal.append(Visit(jobs[number].key, visit, cost, time.time(), origin))
    return load_measured(jobs, config, journal, origin)


def load_measured(
    jobs: Sequence[Job], config: MeasureConfig, journal: Journal, origin: Origin | None = None
) -> list[costs.MeasuredPlacement]:
    """Return the measured jobs of a journal, with all measurements of a job combined.

    Args:
        origin: hardware and settings of the measurements to use; None for those of each job's latest measurement.

    Raises:
        BadFile: if a measurement has more or fewer devices than its job.
    """
    measured = []
    for job in jobs:
        latest = origin
        if latest is None:  # use the origin of the job's latest visit
            seen = [journal.find(job.key, number) for number in range(config.visits)]
            last = max(
                (visit for visit in seen if visit is not None), key=lambda visit: visit.measured_at, default=None
            )
            latest = None if last is None else last.origin
        found = [journal.find(job.key, number, latest) for number in range(config.visits)]
        visits = [visit for visit in found if visit is not None]
        for visit in visits:
            if len(visit.cost.devices) != job.task.num_devices:
                found_devices = f"visit {visit.number} of job {job.key} has {len(visit.cost.devices)} devices"
                problem = f"{found_devices}, but placement {job.measurement_id} has {job.task.num_devices}"
                raise BadFile(journal.path, problem, "Remove the line of this visit.")
        if visits:
            provenance = visits[0].origin.provenance
            provenance = replace(provenance, repeats=provenance.repeats * len(visits))
            of_job = (job.measurement_id, job.round, job.proposed_by, job.task, job.parts)
            cost = costs.combine_visits([visit.cost for visit in visits])
            measured_at = max(visit.measured_at for visit in visits)
            measured.append(costs.MeasuredPlacement(*of_job, cost, provenance, measured_at))
    return measured
