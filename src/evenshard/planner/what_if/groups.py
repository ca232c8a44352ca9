"""Groups of devices that each hold all tables: TorchRec's 2D parallelism, ``DMPCollection``.

The devices of a group shard the tables among them and train on their share of the batch. Every so many steps
``DMPCollection.sync`` averages each device's weights, and its optimizer state, with those of the devices that hold the
same parts in the other groups. All rows travel, in the data type of the weights, whether they were looked up or not.
Replicated tables (data_parallel) are no part of that: their gradients are averaged over all devices in every step.

N devices in groups of G stand in one of two layouts:

- contiguous (TorchRec: ``use_inter_host_allreduce=True``): a group is G devices in a row, so that embeddings stay
  within few nodes and weights travel between them;
- strided (TorchRec's default): a group is every N/G-th device, so that weights stay within few nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evenshard.measure.collectives import GRADIENT_BYTES, Links, moved_ms, reduced_bytes
from evenshard.measure.link import link
from evenshard.placement.machine import Machine
from evenshard.placement.sharding import TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.what_if.option import Sync
from evenshard.utils.errors import BadConfig

CONTIGUOUS, STRIDED = LAYOUTS = ("contiguous", "strided")


def group_ranks(num_devices: int, group_size: int, layout: str) -> tuple[range, ...]:
    """The devices of each group."""
    number = num_devices // group_size
    if layout == CONTIGUOUS:
        return tuple(range(first, first + group_size) for first in range(0, num_devices, group_size))
    return tuple(range(first, num_devices, number) for first in range(number))


def replica_ranks(num_devices: int, group_size: int, layout: str) -> tuple[range, ...]:
    """The devices that hold the same parts, for each device of a group: groups of the other layout."""
    other = STRIDED if layout == CONTIGUOUS else CONTIGUOUS
    return group_ranks(num_devices, num_devices // group_size, other)


def machine_of_ranks(machine: Machine, ranks: Sequence[range]) -> Machine | None:
    """A machine of each of these sets of devices; None where they are not alike, or lie unevenly over nodes."""
    found = {_machine_of_ranks(machine, one) for one in ranks}
    return found.pop() if len(found) == 1 else None


def _machine_of_ranks(machine: Machine, ranks: range) -> Machine | None:
    nodes = Counter(machine.node_of(rank) for rank in ranks)
    domains = Counter(node // machine.nodes_per_domain for node in nodes)
    if len(set(nodes.values())) > 1 or len(set(domains.values())) > 1:
        return None
    return replace(
        machine,
        num_devices=len(ranks),
        devices_per_node=next(iter(nodes.values())),
        nodes_per_domain=next(iter(domains.values())),
        inter=machine.inter if len(domains) > 1 else "",
    )


def layouts_of(machine: Machine, group_size: int) -> tuple[tuple[str, Machine], ...]:
    """The layouts of groups of a size that differ, each with the machine of one group.

    Raises:
        BadConfig: if the machine cannot be cut into such groups.
    """
    devices = machine.num_devices
    if group_size == devices:
        return (("", machine),)
    if group_size < 1 or devices % group_size:
        raise BadConfig(f"{devices} devices do not fill groups of {group_size}. Choose a group size that divides them.")
    found: dict[tuple[Machine, Machine], str] = {}
    for layout in LAYOUTS:
        group = machine_of_ranks(machine, group_ranks(devices, group_size, layout))
        replicas = machine_of_ranks(machine, replica_ranks(devices, group_size, layout))
        if group is not None and replicas is not None:
            found.setdefault((group, replicas), layout)
    if not found:
        raise BadConfig(
            f"groups of {group_size} devices lie unevenly over nodes of {machine.devices_per_node}. Choose a size that "
            f"divides a node or is a multiple of it."
        )
    return tuple((layout, group) for (group, _), layout in found.items())


def synced_bytes(answer: PlacementAnswer) -> tuple[int, ...]:
    """What ``DMPCollection.sync`` averages of each device: weights and optimizer state, but of replicated tables."""
    held = [0] * answer.num_devices
    for part, memory in zip(answer.parts, answer.part_memory, strict=True):
        if not TYPES[answer.type_of_table[part.table]].is_replicated:
            held[part.device] += memory.weights + memory.optimizer_state
    return tuple(held)


def sync_of(answer: PlacementAnswer, machine: Machine, layout: str, every: int) -> Sync:
    """The all-reduce between groups that are placed alike.

    Args:
        answer: of one group.
        machine: all of it.
        every: steps from one to the next.
    """
    groups = machine.num_devices // answer.num_devices
    replicas = machine_of_ranks(machine, replica_ranks(machine.num_devices, answer.num_devices, layout))
    assert replicas is not None, "layouts_of offers no other layouts"
    held = synced_bytes(answer)
    # A reduce-scatter, and as much to gather what it leaves. Weights are one collective, states another.
    moved = reduced_bytes(replicas, np.full(groups, 2.0 * max(held)))
    collectives = 1 + any(one.optimizer_state for one in answer.part_memory)
    links = links_of(replicas, answer.link)
    once_ms = collectives * links.widest.latency_us / 1e3 + float(moved_ms(replicas, moved, links).max())
    sent = float((moved.intra + moved.inter).max())
    return Sync(every, max(held), groups * sum(held), round(sent), once_ms if max(held) else 0.0)


def replicas_ms(answer: PlacementAnswer, machine: Machine) -> float:
    """What the all-reduce of gradients of replicated tables takes longer over a machine than within one group."""
    values = sum(
        table.num_rows * table.embedding_dim
        for table in answer.request.tables
        if TYPES[answer.type_of_table[table.name]].is_replicated
    )

    def over(one: Machine) -> float:
        if not values or one.num_devices == 1:
            return 0.0
        gradients = np.full(one.num_devices, 2.0 * GRADIENT_BYTES * values)
        links = links_of(one, answer.link)
        return links.widest.latency_us / 1e3 + float(moved_ms(one, reduced_bytes(one, gradients), links).max())

    return over(machine) - over(answer.request.nodes)


def links_of(machine: Machine, own: str) -> Links:
    """The links of a machine.

    Args:
        own: link within its hosts, where it names none.
    """
    return Links(link(machine.intra or own), link(machine.inter) if machine.num_domains > 1 else None)
