"""What a part takes of memory by our count and by TorchRec's ``EmbeddingStorageEstimator``, for random plans.

TorchRec says one number for each kind of memory. Its components are told apart by asking its estimator several times:
for inference (weights alone), without an optimizer, and for pipelines that hold inputs two and ten times. Where both
count the same thing they are compared; where they do not, it is counted why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenshard.placement.memory import (
    INDEX_BYTES,
    PIPELINES,
    PREFETCH,
    PREFETCH_INPUTS,
    STATE_NUMBERS,
    PartMemory,
    part_memory,
    sample_memory,
)
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING, Storage, TablePart, part_table
from evenshard.placement.placement import parts_by_table
from evenshard.placement.sharding import (
    DATA_PARALLEL,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    sharding_type,
)
from evenshard.placement.task import ShardingTask
from evenshard.price.link import LINKS
from evenshard.sharders.simple import random_sharding
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import Bandwidths, machine_topology

TB = 1024**4
# TorchRec's names of training pipelines.
PIPELINE_TYPES = {
    "none": "NONE",
    "base": "TRAIN_BASE",
    "sparse_dist": "TRAIN_SPARSE_DIST",
    "prefetch": "TRAIN_PREFETCH_SPARSE_DIST",
}
# TorchRec's classes of the optimizers that are compared: those whose states its estimator knows.
OPTIMIZERS = {"sgd": "SGD", "rowwise_adagrad": "RowWiseAdagrad", "adagrad": "Adagrad", "adam": "Adam"}
NOTHING = "TorchRec counts none"


@dataclass(frozen=True)
class Plan:
    """A plan and how it is trained.

    Attributes:
        task: tables, machine, batch size, optimizer, pipeline.
        parts: of its tables, with the kernels that keep them.
        at_peak: TorchRec's ``run_embedding_at_peak_memory``.
    """

    task: ShardingTask
    parts: tuple[TablePart, ...]
    at_peak: bool


def random_plan(seed: int) -> Plan:
    """Six tables, of any kind, sharded in any way over 4 to 16 devices."""
    rng = np.random.default_rng(seed)
    tables = tuple(_random_table(f"t{number}", rng) for number in range(6))
    nodes, per_node = int(rng.integers(1, 4)), int(rng.choice([2, 4, 8]))
    inter = "" if nodes == 1 else next(iter(LINKS))
    machine = Nodes(nodes * per_node, per_node, inter=inter)
    task = ShardingTask(
        tables,
        machine,
        (TB,) * machine.num_devices,
        machine.num_devices * int(rng.integers(64, 4096)),
        optimizer=str(rng.choice(list(OPTIMIZERS))),
        pipeline=str(rng.choice(list(PIPELINES))),
    )
    kept = {table.name: _random_storage(rng) for table in tables}
    parts = tuple(
        part if len(part.devices) > 1 else replace(part, storage=kept[part.table])
        for part in random_sharding(task, SHARDING_TYPES, rng)
    )
    return Plan(task, parts, bool(rng.random() < 0.5))


def _random_table(name: str, rng: np.random.Generator) -> Table:
    features = [float(rng.choice([0.5, 1.0, 3.5, 20.0, 80.0])) for _ in range(int(rng.integers(1, 4)))]
    data_type = str(rng.choice(["fp32", "fp16", "bf16"]))
    sequence = rng.random() < 0.25
    return Table(
        name,
        int(rng.integers(10_000, 3_000_000)),
        int(rng.choice([16, 32, 64, 128, 256])),
        sum(features),
        weight_bits=32 if data_type == "fp32" else 16,
        data_type=data_type,
        pooling="none" if sequence else str(rng.choice(["sum", "mean"])),
        is_weighted=not sequence and bool(rng.random() < 0.3),
        feature_pooling_factors=tuple(features) if len(features) > 1 else (),
    )


def _random_storage(rng: np.random.Generator) -> Storage:
    kernel = str(rng.choice([FUSED, FUSED, FUSED_UVM, FUSED_UVM_CACHING]))
    return Storage(kernel, float(rng.choice([0.05, 0.2, 0.5, 1.0])) if kernel == FUSED_UVM_CACHING else 1.0)


# What TorchRec says ---------------------------------------------------------------------------------------------------


class Estimator:
    """TorchRec's estimator for one plan."""

    def __init__(self, plan: Plan) -> None:
        import torch
        from torchrec.distributed.planner.types import SharderData
        from torchrec.distributed.types import StorageUsageType

        self._plan = plan
        self._topology = machine_topology(plan.task.machine, plan.task.room_bytes, Bandwidths(1000.0, 100.0, 10.0))
        self._module = torch.nn.Module()
        self._sharder = SharderData({}, {}, StorageUsageType.BASE)

    def bytes_of_parts(
        self, *, pipeline: str = "", at_peak: bool = False, optimizer: bool = True, inference: bool = False
    ) -> list[tuple[int, int]]:
        """Of each part, on each of its devices: in device memory and in host memory.

        Args:
            pipeline: in place of the plan's, one of ``PIPELINE_TYPES``.
            at_peak: whether embeddings run when memory is at its peak.
            optimizer: whether there is one.
            inference: whether the model is not trained at all.
        """
        from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
        from torchrec.distributed.types import PipelineType

        estimator = EmbeddingStorageEstimator(
            self._topology,
            pipeline_type=PipelineType[PIPELINE_TYPES[pipeline or self._plan.task.pipeline]],
            run_embedding_at_peak_memory=at_peak,
            is_inference=inference,
        )
        found = {}
        for table, parts in self._parts_of_tables():
            option = self._option(table, parts, optimizer)
            estimator.estimate([option], {option.module_type_key: self._sharder})
            stored = [shard.storage for shard in option.shards]
            for number, part in enumerate(parts):
                found[part] = (stored[number].hbm, stored[number].ddr)
        return [found[part] for part in self._plan.parts]

    def _parts_of_tables(self) -> Iterator[tuple[Table, Sequence[TablePart]]]:
        by_table = parts_by_table(self._plan.task, self._plan.parts)
        yield from ((table, by_table[table.name]) for table in self._plan.task.tables)

    def _option(self, table: Table, parts: Sequence[TablePart], optimizer: bool) -> Any:
        import torch
        import torchrec.optim as fused
        from torchrec.distributed.planner.types import Shard, ShardingOption
        from torchrec.distributed.types import CacheParams

        data_types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        tensor = torch.empty(table.num_rows, table.embedding_dim, dtype=data_types[table.dtype], device="meta")
        if optimizer:
            tensor._optimizer_classes = [getattr(fused, OPTIMIZERS[self._plan.task.optimizer])]  # type: ignore[attr-defined]
        way, storage, machine = way_of(self._plan, table, parts), parts[0].storage, self._plan.task.machine
        return ShardingOption(
            name=table.name,
            tensor=tensor,
            module=("model", self._module),
            input_lengths=list(table.feature_lookups),
            batch_size=round(self._plan.task.local_batch),
            sharding_type=way,
            partition_by="device" if machine.num_nodes == 1 else "host",
            compute_kernel="dense" if way == DATA_PARALLEL else storage.kernel,
            shards=[
                Shard([part.rows.size, part.columns.size], [part.rows.start, part.columns.start], rank=rank)
                for part in parts
                for rank in part.devices
            ],
            cache_params=CacheParams(load_factor=storage.load_factor) if storage.is_cached else None,
            is_pooled=not table.is_sequence,
        )


def way_of(plan: Plan, table: Table, parts: Sequence[TablePart]) -> str:
    """TorchRec's word for how a table is sharded; columns within one of several nodes have one of their own."""
    way, machine = sharding_type(parts, table, plan.task.machine), plan.task.machine
    nodes = {machine.node_of(part.device) for part in parts if len(part.devices) == 1}
    return TABLE_COLUMN_WISE if way == "column_wise" and machine.num_nodes > 1 and len(nodes) == 1 else way


# Side by side ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A component of a part by both counts.

    Attributes:
        component: its name.
        ours, theirs: bytes on each device of the part.
        reason: why they do not count the same thing; empty where they do.
    """

    component: str
    ours: int
    theirs: int
    reason: str = ""

    @property
    def difference(self) -> float:
        """Relative."""
        return abs(self.ours - self.theirs) / max(self.ours, self.theirs, 1)


def compared(plan: Plan) -> list[Compared]:
    """All components of all parts."""
    ask, task = Estimator(plan).bytes_of_parts, plan.task
    asked = zip(
        ask(inference=True),
        ask(pipeline="sparse_dist", optimizer=False),
        ask(pipeline="prefetch", optimizer=False),
        ask(optimizer=False, at_peak=plan.at_peak),
        ask(at_peak=plan.at_peak),
        plan.parts,
        strict=True,
    )
    by_name = {table.name: table for table in task.tables}
    found: list[Compared] = []
    for weights, sparse, prefetch, trained, whole, part in asked:
        table, cached = by_name[part.table], part.storage.is_cached
        given: dict[str, Any] = {
            "num_devices": task.num_devices,
            "batch_size": task.batch_size,
            "optimizer": task.optimizer,
        }
        ours = part_memory(part, table, **given, pipeline=task.pipeline)
        one_batch = (prefetch[0] - sparse[0]) // (1 + PREFETCH_INPUTS * cached)
        prefetched = PREFETCH_INPUTS * one_batch if cached and task.pipeline == PREFETCH else 0
        cache_state = sparse[0] - weights[0] - 2 * one_batch
        inputs = PIPELINES[task.pipeline].batches * one_batch
        indices = round(INDEX_BYTES * _lookups(plan, part, table))
        found += [
            Compared("weights", ours.weights, weights[0]),
            Compared("weights in host memory", ours.host_weights, weights[1]),
            Compared("cache state", ours.cache_state, cache_state),
            Compared("indices", PIPELINES[task.pipeline].batches * indices, inputs),
            Compared(
                "indices, prefetched",
                PREFETCH_INPUTS * indices if ours.prefetch else 0,
                prefetched,
            ),
            Compared(
                "outputs",
                ours.outputs,
                trained[0] - weights[0] - cache_state - inputs - prefetched,
                _why_outputs_differ(plan, table),
            ),
            Compared(
                "optimizer state",
                ours.optimizer_state,
                whole[0] - trained[0],
                _why_states_differ(plan, part, table),
            ),
            Compared(
                "optimizer state in host memory",
                ours.host_state,
                whole[1] - trained[1],
                _why_states_differ(plan, part, table),
            ),
            *_ours_alone(ours, PIPELINES[task.pipeline].batches * indices),
        ]
    own = sample_memory(task.tables, num_devices=task.num_devices, batch_size=task.batch_size, pipeline=task.pipeline)
    found.append(Compared("inputs of a device's own samples", own.inputs, 0, NOTHING))
    return [*found, Compared("embeddings received for a device's own samples", own.received, 0, NOTHING)]


def _lookups(plan: Plan, part: TablePart, table: Table) -> float:
    samples = plan.task.local_batch if len(part.devices) > 1 else plan.task.batch_size
    return samples * part_table(part, table).pooling_factor


def _ours_alone(ours: PartMemory, indices: int) -> Iterator[Compared]:
    rest = {
        "lengths, offsets and weights of lookups": ours.inputs - indices,
        "outputs in an all-to-all's buffer": ours.sent,
        "gradients of replicas": ours.dense_gradient,
        "inputs while a batch arrives": ours.arriving,
        "gradients of sequences as received": ours.returned,
        "the sort of an update": ours.workspace,
    }
    yield from (Compared(name, size, 0, NOTHING) for name, size in rest.items() if size)


def _why_outputs_differ(plan: Plan, table: Table) -> str:
    if plan.task.pipeline in ("sparse_dist", PREFETCH) and not plan.at_peak:
        return "TorchRec: none with these pipelines, unless embeddings run at the peak"
    if table.weight_bits < 32:
        return "TorchRec: in the weights' data type; FBGEMM's are FP32"
    if not table.is_sequence and min(table.feature_lookups) < 1:
        return "TorchRec: fewer outputs than bags where a bag has less than one lookup; FBGEMM pools empty bags too"
    return ""


def _why_states_differ(plan: Plan, part: TablePart, table: Table) -> str:
    per_row, _ = STATE_NUMBERS[plan.task.optimizer]
    if plan.task.optimizer == "sgd":
        return ""
    if part.storage.kernel == FUSED_UVM_CACHING:
        return "TorchRec: on the device those of cached rows, on the host all; FBGEMM: of rows on the device, else host"
    if per_row and part.storage.kernel == FUSED_UVM:
        return "TorchRec: on the host; FBGEMM keeps states of rows on the device"
    if table.weight_bits < 32 and len(part.devices) == 1:
        return "TorchRec: in the weights' data type; FBGEMM's are FP32"
    if per_row and part.columns.size < table.embedding_dim:
        return "TorchRec: parts of columns share a state of rows; in FBGEMM each has its own"
    return ""


# The list -------------------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """A component, or a reason why it differs.

    Attributes:
        parts: how many are compared.
        largest: relative difference.
        ours, theirs: bytes altogether.
        plans: in which it comes.
    """

    parts: int = 0
    largest: float = 0.0
    ours: int = 0
    theirs: int = 0
    plans: set[int] = field(default_factory=set)


def side_by_side(plans: Sequence[Plan]) -> dict[tuple[str, str], Line]:
    """By component and reason; those where both have nothing are left out."""
    lines: dict[tuple[str, str], Line] = defaultdict(Line)
    for number, plan in enumerate(plans):
        for one in compared(plan):
            if one.ours or one.theirs:
                line = lines[one.component, one.reason]
                line.parts += 1
                line.largest = max(line.largest, one.difference)
                line.ours, line.theirs = line.ours + one.ours, line.theirs + one.theirs
                line.plans.add(number)
    return dict(lines)
