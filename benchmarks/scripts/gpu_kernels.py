"""Measurement of FBGEMM's fused embedding on a GPU, kernel by kernel, with launches, copies and dense products.

    python -m benchmarks.scripts.gpu_kernels FOLDER --budget-s 300 [--seed 0]

needs only torch, NumPy and FBGEMM. Each measurement becomes a line of ``FOLDER/measured.jsonl`` at once:

    shard     one fused call of random tables: forward and backward by CUDA events with the L2 flushed before each,
              then each kernel by torch.profiler, with the host's time of its operators and the peak of memory
    calls     several fused calls, one after the other, of one device
    host      tables in host memory (UVM), without a cache in device memory and with one
    product   a matrix product of dense layers
    copy      bytes copied within device memory, and over the host's link

First, outputs and updated weights are compared with double precision on random tables; if they differ, the run stops
before it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from evenshard.measure.clock import CacheFlush, Stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import (
    LoadedShard,
    OutOfDeviceMemory,
    ShardKernels,
    join_batches,
    kernel_provenance,
)
from evenshard.measure.traces.fused_calls import TRACED_KERNELS, FusedCall, list_fused_calls
from evenshard.measure.traces.kineto import read_traces
from evenshard.placement.memory import OPTIMIZERS as MODEL_OPTIMIZERS
from evenshard.tables.reuse import power_law_reuse_bins
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import SEQUENCE, SUM, Table

OPTIMIZERS = {"rowwise_adagrad": 0.5, "sgd": 0.3, "adam": 0.2}
BATCH_SIZES = (256, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
BATCH_SHARES = (0.05, 0.05, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2)
DIMS = (4, 8, 16, 32, 64, 128, 256)
# Limits of one fused call, so that it fits on a device of 80 GB and hundreds are measured in a minute.
MAX_LOOKUPS, MAX_WEIGHT_BYTES, MAX_OUTPUT_BYTES = 2**23, 16 * 2**30, 3 * 2**30
WARMUP, REPEATS, PROFILED = 2, 5, 3
CHECKED_LEARNING_RATE = 0.5  # large, so that updates are visible in the weights
MLPERF = "mlperf_dlrm_v2"


@dataclass(frozen=True)
class Shard:
    """Tables of one fused call, and the distribution of their lookups.

    Attributes:
        kind: family of the random shard.
        tables: tables with the same pooling and precision.
        alphas: exponent of each table's power law of lookups; 0 for uniform lookups.
        batch_size: samples.
        optimizer: of the backward pass.
        is_sorted: True if a table's rows lie in the order of their lookups; else they are scattered.
    """

    kind: str
    tables: tuple[Table, ...]
    alphas: tuple[float, ...]
    batch_size: int
    optimizer: str
    is_sorted: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """Return the shard as a record for a line of the file; see ``of_record``."""
        return {
            "kind": self.kind,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "weight_bits": self.tables[0].weight_bits,
            "pooling": self.tables[0].pooling,
            "is_sorted": self.is_sorted,
            "tables": [
                [table.num_rows, table.embedding_dim, table.pooling_factor, alpha]
                for table, alpha in zip(self.tables, self.alphas, strict=True)
            ],
        }

    @staticmethod
    def of_record(record: dict[str, Any]) -> Shard:
        """Restore the shard from its record."""
        batch_size, bits = record["batch_size"], record["weight_bits"]
        tables = tuple(
            table_of(f"t{number}", rows, dim, lookups, alpha, batch_size, bits, record["pooling"])
            for number, (rows, dim, lookups, alpha) in enumerate(record["tables"])
        )
        alphas = tuple(one[3] for one in record["tables"])
        return Shard(record["kind"], tables, alphas, batch_size, record["optimizer"], record["is_sorted"])


def table_of(
    name: str, rows: int, dim: int, lookups: float, alpha: float, batch_size: int, bits: int, pooling: str = SUM
) -> Table:
    """Return a table whose lookups follow a power law."""
    bins = power_law_reuse_bins(rows, max(round(lookups * batch_size), 1), alpha)
    return Table(name, rows, dim, lookups, bins, bits, pooling=pooling)


# Shards --------------------------------------------------------------------------------------------------------------


def random_shard(seed: tuple[int, ...]) -> Shard:
    """Draw the shard of a seed, whose last number chooses the family."""
    return _FAMILIES[seed[-1] % len(_FAMILIES)](np.random.default_rng(seed))


def _mixture(rng: np.random.Generator, kind: str = "mixed", least: int = 2, most: int = 64) -> Shard:
    number = int(_log_uniform(rng, least, most + 0.99))
    same = rng.random() < 0.5
    dims = np.full(number, rng.choice(DIMS)) if same else rng.choice(DIMS, number)
    return _draw(rng, kind, dims, _log_uniform(rng, 0.1, 60, number), _log_uniform(rng, 30, 3e7, number))


def _one_table(rng: np.random.Generator) -> Shard:
    return _mixture(rng, "one table", 1, 1)


def _many(rng: np.random.Generator) -> Shard:
    return _mixture(rng, "many tables", 65, 400)


def _hardly(rng: np.random.Generator) -> Shard:
    number = int(_log_uniform(rng, 1, 12))
    shape = np.full(number, rng.choice(DIMS)), _log_uniform(rng, 0.01, 2, number), _log_uniform(rng, 30, 3e7, number)
    return _draw(rng, "hardly looked up", *shape, batch_size=int(rng.choice(BATCH_SIZES[:5])))


def _recommender(rng: np.random.Generator) -> Shard:
    """Draw tables as in public click models: all have the same dim, and most get one lookup per sample."""
    number = int(_log_uniform(rng, 4, 40))
    lookups = np.where(rng.random(number) < 0.7, 1.0, np.ceil(_log_uniform(rng, 1, 100, number)))
    rows = _log_uniform(rng, 3, 4e7, number)
    return _draw(rng, "recommender", np.full(number, rng.choice((16, 32, 64, 128))), lookups, rows)


def _sequences(rng: np.random.Generator) -> Shard:
    number = int(_log_uniform(rng, 1, 9))
    shape = (
        np.full(number, rng.choice((32, 64, 128, 256))),
        _log_uniform(rng, 1, 200, number),
        _log_uniform(rng, 1e3, 2e7, number),
    )
    return _draw(rng, "sequences", *shape, pooling=SEQUENCE, batch_size=int(rng.choice(BATCH_SIZES[:6])))


def _mlperf(rng: np.random.Generator) -> Shard:
    """Draw some of the tables of MLPerf's DLRM v2, as one device may have them."""
    tables = load_catalog(MLPERF, BATCH_SIZES[-1])
    some = [tables[at] for at in rng.permutation(len(tables))[: int(rng.integers(2, 14))]]
    lookups, rows = (np.array([float(getattr(one, name)) for one in some]) for name in ("pooling_factor", "num_rows"))
    shape = np.array([one.embedding_dim for one in some]), lookups, rows
    return _draw(rng, "mlperf", *shape, batch_size=int(rng.choice(BATCH_SIZES[4:])))


def _draw(
    rng: np.random.Generator,
    kind: str,
    dims: np.ndarray,
    lookups: np.ndarray,
    rows: np.ndarray,
    batch_size: int | None = None,
    pooling: str = SUM,
) -> Shard:
    batch_size = batch_size or int(rng.choice(BATCH_SIZES, p=BATCH_SHARES))
    optimizer = str(rng.choice(list(OPTIMIZERS), p=list(OPTIMIZERS.values())))
    bits = 32 if optimizer == "adam" else int(rng.choice((16, 32)))  # FBGEMM's Adam supports only 32 bits
    outputs = dims * (lookups if pooling == SEQUENCE else np.ones(len(dims)))
    while batch_size > BATCH_SIZES[0] and 4 * batch_size * outputs.sum() > MAX_OUTPUT_BYTES:
        batch_size //= 2
    lookups = lookups * min(1.0, MAX_LOOKUPS / (batch_size * lookups.sum()))
    rows = np.maximum(rows * min(1.0, MAX_WEIGHT_BYTES / (rows * dims * bits / 8).sum()), 3.0).astype(int)
    alphas = np.round(rng.uniform(0, 1.3, len(dims)), 2).tolist()
    lookups = np.array([float(f"{one:.4g}") for one in lookups.tolist()])
    shape = zip(rows.tolist(), dims.tolist(), lookups.tolist(), alphas, strict=True)
    tables = tuple(table_of(f"t{i}", *one, batch_size, bits, pooling) for i, one in enumerate(shape))
    return Shard(kind, tables, tuple(alphas), batch_size, optimizer)


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int | None = None) -> Any:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


_FAMILIES = (_mixture, _one_table, _mixture, _recommender, _mixture, _hardly, _mixture, _sequences, _many, _mlperf)


_CALL_TIMES = ("forward_span_us", "backward_span_us", "forward_host_us", "backward_host_us")


def median_calls(calls: Sequence[FusedCall]) -> list[FusedCall]:
    """Reduce the training steps to one call per rank and position, with medians of each kernel."""
    repeats: dict[tuple[int, int], list[FusedCall]] = defaultdict(list)
    for call in calls:
        repeats[call.rank, call.position].append(call)
    return [_median_call(repeats[key]) for key in sorted(repeats)]


def _median_call(repeats: Sequence[FusedCall]) -> FusedCall:
    names = {kind: {n: None for one in repeats for n in one.kernels_us.get(kind, {})} for kind in TRACED_KERNELS}

    def kernel(kind: str, name: str) -> float:
        return median(one.kernels_us.get(kind, {}).get(name, 0.0) for one in repeats)

    lookups = [one.num_lookups for one in repeats if one.num_lookups is not None]
    return replace(
        repeats[0],
        step=None,
        num_lookups=round(median(lookups)) if lookups else None,
        kernels_us={kind: {name: kernel(kind, name) for name in of} for kind, of in names.items() if of},
        **{name: median(getattr(one, name) for one in repeats) for name in _CALL_TIMES},
    )


# Measuring -----------------------------------------------------------------------------------------------------------


class Bench:
    """Measurements on one device, written to a file."""

    def __init__(self, device: torch.device, folder: Path, seed: int) -> None:
        self.device, self.folder, self.rng = device, folder, np.random.default_rng(seed)
        self._configs = {
            name: MeasureConfig(hardware=device.type, optimizer=name, num_batches=1, seed=seed) for name in OPTIMIZERS
        }
        self._kernels = {name: ShardKernels(config, device) for name, config in self._configs.items()}
        self._flush = CacheFlush(device, keep_warm=False)
        self._names: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "measured.jsonl").open("a", encoding="utf-8")
        origin = kernel_provenance(self._configs["sgd"], device, "none")
        self.write("origin", hardware=origin.hardware, driver=origin.driver, versions=origin.versions, seed=seed)

    def write(self, what: str, **values: Any) -> None:
        """Write one line at once."""
        self._file.write(json.dumps({"what": what, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def load(self, shard: Shard) -> LoadedShard:
        """Load the shard with small random weights."""
        kernels = self._kernels[shard.optimizer]
        operator = kernels.operator(shard.tables, shard.tables[0].pooling)
        operator.init_embedding_weights_uniform(-0.01, 0.01)
        drawn = [kernels.table_batches(table, shard.batch_size) for table in shard.tables]
        if shard.is_sorted:
            drawn = [[(_in_order(indices), lengths) for indices, lengths in of_table] for of_table in drawn]
        batches = join_batches(drawn)
        columns = sum(table.embedding_dim for table in shard.tables)
        shape = (shard.batch_size, columns)
        if shard.tables[0].pooling == SEQUENCE:
            shape = len(batches[0][0]), shard.tables[0].embedding_dim
        return LoadedShard(operator, batches, 1e-3 * torch.randn(shape, device=self.device))

    def shard(self, shard: Shard) -> None:
        """Measure a fused call: its times, kernels and memory."""
        with self._kernels[shard.optimizer].watch_failures(shard.tables):
            self._reset_peak()
            before = self._allocated_bytes()
            loaded = self.load(shard)
            held = self._allocated_bytes() - before
            self._reset_peak()
            forward_ms, backward_ms = self._repeat_ms([loaded])
            peak = self._peak() - before
            calls = median_calls(self._trace_calls(loaded))
        kernels = {
            kind: {str(self._name(name)): round(us, 2) for name, us in of.items()}
            for call in calls[:1]
            for kind, of in call.kernels_us.items()
        }
        host = [round(one, 1) for call in calls[:1] for one in (call.forward_host_us, call.backward_host_us)]
        spans = [round(one, 1) for call in calls[:1] for one in (call.forward_span_us, call.backward_span_us)]
        self.write(
            "shard",
            **shard.record,
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            kernels_us=kernels,
            host_us=host,
            span_us=spans,
            num_lookups=[len(indices) for indices, _ in loaded.batches],
            held_bytes=held,
            peak_bytes=peak,
        )

    def calls(self, shards: Sequence[Shard]) -> None:
        """Measure several fused calls in sequence: all forward passes, then all backward passes."""
        with self._kernels[shards[0].optimizer].watch_failures([table for one in shards for table in one.tables]):
            loaded = [self.load(one) for one in shards]
            together = self._repeat_ms(loaded)
            alone = [self._repeat_ms([one]) for one in loaded]
        ms = [[median(one) for one in pair] for pair in alone]
        self.write("calls", shards=[one.record for one in shards], together_ms=together, alone_ms=ms)

    def _repeat_ms(self, loaded: Sequence[LoadedShard]) -> tuple[list[float], list[float]]:
        """Return the forward and backward times of every repeat, ms."""
        times = []
        for number in range(WARMUP + REPEATS):
            self._flush()
            watch = Stopwatch(self.device)
            watch.mark()
            outputs = [one.forward(number) for one in loaded]
            watch.mark()
            torch.autograd.backward(
                outputs, [one.gradient[: len(out)] for one, out in zip(loaded, outputs, strict=True)]
            )
            watch.mark()
            times.append([round(one, 5) for one in watch.laps_ms()])
        forward_ms, backward_ms = zip(*times[WARMUP:], strict=True)
        return list(forward_ms), list(backward_ms)

    def _trace_calls(self, loaded: LoadedShard) -> list[FusedCall]:
        """Record the shard with torch.profiler and return the fused calls of the trace."""
        profile = torch.profiler
        kinds = [profile.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            kinds.append(profile.ProfilerActivity.CUDA)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            with profile.profile(activities=kinds, record_shapes=True) as recorder:
                for number in range(PROFILED):
                    with profile.record_function(f"ProfilerStep#{number}"):
                        self._flush()
                        output = loaded.forward(number)
                        output.backward(loaded.gradient[: len(output)])  # type: ignore[no-untyped-call]
                        self._wait()
            recorder.export_chrome_trace(str(path))
            if not (self.folder / "first_trace.json").exists():
                (self.folder / "first_trace.json").write_bytes(path.read_bytes())
            return [call for trace in read_traces(path) for call in list_fused_calls(trace)]

    def _name(self, kernel: str) -> int:
        if kernel not in self._names:
            self._names[kernel] = len(self._names)
            self.write("name", number=self._names[kernel], kernel=kernel)
        return self._names[kernel]

    def host_tables(
        self, rows: int, dim: int, batch_size: int, alpha: float, load_factor: float, optimizer: str
    ) -> None:
        """Measure an unpooled table in host memory, one lookup per sample; ``load_factor`` of its rows are cached."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        table = table_of("t0", rows, dim, 1.0, alpha, batch_size, 32, SEQUENCE)
        place = EmbeddingLocation.MANAGED_CACHING if load_factor else EmbeddingLocation.MANAGED
        operator = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, place, ComputeDevice.CUDA)],
            pooling_mode=PoolingMode.NONE,
            optimizer=EmbOptimType[MODEL_OPTIMIZERS[optimizer].fbgemm_names[0]],
            weights_precision=SparseType.FP32,
            device=self.device,
            cache_load_factor=load_factor or 0.2,
        )
        drawn = ShardKernels(replace(self._configs["sgd"], num_batches=8), self.device).table_batches(table, batch_size)
        batches = []
        for indices, lengths in drawn:
            offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self.device)
            torch.cumsum(lengths, 0, out=offsets[1:])
            batches.append((indices.long(), offsets))
        loaded = LoadedShard(operator, batches, 1e-3 * torch.randn(batch_size, dim, device=self.device))
        self._repeat_ms([loaded])
        forward_ms, backward_ms = self._repeat_ms([loaded])
        self.write(
            "host",
            rows=rows,
            dim=dim,
            batch_size=batch_size,
            alpha=alpha,
            load_factor=load_factor,
            optimizer=optimizer,
            uniques=[len(indices.unique()) for indices, _ in drawn],
            forward_ms=forward_ms,
            backward_ms=backward_ms,
        )

    def product(self, m: int, n: int, k: int, dtype: str) -> None:
        """Measure the product of [m, k] and [k, n]."""
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}[dtype]
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        left = torch.randn(m, k, device=self.device).to(kind)
        right = torch.randn(k, n, device=self.device).to(kind)
        ms = self._calls_ms(lambda: torch.mm(left, right))
        self.write("product", m=m, n=n, k=k, dtype=dtype, ms=ms)

    def copies(self) -> None:
        """Measure copies within device memory, and over the host's link."""
        source = torch.randint(0, 255, (2**32,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.write(
            "copy", where="device", num_bytes=2 * source.numel(), ms=self._calls_ms(lambda: target.copy_(source))
        )
        pinned = torch.empty(2**28, dtype=torch.uint8).pin_memory()
        one = source[: 2**28]
        self.write("copy", where="to device", num_bytes=2**28, ms=self._calls_ms(lambda: one.copy_(pinned)))
        self.write("copy", where="to host", num_bytes=2**28, ms=self._calls_ms(lambda: pinned.copy_(one)))

    def _calls_ms(self, call: Callable[[], object]) -> float:
        for _ in range(3):
            call()
        watch = Stopwatch(self.device)
        times = []
        for _ in range(7):
            self._flush()
            watch = Stopwatch(self.device)
            watch.mark()
            call()
            watch.mark()
            times += watch.laps_ms()
        return round(median(times), 5)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)


def _in_order(indices: torch.Tensor) -> torch.Tensor:
    """Renumber the rows of the lookups so that they are adjacent, the hottest first."""
    _, inverse, counts = indices.unique(return_inverse=True, return_counts=True)
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True)] = torch.arange(len(counts), device=counts.device)
    return ranks[inverse].to(indices.dtype)


# Correctness ---------------------------------------------------------------------------------------------------------


def check(bench: Bench) -> float:
    """Return the largest relative error of outputs and updated weights against double precision."""
    worst = 0.0
    for optimizer in ("sgd", "rowwise_adagrad"):
        for pooling in (SUM, SEQUENCE):
            dims = (64, 64, 64) if pooling == SEQUENCE else (16, 64, 256)
            tables = tuple(
                table_of(f"t{i}", 1000 * (i + 1), dim, 5.0, 0.8, 512, 32, pooling) for i, dim in enumerate(dims)
            )
            loaded = bench.load(Shard("check", tables, (0.8,) * 3, 512, optimizer))
            loaded.operator.set_learning_rate(CHECKED_LEARNING_RATE)
            loaded = replace(loaded, gradient=torch.randn(loaded.gradient.shape, device=bench.device))
            before = [one.detach().clone().double() for one in loaded.operator.split_embedding_weights()]
            output = loaded.forward(0)
            loaded.backward(output)
            after = [one.detach().double() for one in loaded.operator.split_embedding_weights()]
            expected, updated = reference_step(loaded, before, 512, pooling, optimizer)
            pairs = [(output.detach().double(), expected), *zip(after, updated, strict=True)]
            pairs += [(one - old, new - old) for one, new, old in zip(after, updated, before, strict=True)]
            worst = max(worst, *(float((one - two).norm() / two.norm()) for one, two in pairs))
    assert worst < 1e-3, f"FBGEMM's kernels are off by {worst:.2g}"
    return worst


def reference_step(
    loaded: LoadedShard, before: list[torch.Tensor], batch_size: int, pooling: str, optimizer: str
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Compute outputs and updated weights by PyTorch's own embeddings in double precision."""
    indices, offsets = loaded.batches[0]
    outputs, weights = [], [one.clone().requires_grad_() for one in before]
    for number, weight in enumerate(weights):
        bounds = offsets[number * batch_size : (number + 1) * batch_size + 1].long()
        own = indices[bounds[0] : bounds[-1]].long()
        if pooling == SEQUENCE:
            outputs.append(torch.nn.functional.embedding(own, weight))
        else:
            outputs.append(torch.nn.functional.embedding_bag(own, weight, bounds[:-1] - bounds[0], mode="sum"))
    output = torch.cat(outputs, dim=0 if pooling == SEQUENCE else 1)
    output.backward(loaded.gradient.double())  # type: ignore[no-untyped-call]
    updated = []
    for weight, old in zip(weights, before, strict=True):
        gradient = weight.grad
        assert gradient is not None
        scale = 1.0 if optimizer == "sgd" else 1 / ((gradient**2).mean(dim=1, keepdim=True).sqrt() + 1e-8)
        updated.append(old - CHECKED_LEARNING_RATE * scale * gradient)
    return output.detach(), updated


# The run -------------------------------------------------------------------------------------------------------------


def host_cases(rng: np.random.Generator) -> Iterator[tuple[int, int, int, float, float, str]]:
    """Yield random tables in host memory without end: rows, dim, batch size, power law, load factor, optimizer."""
    while True:
        dim = int(rng.choice((32, 64, 128, 256)))
        rows = int(min(_log_uniform(rng, 2e5, 2e7), 4 * 2**30 / (4 * dim)))
        batch_size = int(rng.choice((16384, 65536, 262144, 1048576)))
        load_factor = float(rng.choice((0.0, 0.05, 0.1, 0.2, 0.4)))
        alpha = round(float(rng.uniform(0.5, 1.2)), 2)
        yield rows, dim, batch_size, alpha, load_factor, str(rng.choice(("sgd", "rowwise_adagrad", "adam")))


def product_cases(rng: np.random.Generator) -> Iterator[tuple[int, int, int, str]]:
    """Yield random products of dense layers without end."""
    while True:
        m = int(2 ** rng.integers(8, 17))
        n, k = (int(16 * round(_log_uniform(rng, 64, 8192) / 16)) for _ in range(2))
        if 2 * m * n * k < 4e13:
            yield m, n, k, str(rng.choice(("bf16", "fp16", "tf32", "fp32"), p=(0.3, 0.3, 0.3, 0.1)))


def several_calls(shards: Iterable[Shard], rng: np.random.Generator) -> Iterator[list[Shard]]:
    """Yield lists of 2 to 6 shards with the same optimizer."""
    small = (one for one in shards if sum(table.size_bytes for table in one.tables) < 4 * 2**30)
    while some := list(islice(small, int(rng.integers(2, 7)))):
        yield [replace(one, optimizer="rowwise_adagrad") for one in some]


def pairs_by_order(shards: Iterable[Shard]) -> Iterator[Shard]:
    """Yield each shard with scattered rows, then with its rows in order of lookups."""
    for shard in shards:
        yield replace(shard, kind="order")
        yield replace(shard, kind="order", is_sorted=True)


def run(bench: Bench, budget_s: float, seed: int, made: Pool) -> None:
    """Run all kinds of measurements, each for its share of the time; ``made`` draws shards on other processors."""
    started = time.monotonic()
    shards, in_calls, in_order = (
        made.imap(random_shard, [(seed, kind, number) for number in range(count)])
        for kind, count in enumerate((int(8 * budget_s), int(2 * budget_s), int(budget_s)))
    )
    worst = check(bench)
    print(f"correct: largest relative error {worst:.1e}, after {time.monotonic() - started:.1f} s", flush=True)
    on_gpu = bench.device.type == "cuda"
    if on_gpu:
        bench.copies()
    rngs = bench.rng.spawn(3)
    work: list[tuple[str, float, Iterator[Any], Callable[..., None]]] = [
        ("products", 0.05 if on_gpu else 0.0, product_cases(rngs[0]), bench.product),
        ("shards", 0.72, ((one,) for one in shards), bench.shard),
        ("several calls", 0.06, ((one,) for one in several_calls(in_calls, rngs[1])), bench.calls),
        ("rows in order", 0.06, ((one,) for one in pairs_by_order(in_order)), bench.shard),
        ("host", 0.11 if on_gpu else 0.0, host_cases(rngs[2]), bench.host_tables),
    ]
    begun, taken = time.monotonic(), 0.0
    left_s = budget_s - (begun - started)
    for name, share, cases, measure in work:
        taken += share
        measured = failed = 0
        while time.monotonic() < begun + taken * left_s and failed <= 5 + measured:
            case = next(cases, None)
            if case is None:
                break
            try:
                measure(*case)
                measured += 1
            except (OutOfDeviceMemory, torch.OutOfMemoryError):
                failed += 1
                torch.cuda.empty_cache()
            except Exception as error:  # one shape that fails must not end a run on a rented device
                failed += 1
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
        print(f"{name}: {measured} measured, {failed} failed, after {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    """Measure until the time budget is used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget-s", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    with (
        get_context("spawn").Pool(max(1, (os.cpu_count() or 1) // 2 - 1)) as made,
        closing(Bench(torch.device(args.device), args.folder, args.seed)) as bench,
    ):
        run(bench, args.budget_s, args.seed, made)


if __name__ == "__main__":
    main()
