"""The peak memory of real training on the CPU, every rank's, against its prediction.

Each setting is a model of TorchRec, trained by ``DistributedModelParallel`` on 2 or 4 ranks with gloo between them.
Predicted is what ``placement/memory.py`` counts for the rank's parts and its samples, and ``dense_bytes`` for the rest
of the model.

Measured is the peak of the resident memory above a baseline: a process whose libraries are imported and whose process
group is up, and which has trained the same plan with tables of a few rows, so that code is loaded and connections have
their buffers. Set for the ranks, so that what is freed is given back and resident memory is what lives:

- ``MALLOC_MMAP_THRESHOLD_`` and ``MALLOC_TRIM_THRESHOLD_`` of 64 KB: larger tensors are mapped one by one;
- ``MALLOC_ARENA_MAX`` of 1: gloo's threads keep no heaps of their own.

What only CPUs take (``cpu_moments``) is added here and not counted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenshard.placement.memory import WORKSPACE_BYTES, PartMemory, SampleMemory, moments, part_memory, sample_memory
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table
from evenshard.torchrec import dense_bytes
from support.memory_training import Setting, measured_peaks, model_of, parts_of, setting_tables

MB = 1024**2


@dataclass(frozen=True)
class Peak:
    """Bytes of a rank.

    Attributes:
        setting: its name.
        rank: of the setting's ranks.
        predicted: with what only CPUs take.
        counted: without that, as for a GPU.
        searched: what a search counts, the moment of the exchange.
        moment: of the predicted peak.
        tables, inputs, exchanged: of the prediction, weights with states and dense gradients, inputs, and the rest.
        measured: the peak above the baseline.
    """

    setting: str
    rank: int
    predicted: int
    counted: int
    searched: int
    moment: str
    tables: int
    inputs: int
    exchanged: int
    measured: int = 0

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def predicted_peaks(setting: Setting) -> list[Peak]:
    """Of each rank, measured left out."""
    model = model_of(setting)
    tables = setting_tables(setting, model)
    by_name, parts = {table.name: table for table in tables}, parts_of(setting, tables)
    given: dict[str, Any] = {
        "num_devices": setting.ranks,
        "batch_size": setting.batch_size,
        "pipeline": setting.pipeline,
    }
    own, rest = sample_memory(tables, **given, parts=parts), dense_bytes(model, setting.dense_optimizer)
    found = []
    for rank in range(setting.ranks):
        mine = [(by_name[part.table], part) for part in parts if rank in part.devices]
        sizes = [part_memory(part, table, **given, optimizer=table_optimizer(setting, part)) for table, part in mine]
        held = sum(sizes, PartMemory())
        at = moments(held, own)
        on_cpu = cpu_moments(held, own, [(table, part, size) for (table, part), size in zip(mine, sizes, strict=True)])
        moment = max(on_cpu, key=lambda name: on_cpu[name])
        lasting, inputs = held.lasting_bytes + own.inputs + rest, held.inputs + own.inputs
        found.append(
            Peak(
                setting.name,
                rank,
                predicted=lasting + on_cpu[moment],
                counted=lasting + max(at.values()),
                searched=held.device_bytes + own.total + rest,
                moment=moment,
                tables=lasting - inputs - rest,
                inputs=inputs,
                exchanged=on_cpu[moment],
            )
        )
    return found


def table_optimizer(setting: Setting, part: TablePart) -> str:
    """Replicas are dense parameters: the dense optimizer trains them."""
    return setting.dense_optimizer if len(part.devices) > 1 else setting.optimizer


def cpu_moments(
    held: PartMemory, own: SampleMemory, parts: Sequence[tuple[Table, TablePart, PartMemory]]
) -> dict[str, int]:
    """The moments of a step as CPUs go through them.

    gloo copies what it scatters and gathers of parts in rows. FBGEMM sorts the lookups of one table after the other; 6
    bytes of each one stay until the end, and 12 while its table is sorted (18 and 24 with weights of lookups); it sorts
    none of replicas. (Measured on the kernel alone: 17.5 bytes of a lookup with one table, 11.5 with two, 8.5 with
    four; 41.5 and 23.5 with weights, of one and four.)
    """
    gloo = sum(size.outputs for table, part, size in parts if part.rows.size < table.num_rows and not table.is_sequence)
    sorted_parts = [(table, size) for table, part, size in parts if len(part.devices) == 1]
    lookups = [(size.workspace / WORKSPACE_BYTES, table.is_weighted) for table, size in sorted_parts]
    stays = sum(count * (18 if is_weighted else 6) for count, is_weighted in lookups)
    one = max((count * (24 if is_weighted else 12) for count, is_weighted in lookups), default=0)
    more = {"outputs are sent": gloo, "gradients are sent": gloo}
    at = moments(held._replace(workspace=round(stays + one)), own)
    return {name: size + more.get(name, 0) for name, size in at.items()}


def peaks_of(setting: Setting) -> list[Peak]:
    """Trains it: predicted and measured of each rank."""
    measured = measured_peaks(setting)
    return [replace(one, measured=size) for one, size in zip(predicted_peaks(setting), measured, strict=True)]
