"""Hardware of several devices at once: every process of torchrun measures its own shard.

Rank 0 runs the command, publishes jobs (``jobs``) and gathers the answers; the other ranks run the jobs (``serve``).
Data and answers are sent through the process group (``exchange``). The store of torchrun has these keys::

    here/<rank>    this rank is ready; the value is its settings
    leader         rank 0 opens the hardware, or ends without opening it
    job/<number>   next job; null: no more jobs
    alive/<rank>   this rank lost the connection to another rank, but is still running
    asked          rank 0 has read all alive/<rank>

If a process dies or hangs, the process group fails on all ranks, at the latest after its timeout. Then torchrun ends
all processes and reports the first failure; rank 0 reports the lost ranks and the job during which they were lost.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.base.messages import reason_of
from evenshard.base.process import ignore_sigterm, on_sigterm
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import jobs
from evenshard.measure.distributed import ranks as process_group
from evenshard.measure.distributed.exchange import Finding, Step, Worker, measure_alone
from evenshard.measure.fbgemm import kernel_provenance, resolve_device
from evenshard.measure.hardware import TimedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost, PlacementCost, interquartile_range

START_S = 60.0  # least time for all processes to start Python, import torch and connect
PLANNING_S = 86_400.0  # most time between two jobs of rank 0, for its own planning: a day
MAX_REPORT_S = 6.0  # most time that rank 0 waits for healthy ranks to report after a failure
OPENS, ENDS = "opens", "ends"  # values of the key ``leader``
# The phases of a ``Step`` that are also part of a device's cost; waiting is separate.
TIMED_PHASES = ("input_dist_ms", "fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms")


def world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return the number of processes that torchrun started on this host; 0 without torchrun."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0"))


def is_follower() -> bool:
    """Return True if this process only runs jobs of rank 0."""
    return int(os.environ.get("RANK", "0")) > 0


def _join(start_s: float) -> tuple[Store, int, int]:
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=start_s)))
    except RuntimeError as error:
        raise MeasurementFailed(f"cannot connect to the store of torchrun: {reason_of(error)}.") from error
    store.set_timeout(timedelta(seconds=PLANNING_S))
    return PrefixStore("evenshard", store), rank, size


def _stop() -> None:
    """End a job on SIGTERM, which torchrun sends when a rank has died, in time to report the reason."""
    ignore_sigterm()
    raise process_group.PeerLost("stopped by SIGTERM")


def dismiss() -> None:
    """End the other ranks if rank 0 never opened the hardware, because of bad input or nothing to measure.

    Does nothing after the hardware was opened, on ranks other than 0, and without torchrun.
    """
    if world_size() > 1 and not is_follower() and not CollectiveHardware.opened:
        with suppress(MeasurementFailed, RuntimeError):
            _join(START_S)[0].set("leader", ENDS)


class CollectiveHardware(TimedHardware):
    """Several devices with real communication; this process is rank 0 and uses ``device``.

    The constructor waits for the other ranks and connects to them. ``close``, or the exit of this process, ends them.

    Raises:
        MeasurementFailed: if a rank does not connect.
        BadConfig: if a rank was started with other settings, or communication does not use the expected network.
    """

    opened = False  # True once this process has opened the hardware; then ``close`` ends the other ranks

    def __init__(self, config: MeasureConfig, device: torch.device) -> None:
        super().__init__()
        CollectiveHardware.opened = True
        self._config, self.device = config, device
        self._in_step = False  # True while no rank waits for another inside a job
        self._next_job = 0
        start_s = max(START_S, config.timeout_s)
        self._store, _, self._size = _join(start_s)
        self._wait_for_ranks(start_s)
        self._store.set("leader", OPENS)
        atexit.register(self.close)
        try:
            self._worker = Worker(config, process_group.Ranks(self._store, 0, self._size, device, config.timeout_s))
        except process_group.PeerLost as error:
            raise MeasurementFailed(self._describe_loss(error, "connecting")) from error
        self._in_step = True
        ranks = self._worker.ranks
        if problem := process_group.transport_problem(config.expect_transport, ranks.backend, ranks.networks):
            self.close()
            raise BadConfig(problem)
        self.provenance = kernel_provenance(
            config, device, process_group.link_of(ranks.backend, ranks.networks), self._size
        )

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """Measure all shards at once, and the communication between them.

        Rank 0 measures a task with one device alone, without communication. If a device runs out of memory, there is no
        all-to-all, and communication and wait of the other devices are 0.

        Raises:
            BadInput: if the number of devices is neither 1 nor the number of ranks, or a shard cannot run.
            MeasurementFailed: if a kernel fails, or a rank hangs or dies. After that, no measurement is possible.
        """
        if placement.num_devices == 1:
            return self._cost([measure_alone(self._worker, task, placement)], task.task_id)
        self._check_size(placement.num_devices, task.task_id)
        job = jobs.MeasurePlacement(task.tables, task.machine, task.batch_size, placement.parts(task.tables))
        return self.measure_together(job, task.task_id)

    def _check_size(self, num_devices: int, what: str) -> None:
        if num_devices != self._size:
            raise BadInput(
                f"{what} has {num_devices} devices, but torchrun started {self._size} processes. Start it with "
                f"--nproc-per-node {num_devices}."
            )

    def measure_together(self, job: jobs.PlacementJob, what: str) -> PlacementCost:
        """Measure a placement by a job that all ranks run at once; ``what`` names the placement in errors.

        Raises:
            BadInput: if the machine does not have one device per rank, or the ranks cannot run the job.
            MeasurementFailed: see ``measure``.
        """
        self._check_size(job.machine.num_devices, what)
        return self._cost(self.run_on_all(job, f"measuring {what}"), what)

    def _cost(self, findings: Sequence[Finding], what: str) -> PlacementCost:
        for rank, finding in enumerate(findings):
            if finding.problem in (process_group.INPUT_REFUSED, process_group.MEASURING_FAILED):
                kind = BadInput if finding.problem == process_group.INPUT_REFUSED else MeasurementFailed
                raise kind(f"rank {rank} cannot measure {what}: {finding.reason}")
        together = zip(*(finding.steps for finding in findings if finding.steps), strict=True)
        slowest_ms = (max(getattr(step, phase) for step in steps) for steps in together for phase in TIMED_PHASES)
        self._kernel_s += float(sum(slowest_ms)) / 1e3
        return PlacementCost(device_costs(findings, self._config.warmup), all_to_all="measured")

    def run_on_all(self, job: jobs.RankJob, during: str) -> list[Any]:
        """Run a job on all ranks at once and return their answers, by rank.

        ``during`` describes the job in error messages, such as "measuring train-003".

        Raises:
            BadInput: if the ranks cannot run it.
            MeasurementFailed: if a rank hangs or dies.
        """
        if not self._in_step:
            raise MeasurementFailed(f"{during} is not possible after the failure of a rank. Restart all processes.")
        try:
            job.check(self._size)
        except ValueError as error:
            raise BadInput(f"{during} is not possible: {error}.") from None
        self._in_step = False
        with on_sigterm(_stop):
            try:
                self._publish_job(job)
                answers = self._worker.ranks.gather(jobs.encode_answer(job.run(self._worker)))
            except process_group.PeerLost as error:
                raise MeasurementFailed(self._describe_loss(error, during)) from error
        self._in_step = True
        with suppress(RuntimeError):
            self._store.delete_key(f"job/{self._next_job - 1}")  # all ranks have answered the job, which may be large
        try:
            return [jobs.decode_answer(answer, job) for answer in answers]
        except ValueError as error:
            raise MeasurementFailed(f"a rank's answer is invalid while {during}: {error}. Start again.") from None

    def close(self) -> None:
        """Tell the other ranks to end, and free the device; idempotent."""
        atexit.unregister(self.close)
        with suppress(process_group.PeerLost):
            self._publish_job(None)
            if self._in_step:
                self._worker.ranks.agree()  # the store may end with this process, so wait until all ranks have read it
        if self._in_step:
            self._worker.close()
        process_group.leave_group(orderly=self._in_step)  # wake ranks that wait for this rank in the middle of a job
        with suppress(RuntimeError):
            self._store.set("asked", "")
        self._in_step = False

    def _wait_for_ranks(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for rank in range(1, self._size):
            try:
                self._store.wait([f"here/{rank}"], timedelta(seconds=max(0.1, deadline - time.monotonic())))
            except RuntimeError:
                raise MeasurementFailed(
                    f"rank {rank} of {self._size} did not connect within {seconds:g} s. Start every process with the "
                    f"same command."
                ) from None
            if self._store.get(f"here/{rank}").decode() != repr(self._config):
                raise BadConfig(
                    f"rank {rank} has other measurement settings than rank 0. Start all processes with the same "
                    f"flags and params.yaml."
                )

    def _publish_job(self, job: jobs.RankJob | None) -> None:
        try:
            self._store.set(f"job/{self._next_job}", jobs.encode_job(job))
        except RuntimeError as error:
            raise process_group.PeerLost(f"the store of torchrun is gone: {reason_of(error)}") from error
        self._next_job += 1

    def _describe_loss(self, error: process_group.PeerLost, during: str) -> str:
        ignore_sigterm()
        process_group.leave_group(orderly=False)  # wake ranks that wait for this rank
        lost = list(range(1, self._size))
        deadline = time.monotonic() + _report_s(self._config)
        with suppress(RuntimeError):
            while lost and time.monotonic() < deadline:
                time.sleep(0.02)  # seconds between polls of the store
                lost = [rank for rank in lost if not self._store.check([f"alive/{rank}"])]
            self._store.set("asked", "")
        if not lost:
            return f"the processes lost their connection while {during}: {error}"
        who = f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
        if error.waited_s < self._config.timeout_s / 2:  # the connection broke, no timeout expired
            return f"{who} died while {during}. Its output above may contain the reason."
        return (
            f"{who} did not answer within {self._config.timeout_s:g} s while {during}: it hung or died. Check its "
            f"output; raise measure.timeout_s if it was only slow."
        )


def device_costs(findings: Sequence[Finding], warmup: int) -> tuple[DeviceCost, ...]:
    """Convert the findings of all ranks to costs, by rank: medians over the steps after ``warmup``."""
    timed = [finding.steps[warmup:] for finding in findings]
    # The last rank at a barrier does not wait, so its time there is the cost of the barrier itself.
    barriers_ms = [min(step.wait_ms for step in steps) for steps in zip(*filter(None, timed), strict=True)]

    def device_cost(steps: Sequence[Step]) -> DeviceCost:
        return DeviceCost(
            **{name: median(getattr(step, name) for step in steps) for name in TIMED_PHASES},
            fwd_compute_spread_ms=interquartile_range([step.fwd_compute_ms for step in steps]),
            bwd_compute_spread_ms=interquartile_range([step.bwd_compute_ms for step in steps]),
            fwd_wait_ms=median(step.wait_ms - own for step, own in zip(steps, barriers_ms, strict=True)),
        )

    return tuple(
        DeviceCost.out_of_memory() if finding.problem == OUT_OF_MEMORY else device_cost(steps)
        for finding, steps in zip(findings, timed, strict=True)
    )


def serve(config: MeasureConfig, kinds: jobs.Kinds = jobs.JOBS) -> None:
    """Run the jobs of rank 0 on this rank until rank 0 closes the hardware; ``kinds`` are the accepted jobs, by name.

    Also returns when another rank is lost; rank 0 then reports it and sets the exit code.

    Raises:
        BadConfig: if CUDA is requested but not available.
        MeasurementFailed: if rank 0 hangs or dies, or sends an invalid job.
    """
    if not config.hardware_name.kind.runs_kernels:
        return  # a device model runs in a single process
    device = resolve_device(config)
    store, rank, size = _join(PLANNING_S)
    store.set(f"here/{rank}", repr(config))
    try:
        if _read(store, "leader") == ENDS.encode():
            return
        worker = Worker(config, process_group.Ranks(store, rank, size, device, config.timeout_s))
        number = 0
        while (job := _decode(_read(store, f"job/{number}"), number, kinds, rank, size)) is not None:
            with on_sigterm(_stop):  # only during a job: while it waits for a job, SIGTERM ends the process at once
                worker.ranks.gather(jobs.encode_answer(job.run(worker)))
            number += 1
        worker.ranks.agree()
        worker.close()
        process_group.leave_group(orderly=True)
    except process_group.PeerLost as error:
        ignore_sigterm()
        process_group.leave_group(orderly=False)  # wake ranks that wait for this rank
        # Rank 0 may detect the loss later, and then waits ``_report_s`` itself.
        if not _is_leader_alive(store, rank, 4 * _report_s(config)):
            raise MeasurementFailed(
                f"rank {rank}: rank 0 hung or died ({error}). Its output may contain the reason."
            ) from error
    finally:
        process_group.leave_group(orderly=False)


def _read(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except RuntimeError as error:
        raise process_group.PeerLost(f"the store of torchrun is gone: {reason_of(error)}") from error


def _decode(content: bytes, number: int, kinds: jobs.Kinds, rank: int, size: int) -> jobs.RankJob | None:
    try:
        return jobs.decode_job(content, kinds, size)
    except ValueError as error:
        raise MeasurementFailed(
            f"rank {rank}: job {number} in the store of torchrun is not valid ({reason_of(error)}). Block other "
            f"processes from the port of the store, and start again."
        ) from None


def _is_leader_alive(store: Store, rank: int, seconds: float) -> bool:
    """Return True if rank 0 answers in time; a background thread waits, because the store can hang with its host."""
    read = threading.Event()

    def report() -> None:
        with suppress(RuntimeError):
            store.set(f"alive/{rank}", "")
            store.wait(["asked"], timedelta(seconds=seconds))
            read.set()

    threading.Thread(target=report, daemon=True).start()
    return read.wait(seconds)


def _report_s(config: MeasureConfig) -> float:
    return min(config.timeout_s, MAX_REPORT_S)
