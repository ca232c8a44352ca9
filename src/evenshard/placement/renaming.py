"""Other names for the devices of a placement, with which the most bytes stay where they are.

Devices of a node trade names among each other, and so do nodes of a domain, and domains: what is near stays near. Only
devices with the same hardware, memory and rules trade names.

Legend: D devices, O devices of the old answer, N devices of the new one; both padded to as many.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.placement.machine import Machine
from evenshard.placement.task import ShardingTask
from evenshard.utils.extras import require_package

Bytes = npt.NDArray[np.int64]
Worth = npt.NDArray[np.float64]
Names = npt.NDArray[np.int64]


def device_kinds(task: ShardingTask) -> list[int]:
    """Return a number for each device; devices of one number can change names without breaking anything."""
    limits = [task.limits_of(position).devices for position in range(len(task.tables))]
    machine = task.machine
    hosts = [sizes or (0,) * machine.num_nodes for sizes in (machine.host_bytes, machine.ssd_bytes)]
    signs = [
        (
            room,
            machine.hardware_of(device),
            *(sizes[machine.node_of(device)] for sizes in hosts),
            *(one is None or device in one for one in limits),
        )
        for device, room in enumerate(task.room_bytes)
    ]
    kinds: dict[Hashable, int] = {}
    return [kinds.setdefault(sign, len(kinds)) for sign in signs]


def best_names(held_NO: Bytes, kinds: Sequence[int], machine: Machine) -> Names:
    """[N] the old device that each device of the new answer should be; of equals, the most keep their names.

    Args:
        held_NO: bytes of each new device that each old one has.
        kinds: of the new answer's devices. Those that are gone trade names where all are alike.
        machine: of the answer with more devices.
    """
    most = len(held_NO)
    all_kinds = np.array([*kinds, *[kinds[0] if len(set(kinds)) == 1 else -1] * (most - len(kinds))])
    worth_NO = held_NO.astype(np.float64) * (most + 1) + np.eye(most)
    worth_NO[all_kinds[:, None] != all_kinds] = -1.0 - worth_NO.sum()
    _, names = _assign_names(worth_NO, (machine.domain_size, machine.devices_per_node, 1))
    return names


def _assign_names(worth_NO: Worth, sizes: Sequence[int]) -> tuple[float, Names]:
    """Return the worth of the best names, and the names: Hungarian algorithm, outer blocks first."""
    require_package("scipy")
    from scipy.optimize import linear_sum_assignment

    size, *smaller = sizes
    blocks = len(worth_NO) // size
    if blocks == 1 and smaller:
        return _assign_names(worth_NO, smaller)
    if not smaller:
        new, old = linear_sum_assignment(worth_NO, maximize=True)
        return float(worth_NO[new, old].sum()), np.asarray(old)
    inside = {
        (new, old): _assign_names(worth_NO[new * size : (new + 1) * size, old * size : (old + 1) * size], smaller)
        for new in range(blocks)
        for old in range(blocks)
    }
    worth_of_blocks = np.array([[inside[new, old][0] for old in range(blocks)] for new in range(blocks)])
    chosen: list[int] = linear_sum_assignment(worth_of_blocks, maximize=True)[1].tolist()
    return (
        float(worth_of_blocks[np.arange(blocks), chosen].sum()),
        np.concatenate([old * size + inside[new, old][1] for new, old in enumerate(chosen)]),
    )
