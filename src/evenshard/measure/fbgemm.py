"""What does a shard cost on the real kernels? FBGEMM's fused table-batched embedding, forward and backward.

One shard is one fused call: ``SplitTableBatchedEmbeddingBagsCodegen`` with fused EXACT_SGD, as DLRM training runs it.
The devices of a placement are measured in turn on the one device of this process.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from evenshard.costs import DeviceCost, PlacementCost, Provenance, interquartile_range
from evenshard.dlrm_batch import read_dlrm_batch
from evenshard.errors import BadInput, MeasurementFailed
from evenshard.measure.hardware import MeasureConfig, TimeShare
from evenshard.measure.link import link
from evenshard.measure.workload import RecordedLookups, draw_lookups
from evenshard.placement import Placement
from evenshard.tables import Table
from evenshard.tasks import PlacementTask
from evenshard.units import BYTES_PER_GB, seconds_to_ms

MEASURABLE_WEIGHT_BITS = {16: torch.float16, 32: torch.float32}
L2_FLUSH_BYTES = 256 * 1024**2  # more than the L2 of any GPU on sale


class FbgemmHardware:
    """Measures shards with FBGEMM on the CPU (one thread stands for one device) or on a CUDA GPU."""

    def __init__(self, config: MeasureConfig, device: torch.device) -> None:
        self._config = config
        self._recorded = RecordedLookups(read_dlrm_batch(config.recorded_batch)) if config.recorded_batch else None
        self._device = device
        self._link = link(config.link)
        self._lookups: dict[tuple[Table, int], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._weights = _WeightArena()
        self._opened = time.perf_counter()
        self._kernel_s = 0.0
        self.provenance = Provenance(
            hardware=_device_name(device),
            versions=_versions(device),
            link=config.link,
            seed=config.seed,
            repeats=config.repeats * config.visits,
        )

    @property
    def time_share(self) -> TimeShare:
        """Kernel time against wall time since this hardware was opened."""
        return TimeShare(self._kernel_s, time.perf_counter() - self._opened)

    def measure(self, task: PlacementTask, placement: Placement) -> PlacementCost:
        """Measures each device's shard; the all-to-all times come from the link model."""
        shards = [[task.tables[position] for position in shard] for shard in placement.shards()]
        dims = [sum(table.embedding_dim for table in shard) for shard in shards]
        all_to_all_ms = self._link.all_to_all_ms(dims, task.batch_size)
        devices = []
        for shard, exchange_ms in zip(shards, all_to_all_ms, strict=True):
            compute = self._shard_cost(shard, task.batch_size)
            devices.append(
                DeviceCost(
                    fwd_compute_ms=compute.fwd_compute_ms,
                    fwd_all_to_all_ms=exchange_ms,
                    bwd_all_to_all_ms=exchange_ms,
                    bwd_compute_ms=compute.bwd_compute_ms,
                    fwd_compute_spread_ms=compute.fwd_compute_spread_ms,
                    bwd_compute_spread_ms=compute.bwd_compute_spread_ms,
                )
            )
        return PlacementCost(tuple(devices), all_to_all="modelled")

    def measure_table(self, table: Table, batch_size: int) -> DeviceCost:
        """Measures one table alone on a device, without communication."""
        return self._shard_cost([table], batch_size)

    def _shard_cost(self, shard: Sequence[Table], batch_size: int) -> DeviceCost:
        if not shard:
            return DeviceCost(0.0, 0.0, 0.0, 0.0)
        try:
            with _one_thread(self._device):
                times = self._time_shard(shard, batch_size)
        except (RuntimeError, AssertionError) as error:
            names = ", ".join(table.name for table in shard[:4]) + (", ..." if len(shard) > 4 else "")
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise MeasurementFailed(f"FBGEMM failed on the shard [{names}]: {reason}") from error
        forward, backward = zip(*times, strict=True)
        return DeviceCost(
            fwd_compute_ms=median(forward),
            fwd_all_to_all_ms=0.0,
            bwd_all_to_all_ms=0.0,
            bwd_compute_ms=median(backward),
            fwd_compute_spread_ms=interquartile_range(forward),
            bwd_compute_spread_ms=interquartile_range(backward),
        )

    def _time_shard(self, shard: Sequence[Table], batch_size: int) -> list[tuple[float, float]]:
        """(forward ms, backward ms) of every timed repeat."""
        operator = self._operator(shard)
        batches = self._batches(shard, batch_size)
        gradient = torch.full((batch_size, sum(table.embedding_dim for table in shard)), 1e-3, device=self._device)
        time_pass = self._time_pass_cuda if self._device.type == "cuda" else self._time_pass_cpu
        times = [
            time_pass(operator, *batches[number % len(batches)], gradient)
            for number in range(self._config.warmup + self._config.repeats)
        ]
        self._kernel_s += sum(map(sum, times)) / 1e3
        return times[self._config.warmup :]

    def _operator(self, shard: Sequence[Table]) -> Any:
        """The fused embedding operator of a shard."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        weight_bits = {table.weight_bits for table in shard}
        if len(weight_bits) > 1 or not weight_bits <= MEASURABLE_WEIGHT_BITS.keys():
            raise BadInput(
                f"weight_bits of the tables are {sorted(weight_bits)}: a fused training call takes one "
                f"precision, 16 or 32. Give all tables the same weight_bits."
            )
        dtype = MEASURABLE_WEIGHT_BITS[weight_bits.pop()]
        on_gpu = self._device.type == "cuda"
        location = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
        compute = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
        num_weights = sum(table.num_rows * table.embedding_dim for table in shard)
        # On the CPU, making and first touching the weights of every shard anew would take ten times as long as
        # measuring it, so all shards borrow one arena; what the weights are does not change how long a lookup takes.
        borrowed = (
            {} if on_gpu else {"preallocated_host_buffers": {"weights": self._weights.borrow(num_weights, dtype)}}
        )
        return SplitTableBatchedEmbeddingBagsCodegen(
            [(table.num_rows, table.embedding_dim, location, compute) for table in shard],
            optimizer=EmbOptimType.EXACT_SGD,
            learning_rate=1e-6,  # keeps the borrowed weights where they are
            weights_precision=SparseType.from_dtype(dtype),
            device=self._device,
            **borrowed,
        )

    def _batches(self, shard: Sequence[Table], batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(indices, offsets) of the fused call for each of the batches that the repeats cycle through."""
        per_table = [self._table_batches(table, batch_size) for table in shard]
        batches = []
        for number in range(self._config.num_batches):
            indices = torch.cat([batch[number][0] for batch in per_table])
            lengths = torch.cat([batch[number][1] for batch in per_table])
            offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self._device)
            torch.cumsum(lengths, 0, out=offsets[1:])
            batches.append((indices, offsets))
        return batches

    def _table_batches(self, table: Table, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The table's own part of each batch: drawn once and kept, since a table recurs in many shards."""
        key = (table, batch_size)
        if key not in self._lookups:
            self._lookups[key] = [self._lookups_of(table, batch_size, n) for n in range(self._config.num_batches)]
        return self._lookups[key]

    def _lookups_of(self, table: Table, batch_size: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._recorded is None:
            lookups = draw_lookups(table, batch_size, self._config.seed, number, str(self._device))
        else:
            lookups = self._recorded(table, batch_size, number)
        return lookups.indices.to(self._device), lookups.lengths.to(self._device)

    @staticmethod
    def _time_pass_cpu(
        operator: Any, indices: torch.Tensor, offsets: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[float, float]:
        start = time.perf_counter()
        pooled = operator(indices, offsets)
        middle = time.perf_counter()
        pooled.backward(gradient)
        end = time.perf_counter()
        return seconds_to_ms(middle - start), seconds_to_ms(end - middle)

    @staticmethod
    def _time_pass_cuda(
        operator: Any, indices: torch.Tensor, offsets: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[float, float]:
        # A training step comes back to its tables after the dense part has run: they are not in the L2 any more.
        torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device=gradient.device).zero_()
        start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        start.record()
        pooled = operator(indices, offsets)
        middle.record()
        pooled.backward(gradient)
        end.record()
        end.synchronize()
        return start.elapsed_time(middle), middle.elapsed_time(end)


class _WeightArena:
    """One block of memory that every shard's weights are laid over; pages are touched once, when first borrowed."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._touched = 0

    def borrow(self, num_weights: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat view, [num_weights] of ``dtype``, filled with small numbers."""
        num_bytes = num_weights * dtype.itemsize
        if num_bytes > self._block.numel():
            # Untouched memory costs nothing, so doubling keeps the number of times that pages are touched anew small.
            capacity = max(num_bytes, 2 * self._block.numel(), BYTES_PER_GB)
            self._block = torch.empty(0, dtype=torch.uint8)  # free the old block first: both may not fit
            self._block = torch.empty(capacity, dtype=torch.uint8)
            self._touched = 0
        if num_bytes > self._touched:
            self._block[self._touched : num_bytes].fill_(0x22)  # 2.2e-18 as FP32, 0.012 as FP16: no zeros or subnormals
            self._touched = num_bytes
        return self._block[:num_bytes].view(dtype)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On the CPU, one core stands for one device."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    cpu_info = Path("/proc/cpuinfo")
    model = platform.processor() or platform.machine()
    if cpu_info.exists():
        lines = [
            line.split(":", 1)[1].strip() for line in cpu_info.read_text().splitlines() if line.startswith("model name")
        ]
        model = lines[0] if lines else model
    return f"cpu: {model} (1 thread)"


def _versions(device: torch.device) -> str:
    def installed(*names: str) -> str:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "unpackaged"

    parts = [f"torch {torch.__version__}", f"fbgemm_gpu {installed('fbgemm-gpu-cpu', 'fbgemm-gpu')}"]
    if device.type == "cuda":
        parts.append(f"CUDA {torch.version.cuda}")
    return ", ".join(parts)
