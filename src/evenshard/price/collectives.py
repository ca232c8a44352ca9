"""Communication volumes and times of the collectives in a training step.

Forward, with the reverse direction in backward:

- whole tables and columns: an all-to-all of pooled embeddings. A device sends B * dims, except for its own samples.
- rows on all devices: a reduce-scatter of partial sums, B * dims on each, within every domain, then between domains.
- rows on a node: a reduce-scatter within the node, then an all-to-all of the sums with the other nodes.
- replicas: nothing forward; backward an all-reduce of dense gradients, twice rows * dim.

Rows of sequences are not reduced, so they are sent like whole sequences. Before these collectives, the input dist sends
the indices of every part to its device: for each sample its lookups, and for each bag a length.

Within a domain, bytes use the fast link; between domains, the slow link. NCCL pipelines the two tiers, so the slower
tier determines the transfer time of a collective (docs/decisions/0038). Each collective of each module has its own
latency, but the bytes of all modules are assumed to be sent together, so several small collectives are predicted
slightly too fast on links that are slower for small messages.

Legend: D devices, V kinds of volumes, B samples of the global batch, K reuse bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.memory import INDEX_BYTES, LENGTH_BYTES, LOOKUP_WEIGHT_BYTES
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart, deduplicate_table, lookup_share
from evenshard.placement.sharding import (
    EVERYWHERE,
    NODE,
    TYPES,
    Communication,
    sharding_type,
)
from evenshard.placement.task import ShardingTask
from evenshard.price.kernel_calls import kernel_call
from evenshard.price.link_model import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BYTES_PER_VALUE,
    REDUCE_SCATTER,
    Link,
)
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

GRADIENT_BYTES = 4  # dense gradients of replicas are FP32


@dataclass
class Volumes:
    """Communication volumes of each device, [..., D], per sample of the global batch."""

    sent: FloatArray  # values that other devices receive without a reduction
    summed: FloatArray  # values of partial sums, of tables whose rows are on all devices
    summed_in_node: FloatArray  # values of partial sums, of tables whose rows are on one node
    input_bytes: FloatArray  # received bytes of indices, lengths and weights
    replicated_values: float | FloatArray = 0.0  # values of dense gradients, equal on all devices: [...] without D
    collectives: set[tuple[str, str]] = field(default_factory=set)  # (module, sharding type), as in kernel calls

    @staticmethod
    def empty(num_devices: int) -> Volumes:
        """Return the volumes of devices without tables."""
        return Volumes(*np.zeros((len(VOLUMES), num_devices)))


class PartVolume(NamedTuple):
    """The volumes that a part adds to its device (``Volumes``); values and bytes per sample."""

    sent: float = 0.0
    summed: float = 0.0
    summed_in_node: float = 0.0
    input_bytes: float = 0.0


VOLUMES = PartVolume._fields


def part_volume(table: Table, name: str, columns: int, share: float, num_devices: int) -> PartVolume:
    """Return the volumes that a part of a table adds to its device.

    Args:
        name: sharding type of the whole table; not data_parallel.
        columns: columns of the part.
        share: fraction of the table's lookups that go to the part's rows.
    """
    distinct = distinct_share(table, num_devices)
    lookups = table.pooling_factor * share * distinct
    input_bytes = lookups * (INDEX_BYTES + LOOKUP_WEIGHT_BYTES * table.is_weighted) + table.num_features * LENGTH_BYTES
    if table.is_sequence:
        return PartVolume(sent=lookups * columns, input_bytes=input_bytes)
    values = float(table.num_features * columns)
    if TYPES[name].scope == EVERYWHERE:
        return PartVolume(summed=values, input_bytes=input_bytes)
    if TYPES[name].scope == NODE:
        return PartVolume(summed_in_node=values, input_bytes=input_bytes)
    return PartVolume(sent=values, input_bytes=input_bytes)


def distinct_share(table: Table, num_devices: int) -> float:
    """Return the fraction of lookups that the input dist sends; below 1 if it deduplicates them."""
    if not table.is_deduplicated or not table.pooling_factor:
        return 1.0
    return deduplicate_table(table, num_devices).pooling_factor / table.pooling_factor


def volumes_of(
    task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]], device_NP: npt.NDArray[np.int64] | None = None
) -> Volumes:
    """Compute the volumes of a placement, [D] each, or of the same parts under N device assignments, [N, D] each.

    ``device_NP`` is the device of each part, table by table, without replicas.
    """
    found = Volumes.empty(task.num_devices)
    homes: list[int] = []
    numbers: list[PartVolume] = []
    for table in task.tables:
        parts = by_table[table.name]
        name = sharding_type(parts, table, task.machine)
        found.collectives.add(kernel_call(table, name)[:2])
        if TYPES[name].is_replicated:
            found.replicated_values += float(table.num_rows * table.embedding_dim)
            continue
        for part in parts:
            share = lookup_share(table, part.rows)
            homes.append(part.device)
            numbers.append(part_volume(table, name, part.columns.size, share, task.num_devices))
    at_NP = np.array([homes], dtype=np.int64) if device_NP is None else device_NP
    sums_NDV = np.zeros((len(at_NP), task.num_devices, len(VOLUMES)))
    if numbers:
        np.add.at(sums_NDV, (np.arange(len(at_NP))[:, None], at_NP), np.array(numbers))
    for name, sums_ND in zip(VOLUMES, np.moveaxis(sums_NDV, 2, 0), strict=True):
        setattr(found, name, sums_ND[0] if device_NP is None else sums_ND)
    return found


@dataclass(frozen=True)
class TierBytes:
    """Bytes that each device sends or receives in a collective, within and between domains (fast links), [..., D]."""

    collective: str
    near: int  # number of consecutive devices that communicate over the fast link
    intra: FloatArray  # bytes in the busier direction, sent or received
    inter: FloatArray
    intra_sent: FloatArray  # bytes sent
    inter_sent: FloatArray

    @staticmethod
    def of_reduction(collective: str, near: int, intra: FloatArray, inter: FloatArray) -> TierBytes:
        """Return the bytes of a collective in which each device receives as much as it sends."""
        return TierBytes(collective, near, intra, inter, intra, inter)

    @property
    def back(self) -> TierBytes:
        """Return the bytes of the reverse collective (sent and received swapped)."""
        return replace(self, collective=_BACK.get(self.collective, self.collective))

    def __mul__(self, factor: float) -> TierBytes:
        bytes_4 = (self.intra * factor, self.inter * factor, self.intra_sent * factor, self.inter_sent * factor)
        return TierBytes(self.collective, self.near, *bytes_4)


_BACK = {REDUCE_SCATTER: ALL_GATHER}


def all_to_all_bytes(machine: Nodes, per_device: FloatArray) -> TierBytes:
    """Return the bytes per tier of an all-to-all in which a device sends ``per_device`` bytes to each other device."""
    size, devices = machine.domain_size, machine.num_devices
    domain_sums = _of_each(per_device, size, np.add)
    received_intra = domain_sums - per_device
    received_inter = per_device.sum(axis=-1, keepdims=True) - domain_sums
    sent_intra, sent_inter = per_device * (size - 1), per_device * (devices - size)
    most = np.maximum(sent_intra, received_intra), np.maximum(sent_inter, received_inter)
    return TierBytes(ALL_TO_ALL, size, *most, sent_intra, sent_inter)


def _of_each(per_device: FloatArray, size: int, what: np.ufunc) -> FloatArray:
    grouped = per_device.reshape(*per_device.shape[:-1], -1, size)
    return np.asarray(what.reduce(grouped, axis=-1)).repeat(size, axis=-1)


def reduce_scatter_bytes(machine: Nodes, buffers: FloatArray) -> TierBytes:
    """Return the bytes per tier of a hierarchical reduce-scatter: within each domain, then between domains.

    A device without rows takes part with a buffer of the same size.
    """
    size, domains = machine.domain_size, machine.num_domains
    longest = np.broadcast_to(buffers.max(axis=-1, keepdims=True), buffers.shape)
    # Ring: each device moves (n - 1) / n of its buffer; between domains only its 1 / size share is left.
    within, between = longest * ((size - 1) / size), longest * ((domains - 1) / domains / size)
    return TierBytes.of_reduction(REDUCE_SCATTER, size, within, between)


def all_reduce_bytes(machine: Nodes, buffers: FloatArray) -> TierBytes:
    """Return the bytes of an all-reduce of buffers, [..., D] bytes: a reduce-scatter, then an all-gather."""
    return replace(reduce_scatter_bytes(machine, 2.0 * buffers), collective=ALL_REDUCE)


def node_reduce_scatter_bytes(machine: Nodes, buffers: FloatArray) -> tuple[TierBytes, TierBytes]:
    """Return the bytes of a reduce-scatter within each node and of the following all-to-all between nodes.

    A device without rows takes part with a buffer as large as those of the other devices of its node.
    """
    size = machine.devices_per_node
    longest = _of_each(buffers, size, np.maximum)
    in_node = TierBytes.of_reduction(REDUCE_SCATTER, size, longest * ((size - 1) / size), np.zeros_like(buffers))
    return in_node, _between_nodes(machine, longest / machine.num_devices)


def _between_nodes(machine: Nodes, per_device: FloatArray) -> TierBytes:
    """Return the bytes of an all-to-all among devices with the same local rank."""
    size, nodes = machine.devices_per_node, machine.num_nodes
    of_domain, lead = machine.domain_size // size, per_device.shape[:-1]
    by_node = per_device.reshape(*lead, nodes, size)
    all_nodes = by_node.sum(axis=-2, keepdims=True)
    domain = by_node.reshape(*lead, -1, of_domain, size).sum(axis=-2).repeat(of_domain, axis=-2)
    sent_intra, sent_inter = by_node * (of_domain - 1), by_node * (nodes - of_domain)
    intra, inter = np.maximum(sent_intra, domain - by_node), np.maximum(sent_inter, all_nodes - domain)
    bytes_4 = (one.reshape(per_device.shape) for one in (intra, inter, sent_intra, sent_inter))
    return TierBytes(ALL_TO_ALL, machine.domain_size, *bytes_4)


class ExchangeTimes(NamedTuple):
    """Communication times of each device in a step (input dist, forward, backward), [..., D] ms."""

    input_dist: FloatArray
    forward: FloatArray
    backward: FloatArray


@dataclass(frozen=True)
class Links:
    """Links of a machine: within a domain (hosts on a fast link), and between domains if there are several.

    ``counts_inputs`` is False to leave the input dist out, as in measurements of unsharded tables.
    """

    intra: Link
    inter: Link | None = None
    counts_inputs: bool = True

    @property
    def widest(self) -> Link:
        """Return the link between domains if there are several domains, else the link within the domain."""
        return self.inter or self.intra

    @property
    def floor(self) -> Links:
        """Return links whose transfer times are linear lower bounds, without latency."""
        return replace(self, intra=self.intra.floor, inter=None if self.inter is None else self.inter.floor)


def exchange_times(task: ShardingTask, volumes: Volumes, links: Links) -> ExchangeTimes:
    """Compute the communication times on each device for one or many placements, [..., D]."""
    machine = task.machine
    if machine.num_devices == 1:
        nothing = np.zeros_like(volumes.sent)
        return ExchangeTimes(nothing, nothing, nothing)
    way: Communication = task.communication
    latency_3 = latencies_ms(machine, volumes.collectives, links)
    forward_ms, backward_ms = np.zeros_like(volumes.sent), np.zeros_like(volumes.sent)
    for one in _outputs(task, volumes):
        back_ms = transfer_ms(machine, one.back * way.backward_bytes, links)
        is_same = way.forward_bytes == way.backward_bytes and one.collective not in _BACK
        out_ms = back_ms if is_same else transfer_ms(machine, one * way.forward_bytes, links)
        forward_ms += links.intra.forward_share * out_ms
        backward_ms += back_ms
    if np.any(volumes.replicated_values):
        backward_ms += transfer_ms(machine, _gradients(machine, volumes), links)
    inputs_ms = np.zeros_like(volumes.input_bytes)
    if links.counts_inputs:
        # Each device receives these bytes: an all-to-all with send and receive swapped.
        inputs_ms = transfer_ms(machine, all_to_all_bytes(machine, volumes.input_bytes * task.local_batch), links)
    return ExchangeTimes(latency_3[0] + inputs_ms, latency_3[1] + forward_ms, latency_3[2] + backward_ms)


def whole_table_bytes(dims: FloatArray | Sequence[float], batch_size: int) -> TierBytes:
    """Return the all-to-all bytes of pooled embeddings of unsharded tables on one node.

    A device pools its tables for the whole global batch and sends every other device the samples of that device.
    ``dims`` is the number of values per sample that each device computes, [..., D].
    """
    own: FloatArray = np.asarray(dims, dtype=np.float64)
    devices = own.shape[-1]
    bytes_per_dim = batch_size / devices * BYTES_PER_VALUE
    return all_to_all_bytes(Nodes.one_node(devices), own * bytes_per_dim)


def all_to_all_ms(link: Link, dims: FloatArray | Sequence[float], batch_size: int) -> FloatArray:
    """Return the time of a backward all-to-all of whole tables over one link, [..., D] ms."""
    moved = whole_table_bytes(dims, batch_size)
    devices = moved.intra.shape[-1]
    if devices == 1:
        return np.zeros_like(moved.intra)
    return link.latency_ms(devices) + transfer_ms(Nodes.one_node(devices), moved, Links(link))


def find_slope_changes(task: ShardingTask, volumes: Volumes, links: Links) -> list[float]:
    """Return, ascending, the factors of ``volumes``, equal on all devices, at which a transfer time changes slope."""
    machine, way = task.machine, task.communication
    moved = [all_to_all_bytes(machine, volumes.input_bytes * task.local_batch), _gradients(machine, volumes)]
    for one in _outputs(task, volumes):
        moved += [one * way.forward_bytes, one.back * way.backward_bytes]
    found = set[float]()
    for one in moved:
        points = [0.0]
        for link, size, own_D, sent_D in _tiers(machine, one, links):
            curve = None if size == 1 else link.curve(one.collective, size)
            even_bytes = float(link.even_bytes(own_D[0], own_D[0], sent_D[0] * size, size))
            if curve is not None and even_bytes > 0:
                points += [1e3 * kb / even_bytes for kb in curve.kb[1:]]
        points = sorted({*points, 2 * max(points)})
        # Between these points, the difference of the two tiers' times is linear, also beyond the last.
        apart = np.array([np.diff([of_tier[0] for of_tier in tiers_ms(machine, one * at, links)]) for at in points])
        for low, high, before, after in zip(points, [*points[1:-1], np.inf], apart, apart[1:], strict=False):
            width = (points[-1] if high == np.inf else high) - low
            cross = low + width * before / np.where(before == after, np.inf, before - after)
            found.update(cross[(low < cross) & (cross < high)].tolist())
        found.update(points[1:-1])
    return sorted(found)


def _outputs(task: ShardingTask, volumes: Volumes) -> Iterator[TierBytes]:
    """Yield the bytes of each forward collective, counting one byte per value."""
    yield all_to_all_bytes(task.machine, volumes.sent * task.local_batch)
    if volumes.summed.any():
        yield reduce_scatter_bytes(task.machine, volumes.summed * task.batch_size)
    if volumes.summed_in_node.any():
        yield from node_reduce_scatter_bytes(task.machine, volumes.summed_in_node * task.batch_size)


def _gradients(machine: Nodes, volumes: Volumes) -> TierBytes:
    values = np.asarray(volumes.replicated_values, dtype=np.float64)[..., None]
    return all_reduce_bytes(machine, np.broadcast_to(GRADIENT_BYTES * values, volumes.sent.shape))


def latencies_ms(machine: Nodes, collectives: set[tuple[str, str]], links: Links) -> FloatArray:
    """Return the total latencies of input dist, forward and backward collectives, [3] ms.

    The input dist has two all-to-alls: lengths, then indices.
    """

    def of(collective: str) -> float:
        return links.widest.latency_ms(machine.num_devices, collective)

    found_3 = np.zeros(3)
    for _, name in collectives:
        if TYPES[name].is_replicated:
            found_3[2] += of(ALL_REDUCE)
            continue
        forward = backward = of(ALL_TO_ALL)
        if TYPES[name].scope == EVERYWHERE or (TYPES[name].scope == NODE and machine.num_nodes == 1):
            forward, backward = of(REDUCE_SCATTER), of(ALL_GATHER)
        elif TYPES[name].scope == NODE:
            forward += links.intra.latency_ms(machine.devices_per_node, REDUCE_SCATTER)
            backward += links.intra.latency_ms(machine.devices_per_node, ALL_GATHER)
        found_3 += 2 * of(ALL_TO_ALL) * links.counts_inputs, links.intra.forward_share * forward, backward
    return found_3


def transfer_ms(machine: Nodes, moved: TierBytes, links: Links) -> FloatArray:
    """Return the transfer time of a collective, without latency, [..., D] ms: that of the slower tier of links."""
    return np.asarray(np.maximum.reduce(tiers_ms(machine, moved, links)))


def tiers_ms(machine: Nodes, moved: TierBytes, links: Links) -> list[FloatArray]:
    """Return the transfer times within and, if there are several domains, between domains, [..., D] ms each."""
    return [
        _tier_ms(own, sent, link, size, moved.collective) for link, size, own, sent in _tiers(machine, moved, links)
    ]


def _tiers(machine: Nodes, moved: TierBytes, links: Links) -> list[tuple[Link, int, FloatArray, FloatArray]]:
    """Return, for each tier, its link, number of devices, and bytes in the busier direction and sent."""
    found = [(links.intra, moved.near, moved.intra, moved.intra_sent)]
    if links.inter is not None:
        found.append((links.inter, machine.num_devices, moved.inter, moved.inter_sent))
    return found


def _tier_ms(moved: FloatArray, sent: FloatArray, link: Link, size: int, collective: str) -> FloatArray:
    if size == 1:
        return np.zeros_like(moved)
    if link.counts_own_alone:
        return link.bytes_ms(moved, 0.0, 0.0, size, collective)
    slowest, shared = _of_each(moved, size, np.maximum), _of_each(sent, size, np.add)
    return link.bytes_ms(moved, slowest, shared, size, collective)
