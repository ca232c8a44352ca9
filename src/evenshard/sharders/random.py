"""The placement of somebody who does not care: every table on a random device that still has room."""

from __future__ import annotations

import zlib

import numpy as np

from evenshard.placement import Placement, legal_mask, no_room, require_room
from evenshard.tasks import PlacementTask


class RandomSharder:
    """Uniform over the legal devices, table by table; each task has a stream of its own."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def place(self, task: PlacementTask) -> Placement:
        """A random legal placement.

        Raises:
            InfeasibleTask: if a table finds no room.
        """
        return random_placement(task, np.random.default_rng([self._seed, zlib.crc32(task.task_id.encode())]))


def random_placement(task: PlacementTask, rng: np.random.Generator) -> Placement:
    """Places the tables in random order, each on a device drawn uniformly from those with room.

    Raises:
        InfeasibleTask: if a table finds no room.
    """
    require_room(task)
    device_of_table = [0] * len(task.tables)
    used_bytes = np.zeros(task.num_devices, dtype=np.int64)
    for position in rng.permutation(len(task.tables)).tolist():
        size = task.tables[position].size_bytes
        legal = np.flatnonzero(legal_mask(used_bytes, size, task.memory_cap_bytes))
        if not len(legal):
            raise no_room(task, position, used_bytes.tolist())
        device = int(rng.choice(legal))
        device_of_table[position] = device
        used_bytes[device] += size
    return Placement(tuple(device_of_table), task.num_devices)
