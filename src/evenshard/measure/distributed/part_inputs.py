"""The input distribution of a placement of parts: lookups of a rank's own samples go to the devices of their parts.

As in TorchRec: lookups of parts that are cut by rows are first sorted into one bucket for each device of the cut, then
two all-to-alls take lengths and indices (a third one weights) to their devices, where bags are put in the order of
features. FBGEMM's operators do the sorting.

Legend: F features, B samples of the global batch, b those of a rank, N ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from evenshard.measure.distributed.part_layout import ExchangeGroup
from evenshard.measure.distributed.ranks import Ranks, Splits
from evenshard.measure.fbgemm import ShardKernels
from evenshard.measure.kernel_calls import feature_tables
from evenshard.placement.machine import Machine


@dataclass(frozen=True)
class Bags:
    """Lookups of features, feature after feature, each sample after sample.

    Attributes:
        lengths: [F, B] or [F, b] int32.
        indices: row numbers, flat.
        weights: one of each lookup, flat; None where they have none.
    """

    lengths: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor | None = None

    def permute(self, order: torch.Tensor) -> Bags:
        """Its features in another order, in which some may come again and some not at all."""
        found = torch.ops.fbgemm.permute_2D_sparse_data(order, self.lengths, self.indices, self.weights)
        return Bags(*found)


@dataclass(frozen=True)
class Distribution:
    """A batch of lookups, once they are where their parts are.

    Attributes:
        own: those of this rank's samples.
        sent: how many of them went where: of every feature to every device that has one, device after device.
        looked_up: those of all samples that this device looks up, [F, B].
    """

    own: Bags
    sent: torch.Tensor
    looked_up: Bags


def own_bags(kernels: ShardKernels, group: ExchangeGroup, batch_size: int, ranks: Ranks, number: int) -> Bags:
    """What a rank's own samples look up of the tables of a group, in a batch."""
    own = batch_size // ranks.size
    first = ranks.rank * own
    lengths, indices, weights = [], [], []
    for table in group.tables:
        for feature in feature_tables(table):
            all_indices, all_lengths = kernels.table_batches(feature, batch_size)[number]
            skip = int(all_lengths[:first].sum())
            lengths.append(all_lengths[first : first + own].to(torch.int32))
            mine = slice(skip, skip + int(lengths[-1].sum()))
            indices.append(all_indices[mine])
            weights.append(lookup_weights(feature.name, number, len(all_indices))[mine].to(ranks.device))
    weighted = any(table.is_weighted for table in group.tables)
    return Bags(torch.stack(lengths), torch.cat(indices), torch.cat(weights) if weighted else None)


def lookup_weights(name: str, number: int, num_lookups: int) -> torch.Tensor:
    """Weights of a feature's lookups in a batch, [0.5, 1.5)."""
    return 0.5 + torch.rand(num_lookups, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()) + number))


class InputExchange:
    """The way of a group's lookups from a rank's samples to the devices of the parts."""

    def __init__(self, ranks: Ranks, group: ExchangeGroup, machine: Machine, batch_size: int) -> None:
        self._ranks, self._group, self._own = ranks, group, batch_size // ranks.size
        features = group.features()
        names = [(table.name, number) for table in group.tables for number in range(table.num_features)]
        self._is_deduplicated = [
            table.is_deduplicated and table.is_sequence for table in group.tables for _ in range(table.num_features)
        ]
        looked_up = [names.index((one.block.table.name, one.feature)) for one in features]
        devices = range(ranks.size)
        if group.is_in_rows:
            edges = [[*(span.start for span in one.block.rows), one.block.table.num_rows] for one in features]
            self._edges = [self._whole(edge, torch.int64) for edge in edges]
            order = [
                one.block.devices.index(device) * len(features) + position
                for device in devices
                for position, one in enumerate(features)
                if device in one.block.devices
            ]
        else:
            order = [
                looked_up[at] for device in devices for at, one in enumerate(features) if device in one.block.devices
            ]
        self._expand = self._whole(looked_up)
        self._send_order = self._whole(order)
        self._num_features = [len(group.features_on(device)) for device in devices]
        own = self._num_features[ranks.rank]
        # Samples of ranks with the same number in their nodes stand together: a reduce-scatter in the node then splits
        # them as they are.
        by_node = group.is_in_rows and not group.is_sequence
        sources = sorted(devices, key=lambda rank: rank % machine.devices_per_node) if by_node else devices
        self._order = self._whole([source * own + feature for feature in range(own) for source in sources])

    def __call__(self, own: Bags) -> Distribution:
        """Sends this rank's lookups and receives this device's."""
        bags = self._distinct(own) if any(self._is_deduplicated) else own
        sent = (self._bucketize(bags) if self._group.is_in_rows else bags).permute(self._send_order)
        size, count = self._ranks.size, self._num_features[self._ranks.rank]
        lengths = torch.empty(size * count * self._own, dtype=torch.int32, device=self._ranks.device)
        splits = Splits(tuple(each * self._own for each in self._num_features), (count * self._own,) * size)
        self._ranks.all_to_all(lengths, sent.lengths.reshape(-1), splits)
        of_lookups = Splits(_sums(sent.lengths.reshape(-1), splits.sent), _sums(lengths, splits.received))
        indices = self._sent_around(sent.indices, of_lookups)
        weights = None if sent.weights is None else self._sent_around(sent.weights, of_lookups)
        received = Bags(lengths.view(size * count, self._own), indices, weights)
        if count:
            received = received.permute(self._order)
        looked_up = Bags(received.lengths.view(count, size * self._own), received.indices, received.weights)
        return Distribution(own, sent.lengths.sum(dim=1), looked_up)

    def _distinct(self, bags: Bags) -> Bags:
        """The bags with each index of a feature once where its table is deduplicated; no sample is named."""
        lengths, indices = bags.lengths.clone(), []
        of_features = torch.split(bags.indices, bags.lengths.sum(dim=1).tolist())
        for feature, found in enumerate(of_features):
            if self._is_deduplicated[feature]:
                found = torch.unique(found)
                lengths[feature] = 0
                lengths[feature, 0] = len(found)
            indices.append(found)
        return Bags(lengths, torch.cat(indices), None)

    def _sent_around(self, sent: torch.Tensor, splits: Splits) -> torch.Tensor:
        received = torch.empty(sum(splits.received), dtype=sent.dtype, device=sent.device)
        self._ranks.all_to_all(received, sent, splits)
        return received

    def _bucketize(self, bags: Bags) -> Bags:
        """Bucket after bucket, each with all features; indices count from the first row of their part."""
        bags = bags.permute(self._expand)
        width = len(self._edges[0]) - 1
        lengths, indices, weights, *_ = torch.ops.fbgemm.block_bucketize_sparse_features(
            bags.lengths.reshape(-1),
            bags.indices,
            bucketize_pos=False,
            sequence=self._group.is_sequence,
            block_sizes=torch.stack([-(-edge[-1] // width) for edge in self._edges]),
            my_size=width,
            weights=bags.weights,
            block_bucketize_pos=self._edges,
        )
        return Bags(lengths.view(-1, self._own), indices, weights)

    def _whole(self, numbers: Sequence[int], dtype: Any = torch.int32) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self._ranks.device)


def _sums(lengths: torch.Tensor, counts: Sequence[int]) -> tuple[int, ...]:
    """Sums of successive runs of so many lengths."""
    running = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths.to(torch.int64))
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    at = running[ends].tolist()
    return tuple(stop - start for start, stop in pairwise(at))
