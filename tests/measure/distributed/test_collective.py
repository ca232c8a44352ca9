"""Several devices at once, for real: processes on the CPU, gloo between them.

Where one of them leaves before the others, torchrun starts them, on this file: it keeps the store. Other scenarios run
in forks that have imported torch.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from evenshard.base.errors import BadInput, EvenshardError, MeasurementFailed
from evenshard.measure import clock
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import collective
from evenshard.measure.distributed import ranks as ranks_module
from evenshard.measure.distributed.collective import CollectiveHardware, device_costs
from evenshard.measure.distributed.exchange import Exchange, Finding, Step, Worker
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
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost, PlacementCost
from evenshard.tables.table import Table
from support.builders import table, task
from support.patience import PATIENCE_S, wait_until
from support.ranks import run_ranks
from support.servers import free_ports

CONFIG = MeasureConfig(hardware="cpu", num_batches=2, warmup=1, repeats=3, timeout_s=PATIENCE_S, seed=5)
IMPATIENT = replace(CONFIG, timeout_s=10.0)  # nothing that a rank does in these scenarios takes a tenth of that
WORLD_SIZE = 4
BATCH_SIZE = 67  # no number of ranks divides it
SCENARIO = "scenario"
GIANT = table("giant", rows=2_000_000_000, dim=256)

# In the processes of torchrun -----------------------------------------------------------------------------------------


FAILURES = {
    "out of memory": OutOfDeviceMemory(),
    "a bad kernel": MeasurementFailed("a bad kernel"),
    "mixed weight_bits": BadInput("mixed weight_bits"),
}


@dataclass
class FakeKernels:
    """Kernels that take a given time, and fail where they should.

    Attributes:
        forward_s: seconds of every forward, by ``Clock``.
        backward_s: seconds of every backward, by ``Clock``.
        fails: the stage (load, forward or backward) and the pass that fails; None: none.
        failure: one of FAILURES, which is raised then, or a signal, which is sent to the own process instead.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    fails: tuple[str, int] | None = None
    failure: str = ""

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
class ExchangeErrors(AnyRanks):
    """The largest deviations, in pooled embeddings and in weight gradients, from one unsharded device."""

    dims: tuple[int, ...]

    def run(self, worker: Worker) -> tuple[float, float]:
        return exchange_errors(worker, self.dims)


@dataclass(frozen=True)
class RankOf(AnyRanks):
    """The rank of the process that answers."""

    def run(self, worker: Worker) -> int:
        return worker.ranks.rank


@dataclass(frozen=True)
class NotANumber(AnyRanks):
    """An answer that JSON does not have."""

    def run(self, worker: Worker) -> float:
        return math.nan


KINDS = {**JOBS, **{kind.__name__: kind for kind in (UseKernels, ExchangeErrors, RankOf, NotANumber)}}


class Intruder:
    """Runs a command when it is unpickled, and not before."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


def exchange_errors(worker: Worker, dims: Sequence[int]) -> tuple[float, float]:
    ranks, rng = worker.ranks, torch.Generator().manual_seed(0)
    bags = [torch.nn.EmbeddingBag(20, dim, _weight=torch.randn(20, dim, generator=rng)) for dim in dims]
    indices_B4 = [torch.randint(20, (BATCH_SIZE, 4), generator=rng) for _ in dims]
    upstream = torch.randn(BATCH_SIZE, sum(dims), generator=rng)  # the gradient that the dense part would send back
    everything = torch.cat([bag(indices) for bag, indices in zip(bags, indices_B4, strict=True)], dim=1)
    weights = [bag.weight for bag in bags]
    expected_gradient = torch.autograd.grad(everything, weights, upstream)[ranks.rank]

    exchange = Exchange(ranks, compute_splits(dims, BATCH_SIZE, ranks.rank))
    own = bags[ranks.rank](indices_B4[ranks.rank])
    exchange.send(own)
    samples = split_samples(BATCH_SIZE, ranks.size)
    first, count = sum(samples[: ranks.rank]), samples[ranks.rank]
    received = [part.view(count, -1) for part in exchange.received.split([count * dim for dim in dims])]
    forward_error = (torch.cat(received, dim=1) - everything[first : first + count]).abs().max()

    of_ranks = upstream[first : first + count].split(list(dims), dim=1)
    exchange.gradient.copy_(torch.cat([part.reshape(-1) for part in of_ranks]))
    gradient_BD = torch.full_like(own, float("nan"))
    exchange.send_back(gradient_BD)
    (gradient,) = torch.autograd.grad(own, [weights[ranks.rank]], gradient_BD)
    return float(forward_error), float((gradient - expected_gradient).abs().max()) if gradient.numel() else 0.0


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
    notes["exchange_errors"] = hardware.run_on_all(ExchangeErrors((5, 3, 0, 8)[:size]), "exchanging")
    notes["exchange_times"] = hardware.run_on_all(TimeExchanges(((4,) * size, (9, 0, 1, 2)[:size])), "timing")
    notes["collective_times"] = hardware.run_on_all(TimeCollectives((5, 50), size), "timing")
    for name, job in (
        ("unanswerable", NotANumber()),
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


def lose(hardware: CollectiveHardware, out: Path, rank: int, with_signal: str) -> None:
    """A session in which a rank gets a signal in the middle of the second measurement."""
    size = collective.world_size()
    of_task = task([table(f"t{number}") for number in range(size)], size, task_id="train-003")
    placement = Placement(tuple(range(size)), size)
    hardware.run_on_all(UseKernels({}), "faking")
    hardware.measure(of_task, placement)
    fake = FakeKernels(fails=("forward", 2), failure=with_signal)
    hardware.run_on_all(UseKernels({f"rank{rank}": fake}), "faking")
    (out / "stopping").touch()
    hardware.measure(of_task, placement)


def intrude(hardware: CollectiveHardware, out: Path) -> None:
    """A session in which another process writes the next job."""
    assert hardware.run_on_all(RankOf(), "asking") == [0, 1]
    store = dist.PrefixStore("evenshard", next(rendezvous("env://"))[0])
    hardware._publish_job = lambda job: store.set("job/1", pickle.dumps(Intruder(out / "intruder")))  # type: ignore
    hardware.run_on_all(RankOf(), "asking")


def process(scenario: str, out: Path, *args: str) -> int:
    """What the command line does, in small."""
    (out / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    config = CONFIG if scenario == "everything" else IMPATIENT
    try:
        if collective.is_follower():
            collective.serve(config, KINDS)
            return 0
        if scenario == "dismissed":
            time.sleep(0.5)
            collective.dismiss()
            return 0
        if scenario == "other_settings":
            config = replace(config, seed=6)
        hardware = collective.CollectiveHardware(config, torch.device("cpu"))
        if scenario == "everything":
            everything(hardware, out / "notes.pickle")
        elif scenario == "lose":
            lose(hardware, out, int(args[0]), args[1])
        elif scenario == "intrude":
            intrude(hardware, out)
        elif scenario == "idle_and_unclosed":
            time.sleep(1.7 * config.timeout_s)
            assert hardware.run_on_all(RankOf(), "asking") == list(range(collective.world_size()))
            raise BadInput("rank 0 gives up")
    except EvenshardError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


def rank_of_scenario(rank: int, out: Path) -> int:
    """One of the processes, with what else torchrun tells it."""
    os.environ["RANK"] = str(rank)
    code = process((out / SCENARIO).read_text(), out)
    sys.stderr.flush()
    return code


# In pytest ------------------------------------------------------------------------------------------------------------


def torchrun(num_processes: int, out: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs a scenario; no process of it is left behind."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               str(num_processes), __file__, args[0], str(out), *args[1:]]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert len(list(out.glob("pid-*"))) == num_processes, done.stderr
    left = [path.name for path in out.glob("pid-*") if Path(f"/proc/{path.read_text()}").exists()]
    assert not left, left
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return failures_in(done.stderr)


def failures_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("failed: ")]


def forked(num_processes: int, out: Path, scenario: str) -> tuple[list[int], list[str]]:
    """Runs a scenario without torchrun: the exit code of each rank, and all failures."""
    (out / SCENARIO).write_text(scenario)
    size, (port,) = str(num_processes), free_ports(1)
    env = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    codes = run_ranks(rank_of_scenario, num_processes, out, join=False, **env)
    return codes, failures_in("\n".join((out / f"said-{rank}").read_text() for rank in range(num_processes)))


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out of the long session."""
    out = tmp_path_factory.mktemp("ranks")
    assert forked(WORLD_SIZE, out, "everything") == ([0] * WORLD_SIZE, [])
    result: dict[str, Any] = pickle.loads((out / "notes.pickle").read_bytes())
    return {**result, "size": WORLD_SIZE}


def times(device: DeviceCost) -> tuple[float, float, float, float]:
    return device.fwd_compute_ms, device.fwd_all_to_all_ms, device.bwd_all_to_all_ms, device.bwd_compute_ms


@pytest.mark.slow
def test_every_device_computes_and_exchanges(notes: dict[str, Any]) -> None:
    for cost in (notes["spread"], notes["after_all"]):
        assert cost.all_to_all == "measured" and cost.fits and len(cost.devices) == notes["size"]
        for device in cost.devices:
            assert all(0 < ms < 1000 for ms in times(device))
            assert device.fwd_compute_spread_ms >= 0 and device.fwd_wait_ms >= 0
        assert min(device.fwd_wait_ms for device in cost.devices) < 20


@pytest.mark.slow
def test_a_device_without_tables_only_takes_part_in_the_exchange(notes: dict[str, Any]) -> None:
    *empty, full = notes["on_last"].devices
    assert min(times(full)) > 0
    for device in empty:
        assert (device.fwd_compute_ms, device.bwd_compute_ms, device.fwd_compute_spread_ms) == (0, 0, 0)
        assert device.fwd_all_to_all_ms > 0 and device.bwd_all_to_all_ms > 0


@pytest.mark.slow
def test_exchanged_data_are_those_of_one_unsharded_device(notes: dict[str, Any]) -> None:
    for forward_error, gradient_error in notes["exchange_errors"]:
        assert forward_error < 1e-5 and gradient_error < 1e-4


@pytest.mark.slow
def test_jobs_and_answers_are_plain_data(notes: dict[str, Any]) -> None:
    """Times by rank and exchange; what is not a number is not an answer, and what the ranks cannot run is not a job."""
    assert len(notes["exchange_times"]) == notes["size"]
    assert all(len(times) == 2 and min(times) > 0 for times in notes["exchange_times"])
    assert len(notes["collective_times"]) == notes["size"]
    assert all(len(times) == 3 * 2 and min(times) > 0 for times in notes["collective_times"])
    assert type(notes["unanswerable"]) is MeasurementFailed
    assert "answer is invalid while unanswerable: 'NaN' is not a valid number" in str(notes["unanswerable"])
    assert type(notes["no_groups"]) is BadInput and "ranks cannot be divided into groups of" in str(notes["no_groups"])
    assert type(notes["unevenly"]) is BadInput and f"each of {notes['size']} ranks" in str(notes["unevenly"])


@pytest.mark.slow
def test_a_pickle_in_the_store_is_not_unpickled(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(Intruder(tmp_path / "proof"))) is None and (tmp_path / "proof").is_dir()
    codes, failures = forked(2, tmp_path, "intrude")
    assert codes[1] == 1
    assert not (tmp_path / "intruder").exists()
    (line,) = [line for line in failures if "rank 1: job 1 in the store of torchrun is not valid" in line]
    assert "it is not UTF-8" in line and "start again" in line


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pickle.dumps(RankOf()), "not UTF-8"),
        (b"", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"3", "not a mapping"),
        (b'{"job": "os.system", "settings": {}}', "'os.system' is not a known job"),
        (b'{"job": ["RankOf"], "settings": {}}', "not a string"),
        (b'{"job": "RankOf", "settings": {"more": 1}}', "'more' is unknown"),
        (b'{"job": "TimeExchanges", "settings": {"exchanges": [[1, 2, 3]]}}', "each of 2 ranks"),
        (b'{"job": "TimeExchanges", "settings": {"exchanges": [[1, -2]]}}', "each of 2 ranks"),
        (b'{"job": "TimeExchanges", "settings": {"exchanges": [[1, 2.5]]}}', "not a whole number"),
        (b'{"job": "MeasurePlacement", "settings": {"tables": []}}', "machine is missing"),
    ],
)
def test_what_is_not_a_job_is_one_line(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_job(content, KINDS, 2)


def change(record: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        record = record[int(step) if step.isdigit() else step]
    record[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("batch_size", 0),
        ("machine.num_devices", 10**12),
        ("tables", []),
        ("tables.1.num_rows", -1),
        ("tables.1.num_rows", 2**62),
        ("tables.1.pooling_factor", -0.5),
        ("tables.1.name", None),
        ("parts.1.devices", [2]),
        ("parts.1.devices", [-1]),
        ("parts.1.devices", []),
        ("parts.1.devices", [0, 1]),
        ("parts.1.devices", ["1"]),
        ("parts.1.columns", [0, 1]),
        ("parts.1.table", "a"),
        ("machine.num_devices", 3),
    ],
)
def test_a_placement_comes_as_it_was_handed_out_or_not_at_all(path: str, value: Any) -> None:
    tables = (table("a", pooling=2.0), table("b", rows=2**40, pooling=0.3))
    job = MeasurePlacement(tables, Nodes.one_node(2), 64, Placement((0, 1), 2).parts(tables))
    plain = encode_job(job)
    assert decode_job(plain, JOBS, 2) == job and repr(decode_job(plain, JOBS, 2)) == repr(job)
    with pytest.raises(ValueError, match="cannot run on 3 ranks"):
        decode_job(plain, JOBS, 3)
    record = json.loads(plain)
    change(record["settings"], path, value)
    with pytest.raises(ValueError, match=r"."):
        decode_job(json.dumps(record).encode(), JOBS, 2)
    assert decode_job(encode_job(None), JOBS, 2) is None


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
def test_a_task_needs_one_device_for_each_process(notes: dict[str, Any]) -> None:
    size = notes["size"]
    assert isinstance(notes["wrong_number"], BadInput)
    assert f"has {size + 1} devices, but torchrun started {size} processes" in str(notes["wrong_number"])
    assert f"--nproc-per-node {size + 1}." in str(notes["wrong_number"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["giant", "out_of_memory_forward", "out_of_memory_backward"])
def test_a_shard_that_does_not_fit_is_a_finding_and_the_others_are_timed_alone(
    notes: dict[str, Any], name: str
) -> None:
    cost: PlacementCost = notes[name]
    assert [device.status == OUT_OF_MEMORY for device in cost.devices] == [
        rank == 1 for rank in range(len(cost.devices))
    ]
    for device in (cost.devices[0], *cost.devices[2:]):
        assert device.fwd_compute_ms > 0 and device.bwd_compute_ms > 0
        assert (device.fwd_all_to_all_ms, device.bwd_all_to_all_ms, device.fwd_wait_ms) == (0, 0, 0)


@pytest.mark.slow
def test_two_devices_may_run_out_of_memory_one_after_the_other(notes: dict[str, Any]) -> None:
    statuses = [device.status for device in notes["out_of_memory_later"].devices]
    assert statuses == [OUT_OF_MEMORY] * 2 + ["ok"] * (notes["size"] - 2)


@pytest.mark.slow
def test_a_failing_kernel_names_its_rank(notes: dict[str, Any]) -> None:
    assert type(notes["failed"]) is MeasurementFailed
    assert str(notes["failed"]) == "rank 1 cannot measure task: a bad kernel"
    assert type(notes["bad_input"]) is BadInput and "mixed weight_bits" in str(notes["bad_input"])


@pytest.mark.slow
def test_rows_say_what_exchanged(notes: dict[str, Any]) -> None:
    provenance = notes["provenance"]
    assert provenance.link == "gloo"
    assert provenance.hardware.startswith("cpu: ") and provenance.hardware.endswith(f" x {notes['size']}")
    assert 0 < notes["time_share"].kernel_share < 1


@pytest.mark.slow
def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    done = torchrun(3, tmp_path, "lose", "1", "SIGKILL")
    assert done.returncode != 0
    assert said(done) == ["failed: rank 1 died while measuring train-003. Its output above may contain the reason."]


@pytest.mark.slow
def test_a_stopped_rank_ends_the_run(tmp_path: Path) -> None:
    """It is woken up after rank 0 has ended, or else torchrun would give it 30 s to obey."""

    def wake_up_later() -> None:
        wait_until((tmp_path / "stopping").exists, "no rank was stopped")
        leader = Path(f"/proc/{(tmp_path / 'pid-0').read_text()}")
        wait_until(lambda: not leader.exists(), "rank 0 did not end")
        os.kill(int((tmp_path / "pid-2").read_text()), signal.SIGCONT)

    waker = threading.Thread(target=wake_up_later)
    waker.start()
    done = torchrun(3, tmp_path, "lose", "2", "SIGSTOP")
    waker.join()
    assert done.returncode != 0
    (line,) = said(done)
    assert "rank 2 did not answer within 10 s while measuring train-003: it hung or died." in line


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_rank_0_the_others_end(tmp_path: Path, how: str) -> None:
    """Without torchrun, which would end them anyway; rank 0 keeps the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "lose", str(tmp_path), "0", how]
    leader = subprocess.Popen(command, env={**env, "RANK": "0"}, stderr=subprocess.PIPE)
    try:
        follower = subprocess.run(command, env={**env, "RANK": "1"}, capture_output=True, text=True, timeout=PATIENCE_S)
    finally:
        leader.kill()
        leader.communicate()
    assert follower.returncode == 1
    assert [line for line in said(follower) if "rank 1: rank 0 hung or died" in line] == said(follower) != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("dismissed", ""),
        ("idle_and_unclosed", "failed: rank 0 gives up"),
        ("other_settings", "failed: rank 1 has other measurement settings than rank 0."),
    ],
)
def test_the_others_end_when_rank_0_leaves_without_closing(tmp_path: Path, scenario: str, message: str) -> None:
    """Idle for longer than the timeout beforehand, while rank 0 is well, they still serve."""
    done = torchrun(2, tmp_path, scenario)
    assert (done.returncode != 0) == bool(message)
    assert len(said(done)) == bool(message) and all(line.startswith(message) for line in said(done))


# Who gets what --------------------------------------------------------------------------------------------------------


def test_splits_by_hand() -> None:
    """7 samples on 3 ranks are 3, 2 and 2; the devices hold 10, 0 and 4 dims."""
    assert split_samples(7, 3) == (3, 2, 2)
    assert compute_splits([10, 0, 4], 7, 0) == Splits(sent=(30, 20, 20), received=(30, 0, 12))
    assert compute_splits([10, 0, 4], 7, 1) == Splits(sent=(0, 0, 0), received=(20, 0, 8))
    assert compute_splits([10, 0, 4], 7, 2) == Splits(sent=(12, 8, 8), received=(20, 0, 8))


def test_fewer_samples_than_ranks() -> None:
    assert split_samples(1, 3) == (1, 0, 0)


def test_costs_by_hand() -> None:
    """The warm-up step does not count; at each barrier the shortest wait (1, 2 and 1 ms) is the barrier's own cost."""
    slow = (Step(99, 99, 99, 99, 99), Step(9, 1, 2, 3, 7), Step(10, 2, 4, 3, 8), Step(14, 1, 3, 6, 8))
    quick = (Step(99, 99, 99, 99, 99), Step(2, 8, 2, 2, 1), Step(2, 11, 2, 2, 1), Step(2, 13, 2, 2, 1))
    first, second, third = device_costs([Finding(slow), Finding(quick), Finding(problem=OUT_OF_MEMORY)], warmup=1)
    assert times(first) == (10, 3, 3, 8) and first.fwd_wait_ms == 0
    assert (first.fwd_compute_spread_ms, first.bwd_compute_spread_ms) == (2.5, 0.5)
    assert times(second) == (2, 2, 2, 1) and second.fwd_wait_ms == 9
    assert third == DeviceCost.out_of_memory()


def test_one_process_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (collective.world_size(), collective.is_follower()) == (1, False)
    collective.dismiss()


if __name__ == "__main__":
    sys.exit(process(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
