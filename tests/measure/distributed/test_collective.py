"""Several devices at once, for real: forks that have imported torch, gloo between them; the test keeps the store."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from evenshard.base.errors import BadInput, EvenshardError, MeasurementFailed
from evenshard.measure import clock
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import collective
from evenshard.measure.distributed import ranks as ranks_module
from evenshard.measure.distributed.collective import CollectiveHardware, device_costs
from evenshard.measure.distributed.exchange import Finding, Step, Worker
from evenshard.measure.distributed.jobs import (
    JOBS,
    MeasurePlacement,
    TimeCollectives,
    TimeExchanges,
    decode_job,
    encode_job,
)
from evenshard.measure.distributed.ranks import Splits, compute_splits, split_samples
from evenshard.measure.fbgemm import OutOfDeviceMemory
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost
from evenshard.tables.table import Table
from support.builders import table, task
from support.patience import PATIENCE_S
from support.ranks import run_ranks

CONFIG = MeasureConfig(hardware="cpu", num_batches=2, warmup=1, repeats=3, timeout_s=PATIENCE_S, seed=5)
IMPATIENT = replace(CONFIG, timeout_s=6.0)  # nothing that a rank does in these scenarios takes a tenth of that
WORLD_SIZE = 4
BATCH_SIZE = 67  # no number of ranks divides it
SCENARIO = "scenario"
GIANT = table("giant", rows=2_000_000_000, dim=256)

FAILURES = {
    "out of memory": OutOfDeviceMemory(),
    "a bad kernel": MeasurementFailed("a bad kernel"),
    "mixed weight_bits": BadInput("mixed weight_bits"),
}


@dataclass
class FakeKernels:
    """Kernels that take a given time, and fail where they should."""

    forward_s: float = 0.0  # of every forward, by ``Clock``
    backward_s: float = 0.0
    fails: tuple[str, int] | None = None  # the stage (load, forward or backward) and the pass that fails
    failure: str = ""  # one of FAILURES, which is raised then, or a signal, which is sent to the own process instead

    @contextmanager
    def load_shard(self, shard: Sequence[Table], batch_size: int) -> Iterator[FakeShard]:
        self.maybe_fail("load", 0)
        yield FakeShard(self, torch.zeros(batch_size, sum(one.embedding_dim for one in shard)))

    def free(self) -> None:
        pass

    def maybe_fail(self, stage: str, number: int) -> None:
        if self.fails == (stage, number):
            if self.failure not in FAILURES:
                os.kill(os.getpid(), signal.Signals[self.failure])
            raise FAILURES[self.failure]


@dataclass
class FakeShard:
    kernels: FakeKernels
    gradient: torch.Tensor
    number: int = 0

    def forward(self, number: int) -> torch.Tensor:
        self.number = number
        Clock.now_s += self.kernels.forward_s
        self.kernels.maybe_fail("forward", number)
        return torch.zeros_like(self.gradient)

    def backward(self, pooled: torch.Tensor) -> None:
        Clock.now_s += self.kernels.backward_s
        self.kernels.maybe_fail("backward", self.number)


class Clock:
    """A clock that only fake kernels move: however busy the machine is, nothing else takes any time.

    Who waits for the others, at a barrier or in an exchange, has their time afterwards.
    """

    now_s: ClassVar[float] = 0.0
    monotonic = staticmethod(time.monotonic)  # of limits of patience

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now_s

    @classmethod
    def after(cls, collective: Callable[..., Any]) -> Callable[..., Any]:
        """A collective at which the ranks wait for each other."""

        def call(*args: Any) -> Any:
            found = collective(*args)
            latest = torch.tensor([cls.now_s], dtype=torch.float64)
            dist.all_reduce(latest, dist.ReduceOp.MAX)
            cls.now_s = float(latest)
            return found

        return call


class AnyRanks:
    """Jobs that any number of ranks can run; the answer is whatever comes."""

    ANSWER: ClassVar[Any] = Any

    def check(self, num_ranks: int) -> None:
        pass


@dataclass(frozen=True)
class UseKernels(AnyRanks):
    """Fake kernels for every rank (those named, and quick ones), timed by ``Clock`` or not; or the real ones again."""

    kernels_of_rank: dict[str, FakeKernels] | None
    by_clock: bool = False

    def run(self, worker: Worker) -> None:
        ranks_module.time = clock.time = Clock if self.by_clock else time  # type: ignore[assignment]
        for name in ("agree", "all_to_all"):
            worker.ranks.__dict__.pop(name, None)
            if self.by_clock:
                setattr(worker.ranks, name, Clock.after(getattr(worker.ranks, name)))
        worker.__dict__.pop("kernels", None)
        if self.kernels_of_rank is not None:
            worker.__dict__["kernels"] = self.kernels_of_rank.get(f"rank{worker.ranks.rank}", FakeKernels())


@dataclass(frozen=True)
class RankOf(AnyRanks):
    """The rank of the process that answers."""

    def run(self, worker: Worker) -> int:
        return worker.ranks.rank


KINDS = {**JOBS, **{kind.__name__: kind for kind in (UseKernels, RankOf)}}


def everything(hardware: CollectiveHardware, out: Path) -> None:
    """One long session of rank 0: what each step led to, pickled by name."""
    size = collective.world_size()
    spread = task([table(f"t{number}", 500, 4 * (number + 1), 3.0) for number in range(2 * size)], size,
                  batch_size=BATCH_SIZE)  # fmt: skip
    on_all = Placement(tuple(number % size for number in range(2 * size)), size)
    on_last = Placement((size - 1,) * (2 * size), size)
    notes: dict[str, Any] = {"provenance": hardware.provenance}

    def attempt(name: str, placement: Placement = on_all, by_clock: bool = False, **fakes: FakeKernels) -> None:
        if fakes:
            hardware.run_on_all(UseKernels(fakes, by_clock), "faking")
        try:
            notes[name] = hardware.measure(spread, placement)
        except EvenshardError as error:
            notes[name] = error
        if fakes:
            hardware.run_on_all(UseKernels(None), "faking")

    attempt("spread")
    attempt("on_last", on_last)
    notes["exchange_times"] = hardware.run_on_all(TimeExchanges(((4,) * size, (9, 0, 1, 2)[:size])), "timing")
    notes["collective_times"] = hardware.run_on_all(TimeCollectives((5, 50), size), "timing")
    for name, job in (
        ("unevenly", TimeExchanges(((4,) * (size + 1),))),
        ("no_groups", TimeCollectives((5,), size + 1)),
    ):
        try:
            hardware.run_on_all(job, name)
        except EvenshardError as error:
            notes[name] = error
    attempt("skewed", by_clock=True, rank0=FakeKernels(backward_s=2**-6), rank1=FakeKernels(forward_s=2**-7))
    attempt("wrong_number", Placement((0,) * 2 * size, size + 1))
    with_giant = replace(spread, tables=(*spread.tables, GIANT))
    notes["giant"] = hardware.measure(with_giant, Placement((*on_all.device_of_table, 1), size))
    for stage, number in (("forward", 2), ("backward", CONFIG.warmup + CONFIG.repeats - 1)):
        attempt(f"out_of_memory_{stage}", rank1=FakeKernels(fails=(stage, number), failure="out of memory"))
    attempt("out_of_memory_later", rank1=FakeKernels(fails=("load", 0), failure="out of memory"),
            rank0=FakeKernels(fails=("backward", 3), failure="out of memory"))  # fmt: skip
    attempt("failed", rank1=FakeKernels(fails=("forward", 1), failure="a bad kernel"))
    attempt("bad_input", rank1=FakeKernels(fails=("load", 0), failure="mixed weight_bits"))
    attempt("after_all")
    notes["time_share"] = hardware.time_share
    hardware.close()
    hardware.close()
    out.write_bytes(pickle.dumps(notes))


def lose(hardware: CollectiveHardware, rank: str, with_signal: str) -> None:
    """A session in which a rank gets a signal in the middle of the second measurement."""
    size = collective.world_size()
    of_task = task([table(f"t{number}") for number in range(size)], size, task_id="train-003")
    placement = Placement(tuple(range(size)), size)
    hardware.run_on_all(UseKernels({}), "faking")
    hardware.measure(of_task, placement)
    fake = FakeKernels(fails=("forward", 2), failure=with_signal)
    hardware.run_on_all(UseKernels({f"rank{rank}": fake}), "faking")
    hardware.measure(of_task, placement)


def rank_of_scenario(rank: int, out: Path) -> int:
    """What the command line does, in small, with what else torchrun tells a process."""
    os.environ["RANK"] = str(rank)
    scenario, *args = json.loads((out / SCENARIO).read_text())
    config = CONFIG if scenario == "everything" else IMPATIENT
    try:
        if scenario == "other_network":
            config = replace(config, expect_transport="ib")
        if collective.is_follower():
            collective.serve(config, KINDS)
            return 0
        if scenario == "dismissed":
            collective.dismiss()
            return 0
        if scenario == "other_settings":
            config = replace(config, seed=6)
        hardware = collective.CollectiveHardware(config, torch.device("cpu"))
        if scenario == "everything":
            everything(hardware, out / "notes.pickle")
        elif scenario == "lose":
            lose(hardware, *args)
        elif scenario == "idle_and_unclosed":
            time.sleep(1.5 * config.timeout_s)
            assert hardware.run_on_all(RankOf(), "asking") == list(range(collective.world_size()))
            raise BadInput("rank 0 gives up")
    except EvenshardError as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, BadInput) else 1
    finally:
        atexit._run_exitfuncs()
    return 0


def forked(num_processes: int, out: Path, scenario: str, *args: str) -> tuple[list[Any], list[list[str]]]:
    """Runs a scenario: the exit code of each rank (None: it was lost), and its failures. All ranks end by themselves.

    Args:
        args: the rank that is lost, and how.
    """
    (out / SCENARIO).write_text(json.dumps([scenario, *args]))
    store, size = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), str(num_processes)
    env = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
           "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
    lost = [int(rank) for rank in args[:1]]
    codes = run_ranks(rank_of_scenario, num_processes, out, join=False, lost=lost, **env)
    said = [(out / f"said-{rank}").read_text().splitlines() for rank in range(num_processes)]
    return codes, [[line for line in lines if line.startswith("failed: ")] for lines in said]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out of the long session."""
    out = tmp_path_factory.mktemp("ranks")
    assert forked(WORLD_SIZE, out, "everything") == ([0] * WORLD_SIZE, [[]] * WORLD_SIZE)
    result: dict[str, Any] = pickle.loads((out / "notes.pickle").read_bytes())
    return result


def times(device: DeviceCost) -> tuple[float, float, float, float]:
    return device.fwd_compute_ms, device.fwd_all_to_all_ms, device.bwd_all_to_all_ms, device.bwd_compute_ms


@pytest.mark.slow
def test_every_device_computes_and_exchanges(notes: dict[str, Any]) -> None:
    for cost in (notes["spread"], notes["after_all"]):
        assert cost.all_to_all == "measured" and cost.fits and len(cost.devices) == WORLD_SIZE
        for device in cost.devices:
            assert all(0 < ms < 1000 for ms in times(device))
            assert device.fwd_compute_spread_ms >= 0 and device.fwd_wait_ms >= 0
        assert min(device.fwd_wait_ms for device in cost.devices) < 20
    *empty, full = notes["on_last"].devices
    assert min(times(full)) > 0
    for device in empty:
        assert (device.fwd_compute_ms, device.bwd_compute_ms, device.fwd_compute_spread_ms) == (0, 0, 0)
        assert device.fwd_all_to_all_ms > 0 and device.bwd_all_to_all_ms > 0
    assert notes["provenance"].link == "gloo" and notes["provenance"].hardware.endswith(f" x {WORLD_SIZE}")
    assert 0 < notes["time_share"].kernel_share < 1


@pytest.mark.slow
def test_jobs_and_answers_are_plain_data(notes: dict[str, Any]) -> None:
    """Times by rank and exchange; what the ranks cannot run is not a job."""
    assert len(notes["exchange_times"]) == WORLD_SIZE
    assert all(len(times) == 2 and min(times) > 0 for times in notes["exchange_times"])
    assert len(notes["collective_times"]) == WORLD_SIZE
    assert all(len(times) == 3 * 2 and min(times) > 0 for times in notes["collective_times"])
    assert type(notes["no_groups"]) is BadInput and "ranks cannot be divided into groups of" in str(notes["no_groups"])
    assert type(notes["unevenly"]) is BadInput and f"each of {WORLD_SIZE} ranks" in str(notes["unevenly"])


def test_what_is_not_a_job_is_one_line() -> None:
    for content, why in (
        (pickle.dumps(RankOf()), "not UTF-8"),
        (b"", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"3", "not a mapping"),
        (b'{"job": "os.system", "settings": {}}', "'os.system' is not a known job"),
        (b'{"job": "RankOf", "settings": {"more": 1}}', "'more' is unknown"),
        (b'{"job": "TimeExchanges", "settings": {"exchanges": [[1, 2, 3]]}}', "each of 2 ranks"),
        (b'{"job": "TimeExchanges", "settings": {"exchanges": [[1, -2]]}}', "each of 2 ranks"),
        (b'{"job": "MeasurePlacement", "settings": {"tables": []}}', "machine is missing"),
    ):
        with pytest.raises(ValueError, match=why):
            decode_job(content, KINDS, 2)


def test_a_placement_comes_as_it_was_handed_out_or_not_at_all() -> None:
    tables = (table("a", pooling=2.0), table("b", rows=2**40, pooling=0.3))
    job = MeasurePlacement(tables, Nodes.one_node(2), 64, Placement((0, 1), 2).parts(tables))
    plain = encode_job(job)
    assert decode_job(plain, JOBS, 2) == job and repr(decode_job(plain, JOBS, 2)) == repr(job)
    assert decode_job(encode_job(None), JOBS, 2) is None
    with pytest.raises(ValueError, match="cannot run on 3 ranks"):
        decode_job(plain, JOBS, 3)
    for path, value in (
        ("batch_size", 0),
        ("machine.num_devices", 10**12),
        ("tables", []),
        ("tables.1.num_rows", 2**62),
        ("tables.1.pooling_factor", -0.5),
        ("parts.1.devices", [2]),
        ("parts.1.devices", []),
        ("parts.1.devices", [0, 1]),
        ("parts.1.columns", [0, 1]),
        ("parts.1.table", "a"),
    ):
        content = json.loads(plain)
        record, (*steps, last) = content["settings"], path.split(".")
        for step in steps:
            record = record[int(step) if step.isdigit() else step]
        record[last] = value
        with pytest.raises(ValueError, match=r"."):
            decode_job(json.dumps(content).encode(), JOBS, 2)


@pytest.mark.slow
def test_waiting_is_no_communication(notes: dict[str, Any]) -> None:
    """Rank 1 is slow forward, rank 0 slow backward, and nothing else takes any time."""
    first, slow, *others = notes["skewed"].devices
    assert (slow.fwd_compute_ms, slow.bwd_compute_ms, slow.fwd_wait_ms) == (7.8125, 0, 0)
    assert (first.fwd_compute_ms, first.bwd_compute_ms, first.fwd_wait_ms) == (0, 15.625, 7.8125)
    for device in others:
        assert (device.fwd_compute_ms, device.bwd_compute_ms, device.fwd_wait_ms) == (0, 0, 7.8125)
    for device in notes["skewed"].devices:
        assert device.fwd_all_to_all_ms == device.bwd_all_to_all_ms == 0


@pytest.mark.slow
def test_a_shard_that_does_not_fit_is_a_finding_and_the_others_are_timed_alone(notes: dict[str, Any]) -> None:
    for name in ("giant", "out_of_memory_forward", "out_of_memory_backward"):
        devices = notes[name].devices
        assert [device.status == OUT_OF_MEMORY for device in devices] == [False, True, False, False]
        for device in (devices[0], *devices[2:]):
            assert device.fwd_compute_ms > 0 and device.bwd_compute_ms > 0
            assert (device.fwd_all_to_all_ms, device.bwd_all_to_all_ms, device.fwd_wait_ms) == (0, 0, 0)


@pytest.mark.slow
def test_failures_are_those_of_their_ranks(notes: dict[str, Any]) -> None:
    """Two devices may run out of memory one after the other."""
    statuses = [device.status for device in notes["out_of_memory_later"].devices]
    assert statuses == [OUT_OF_MEMORY] * 2 + ["ok"] * (WORLD_SIZE - 2)
    assert type(notes["failed"]) is MeasurementFailed
    assert str(notes["failed"]) == "rank 1 cannot measure task: a bad kernel"
    assert type(notes["bad_input"]) is BadInput and "mixed weight_bits" in str(notes["bad_input"])
    assert isinstance(notes["wrong_number"], BadInput)
    assert f"has {WORLD_SIZE + 1} devices, but torchrun started {WORLD_SIZE} processes" in str(notes["wrong_number"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "how", "failure"),
    [
        (1, "SIGKILL", "rank 1 died while measuring train-003. Its output above may contain the reason."),
        (2, "SIGSTOP", "rank 2 did not answer within 6 s while measuring train-003: it hung or died."),
    ],
)
def test_a_killed_or_stopped_rank_ends_the_run(tmp_path: Path, lost: int, how: str, failure: str) -> None:
    codes, failures = forked(3, tmp_path, "lose", str(lost), how)
    assert codes[0] == 1 and codes[lost] is None
    assert len(failures[0]) == 1 and failures[0][0].startswith(f"failed: {failure}")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_rank_0_the_others_end(tmp_path: Path, how: str) -> None:
    codes, (_, of_follower) = forked(2, tmp_path, "lose", "0", how)
    assert codes == [None, 1]
    assert [line for line in of_follower if "rank 1: rank 0 hung or died" in line] == of_follower != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "lost", "message"),
    [
        ("dismissed", "", ""),
        ("idle_and_unclosed", "", "failed: rank 0 gives up"),
        ("other_network", "", "failed: CPUs communicate through gloo, not NET/ib"),
        ("other_settings", "1", "failed: rank 1 has other measurement settings than rank 0."),
    ],
)
def test_the_others_end_when_rank_0_does(tmp_path: Path, scenario: str, lost: str, message: str) -> None:
    """Idle for longer than the timeout beforehand, while rank 0 is well, they still serve."""
    codes, (of_leader, _) = forked(2, tmp_path, scenario, *lost)
    assert (codes[0] != 0) == bool(message)
    assert len(of_leader) == bool(message) and all(line.startswith(message) for line in of_leader)


def test_splits_by_hand() -> None:
    """7 samples on 3 ranks are 3, 2 and 2; the devices hold 10, 0 and 4 dims."""
    assert split_samples(7, 3) == (3, 2, 2) and split_samples(1, 3) == (1, 0, 0)
    assert compute_splits([10, 0, 4], 7, 0) == Splits(sent=(30, 20, 20), received=(30, 0, 12))
    assert compute_splits([10, 0, 4], 7, 1) == Splits(sent=(0, 0, 0), received=(20, 0, 8))
    assert compute_splits([10, 0, 4], 7, 2) == Splits(sent=(12, 8, 8), received=(20, 0, 8))


def test_costs_by_hand() -> None:
    """The warm-up step does not count; at each barrier the shortest wait (1, 2 and 1 ms) is the barrier's own cost."""
    slow = (Step(99, 99, 99, 99, 99), Step(9, 1, 2, 3, 7), Step(10, 2, 4, 3, 8), Step(14, 1, 3, 6, 8))
    quick = (Step(99, 99, 99, 99, 99), Step(2, 8, 2, 2, 1), Step(2, 11, 2, 2, 1), Step(2, 13, 2, 2, 1))
    first, second, third = device_costs([Finding(slow), Finding(quick), Finding(problem=OUT_OF_MEMORY)], warmup=1)
    assert times(first) == (10, 3, 3, 8) and first.fwd_wait_ms == 0
    assert (first.fwd_compute_spread_ms, first.bwd_compute_spread_ms) == (2.5, 0.5)
    assert times(second) == (2, 2, 2, 1) and second.fwd_wait_ms == 9
    assert third == DeviceCost.out_of_memory()
