"""What does a placement cost where there are several devices? Every process of torchrun measures its own shard.

Rank 0 leads: it runs the command, hands out jobs (``jobs.py``) and gathers the answers. The other ranks only serve.
Data travels through ``exchange.py``; everything else that the processes have to tell each other stands on the board of
``board.py``.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import OUT_OF_MEMORY, DeviceCost, PlacementCost, Provenance, interquartile_range
from evenshard.measure.distributed.exchange import (
    BAD_INPUT,
    FAILED,
    Finding,
    PeerLost,
    Ranks,
    Step,
    Worker,
    leave_group,
    measure_alone,
)
from evenshard.measure.distributed.jobs import (
    JOBS,
    Job,
    Kinds,
    MeasureShards,
    decode_answer,
    decode_job,
    encode_answer,
    encode_job,
)
from evenshard.measure.distributed.store import Board, Pulse
from evenshard.measure.fbgemm import device_name, driver_version, library_versions, real_device
from evenshard.measure.hardware import TimeShare
from evenshard.placement.constraints import UNCONSTRAINED
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.utils.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.utils.messages import reason_of
from evenshard.utils.process import on_sigterm

START_S = 60.0  # at least so long do processes get to start Python and import torch
PLANNING_S = 3600.0  # so long may rank 0 read and plan before it opens the hardware


def world_size() -> int:
    """Processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_follower() -> bool:
    """Whether this process only serves rank 0."""
    return int(os.environ.get("RANK", "0")) > 0


def _told_to_stop() -> None:
    """torchrun sends SIGTERM to all processes as soon as one has died: time enough to say what happened."""
    _ignore_further_orders()
    raise PeerLost("told to stop (SIGTERM)")


def _ignore_further_orders() -> None:
    """This process already ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# Rank 0 --------------------------------------------------------------------------------------------------------------


def lead(config: MeasureConfig, device: torch.device, kinds: Kinds = JOBS) -> CollectiveHardware:
    """Waits for the other ranks and connects with them. On rank 0.

    Args:
        kinds: of jobs that the other ranks know.

    Raises:
        MeasurementFailed: if a rank does not come.
        BadConfig: if a rank was started with other settings.
    """
    return CollectiveHardware(config, device, kinds)


def dismiss() -> None:
    """Rank 0 ends without having opened the hardware (nothing to measure, bad input): the other ranks may go.

    Does nothing after ``lead``, on other ranks and without torchrun.
    """
    if world_size() == 1 or is_follower() or CollectiveHardware.opened:
        return
    with suppress(PeerLost):
        _say_goodbye(Board(START_S, START_S))


class CollectiveHardware:
    """Several devices at once, with real exchanges; this process is the first of them.

    ``close`` ends the other ranks. If this process ends without it, they end as well.
    """

    opened = False  # ever in this process: only then do the other ranks learn from it that they may go

    def __init__(self, config: MeasureConfig, device: torch.device, kinds: Kinds = JOBS) -> None:
        CollectiveHardware.opened = True
        self._config, self._kinds = config, kinds
        self._in_step = False  # no rank waits for another in the middle of a job
        self._next_job = 0
        self._kernel_s = 0.0
        self._opened = time.perf_counter()
        start_s = max(START_S, config.timeout_s)
        self._board = Board(config.timeout_s, start_s)
        self._undo = ExitStack()
        self._undo.enter_context(on_sigterm(_told_to_stop))
        self._undo.enter_context(self._board.beating())
        self._undo.callback(self._dismiss_others)
        atexit.register(self.close)
        self._wait_for_others(start_s)
        self._board.say("here/0")
        try:
            self._worker = Worker(config, Ranks(self._board.store, 0, self._board.size, device, config.timeout_s))
        except PeerLost as error:
            raise MeasurementFailed(self._what_happened(error, "connecting")) from error
        self._undo.callback(self._worker.close)
        self._in_step = True
        self.provenance = Provenance(
            hardware=f"{device_name(device)} x {self._board.size}",
            driver=driver_version(device),
            versions=library_versions(device),
            link=self._worker.ranks.backend,
            seed=config.seed,
            repeats=config.repeats,
        )

    @property
    def time_share(self) -> TimeShare:
        """Time in kernels and exchanges, of the slowest rank each time, against wall time since this was opened."""
        return TimeShare(self._kernel_s, time.perf_counter() - self._opened)

    def measure(self, task: PlacementTask, placement: Placement) -> PlacementCost:
        """Measures all shards at once, and the exchanges between them.

        A task of one device (a table or shard alone) exchanges nothing: rank 0 measures it while the others wait.
        If a device runs out of memory there is no exchange: the others' all-to-all and waiting times are 0.

        Raises:
            BadInput: if the task has not one device for each rank, or a shard cannot be run as it is.
            MeasurementFailed: if a kernel fails, or a rank hangs or dies. After the latter nothing can be measured.
        """
        if placement.num_devices not in (1, self._board.size):
            raise BadInput(
                f"task {task.task_id} has {placement.num_devices} devices, torchrun started {self._board.size} "
                f"processes. Start --nproc-per-node {placement.num_devices}."
            )
        if placement.num_devices == 1:
            findings = [measure_alone(self._worker, task, placement)]
        else:
            job = MeasureShards(replace(task, constraints=UNCONSTRAINED), placement)
            findings = self.everyone(job, f"measuring {task.task_id}")
        for rank, finding in enumerate(findings):
            if finding.problem in (BAD_INPUT, FAILED):
                kind = BadInput if finding.problem == BAD_INPUT else MeasurementFailed
                raise kind(f"rank {rank}, measuring {task.task_id}: {finding.reason}")
        self._kernel_s += _kernel_s([finding.steps for finding in findings])
        return PlacementCost(device_costs(findings, self._config.warmup), all_to_all="measured")

    def everyone(self, job: Job, during: str) -> list[Any]:
        """Runs a job on all ranks at once and returns their answers, by rank.

        Args:
            during: what an error message says about the moment, such as "measuring train-003".

        Raises:
            BadInput: if the ranks cannot run it.
            MeasurementFailed: if a rank hangs or dies.
        """
        if not self._in_step:
            raise MeasurementFailed(f"no {during}: the processes are out of step since a failure. Start again.")
        try:
            job.check(self._board.size)
        except ValueError as error:
            raise BadInput(f"{during} is not possible: {error}.") from None
        self._in_step = False
        try:
            self._hand_out(job)
            answers = self._worker.ranks.gather(encode_answer(job.run(self._worker)))
        except PeerLost as error:
            raise MeasurementFailed(self._what_happened(error, during)) from error
        self._in_step = True
        try:
            return [decode_answer(answer, job) for answer in answers]
        except ValueError as error:
            raise MeasurementFailed(f"a rank's answer cannot be read while {during}: {error}. Start again.") from None

    def close(self) -> None:
        """Tells the other ranks to end, and frees the device. The second time it does nothing."""
        atexit.unregister(self.close)
        self._undo.close()

    def _dismiss_others(self) -> None:
        if not self._in_step:
            leave_group(orderly=False)  # wakes those that wait for this rank in the middle of a job
        with suppress(PeerLost):
            if self._in_step:
                self._hand_out(None)
            _say_goodbye(self._board)
        leave_group(orderly=self._in_step)
        self._in_step = False

    def _wait_for_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for rank in range(1, self._board.size):
            if not self._board.wait_for(f"here/{rank}", deadline - time.monotonic()):
                raise MeasurementFailed(
                    f"rank {rank} of {self._board.size} has not come within {seconds:g} s. Start every process with "
                    f"the same command."
                )
            if self._board.read(f"here/{rank}") != _settings(self._config):
                raise BadConfig(
                    f"rank {rank} was started with other measure settings than rank 0. Give all processes the same "
                    f"flags and params.yaml."
                )

    def _hand_out(self, job: Job | None) -> None:
        self._board.say(f"job/{self._next_job}", encode_job(job, self._kinds))
        if self._next_job > 0:
            self._board.wipe(f"job/{self._next_job - 1}")  # everybody has answered it
        self._next_job += 1

    def _what_happened(self, error: PeerLost, during: str) -> str:
        """Asks all ranks to report, and names those that do not."""
        _ignore_further_orders()
        leave_group(orderly=False)  # wakes those that wait for this rank
        board, others = self._board, range(1, self._board.size)
        with suppress(PeerLost):
            board.say("lost")
            beats = {rank: board.beats(rank) for rank in others}
            deadline = time.monotonic() + board.grace_s
            missing = list(others)
            while missing and time.monotonic() < deadline:
                time.sleep(board.beat_s / 10)
                missing = [rank for rank in others if not board.has(f"report/{rank}")]
            silent = [rank for rank in missing if board.beats(rank) == beats[rank]]
            lost = silent or missing  # a process that beats without reporting is hung, or waits for a silent one
            board.say("closed")
            if lost:
                who = f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
                if error.waited_s < board.timeout_s / 2:
                    return f"{who} died while {during}. Its own output above may say why."
                return (
                    f"{who} did not answer within {board.timeout_s:g} s while {during}: it hung or died. Look at its "
                    f"own output; raise measure.timeout_s if it was only slow."
                )
        return f"the processes lost each other while {during}: {error}"


def _say_goodbye(board: Board) -> None:
    """The store may end with this process, so it stays until the others have read."""
    board.say("closed")
    deadline = time.monotonic() + board.grace_s
    for rank in range(1, board.size):
        board.wait_for(f"bye/{rank}", deadline - time.monotonic())


def device_costs(findings: Sequence[Finding], warmup: int) -> tuple[DeviceCost, ...]:
    """What all ranks found, by rank, as costs: medians over the steps after ``warmup``."""
    timed = [finding.steps[warmup:] for finding in findings]
    # The last rank at a barrier waits for nobody: what it spends there is the barrier's own cost.
    barriers_ms = [min(step.wait_ms for step in steps) for steps in zip(*filter(None, timed), strict=True)]

    def device_cost(steps: Sequence[Step]) -> DeviceCost:
        forward = [step.fwd_compute_ms for step in steps]
        backward = [step.bwd_compute_ms for step in steps]
        return DeviceCost(
            fwd_compute_ms=median(forward),
            fwd_all_to_all_ms=median(step.fwd_all_to_all_ms for step in steps),
            bwd_all_to_all_ms=median(step.bwd_all_to_all_ms for step in steps),
            bwd_compute_ms=median(backward),
            fwd_compute_spread_ms=interquartile_range(forward),
            bwd_compute_spread_ms=interquartile_range(backward),
            fwd_wait_ms=median(step.wait_ms - own for step, own in zip(steps, barriers_ms, strict=True)),
        )

    return tuple(
        DeviceCost.out_of_memory() if finding.problem == OUT_OF_MEMORY else device_cost(steps)
        for finding, steps in zip(findings, timed, strict=True)
    )


def _kernel_s(steps_of_ranks: Sequence[Sequence[Step]]) -> float:
    """Seconds of all steps' timed parts, each as long as on the slowest rank."""
    parts = ("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms")
    together = zip(*filter(None, steps_of_ranks), strict=True)
    slowest_ms = [max(getattr(step, part) for step in steps) for steps in together for part in parts]
    return float(sum(slowest_ms)) / 1e3


# The other ranks -----------------------------------------------------------------------------------------------------


def serve(config: MeasureConfig, kinds: Kinds = JOBS) -> None:
    """Does what rank 0 hands out until it closes. On every other rank.

    Returns also when another rank is lost: rank 0 tells the user then, and its exit code counts.

    Args:
        kinds: of jobs that rank 0 may hand out.

    Raises:
        BadConfig: if CUDA is asked for where there is none.
        MeasurementFailed: if rank 0 itself hangs or dies, or what is handed out is not a job.
    """
    if not config.hardware_name.kind.runs_kernels:
        return  # a device model needs one process
    device = real_device(config.hardware_name)
    board = Board(config.timeout_s, PLANNING_S)
    board.say(f"here/{board.rank}", _settings(config))
    in_step = not _leader_comes(board)
    try:
        if not in_step:
            with board.beating(), on_sigterm(_told_to_stop):
                _serve_jobs(config, board, device, kinds)
            in_step = True
    finally:
        leave_group(orderly=in_step)
        with suppress(PeerLost):
            board.say(f"bye/{board.rank}")


def _serve_jobs(config: MeasureConfig, board: Board, device: torch.device, kinds: Kinds) -> None:
    leader = Pulse(board, 0)
    try:
        worker = Worker(config, Ranks(board.store, board.rank, board.size, device, config.timeout_s))
        number = 0
        while (job := _next_job(board, leader, number, kinds)) is not None:
            worker.ranks.gather(encode_answer(job.run(worker)))
            number += 1
        worker.close()
    except PeerLost as error:
        _ignore_further_orders()
        leave_group(orderly=False)  # wakes those that wait for this rank
        if not _leader_lives(board, leader):
            raise MeasurementFailed(
                f"rank {board.rank}: rank 0 hung or died ({error}). Its own output may say why."
            ) from error


def _leader_comes(board: Board) -> bool:
    """False if rank 0 ends without needing anybody."""
    deadline = time.monotonic() + PLANNING_S
    for _ in board.polls():
        if board.has("here/0"):
            return True
        if board.has("closed"):
            return False
        if time.monotonic() > deadline:
            raise PeerLost("rank 0 has not come")
    raise AssertionError("polls end")


def _next_job(board: Board, leader: Pulse, number: int, kinds: Kinds) -> Job | None:
    """The next job, however long rank 0 plans; None if there is none any more.

    Raises:
        PeerLost: if rank 0 has not given a sign of life for ``timeout_s``, or misses somebody.
        MeasurementFailed: if it is not a job.
    """
    looked = time.monotonic()
    for _ in board.polls():
        if board.has(f"job/{number}"):
            return _decoded(board, number, kinds)
        if time.monotonic() > looked + board.beat_s:
            looked = time.monotonic()
            if board.has("lost"):
                raise PeerLost("rank 0 misses somebody")
            if board.has("closed"):
                return None
            if leader.silent_s() > board.timeout_s:
                raise PeerLost("rank 0 is silent")
    raise AssertionError("polls end")


def _decoded(board: Board, number: int, kinds: Kinds) -> Job | None:
    try:
        return decode_job(board.read(f"job/{number}"), kinds, board.size)
    except ValueError as error:
        raise MeasurementFailed(
            f"rank {board.rank}: what stands in the store of torchrun as job {number} is not one ({reason_of(error)}). "
            f"Did something else write there? Let nobody but these processes reach its port, and start again."
        ) from None


def _leader_lives(board: Board, leader: Pulse) -> bool:
    """Reports this rank, and waits until rank 0 has found out who is lost; False if it is rank 0."""
    deadline = time.monotonic() + 4 * board.grace_s
    with suppress(PeerLost):
        board.say(f"report/{board.rank}")
        while leader.silent_s() < board.grace_s and time.monotonic() < deadline:
            if board.has("closed"):
                return True
            time.sleep(board.beat_s / 10)
    return False


def _settings(config: MeasureConfig) -> bytes:
    return repr(config).encode()
