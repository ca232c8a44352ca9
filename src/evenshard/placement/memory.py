"""What a part of a table takes of a device's memory, of its host's and of the SSD, and what every device holds besides.

Counted of a part, on each of its devices, for B samples of the global batch:

- weights, and the state of the optimizer, as FBGEMM keeps them: FP32, beside the weights, but states of one number a
  row in device memory wherever the weights are;
- inputs: indices, lengths and offsets of all samples, weights of lookups; as often as the training pipeline has batches
  on the way;
- outputs, and their gradients;
- of a cache: its rows, 16 bytes for each of them, 4 for every row of the table; and of a pipeline that prefetches, what
  that holds meanwhile;
- of a replica: its dense gradient.

And of every device, wherever the tables are: inputs of its own samples before they are sent, and what it receives of
all tables for its own samples, with the gradients that it sends back.

Where a task names no pipeline, weights and states alone count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from evenshard.placement.optimizer_state import NUMBERS, STATE_BYTES
from evenshard.placement.parts import TablePart, deduplicated_table, part_table, replica_table
from evenshard.placement.storage import FUSED, HOST, KEY_VALUE
from evenshard.tables.table import Table

BATCHES = {"none": 1, "base": 1, "sparse_dist": 2, "prefetch": 3}
"""Training pipelines, after TorchRec's ``TrainPipeline*``, and the batches whose inputs a device holds."""
PREFETCH = "prefetch"
INDEX_BYTES, LENGTH_BYTES, OFFSET_BYTES, LOOKUP_WEIGHT_BYTES = 8, 4, 8, 4
VALUE_BYTES = 4
"""Of an output, and of a gradient: FP32."""
PREFETCH_INPUTS = 7
"""Inputs of a batch that a prefetch of cached rows holds meanwhile, as TorchRec counts it: 1, and 6 in bursts."""
CACHE_ROW_BYTES, CACHE_SLOT_BYTES = 4, 16
"""Of every row, the table that it is of; of every cached one, its index and when it was last used."""


@dataclass(frozen=True)
class PartMemory:
    """Bytes that a part takes of each of its devices, of its host and of the SSD.

    Attributes:
        weights: in device memory; of a cache, its rows.
        optimizer_state: in device memory.
        cache_state: what a cache needs to find its rows.
        inputs: of all batches on the way.
        outputs: with their gradients.
        prefetch: of cached rows.
        dense_gradient: of a replica.
        host_weights, host_state: weights and optimizer state in host memory.
        ssd_weights: on the SSD, with optimizer state.
    """

    weights: int = 0
    optimizer_state: int = 0
    cache_state: int = 0
    inputs: int = 0
    outputs: int = 0
    prefetch: int = 0
    dense_gradient: int = 0
    host_weights: int = 0
    host_state: int = 0
    ssd_weights: int = 0

    @property
    def device_bytes(self) -> int:
        """Of a device."""
        return sum(getattr(self, name) for name in ON_DEVICE_KINDS)

    @property
    def host_bytes(self) -> int:
        """Of a host."""
        return self.host_weights + self.host_state

    def __add__(self, other: PartMemory) -> PartMemory:
        return PartMemory(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


ON_DEVICE_KINDS = tuple(one.name for one in fields(PartMemory) if not one.name.startswith(("host", "ssd")))


def part_memory(
    part: TablePart, table: Table, *, num_devices: int, batch_size: int, optimizer: str, pipeline: str
) -> PartMemory:
    """What a part takes on each of its devices.

    Args:
        part: of the table; a replica where it is on all of several devices.
        table: the whole one.
        num_devices: of the machine.
        batch_size: global batch, samples.
        optimizer: one of ``optimizer_state.NUMBERS``.
        pipeline: one of ``BATCHES``; empty to count weights and states alone.
    """
    own, is_replica = part_table(part, table), len(part.devices) > 1
    kept = _kept(own, part, optimizer)
    if not pipeline:
        return kept
    samples = batch_size / num_devices if is_replica else batch_size
    looked_up = (
        deduplicated_table(replica_table(own, num_devices), 1) if is_replica else deduplicated_table(own, num_devices)
    )
    inputs = _input_bytes(looked_up, samples)
    return kept + PartMemory(
        inputs=round(BATCHES[pipeline] * inputs),
        outputs=round(2 * VALUE_BYTES * samples * looked_up.outputs_per_sample) * own.embedding_dim,
        prefetch=round(PREFETCH_INPUTS * inputs) if pipeline == PREFETCH and part.storage.is_cached else 0,
        dense_gradient=own.num_rows * own.embedding_dim * VALUE_BYTES if is_replica else 0,
    )


def _kept(own: Table, part: TablePart, optimizer: str) -> PartMemory:
    """Weights, states and cache."""
    storage = part.storage
    per_row, per_weight = NUMBERS[optimizer]
    of_rows = own.num_rows * per_row * STATE_BYTES
    of_weights = own.num_rows * own.embedding_dim * per_weight * STATE_BYTES
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
    """Of one batch: a length and an offset for each bag, an index, and perhaps a weight, for each lookup."""
    bags = samples * table.num_features
    of_lookup = INDEX_BYTES + LOOKUP_WEIGHT_BYTES * table.is_weighted
    return samples * table.pooling_factor * of_lookup + bags * (LENGTH_BYTES + OFFSET_BYTES)


@dataclass(frozen=True)
class SampleMemory:
    """Bytes that every device holds for its own samples, wherever the tables are.

    Attributes:
        inputs: of all batches on the way, before they are sent to the tables' devices.
        received: embeddings of all tables, and the gradients that go back.
    """

    inputs: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.inputs + self.received


def sample_memory(tables: Sequence[Table], *, num_devices: int, batch_size: int, pipeline: str) -> SampleMemory:
    """What every device holds for its own samples; nothing where there is one device, which exchanges nothing."""
    if not pipeline:
        return SampleMemory()
    samples = batch_size / num_devices
    inputs = BATCHES[pipeline] * sum(_input_bytes(table, samples) for table in tables)
    values = sum(samples * table.outputs_per_sample * table.embedding_dim for table in tables)
    received = 2 * VALUE_BYTES * values if num_devices > 1 else 0
    return SampleMemory(round(inputs), round(received))
