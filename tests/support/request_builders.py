"""Requests and an untrained model, for the tests of what answers them."""

from __future__ import annotations

from functools import cache
from typing import Any

from evenshard.planner.hosts import MachineAndMemory, devices_of
from evenshard.planner.knobs import Knobs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.models import PlacementModel
from evenshard.sharders.training_domain import TrainingDomain
from support.builders import BATCH_SIZE, table
from support.convex_builders import random_model

ROOM = 2**30


@cache
def untrained(seed: int = 0) -> PlacementModel:
    """It has seen everything and knows nothing."""
    everything = (0.0, 1e18)
    seen = TrainingDomain("simulated: h100", "nvlink", "none", 1, *(everything,) * 8, weight_bits=(8, 16, 32))
    return PlacementModel(random_model(seed), None, seen, "untrained", "0" * 64)


def request(*dims: int, caps: tuple[int, ...] = (ROOM, ROOM), rows: int = 1000, **more: Any) -> PlacementRequest:
    """Tables a, b, c, ... of these dims."""
    tables = tuple(table("abcdefghijklmnop"[number], rows, dim) for number, dim in enumerate(dims))
    return PlacementRequest(**{"tables": tables, "caps_bytes": caps, "batch_size": BATCH_SIZE, **more})


def devices_asked(
    num_devices: int | None = None, memory_cap_gb: Any = None, hardware: str | None = None, **knobs: Any
) -> MachineAndMemory:
    """The machine of some knobs."""
    given = {"num_devices": num_devices, "memory_cap_gb": memory_cap_gb, "hardware": hardware}
    asked = Knobs.of({**given, **knobs})
    return devices_of(asked.machine, asked.memory)
