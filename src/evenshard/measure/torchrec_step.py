"""Training step of sharded and replicated tables under TorchRec's ``DistributedModelParallel``, timed on every rank.

::

    | input dist | lookups | output dist | output dist back | lookups back | all-reduce | dense update |
        timed       timed      timed            timed            timed         timed         timed

TorchRec's sharded modules do the work of every phase. There is a barrier before each phase, and a phase runs all
modules one after another, without overlap. The outputs of the lookups are detached from the autograd graph, so that
communication and lookups of the backward pass can be timed separately. Replicas are not wrapped in DDP, because its
all-reduce overlaps with the backward pass; their gradients are reduced afterwards. This all-reduce counts as backward
communication, and the update of replicas as backward compute.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from evenshard.base.errors import BadConfig, BadInput
from evenshard.base.process import environment
from evenshard.measure.campaign import Job
from evenshard.measure.distributed.collective import CollectiveHardware, local_world_size
from evenshard.measure.distributed.exchange import GRADIENT, Finding, Step, Worker, run_together, time_work
from evenshard.measure.distributed.jobs import JOBS, PlacementJob
from evenshard.measure.fbgemm import LEARNING_RATE, OutOfDeviceMemory, ShardKernels, weights_dtype
from evenshard.measure.hardware import Hardware
from evenshard.placement.memory import OPTIMIZERS, state_bytes
from evenshard.placement.parts import ON_DEVICE, part_table
from evenshard.placement.sharding import Communication
from evenshard.price.costs import OUT_OF_MEMORY, PlacementCost
from evenshard.price.kernel_calls import feature_tables
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import collection_of, require_torchrec
from evenshard.torchrec.model.modules import find_sharded_collections
from evenshard.torchrec.plan.plans import plan_of_parts


@dataclass(frozen=True)
class ShardedJob(Job):
    """A placement of sharded and replicated tables to measure."""

    def check(self, hardware: Hardware) -> None:
        """Raise an error if the hardware cannot measure the placement.

        Raises:
            BadInput: if the hardware is simulated or has one device, or TorchRec is missing or cannot train the parts.
        """
        measured = self._require_ranks(hardware)
        self.rank_job.plan(measured.device.type)

    def measure_on(self, hardware: Hardware) -> PlacementCost:
        """Measure the placement once."""
        return self._require_ranks(hardware).measure_together(self.rank_job, "a sharded placement")

    @property
    def rank_job(self) -> MeasureParts:
        """Return the job in which all ranks measure the placement."""
        return MeasureParts(self.task.tables, self.task.machine, self.task.batch_size, self.parts)

    def _require_ranks(self, hardware: Hardware) -> CollectiveHardware:
        devices = self.task.num_devices
        if not isinstance(hardware, CollectiveHardware):
            raise BadConfig(
                f"a sharded placement is measured on all of its {devices} devices at the same time. Start torchrun "
                f"--nproc-per-node {devices} -m evenshard benchmark, with hardware auto, cpu or cuda."
            )
        if self.task.communication != Communication():
            raise BadInput("Quantized communication cannot be measured. Use fp32 for all communication.")
        return hardware


@dataclass(frozen=True)
class MeasureParts(PlacementJob):
    """Job in which every rank trains its table parts under ``DistributedModelParallel``."""

    def check(self, num_ranks: int) -> None:
        """Check the job; see ``RankJob``."""
        super().check(num_ranks)
        if self.batch_size % num_ranks:
            raise ValueError(f"batch_size is {self.batch_size}, which is not divisible by {num_ranks} ranks")

    def run(self, worker: Worker) -> Finding:
        """Run this rank's part; see ``RankJob``. If a rank runs out of memory, all ranks report it."""
        finding, worst = run_together(worker, lambda: self._run_steps(worker))
        return Finding(problem=OUT_OF_MEMORY) if worst == OUT_OF_MEMORY else finding

    def plan(self, compute_device: str) -> tuple[torch.nn.ModuleDict, Any]:
        """Build the model, without weights, and TorchRec's plan for it.

        Raises:
            BadInput: if TorchRec is missing, cannot train the parts, or a precision cannot be measured.
        """
        require_torchrec()
        if compute_device == "cuda" and self.machine.devices_per_node != local_world_size():
            raise BadConfig(
                f"a node has {self.machine.devices_per_node} devices, but torchrun started {local_world_size()} "
                f"processes on this host. On GPUs both must be equal: remove --devices-per-node."
            )
        deduplicated = {table.is_deduplicated for table in self.tables if table.is_sequence}
        if len(deduplicated) > 1:
            raise BadInput("TorchRec deduplicates either all EmbeddingCollections or none. Deduplicate all or none.")
        if compute_device == "cpu" and True in deduplicated:
            raise BadInput("FBGEMM deduplicates indices only on GPUs. Measure deduplicated tables on GPUs.")
        names = {table.name: f"t{at}" for at, table in enumerate(self.tables)}
        modules = {str(at): _build_collection(group, names) for at, group in enumerate(self.collections)}
        tables = [replace(table, name=names[table.name]) for table in self.tables]
        parts = [replace(part, table=names[part.table]) for part in self.parts]
        plan = plan_of_parts(parts, tables, modules, self.machine, compute_device, allowed={})
        return torch.nn.ModuleDict(modules), plan

    @cached_property
    def collections(self) -> tuple[tuple[Table, ...], ...]:
        """Group the tables by TorchRec module."""
        found: dict[tuple[str, bool, bool], list[Table]] = {}
        for table in self.tables:
            found.setdefault(table.collection, []).append(table)
        return tuple(map(tuple, found.values()))

    def _run_steps(self, worker: Worker) -> tuple[Step, ...]:
        config, ranks = worker.config, worker.ranks
        of_node = self.machine.devices_per_node
        # torchrun's variables, so that TorchRec knows the number of ranks per node
        node_size = environment({"LOCAL_WORLD_SIZE": str(of_node), "LOCAL_RANK": str(ranks.rank % of_node)})
        with worker.kernels.watch_failures(self.tables), node_size:
            model, plan = self.plan(ranks.device.type)
            self._require_memory(worker)
            ranks.barrier()
            training = TrainingStep(worker, self, model, plan)
            ranks.barrier()
            steps = tuple(training.run(number) for number in range(config.warmup + config.repeats))
            ranks.barrier()
            return steps

    def _require_memory(self, worker: Worker) -> None:
        gc.collect()  # modules of the previous placement have reference cycles
        tables = {table.name: table for table in self.tables}
        rank, optimizer = worker.ranks.rank, worker.config.optimizer
        held = [
            part_table(part, tables[part.table])
            for part in self.parts
            if rank in part.devices and part.storage == ON_DEVICE
        ]
        num_bytes = sum(table.size_bytes + state_bytes(table, optimizer) for table in held)
        if num_bytes > worker.kernels.free_bytes():
            raise OutOfDeviceMemory


class TrainingStep:
    """A model under ``DistributedModelParallel`` on one rank, and the phases of its training step."""

    def __init__(self, worker: Worker, job: MeasureParts, model: torch.nn.ModuleDict, plan: Any) -> None:
        """Shard the model, in step with the other ranks."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.optim.optimizers import in_backward_optimizer_filter

        # FBGEMM's dense call is differentiated on the CPU without its own kernel; tests compare its gradients.
        warnings.filterwarnings("ignore", ".*an autograd kernel was not registered", UserWarning)
        self._worker, device = worker, worker.ranks.device
        known = OPTIMIZERS[worker.config.optimizer]
        fused = {"optimizer": EmbOptimType[known.fbgemm_names[0]], "learning_rate": LEARNING_RATE}
        deduplicated = any(table.is_deduplicated for table in job.tables)
        sharders: list[Any] = [
            EmbeddingBagCollectionSharder(fused),
            EmbeddingCollectionSharder(fused, use_index_dedup=deduplicated),
        ]
        built: list[Any] = []
        worker.ranks.time_collectives(  # detects a lost rank
            lambda: built.append(
                DistributedModelParallel(model, device=device, plan=plan, sharders=sharders, init_data_parallel=False)
            )
        )
        self._model = built.pop()
        sharded = find_sharded_collections(self._model)
        self.modules = [sharded[path] for path in model]
        replicas = [weight for _, weight in in_backward_optimizer_filter(self._model.named_parameters())]
        # TorchRec shows each table of a dense call as a slice of one tensor.
        whole = {id(weight): weight for weight in (getattr(weight, "_original_tensor", weight) for weight in replicas)}
        self._replicas = list(whole.values())
        kind = getattr(torch.optim, known.torch_name)
        self._optimizer = kind(self._replicas, lr=LEARNING_RATE) if self._replicas else None
        self.batches = [
            [
                local_batch(worker.kernels, group, job.batch_size, worker.ranks.rank, worker.ranks.size, number)
                for number in range(worker.config.num_batches)
            ]
            for group in job.collections
        ]

    def run(self, number: int) -> Step:
        """Train on a batch, and return the times of the phases."""
        ranks = self._worker.ranks

        def communicate(phase: Callable[[], None]) -> float:
            ranks.barrier()
            return ranks.time_collectives(phase)

        def compute(phase: Callable[[], None]) -> float:
            ranks.barrier()
            return time_work(ranks.device, phase)[1]

        self._worker.flush()
        inputs_ms = communicate(lambda: self.distribute_inputs(number))
        forward_ms = compute(self.look_up)
        wait_ms = ranks.barrier()
        out_ms = ranks.time_collectives(self.distribute_outputs)
        values = self.values()
        gradients = [torch.full_like(output, GRADIENT) for output in values]  # in place of those of a dense model
        back_ms = communicate(lambda: torch.autograd.backward(values, gradients))  # to the ranks of the parts
        backward_ms = compute(self.compute_gradients)
        back_ms += communicate(self.reduce_replicas)
        backward_ms += compute(self.update_replicas)
        return Step(forward_ms, wait_ms, out_ms, back_ms, backward_ms, inputs_ms)

    def distribute_inputs(self, number: int) -> None:
        """Run the input dist: send the indices of this rank's samples to the ranks that hold the parts."""
        self._contexts = [module.create_context() for module in self.modules]
        self._inputs = [
            module.input_dist(context, own[number % len(own)]).wait().wait()
            for module, context, own in zip(self.modules, self._contexts, self.batches, strict=True)
        ]

    def look_up(self) -> None:
        """Look up the embeddings in this rank's parts."""
        self._found = [
            module.compute(context, inputs)
            for module, context, inputs in zip(self.modules, self._contexts, self._inputs, strict=True)
        ]

    def distribute_outputs(self) -> None:
        """Run the output dist: send the embeddings to the ranks of their samples."""
        self._leaves = [[output.detach().requires_grad_() for output in found] for found in self._found]
        self.outputs: list[Any] = [
            module.output_dist(context, leaves).wait()
            for module, context, leaves in zip(self.modules, self._contexts, self._leaves, strict=True)
        ]

    def values(self) -> list[torch.Tensor]:
        """Return the outputs for this rank's samples."""
        of_modules = (output.values() if isinstance(output, dict) else [output] for output in self.outputs)
        return [output.values() for outputs in of_modules for output in outputs]

    def compute_gradients(self) -> None:
        """Run the backward pass of the lookups; fused calls also update the weights."""
        pairs = [
            (output, leaf.grad)
            for outputs, leaves in zip(self._found, self._leaves, strict=True)
            for output, leaf in zip(outputs, leaves, strict=True)
            if output.requires_grad and leaf.grad is not None
        ]
        if pairs:
            outputs_of_calls, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(outputs_of_calls, gradients)
        self._found, self._leaves, self.outputs = [], [], []

    def reduce_replicas(self) -> None:
        """Average the gradients of replicas over all ranks, as DDP does."""
        ranks = self._worker.ranks
        for weight in self._replicas:
            torch.distributed.all_reduce(weight.grad.div_(ranks.size))

    def update_replicas(self) -> None:
        """Update the replicas with a torch optimizer."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()


def local_batch(
    kernels: ShardKernels, tables: Sequence[Table], batch_size: int, rank: int, num_ranks: int, number: int
) -> Any:
    """Return the lookups of a rank's own samples as a ``KeyedJaggedTensor``."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    own = batch_size // num_ranks
    keys, lengths, values = [], [], []
    for table in tables:
        for feature in feature_tables(table):
            indices, of_samples = kernels.table_batches(feature, batch_size)[number]
            start = int(of_samples[: rank * own].sum())
            lengths.append(of_samples[rank * own : (rank + 1) * own])
            values.append(indices[start : start + int(lengths[-1].sum())])
            keys.append(feature.name)
    joined = torch.cat(values)
    weights = torch.ones(len(joined), device=joined.device) if tables[0].is_weighted else None
    return KeyedJaggedTensor(keys, joined, weights, lengths=torch.cat(lengths))


def _build_collection(tables: Sequence[Table], names: dict[str, str]) -> Any:
    from torchrec.modules.embedding_configs import DataType

    data_types = {torch.float16: DataType.FP16, torch.float32: DataType.FP32}
    features = [[feature.name for feature in feature_tables(table)] for table in tables]
    return collection_of(
        tables, [names[t.name] for t in tables], features, [data_types[weights_dtype([t])] for t in tables]
    )


RANK_JOBS = {**JOBS, MeasureParts.__name__: MeasureParts}
