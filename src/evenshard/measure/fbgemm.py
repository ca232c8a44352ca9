"""FBGEMM's kernels on a CPU or GPU, for the lookups and updates of a shard (the tables of one device).

A shard is one ``SplitTableBatchedEmbeddingBagsCodegen`` module with a fused optimizer, as in DLRM training.
"""

from __future__ import annotations

import os
import platform
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed, MissingPackage
from evenshard.base.installation import remedy, require_package
from evenshard.base.messages import reason_of
from evenshard.base.process import CONTROL_GROUP, machine_bytes, one_thread
from evenshard.base.units import BYTES_PER_GB
from evenshard.measure.config import MeasureConfig
from evenshard.measure.workload import RecordedLookups, draw_lookups
from evenshard.placement.memory import OPTIMIZERS, state_bytes
from evenshard.price.costs import Provenance
from evenshard.price.hardware import HardwareName
from evenshard.tables.dlrm_batch import read_dlrm_batch
from evenshard.tables.table import SUM, Table

MEASURABLE_WEIGHT_BITS = {16: torch.float16, 32: torch.float32}  # of the training kernels
LEARNING_RATE = 1e-6  # leaves the reused weights nearly unchanged
MAX_INT32 = 2**31 - 1  # largest offset: GPUs train with 32-bit indices and offsets
LOOKUP_CACHE_SHARE = 0.2  # share of device memory; a table recurs in many shards, so its drawn lookups are cached

Batch = tuple[torch.Tensor, torch.Tensor]


class OutOfDeviceMemory(Exception):
    """Lack of device memory for a shard. It is a valid result: the cost dataset records it as a row."""


@dataclass(frozen=True)
class LoadedShard:
    """FBGEMM's fused module of a shard on its device, with input batches."""

    operator: Any
    batches: Sequence[Batch]  # (indices, offsets) of each input batch, table after table
    gradient: torch.Tensor  # [B, sum of dims] FP32, as if sent back by the dense part

    def forward(self, number: int) -> torch.Tensor:
        """Look up and pool batch ``number`` (modulo the number of batches); return [samples, sum of dims]."""
        pooled: torch.Tensor = self.operator(*self.batches[number % len(self.batches)])
        return pooled

    def backward(self, pooled: torch.Tensor) -> None:
        """Compute gradients and update the weights in one fused pass."""
        pooled.backward(self.gradient)  # type: ignore[no-untyped-call]


class ShardKernels:
    """Loader of shards onto one device, one at a time."""

    def __init__(self, config: MeasureConfig, device: torch.device) -> None:
        require_package("fbgemm_gpu")
        self.device = device
        self._config = config
        recorded = config.recorded_batch
        self._recorded = None if recorded is None else RecordedLookups(read_dlrm_batch(recorded), Path(recorded))
        on_gpu = device.type == "cuda"
        total_bytes = torch.cuda.get_device_properties(device).total_memory if on_gpu else machine_bytes()
        self._lookups = _LookupCache(int(LOOKUP_CACHE_SHARE * total_bytes))
        self._weights = _WeightArena()

    @contextmanager
    def load_shard(self, shard: Sequence[Table], batch_size: int) -> Iterator[LoadedShard]:
        """Yield the shard on the device, and free it at the end of the block.

        Raises:
            OutOfDeviceMemory: before or inside the block.
            BadInput: if one fused call cannot take these tables.
            MeasurementFailed: if a kernel fails inside the block.
        """
        with self.watch_failures(shard):
            operator = self.operator(shard)
            # The value of the gradient does not change the time.
            gradient = torch.full((batch_size, sum(table.embedding_dim for table in shard)), 1e-3, device=self.device)
            batches = join_batches([self.table_batches(table, batch_size) for table in shard])
            yield LoadedShard(operator, batches, gradient)

    def free(self) -> None:
        """Release all cached memory."""
        self._lookups.clear()
        self._weights = _WeightArena()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def watch_failures(self, tables: Sequence[Table]) -> Iterator[None]:
        """Raise failures inside the block as errors that name these tables; see ``load_shard``."""
        try:
            with one_thread() if self.device.type == "cpu" else nullcontext():
                yield
        except (RuntimeError, AssertionError, MemoryError) as error:
            ran_out = ("out of memory", "can't allocate memory", "not enough memory")
            if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in ran_out):
                raise OutOfDeviceMemory from error
            names = ", ".join(table.name for table in tables[:4]) + (", ..." if len(tables) > 4 else "")
            raise MeasurementFailed(f"FBGEMM failed on the shard [{names}]: {reason_of(error)}") from error

    def free_bytes(self) -> int:
        """Return the available device memory, including torch's cache."""
        if self.device.type == "cpu":
            return _free_host_memory()
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + kept

    def operator(
        self, shard: Sequence[Table], pooling: str = SUM, feature_table_map: Sequence[int] | None = None
    ) -> Any:
        """Return the fused embedding operator of a shard.

        ``feature_table_map`` maps each feature to the position of its table; None for one feature per table.
        """
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        dtype = weights_dtype(shard)
        on_gpu = self.device.type == "cuda"
        location = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
        compute = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
        num_weights = sum(table.num_rows * table.embedding_dim for table in shard)
        # On the CPU, allocating and first touching the weights of every shard would take ten times as long as measuring
        # it, so all shards share one arena; the values of weights do not change the time of a lookup. On a GPU
        # PyTorch's caching allocator does the same.
        options: dict[str, Any] = (
            {"embedding_table_index_type": torch.int32, "embedding_table_offset_type": torch.int32}
            if on_gpu
            else {"preallocated_host_buffers": {"weights": self._weights.borrow(num_weights, dtype)}}
        )
        if not on_gpu and sum(state_bytes(table, self._config.optimizer) for table in shard) > _free_host_memory():
            raise OutOfDeviceMemory  # FBGEMM allocates the state itself, and Linux would kill the process
        if options.keys() - parameters_of(SplitTableBatchedEmbeddingBagsCodegen):
            raise MissingPackage(f"Measuring kernels needs a newer FBGEMM: {remedy('fbgemm_gpu')}")
        return SplitTableBatchedEmbeddingBagsCodegen(
            [(table.num_rows, table.embedding_dim, location, compute) for table in shard],
            feature_table_map=None if feature_table_map is None else list(feature_table_map),
            pooling_mode=PoolingMode[pooling.upper()],
            optimizer=EmbOptimType[OPTIMIZERS[self._config.optimizer].fbgemm_names[0]],
            learning_rate=LEARNING_RATE,
            weights_precision=SparseType.from_dtype(dtype),
            device=self.device,
            **options,
        )

    def table_batches(self, table: Table, batch_size: int) -> list[Batch]:
        """Return the table's part of each batch: (indices, lengths)."""
        key = (table, batch_size)
        batches = self._lookups.get(key)
        if batches is None:
            batches = [self._load_batch(table, batch_size, number) for number in range(self._config.num_batches)]
            self._lookups.put(key, batches)
        return batches

    def _load_batch(self, table: Table, batch_size: int, number: int) -> Batch:
        if self._recorded is None:
            lookups = draw_lookups(table, batch_size, self._config.seed, number, str(self.device))
        else:
            lookups = self._recorded(table, batch_size, number)
        # TorchRec trains with 32-bit indices on GPUs; FBGEMM's CPU kernels are faster with 64 bits.
        index_type = torch.int32 if self.device.type == "cuda" else torch.int64
        return lookups.indices.to(self.device, index_type), lookups.lengths.to(self.device, index_type)


def join_batches(per_table: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Join (indices, lengths) of tables to (indices, offsets) of a fused call, for each batch.

    Raises:
        BadInput: if there are more lookups than the offset type can count.
    """
    batches = []
    for of_batch in zip(*per_table, strict=True):
        indices, lengths = (torch.cat(parts) for parts in zip(*of_batch, strict=True))
        if len(indices) > MAX_INT32:
            raise BadInput(
                f"a shard has {len(indices)} lookups per batch, too many for 32-bit offsets. Lower batch_size."
            )
        offsets = torch.zeros(len(lengths) + 1, dtype=indices.dtype, device=indices.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        batches.append((indices, offsets))
    return batches


def weights_dtype(shard: Sequence[Table]) -> torch.dtype:
    """Return the data type of the weights of a fused call.

    Raises:
        BadInput: if one call cannot take these tables.
    """
    weight_bits = {table.weight_bits for table in shard}
    if len(weight_bits) > 1 or not weight_bits <= MEASURABLE_WEIGHT_BITS.keys():
        raise BadInput(
            f"weight_bits of the tables are {sorted(weight_bits)}, but a fused training call needs one of 16 and 32. "
            f"Give all tables the same weight_bits."
        )
    return MEASURABLE_WEIGHT_BITS[weight_bits.pop()]


class _LookupCache:  # drops the least recently used lookups
    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._batches: OrderedDict[tuple[Table, int], list[Batch]] = OrderedDict()

    def get(self, key: tuple[Table, int]) -> list[Batch] | None:
        if key in self._batches:
            self._batches.move_to_end(key)
        return self._batches.get(key)

    def put(self, key: tuple[Table, int], batches: list[Batch]) -> None:
        self._batches[key] = batches
        self._held_bytes += _num_bytes(batches)
        while self._held_bytes > self._capacity_bytes:
            _, dropped = self._batches.popitem(last=False)
            self._held_bytes -= _num_bytes(dropped)

    def clear(self) -> None:
        self._batches.clear()
        self._held_bytes = 0


def _num_bytes(batches: Sequence[Batch]) -> int:
    return sum(tensor.numel() * tensor.element_size() for batch in batches for tensor in batch)


class _WeightArena:
    """Block of host memory that the weights of all shards share; its pages are touched only when they are used."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._touched = 0

    def borrow(self, num_weights: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat view of the block; raise OutOfDeviceMemory if it would exceed the host's free memory."""
        num_bytes = num_weights * dtype.itemsize
        if num_bytes > self._touched and num_bytes - self._touched > _free_host_memory():
            raise OutOfDeviceMemory
        if num_bytes > self._block.numel():
            # Untouched memory is free, so doubling the block keeps the number of page touches small.
            capacity = max(num_bytes, 2 * self._block.numel(), BYTES_PER_GB)
            self._block = torch.empty(0, dtype=torch.uint8)  # free the old block first: both may not fit
            self._touched = 0
            self._block = torch.empty(capacity, dtype=torch.uint8)
        if num_bytes > self._touched:
            self._block[self._touched : num_bytes].fill_(0x22)  # 2.2e-18 as FP32, 0.012 as FP16: no zeros or subnormals
            self._touched = num_bytes
        return self._block[:num_bytes].view(dtype)


def _free_host_memory() -> int:
    """Return the host's available memory, limited to that of this process's control group, bytes."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    info = Path("/proc/meminfo")
    if info.exists():
        available = [line.split()[1] for line in info.read_text().splitlines() if line.startswith("MemAvailable")]
        free = 1024 * int(available[0]) if available else free  # from kB
    limit, used, parts = (CONTROL_GROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        # The usage of the group includes cached files, which the kernel evicts first.
        stat = dict(line.split() for line in parts.read_text().splitlines()) if parts.exists() else {}
        cached = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
        free = min(free, int(limit.read_text()) - int(used.read_text()) + cached)
    return free


@cache
def parameters_of(operator: type) -> frozenset[str]:
    """Return the names of the constructor's parameters, cached because inspection takes as long as a small lookup."""
    return frozenset(signature(operator).parameters)


def resolve_device(config: MeasureConfig) -> torch.device:
    """Resolve auto, cpu or cuda to a device; under torchrun, to this process's own GPU.

    Raises:
        BadConfig: if CUDA is not available, or the device's kernels lack the optimizer.
    """
    hardware, has_gpu = config.hardware_name, torch.cuda.is_available()
    if hardware.kind.needs_gpu and not has_gpu:
        raise BadConfig("hardware is cuda, but torch finds no CUDA GPU. Use cpu or auto, or install the cuda extra.")
    if hardware.kind.is_host or not has_gpu:
        if not OPTIMIZERS[config.optimizer].has_cpu_kernels:
            others = ", ".join(name for name, known in OPTIMIZERS.items() if known.has_cpu_kernels)
            raise BadConfig(f"FBGEMM's CPU kernels lack {config.optimizer}. Use {others}, or measure on a GPU.")
        return torch.device("cpu")
    number, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= num_gpus:
        raise BadConfig(f"torchrun started more processes than the host's {num_gpus} GPUs. Lower --nproc-per-node.")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def kernel_provenance(config: MeasureConfig, device: torch.device, link: str, num_devices: int = 1) -> Provenance:
    """Return the provenance of rows measured on these devices.

    ``link`` is the link model, or the backend of real communication between ``num_devices``.
    """
    return Provenance(
        hardware=f"{device_name(device)} x {num_devices}" if num_devices > 1 else device_name(device),
        driver=driver_version(device),
        versions=library_versions(device),
        link=link,
        seed=config.seed,
        repeats=config.repeats,
        optimizer=config.optimizer,
    )


def device_name(device: torch.device) -> str:
    """Return the device's name for ``Provenance.hardware``."""
    if device.type == "cuda":
        return HardwareName.of("cuda", torch.cuda.get_device_name(device)).provenance
    cpu_info = Path("/proc/cpuinfo")
    model = platform.processor() or platform.machine()
    if cpu_info.exists():
        lines = [
            line.split(":", 1)[1].strip() for line in cpu_info.read_text().splitlines() if line.startswith("model name")
        ]
        model = lines[0] if lines else model
    return HardwareName.of("cpu", f"{model} (1 thread)").provenance


def driver_version(device: torch.device) -> str:
    """Return the version of the NVIDIA driver for a GPU, or of the operating system's kernel for a CPU."""
    if device.type == "cuda":
        loaded = Path("/proc/driver/nvidia/version")
        words = loaded.read_text().splitlines()[0].split() if loaded.exists() else []
        numbers = [word for word in words if word[:1].isdigit() and "." in word]
        return f"NVIDIA {numbers[0]}" if numbers else "NVIDIA, unknown version"
    return f"{platform.system()} {platform.release()}"


def library_versions(device: torch.device) -> str:
    """Return the versions of the libraries that provide the kernels."""

    def find_version(*names: str) -> str:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return str(getattr(import_module("fbgemm_gpu"), "__version__", "unpackaged"))  # unpacked, not installed

    parts = [f"torch {torch.__version__}", f"fbgemm_gpu {find_version('fbgemm-gpu-cpu', 'fbgemm-gpu')}"]
    if device.type == "cuda":
        parts.append(f"CUDA {torch.version.cuda}")
    return ", ".join(parts)
