"""Memory model: the memory that table parts need on devices, hosts and SSDs, and that devices need for their samples.

It depends on the optimizer and on the training pipeline (TorchRec's ``TrainPipeline*``), which this module describes.

Each device with a part needs memory for:

- the weights and the optimizer state, which FBGEMM stores in FP32 in the same memory as the weights. Row-wise state is
  always in device memory;
- a cache, if the part has one: its rows, plus 16 bytes per cached row and 4 bytes per row of the table; with a
  prefetching pipeline, also the prefetched inputs;
- the inputs of every batch in flight: indices, lengths, offsets and lookup weights of the whole global batch;
- the outputs, and a send buffer if an all-to-all sends them;
- the dense gradient of a replica, twice, because backward and DistributedDataParallel each have a copy. Gradient and
  optimizer state of a replica have the data type of the weights.

Every device also needs memory for its own samples: their inputs before the input dist, and the outputs of all tables
that it receives in the output dist.

A device's memory peaks at one of five moments of a step (``moments``). All terms were checked against training
(benchmarks/memory_cpu_202611.md), except the workspace for sorting indices on a GPU, which is from FBGEMM's source.

For a task without a pipeline, only weights and optimizer state count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.parts import (
    FUSED,
    HOST,
    KEY_VALUE,
    TablePart,
    deduplicate_table,
    part_table,
    replica_table,
)
from evenshard.tables.table import Table

Numbers = TypeVar("Numbers", int, npt.NDArray[np.int64])
STATE_BYTES = 4  # bytes of a number; FBGEMM stores states in FP32 for any precision of the weights
SGD = "sgd"
# The usual optimizer for tables of recommenders; assumed for tables without a model.
DEFAULT_OPTIMIZER = "rowwise_adagrad"


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that FBGEMM fuses with the backward pass of tables."""

    state_numbers: tuple[int, int]  # state values per row, and per weight
    fbgemm_names: tuple[str, ...]  # in ``EmbOptimType``, the kernel's name first, then types with the same state
    torch_name: str  # class in ``torch.optim`` with the same state per weight
    has_cpu_kernels: bool = False
    dense_problem: str = ""  # reason that replicas cannot use it: no dense optimizer is equivalent; "" if one is


_IN_NEITHER = "neither torch.optim nor TorchRec has it"
# By size of the state, which is also the order of update times.
OPTIMIZERS = {
    SGD: Optimizer((0, 0), ("EXACT_SGD", "SGD", "NONE"), "SGD", has_cpu_kernels=True),
    "rowwise_adagrad": Optimizer(
        (1, 0),
        ("EXACT_ROWWISE_ADAGRAD", "ROWWISE_ADAGRAD", "EXACT_ROWWISE_WEIGHTED_ADAGRAD", "EMAINPLACE_ROWWISE_ADAGRAD"),
        "Adagrad",
        has_cpu_kernels=True,
        dense_problem="torch.optim has no row-wise Adagrad (torchrec.optim.RowWiseAdagrad is one)",
    ),
    "adagrad": Optimizer((0, 1), ("EXACT_ADAGRAD",), "Adagrad", has_cpu_kernels=True),
    "lars_sgd": Optimizer((0, 1), ("LARS_SGD",), "Adagrad", dense_problem=_IN_NEITHER),
    "partial_rowwise_adam": Optimizer(
        (1, 1), ("PARTIAL_ROWWISE_ADAM", "ENSEMBLE_ROWWISE_ADAGRAD"), "Adam", dense_problem=_IN_NEITHER
    ),
    "partial_rowwise_lamb": Optimizer((1, 1), ("PARTIAL_ROWWISE_LAMB",), "Adam", dense_problem=_IN_NEITHER),
    "adam": Optimizer((0, 2), ("ADAM",), "Adam"),
    "lamb": Optimizer((0, 2), ("LAMB",), "Adam", dense_problem=_IN_NEITHER),
}
STATE_NUMBERS = {name: optimizer.state_numbers for name, optimizer in OPTIMIZERS.items()}


def optimizer_problem(optimizer: str) -> str | None:
    """Return an error message if the name is not in ``OPTIMIZERS``, or None."""
    if optimizer in OPTIMIZERS:
        return None
    return f"optimizer is {brief(optimizer)}, not one of {', '.join(OPTIMIZERS)}"


def state_bytes(table: Table, optimizer: str) -> int:
    """Return the bytes of optimizer state of a table or part.

    Raises:
        BadConfig: if the optimizer is not in ``OPTIMIZERS``.
    """
    if problem := optimizer_problem(optimizer):
        raise BadConfig(f"{problem}. Choose one of these.")
    return table.num_rows * row_state_bytes(table.embedding_dim, optimizer)


def row_state_bytes(dims: Numbers, optimizer: str) -> Numbers:
    """Return the bytes of optimizer state of a row with ``dims`` columns."""
    per_row, per_weight = STATE_NUMBERS[optimizer]
    return (per_row + per_weight * dims) * STATE_BYTES


@dataclass(frozen=True)
class TrainingPipeline:
    """A training pipeline, described by the numbers of batches whose inputs are in device memory."""

    batches: int  # batches whose inputs are on the tables' devices
    own_batches: int  # batches whose inputs are on the devices of their samples
    leaving_batches: int  # batches of which these devices also keep a copy, ordered for the input dist
    overlaps_inputs: bool  # True if the input dist runs during the previous step


PREFETCH, USUAL_PIPELINE = "prefetch", "sparse_dist"
PIPELINES = {
    "none": TrainingPipeline(1, 1, 0, overlaps_inputs=False),
    "base": TrainingPipeline(1, 2, 0, overlaps_inputs=False),
    USUAL_PIPELINE: TrainingPipeline(2, 3, 1, overlaps_inputs=True),
    PREFETCH: TrainingPipeline(3, 3, 1, overlaps_inputs=True),
}


# Indices and offsets are int64, lengths int32, and lookup weights FP32.
INDEX_BYTES, LENGTH_BYTES, OFFSET_BYTES, LOOKUP_WEIGHT_BYTES = 8, 4, 8, 4
VALUE_BYTES = 4  # bytes of a value of an output or a gradient: FP32
PREFETCH_INPUTS = 7  # batches of inputs that a prefetching cache keeps, as TorchRec estimates: 1, and 6 more in bursts
# Bytes of a cache per row of the table, to map it to the table; and per cached row, for its index and last use.
CACHE_ROW_BYTES, CACHE_SLOT_BYTES = 4, 16
# Bytes per lookup in an update on a GPU: FBGEMM sorts indices with their bags, and finds runs of equal indices.
WORKSPACE_BYTES = 40


class PartMemory(NamedTuple):
    """Memory of a part in bytes: on each of its devices, on its host and on the SSD."""

    weights: int = 0  # in device memory; with a cache, only its rows
    optimizer_state: int = 0  # in device memory
    cache_state: int = 0  # the index of a cache
    inputs: int = 0  # of all batches in flight
    outputs: int = 0  # of the forward pass; their gradients later need the same memory
    sent: int = 0  # send buffer of an all-to-all; 0 for row shards, whose outputs are reduce-scattered in place
    prefetch: int = 0  # of cached rows
    dense_gradient: int = 0  # of a replica: both copies
    # Additional inputs during the input dist: the receive buffer, and the previous batch, which FBGEMM keeps.
    arriving: int = 0
    returned: int = 0  # received gradients of sequences, before they are ordered
    workspace: int = 0  # of the update, to sort indices
    host_weights: int = 0
    host_state: int = 0
    ssd_weights: int = 0  # on the SSD, with optimizer state

    @property
    def device_bytes(self) -> int:
        """Return the device memory during the output dist, which a search limits to the available memory."""
        return sum(_on_device(self))

    @property
    def lasting_bytes(self) -> int:
        """Return the device memory that is used during the whole step."""
        kept: int = sum(getattr(self, name) for name in _LASTING)
        return kept + self.dense_gradient // 2

    @property
    def host_bytes(self) -> int:
        """Return the host memory of the part."""
        return self.host_weights + self.host_state

    def __add__(self, other: PartMemory) -> PartMemory:  # type: ignore[override]
        return PartMemory(*map(add, self, other))


_LASTING = ("weights", "optimizer_state", "cache_state", "inputs", "prefetch")
_AT_OTHER_MOMENTS = ("arriving", "returned", "workspace")
ON_DEVICE_KINDS = tuple(
    name for name in PartMemory._fields if not name.startswith(("host", "ssd")) and name not in _AT_OTHER_MOMENTS
)
_on_device = attrgetter(*ON_DEVICE_KINDS)


def part_memory(
    part: TablePart, table: Table, *, num_devices: int, batch_size: int, optimizer: str, pipeline: str
) -> PartMemory:
    """Return the memory of a part, per device; it is linear in the number of columns.

    Args:
        part: a part of ``table``; a replica if it has several devices.
        pipeline: one of ``PIPELINES``; "" counts only weights and optimizer states.
    """
    own, is_replica = part_table(part, table), len(part.devices) > 1
    kept = _storage_memory(own, part, optimizer)
    if not pipeline:
        return kept
    samples, batches = batch_size / num_devices if is_replica else batch_size, PIPELINES[pipeline].batches
    looked_up = own
    if own.is_deduplicated:
        looked_up = (
            deduplicate_table(replica_table(own, num_devices), 1) if is_replica else deduplicate_table(own, num_devices)
        )
    inputs = _input_bytes(looked_up, samples)
    outputs = round(VALUE_BYTES * samples * looked_up.outputs_per_sample) * own.embedding_dim
    is_exchanged = num_devices > 1 and not is_replica
    is_sent = is_exchanged and (table.is_sequence or part.rows.size == table.num_rows)
    return kept + PartMemory(
        inputs=round(batches * inputs),
        outputs=outputs,
        sent=outputs if is_sent else 0,
        prefetch=round(PREFETCH_INPUTS * inputs) if pipeline == PREFETCH and part.storage.is_cached else 0,
        dense_gradient=2 * own.size_bytes if is_replica else 0,
        arriving=round((3 - min(batches, 2)) * inputs) if is_exchanged else 0,
        returned=outputs if is_sent and table.is_sequence else 0,
        workspace=round(WORKSPACE_BYTES * samples * looked_up.pooling_factor),
    )


def _storage_memory(own: Table, part: TablePart, optimizer: str) -> PartMemory:
    storage = part.storage
    per_row, per_weight = STATE_NUMBERS[optimizer]
    # A dense optimizer updates replicas; its states have the precision of the weights.
    state_bytes = own.weight_bits // 8 if len(part.devices) > 1 else STATE_BYTES
    of_rows = own.num_rows * per_row * state_bytes
    of_weights = own.num_rows * own.embedding_dim * per_weight * state_bytes
    if storage.kernel == FUSED:
        return PartMemory(weights=own.size_bytes, optimizer_state=of_rows + of_weights)
    if storage.kernel == HOST:
        return PartMemory(host_weights=own.size_bytes, host_state=of_rows + of_weights)
    cached = math.ceil(own.num_rows * storage.load_factor) if storage.is_cached else 0
    cache = PartMemory(
        weights=cached * own.embedding_dim * own.weight_bits // 8,
        cache_state=own.num_rows * CACHE_ROW_BYTES + cached * CACHE_SLOT_BYTES if storage.is_cached else 0,
    )
    if storage.kernel == KEY_VALUE:
        return cache + PartMemory(ssd_weights=own.size_bytes + of_rows + of_weights)
    return cache + PartMemory(optimizer_state=of_rows, host_weights=own.size_bytes, host_state=of_weights)


def _input_bytes(table: Table, samples: float) -> float:
    """Return the input bytes of a batch: length and offset of each bag, index and weight (if any) of each lookup."""
    bags = samples * table.num_features
    of_lookup = INDEX_BYTES + LOOKUP_WEIGHT_BYTES * table.is_weighted
    return samples * table.pooling_factor * of_lookup + bags * (LENGTH_BYTES + OFFSET_BYTES)


@dataclass(frozen=True)
class SampleMemory:
    """Memory that every device needs for its own samples, in bytes, whatever the placement."""

    inputs: int = 0  # of all batches in flight, before they are sent to the tables' devices
    received: int = 0  # embeddings of all tables, or their gradients
    leaving: int = 0  # copy of the inputs, ordered for sending
    ordered: int = 0  # gradients, ordered for an all-to-all
    sliced: int = 0  # slices of the gradients, if several collectives send them

    @property
    def total(self) -> int:
        """Return the memory of a device's own samples during the output dist."""
        return self.inputs + self.received


def sample_memory(
    tables: Sequence[Table], *, num_devices: int, batch_size: int, pipeline: str, parts: Sequence[TablePart] = ()
) -> SampleMemory:
    """Return the memory of every device for its own samples.

    Args:
        parts: parts of all tables; by default, all tables are whole. Lookups are sent once for each column part.
            Pooled tables that are cut by rows or replicated need no all-to-all for their gradients. If a placement
            has any of these, gradients of other tables are copied to slices first.
    """
    if not pipeline:
        return SampleMemory()
    samples, in_place = batch_size / num_devices, _names_to_gather(tables, parts)
    columns = Counter(name for name, _ in {(part.table, part.columns) for part in parts})
    own = [(table.name, _input_bytes(table, samples)) for table in tables]
    leaving = sum(columns.get(name, 1) * size for name, size in own) if num_devices > 1 else 0.0
    kept = PIPELINES[pipeline]
    inputs = kept.own_batches * sum(size for _, size in own) + kept.leaving_batches * leaving
    values = [(table.name, VALUE_BYTES * samples * table.outputs_per_sample * table.embedding_dim) for table in tables]
    ordered = sum(size for name, size in values if name not in in_place) if num_devices > 1 else 0.0
    received = sum(size for _, size in values)
    sliced = ordered if in_place else 0.0
    return SampleMemory(round(inputs), round(received), round(leaving), round(ordered), round(sliced))


def _names_to_gather(tables: Sequence[Table], parts: Sequence[TablePart]) -> set[str]:
    rows = {table.name: table.num_rows for table in tables if not table.is_sequence}
    return {
        one.table for one in parts if one.table in rows and (len(one.devices) > 1 or one.rows.size < rows[one.table])
    }


# The peak -------------------------------------------------------------------------------------------------------------


def moments(parts: PartMemory, sample: SampleMemory) -> dict[str, int]:
    """Return the temporary memory of a device, in bytes, at each moment of a step that may be the peak."""
    return {
        "inputs arrive": parts.arriving + sample.leaving,
        "outputs are sent": parts.outputs + parts.sent + sample.received,
        "gradients are ordered": sample.received + 2 * sample.ordered + sample.sliced,
        "gradients are sent": parts.outputs + parts.returned + sample.received + sample.ordered,
        "tables are updated": parts.outputs + max(parts.workspace, parts.dense_gradient // 2),  # without replicas
    }


def peak_bytes(parts: PartMemory, sample: SampleMemory) -> int:
    """Return the peak memory of a device, in bytes, without the dense model."""
    return parts.lasting_bytes + sample.inputs + max(moments(parts, sample).values())
