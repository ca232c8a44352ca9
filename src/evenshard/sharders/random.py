"""A random placement: every table on a random device that still has room."""

from __future__ import annotations

import zlib

import numpy as np

from evenshard.placement.feasibility import no_room, require_room
from evenshard.placement.items import Items
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask


class RandomSharder:
    """Uniform over the legal devices, table by table; each task has a stream of its own."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def place(self, task: ShardingTask) -> Placement:
        """A random legal placement.

        Raises:
            InfeasibleTask: if a table finds no room.
        """
        return random_placement(task, np.random.default_rng([self._seed, zlib.crc32(task.task_id.encode())]))


def random_placement(task: ShardingTask, rng: np.random.Generator) -> Placement:
    """Places the tables in random order, each on a device drawn uniformly from those with room.

    Tables that stay together are placed as one. What may not go everywhere goes first.

    Raises:
        InfeasibleTask: if a table finds no room.
    """
    require_room(task)
    items = Items.of(task)
    device_of_item = [0] * len(items.members)
    used_DR = np.zeros_like(items.room_DR)
    order = rng.permutation(len(items.members))
    for item in order[np.argsort(~items.restricted_I[order], kind="stable")].tolist():
        legal = np.flatnonzero(items.legal_D(item, used_DR))
        if not len(legal):
            raise no_room(task, items.members[item], used_DR[:, 0].tolist())
        device_of_item[item] = int(rng.choice(legal))
        used_DR[device_of_item[item]] += items.needs_IR[item]
    return items.placement(device_of_item)
