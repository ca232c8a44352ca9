"""Reader of ``torch.profiler`` traces: the operators of each thread, and the GPU work that each operator launched."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from evenshard.base.documents import has_gzip_magic, is_gzipped
from evenshard.base.errors import BadFile, blame_file
from evenshard.base.knobs import RANGES
from evenshard.base.messages import reason_of

HOW_TO_RECORD = "Record every rank with torch.profiler as `evenshard observe --help` shows"

MAX_TRACE_BYTES = 4 * 2**30  # largest size of one trace as JSON; ten steps take 30 to 100 MB
# Categories of events, in lower case; their names differ between versions of torch.
_OPS = {"cpu_op", "operator", "user_annotation"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}
_ON_GPU = {"kernel", "gpu_memset", "memset", "gpu_memcpy", "memcpy"}
_KERNEL_LAUNCH = re.compile(r"(?:cuda|hip|cu)Launch\w*Kernel")
_NCCL = re.compile(r"nccl:")
_FUSED_ON_CPU = re.compile(r"fbgemm::\w*codegen\w*_cpu")
_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True)
class Op:
    """An operator or an annotation on a thread of the CPU; times are microseconds."""

    name: str
    start_us: float
    duration_us: float
    thread: object
    parent: Op | None  # enclosing operator on the same thread
    input_dims: tuple[Any, ...]  # sizes of its inputs, such as ((1000,), ()); empty in a trace without shapes
    input_types: tuple[str, ...]  # types of its inputs, such as "long int" or "Scalar"
    scalars: tuple[str, ...]  # numeric inputs, as text; empty in older traces
    sequence: int | None  # autograd's sequence number, shared by forward and backward

    @property
    def end_us(self) -> float:
        """Return the end time."""
        return self.start_us + self.duration_us

    def around(self) -> Iterator[Op]:
        """Yield the operator itself, then its enclosing operators, innermost first."""
        op: Op | None = self
        while op is not None:
            yield op
            op = op.parent


@dataclass(frozen=True)
class GpuWork:
    """A kernel, copy or fill on the GPU, and the operator that launched it."""

    name: str
    start_us: float
    duration_us: float
    op: Op

    @property
    def end_us(self) -> float:
        """Return the end time."""
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class Trace:
    """One rank's trace."""

    source: str  # file name, followed by the member of an archive
    rank: int  # among ``world_size`` processes; 0 of 1 if the trace lacks it
    world_size: int
    gpu: str  # name of the rank's GPU; "" if the training ran on CPUs. ``gpu_work`` may be empty even with a GPU
    memory_bytes: int  # memory of that GPU; 0 if unknown
    backend: str  # of the process group, such as "nccl"; "" if unknown
    started_at: float  # start of the first operator, seconds since 1970 UTC
    has_shapes: bool  # True if operators have the sizes of their inputs (``record_shapes=True``)
    steps: tuple[tuple[int, float, float], ...]  # (number, start, end), in order; empty without ``prof.step()``
    ops: tuple[Op, ...]  # ordered by start
    gpu_work: tuple[GpuWork, ...]  # ordered by start, without work that was launched before the trace

    def step_at(self, moment_us: float) -> int | None:
        """Return the number of the training step at a time of the CPU's clock; None outside all steps."""
        found = bisect_right(self.steps, moment_us, key=lambda step: step[1]) - 1
        return self.steps[found][0] if found >= 0 and moment_us <= self.steps[found][2] else None


def read_traces(path: Path) -> Iterator[Trace]:
    """Yield the traces of a .json or .json.gz file, or of an archive of several (.tar, .tar.gz).

    Raises:
        BadFile: if the file is missing, truncated, or not from ``torch.profiler``.
    """
    for source, content in _contents(path):
        yield _parse_trace(path, source, content)


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with ExitStack() as opened:
            packed = opened.enter_context(path.open("rb"))
            file: Any = opened.enter_context(gzip.open(packed)) if is_gzipped(path) else packed
            is_archive = tarfile.is_tarfile(file)
            file.seek(0)
            if is_archive:
                archive = opened.enter_context(tarfile.open(fileobj=file, mode="r|"))
                yield from _members(path, archive)
            else:
                yield str(path), _content(path, file)
    except FileNotFoundError:
        raise BadFile(path, "no such file", f"{HOW_TO_RECORD}.") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        problem = f"it is incomplete or not a trace ({reason_of(error)})"
        raise BadFile(path, problem, f"Copy or record it again. {HOW_TO_RECORD}.") from None


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    found = False
    for member in archive:
        if not member.isfile() or not member.name.endswith((".json", ".json.gz")):
            continue
        found = True
        file = archive.extractfile(member)
        assert file is not None  # a regular member is a file
        content = _content(path, file)
        if has_gzip_magic(content):
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = _content(path, unpacked)
        yield f"{path}:{member.name}", content
    if not found:
        raise BadFile(path, "the archive has no .json or .json.gz file", f"{HOW_TO_RECORD}.")


def _content(path: Path, file: IO[bytes] | gzip.GzipFile) -> bytes:
    """Read a file in chunks, because a single read allocates the size in the file's header, which may be wrong."""
    content = io.BytesIO()
    while chunk := file.read(2**20):
        content.write(chunk)
        if content.tell() > MAX_TRACE_BYTES:
            problem = f"the trace is larger than {MAX_TRACE_BYTES / 2**30:.0f} GB"
            raise BadFile(path, problem, "Record fewer steps (active=10).")
    return content.getvalue()


@blame_file
def _parse_trace(path: Path, source: str, content: bytes) -> Trace:
    where = source.removeprefix(f"{path}").lstrip(":") or None
    try:
        document = json.loads(content.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError) as error:
        problem = f"it is incomplete or not JSON ({reason_of(error)})"
        raise BadFile(path, problem, f"Copy or record it again. {HOW_TO_RECORD}.", where) from None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise BadFile(path, "it has no traceEvents, so it is not a trace of torch.profiler", f"{HOW_TO_RECORD}.", where)
    try:
        return _parse_events(source, document, [event for event in events if isinstance(event, dict)])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"one of its events is not in torch.profiler's format ({reason_of(error)})"
        raise BadFile(path, problem, f"{HOW_TO_RECORD}.", where) from None


def _parse_events(source: str, document: Mapping[str, Any], events: list[dict[str, Any]]) -> Trace:
    on_cpu: dict[object, list[dict[str, Any]]] = {}
    on_gpu: list[dict[str, Any]] = []
    launches: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = str(event.get("cat", "")).lower()
        if event.get("ph") != "X":
            continue
        if kind in _OPS:
            on_cpu.setdefault((event["pid"], event["tid"]), []).append(event)
        elif kind in _ON_GPU:
            on_gpu.append(event)
        elif kind in _LAUNCHES and "correlation" in event.get("args", {}):
            launches[event["args"]["correlation"]] = event
    threads = {thread: _nest_ops(thread, ops) for thread, ops in on_cpu.items()}
    starts = {thread: [op.start_us for op in ops] for thread, ops in threads.items()}
    by_external_id = {
        event["args"]["External id"]: op
        for thread, of_thread in on_cpu.items()
        for event, op in zip(of_thread, threads[thread], strict=True)
        if "External id" in event.get("args", {})
    }

    def find_starter(event: Mapping[str, Any]) -> Op | None:
        """Find the operator that launched a kernel; if the trace has no launches, find it by the external id."""
        launch = launches.get(event["args"].get("correlation"))
        if launch is None:
            return None if launches else by_external_id.get(event["args"].get("External id"))
        thread = (launch["pid"], launch["tid"])
        moment = _time(launch, "ts")
        before = bisect_right(starts.get(thread, []), moment)
        last = threads[thread][before - 1] if before else None
        return next((op for op in last.around() if op.end_us >= moment), None) if last is not None else None

    work = [
        GpuWork(str(event["name"]), _time(event, "ts"), _time(event, "dur"), op)
        for event in on_gpu
        if (op := find_starter(event)) is not None
    ]
    ops = sorted((op for of_thread in threads.values() for op in of_thread), key=lambda op: op.start_us)
    steps = {int(found[1]): op for op in ops if op.duration_us > 0 and (found := _STEP.match(op.name))}
    info = document.get("distributedInfo") or {}
    names = [*(op.name for op in ops), *(str(event["name"]) for event in launches.values())]
    gpu = _gpu(document.get("deviceProperties") or (), on_gpu, names, str(info.get("backend", "")))
    rank, world_size = int(info.get("rank", 0)), int(info.get("world_size", 1))
    if not 0 <= rank < world_size or RANGES["num_devices"].problem(world_size):
        raise ValueError(f"rank {rank} with a world size of {world_size}")
    return Trace(
        source=source,
        rank=rank,
        world_size=world_size,
        gpu=str(gpu.get("name", "")),
        memory_bytes=int(gpu.get("totalGlobalMem", 0)),
        backend=str(info.get("backend", "")),
        started_at=int(document.get("baseTimeNanoseconds", 0)) / 1e9 + (ops[0].start_us / 1e6 if ops else 0.0),
        has_shapes=any(op.input_dims for op in ops),
        steps=tuple((number, op.start_us, op.end_us) for number, op in steps.items()),
        ops=tuple(ops),
        gpu_work=tuple(sorted(work, key=lambda kernel: kernel.start_us)),
    )


def _gpu(
    properties: Sequence[Mapping[str, Any]], on_gpu: Sequence[Mapping[str, Any]], names: Sequence[str], backend: str
) -> Mapping[str, Any]:
    """Return the properties of the rank's GPU; empty if the training ran on the CPU.

    A trace without ``ProfilerActivity.CUDA`` has no GPU work. The training still ran on a GPU if the trace has NCCL
    collectives or kernel launches, or if the machine has GPUs and the fused operators are not the CPU's.
    """
    unknown = {"name": "unknown GPU"}
    devices = [event["args"]["device"] for event in on_gpu if "device" in event.get("args", {})]
    if devices:
        return {known.get("id"): known for known in properties}.get(devices[0], unknown)
    used = backend == "nccl" or any(_NCCL.match(name) or _KERNEL_LAUNCH.match(name) for name in names)
    if used or (properties and not any(map(_FUSED_ON_CPU.match, names))):
        return properties[0] if properties else unknown
    return {}


def _nest_ops(thread: object, events: list[dict[str, Any]]) -> list[Op]:
    """Return the operators of one thread, sorted by start, each with the operator that encloses it."""
    events.sort(key=lambda event: (_time(event, "ts"), -_time(event, "dur")))
    ops: list[Op] = []
    parent: Op | None = None
    for event in events:
        args = event.get("args", {})
        start, duration = _time(event, "ts"), _time(event, "dur")
        # Rounding to microseconds may put the end of an operator 1 us after the end of its parent.
        parent = next((op for op in parent.around() if op.end_us > start), None) if parent else None
        parent = Op(
            name=str(event["name"]),
            start_us=start,
            duration_us=duration,
            thread=thread,
            parent=parent,
            input_dims=tuple(tuple(dims) if isinstance(dims, list) else () for dims in args.get("Input Dims", ())),
            input_types=tuple(map(str, args.get("Input type", ()))),
            scalars=tuple(map(str, args.get("Concrete Inputs", ()))),
            sequence=int(args["Sequence number"]) if "Sequence number" in args else None,
        )
        ops.append(parent)
    return ops


def _time(event: Mapping[str, Any], name: str) -> float:
    value = event[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is not a valid time")
    return float(value)
