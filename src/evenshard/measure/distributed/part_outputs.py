"""The exchanges of a group's outputs and of their gradients: what each sharding type really sends.

- whole tables and columns: an all-to-all of pooled embeddings, and one back.
- rows on all devices: a reduce-scatter of partial sums, in each node first, and an all-gather of gradients.
- rows on a node: a reduce-scatter in the node, then an all-to-all between the nodes; back the other way round.
- sequences: an all-to-all of every lookup's embedding, and one back. Putting them in the order of the lookups is left
  out here.

Legend: B samples of the global batch, b those of a rank, D values of a sample on this device, M nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch

from evenshard.measure.distributed.exchange import GRADIENT, Exchange
from evenshard.measure.distributed.part_inputs import Bags, Distribution
from evenshard.measure.distributed.part_layout import BlockFeature, ExchangeGroup
from evenshard.measure.distributed.ranks import Ranks, Splits, pooled_splits
from evenshard.placement.machine import Machine
from evenshard.tables.table import MEAN


class OutputExchange(Protocol):
    """What the outputs of a group go through, and then their gradients.

    Attributes:
        received: flat; what this rank's own samples get.
        gradient: flat, laid out like ``received``: what the dense part sends back.
    """

    received: torch.Tensor
    gradient: torch.Tensor

    def forward(self, outputs: Sequence[torch.Tensor], inputs: Distribution) -> None:
        """Fills ``received``.

        Args:
            outputs: of this device's kernel calls.
            inputs: the lookups that they are of.
        """
        ...

    def backward(self) -> list[torch.Tensor]:
        """Gradients of the outputs of this device's kernel calls."""
        ...


def output_exchange(ranks: Ranks, group: ExchangeGroup, machine: Machine, batch_size: int) -> OutputExchange:
    """The exchange of a group that is not replicated."""
    if group.is_sequence:
        return SequenceExchange(ranks, group)
    if not group.is_in_rows:
        return PooledExchange(ranks, group, batch_size)
    if group.is_on_all or machine.num_nodes == 1:
        return SummedExchange(ranks, group, machine, batch_size)
    return NodeSummedExchange(ranks, group, machine, batch_size)


class PooledExchange(Exchange):
    """Whole tables and columns: see ``OutputExchange``."""

    def __init__(self, ranks: Ranks, group: ExchangeGroup, batch_size: int) -> None:
        widths = [group.width_on(device) for device in range(ranks.size)]
        super().__init__(ranks, pooled_splits(widths, batch_size, ranks.rank))
        self._batch_size = batch_size
        self._call_widths = call_widths(group, ranks.rank)

    def forward(self, outputs: Sequence[torch.Tensor], inputs: Distribution) -> None:
        """See ``OutputExchange``."""
        self.send(_side_by_side(outputs, self._ranks))

    def backward(self) -> list[torch.Tensor]:
        """See ``OutputExchange``."""
        found = torch.empty(sum(self._forth.sent), device=self._ranks.device)
        self.send_back(found)
        return _of_calls(found, self._batch_size, self._call_widths)


class SummedExchange:
    """Rows on all devices: see ``OutputExchange``.

    On several nodes the sums are made in each node first, then between ranks with the same number in every node: gloo
    would send all of every rank's buffer over the slow link, NCCL does not.
    """

    def __init__(self, ranks: Ranks, group: ExchangeGroup, machine: Machine, batch_size: int) -> None:
        self._ranks, self._batch_size = ranks, batch_size
        self._call_widths = call_widths(group, ranks.rank)
        self._means = _Means(group, group.features(), ranks.device)
        own = batch_size // ranks.size * sum(self._call_widths)
        self._groups = ranks.tier_groups(machine.devices_per_node) if machine.num_nodes > 1 else None
        self._sums = torch.empty(own * machine.num_nodes, device=ranks.device)
        self.received = torch.empty(own, device=ranks.device)
        self.gradient = torch.full_like(self.received, GRADIENT)

    def forward(self, outputs: Sequence[torch.Tensor], inputs: Distribution) -> None:
        """See ``OutputExchange``."""
        partial_sums = _side_by_side(outputs, self._ranks)
        if self._groups is None:
            self._ranks.reduce_scatter(self.received, partial_sums)
        else:
            self._ranks.reduce_scatter(self._sums, partial_sums, self._groups.node)
            self._ranks.reduce_scatter(self.received, self._sums, self._groups.across)
        self._means.divide([self.received], inputs.own)

    def backward(self) -> list[torch.Tensor]:
        """See ``OutputExchange``."""
        gradient = self._means.divided_like_outputs([self.gradient])
        found = torch.empty(self._batch_size * sum(self._call_widths), device=self._ranks.device)
        if self._groups is None:
            self._ranks.all_gather(found, gradient)
        else:
            self._ranks.all_gather(self._sums, gradient, self._groups.across)
            self._ranks.all_gather(found, self._sums, self._groups.node)
        return _of_calls(found, self._batch_size, self._call_widths)


class NodeSummedExchange:
    """Rows on a node: see ``OutputExchange``. Samples of ranks with the same number in their nodes stand together."""

    def __init__(self, ranks: Ranks, group: ExchangeGroup, machine: Machine, batch_size: int) -> None:
        self._ranks, self._batch_size = ranks, batch_size
        self._groups = ranks.tier_groups(machine.devices_per_node)
        self._call_widths = call_widths(group, ranks.rank)
        own = batch_size // ranks.size
        first_of_nodes = range(0, ranks.size, machine.devices_per_node)
        widths = [group.width_on(device) for device in first_of_nodes]
        features = tuple(one for device in first_of_nodes for one in group.features_on(device))
        self._means = _Means(group, features, ranks.device, [len(group.features_on(one)) for one in first_of_nodes])
        self._sums = torch.empty(own * machine.num_nodes * sum(self._call_widths), device=ranks.device)
        self._forth = Splits(
            (own * sum(self._call_widths),) * machine.num_nodes, tuple(own * width for width in widths)
        )
        self.received = torch.empty(sum(self._forth.received), device=ranks.device)
        self.gradient = torch.full_like(self.received, GRADIENT)

    def forward(self, outputs: Sequence[torch.Tensor], inputs: Distribution) -> None:
        """See ``OutputExchange``."""
        if self._call_widths:
            self._ranks.reduce_scatter(self._sums, _side_by_side(outputs, self._ranks), self._groups.node)
        self._ranks.all_to_all(self.received, self._sums, self._forth, self._groups.across)
        self._means.divide(torch.split(self.received, list(self._forth.received)), inputs.own)

    def backward(self) -> list[torch.Tensor]:
        """See ``OutputExchange``."""
        back = Splits(self._forth.received, self._forth.sent)
        gradient = self._means.divided_like_outputs(torch.split(self.gradient, list(self._forth.received)))
        self._ranks.all_to_all(self._sums, gradient, back, self._groups.across)
        found = torch.empty(self._batch_size * sum(self._call_widths), device=self._ranks.device)
        if self._call_widths:
            self._ranks.all_gather(found, self._sums, self._groups.node)
        return _of_calls(found, self._batch_size, self._call_widths)


class SequenceExchange:
    """Sequences: see ``OutputExchange``. How much travels depends on the batch."""

    def __init__(self, ranks: Ranks, group: ExchangeGroup) -> None:
        self._ranks = ranks
        self._devices = range(ranks.size)
        self._group = group
        self._features = group.features_on(ranks.rank)
        self.received = self.gradient = torch.empty(0, device=ranks.device)
        self._shapes: list[torch.Size] = []
        self._sizes: list[int] = []
        self._forth = Splits((), ())

    def forward(self, outputs: Sequence[torch.Tensor], inputs: Distribution) -> None:
        """See ``OutputExchange``."""
        self._shapes = [output.shape for output in outputs]
        widths = [one.block.columns.size for one in self._features]
        size = self._ranks.size
        counts = inputs.looked_up.lengths.view(len(widths), size, -1).sum(dim=2).tolist() if widths else []
        self._sizes = [count * width for width, of_ranks in zip(widths, counts, strict=True) for count in of_ranks]
        pieces = torch.split(
            torch.cat([output.detach().reshape(-1) for output in outputs] or [self.received[:0]]), self._sizes
        )
        sent = [piece for source in self._devices for piece in pieces[source::size]]
        self._forth = Splits(
            tuple(sum(self._sizes[source::size]) for source in self._devices), self._received_sizes(inputs.sent)
        )
        self.received = torch.empty(sum(self._forth.received), device=self._ranks.device)
        if self.gradient.numel() != self.received.numel():
            self.gradient = torch.full_like(self.received, GRADIENT)
        self._ranks.all_to_all(self.received, torch.cat(sent) if sent else self.received[:0], self._forth)

    def backward(self) -> list[torch.Tensor]:
        """See ``OutputExchange``."""
        found = torch.empty(sum(self._forth.sent), device=self._ranks.device)
        self._ranks.all_to_all(found, self.gradient, Splits(self._forth.received, self._forth.sent))
        size = self._ranks.size
        by_source = [self._sizes[at] for source in self._devices for at in range(source, len(self._sizes), size)]
        pieces = torch.split(found, by_source)
        num_features = len(self._features)
        ordered = [pieces[source * num_features + at] for at in range(num_features) for source in self._devices]
        flat = torch.cat(ordered) if ordered else found
        return [
            piece.view(shape)
            for piece, shape in zip(
                torch.split(flat, [shape.numel() for shape in self._shapes]), self._shapes, strict=True
            )
        ]

    def _received_sizes(self, sent: torch.Tensor) -> tuple[int, ...]:
        """Values that this rank gets of every device: its own lookups there, each as wide as the part."""
        counts = iter(sent.tolist())
        return tuple(
            sum(next(counts) * one.block.columns.size for one in self._group.features_on(device))
            for device in self._devices
        )


class _Means:
    """Turns sums over devices and their gradients into means, where tables are asked for these."""

    def __init__(
        self,
        group: ExchangeGroup,
        features: Sequence[BlockFeature],
        device: torch.device,
        counts: Sequence[int] | None = None,
    ) -> None:
        """Takes outputs with the columns of ``features``; with ``counts``, in pieces of so many features."""
        self._is_needed = any(one.block.table.pooling == MEAN for one in features)
        names = [(table.name, number) for table in group.tables for number in range(table.num_features)]
        self._counts = list(counts or [len(features)])
        self._table_feature = [names.index((one.block.table.name, one.feature)) for one in features]
        self._is_mean = torch.tensor([one.block.table.pooling == MEAN for one in features], device=device)
        self._widths = torch.tensor([one.block.columns.size for one in features], device=device)
        self._scales: list[torch.Tensor] = []

    def divide(self, pieces: Sequence[torch.Tensor], own: Bags) -> None:
        """Divides the sums of this rank's samples by their lookups."""
        if not self._is_needed:
            return
        lengths = own.lengths[self._table_feature].clamp(min=1).float()
        scale_Fb = torch.where(self._is_mean[:, None], 1 / lengths, torch.ones_like(lengths))
        self._scales = [
            scale.T.repeat_interleave(widths, dim=1).reshape(-1)
            for scale, widths in zip(
                torch.split(scale_Fb, self._counts), torch.split(self._widths, self._counts), strict=True
            )
        ]
        for piece, scale in zip(pieces, self._scales, strict=True):
            piece.mul_(scale)

    def divided_like_outputs(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gradients, flat, divided like the outputs were."""
        if not self._is_needed:
            return torch.cat(list(pieces)) if len(pieces) > 1 else pieces[0]
        return torch.cat([piece * scale for piece, scale in zip(pieces, self._scales, strict=True)])


def call_widths(group: ExchangeGroup, device: int) -> list[int]:
    """Values of a sample of each kernel call of a device."""
    return [
        sum(block.columns.size * block.table.num_features for block in blocks) for _, blocks in group.calls_on(device)
    ]


def _side_by_side(outputs: Sequence[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """[B, D], flat."""
    if not outputs:
        return torch.empty(0, device=ranks.device)
    whole = outputs[0] if len(outputs) == 1 else torch.cat(list(outputs), dim=1)
    return whole.detach().reshape(-1)


def _of_calls(gradient: torch.Tensor, batch_size: int, widths: Sequence[int]) -> list[torch.Tensor]:
    gradient_BD = gradient.view(batch_size, -1) if widths else gradient
    edges = [sum(widths[:number]) for number in range(len(widths) + 1)]
    return [gradient_BD[:, start:stop].contiguous() for start, stop in pairwise(edges)]
