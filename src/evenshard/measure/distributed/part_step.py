"""A training step of a placement of parts, on one of the ranks that run it together.

::

    | inputs | forward | exchange | exchange back | backward | all-reduce | dense update |
       timed    timed     timed         timed         timed      timed         timed

There is a barrier before every piece. Each takes all groups one after the other, as a step does that overlaps nothing.
The all-reduce is of the gradients of replicas; it counts as backward exchange, and the update as backward compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from evenshard.measure.costs import OUT_OF_MEMORY
from evenshard.measure.distributed.exchange import GRADIENT, Finding, Step, Worker, run_together, time_work
from evenshard.measure.distributed.part_inputs import Bags, Distribution, InputExchange, own_bags
from evenshard.measure.distributed.part_kernels import LoadedCall, dense_optimizer, load_calls
from evenshard.measure.distributed.part_layout import ExchangeGroup, exchange_groups, is_replicated
from evenshard.measure.distributed.part_outputs import OutputExchange, output_exchange
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import parts_by_table
from evenshard.placement.task import ShardingTask


@dataclass
class LoadedGroup:
    """A group of tables on a device, and what a step has made of it so far.

    Attributes:
        group: what it is.
        calls: of this device.
        batches: lookups of this rank's samples, batch after batch.
        inputs, outputs: its exchanges; None for replicas.
        distribution: lookups of a batch, once they are where their parts are.
        found: outputs of the calls.
        gradients: of these outputs.
    """

    group: ExchangeGroup
    calls: tuple[LoadedCall, ...]
    batches: tuple[Bags, ...]
    inputs: InputExchange | None
    outputs: OutputExchange | None
    distribution: Distribution | None = None
    found: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)


class LoadedParts:
    """All that a rank holds of a placement."""

    def __init__(self, worker: Worker, task: ShardingTask, parts: Sequence[TablePart]) -> None:
        """Loads the parts of this rank, in step with the other ranks.

        Raises:
            OutOfDeviceMemory: if the parts do not fit.
            BadInput: if kernels cannot take them.
        """
        ranks, kernels, size = worker.ranks, worker.kernels, task.batch_size
        groups = exchange_groups(task.tables, parts_by_table(task, parts), task.machine)
        ranks.tier_groups(task.machine.devices_per_node)
        calls = load_calls(kernels, groups, ranks.rank)
        self._ranks = ranks
        self.groups = tuple(
            LoadedGroup(
                group,
                of_group,
                tuple(own_bags(kernels, group, size, ranks, number) for number in range(worker.config.num_batches)),
                None if is_replicated(group) else InputExchange(ranks, group, task.machine, size),
                None if is_replicated(group) else output_exchange(ranks, group, task.machine, size),
            )
            for group, of_group in zip(groups, calls, strict=True)
        )
        self._replicas = [call for one in self.groups if is_replicated(one.group) for call in one.calls]
        self._optimizer = dense_optimizer(worker.config.optimizer, self._replicas)

    def distribute(self, number: int) -> None:
        """Brings a batch's lookups to where their parts are; those of replicas stay."""
        for one in self.groups:
            own = one.batches[number % len(one.batches)]
            one.distribution = one.inputs(own) if one.inputs else Distribution(own, own.lengths.sum(dim=1), own)

    def forward(self) -> None:
        """Looks up what was distributed."""
        for one in self.groups:
            assert one.distribution is not None
            bags = one.distribution.looked_up
            lengths = bags.lengths.reshape(-1).to(bags.indices.dtype)
            ends = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
            one.found = [call.forward(bags, ends) for call in one.calls]

    def exchange(self) -> None:
        """Brings outputs to the ranks whose samples they are of."""
        for one in self.groups:
            if one.outputs is not None and one.distribution is not None:
                one.outputs.forward(one.found, one.distribution)

    def exchange_back(self) -> None:
        """Brings gradients of outputs back."""
        for one in self.groups:
            if one.outputs is not None:
                one.gradients = one.outputs.backward()
            else:
                one.gradients = [torch.full_like(output, GRADIENT) for output in one.found]

    def backward(self) -> None:
        """Computes gradients of the weights; fused calls also update these."""
        for one in self.groups:
            for output, gradient in zip(one.found, one.gradients, strict=True):
                output.backward(gradient)  # type: ignore[no-untyped-call]
            one.found = []

    def reduce_replicas(self) -> None:
        """Sums up the gradients of replicas over all ranks."""
        for call in self._replicas:
            self._ranks.all_reduce(call.operator.weights.grad)

    def update_replicas(self) -> None:
        """Updates replicas with these."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()


def measure_own_parts(worker: Worker, task: ShardingTask, parts: Sequence[TablePart]) -> Finding:
    """Runs this rank's parts in step with the others.

    If a rank runs out of memory none can run, as their lookups come from each other: all of them say so then.
    """
    for _ in range(2):  # what earlier placements left behind may have been in the way of the first attempt
        finding, worst = run_together(worker, lambda: _steps(worker, task, parts))
        if worst != OUT_OF_MEMORY:
            return finding
        worker.kernels.free()
    return Finding(problem=OUT_OF_MEMORY)


def _steps(worker: Worker, task: ShardingTask, parts: Sequence[TablePart]) -> tuple[Step, ...]:
    with worker.kernels.watch_failures(task.tables):
        loaded = LoadedParts(worker, task, parts)
        worker.ranks.go_on_together()
        steps = tuple(_step(worker, loaded, number) for number in range(worker.config.warmup + worker.config.repeats))
        worker.ranks.go_on_together()
        return steps


def _step(worker: Worker, loaded: LoadedParts, number: int) -> Step:
    ranks, device = worker.ranks, worker.ranks.device

    def exchanged_ms(work: Callable[[], None]) -> float:
        ranks.go_on_together()
        return ranks.timed_ms(work)

    worker.flush()
    inputs_ms = exchanged_ms(lambda: loaded.distribute(number))
    ranks.go_on_together()
    _, forward_ms = time_work(device, loaded.forward)
    wait_ms = ranks.go_on_together()
    out_ms = ranks.timed_ms(loaded.exchange)
    back_ms = exchanged_ms(loaded.exchange_back)
    ranks.go_on_together()
    _, backward_ms = time_work(device, loaded.backward)
    reduce_ms = exchanged_ms(loaded.reduce_replicas)
    ranks.go_on_together()
    _, update_ms = time_work(device, loaded.update_replicas)
    return Step(forward_ms, wait_ms, out_ms, back_ms + reduce_ms, backward_ms + update_ms, inputs_ms)
