"""The cost of a placement of parts where one device measures all in turn: kernel calls timed, exchanges modelled.

Each kernel call of each device is measured as a shard of its own. Of replicas the lookups are measured with a fused
update; the pass over dense gradients is left out. Sequences are measured as bags of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenshard.measure.collectives import Links, exchange_times, volumes_of
from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.measure.hardware import Hardware
from evenshard.measure.kernel_calls import EVERY_DEVICE, KernelCall, held_parts
from evenshard.measure.link import with_modelled_exchanges
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement
from evenshard.placement.plan import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table


def parts_in_turn(hardware: Hardware, task: ShardingTask, parts: Sequence[TablePart], links: Links) -> PlacementCost:
    """The cost of a placement.

    Args:
        hardware: measures whole tables.
        links: of the machine.

    Raises:
        MeasurementFailed: if a kernel fails.
    """
    by_table = parts_by_table(task, parts)
    cells: dict[tuple[KernelCall, int, int], list[Table]] = {}
    for held in held_parts(task, by_table):
        for table, batch_size, *_ in (one.pooled for one in held.lookups):
            cells.setdefault((held.call, held.device, batch_size), []).append(table)
    forward_D, backward_D = np.zeros(task.num_devices), np.zeros(task.num_devices)
    for (_, device, batch_size), tables in cells.items():
        shard = ShardingTask.whole("shard", tuple(tables), 1, sum(table.size_bytes for table in tables), batch_size)
        (cost,) = hardware.measure(shard, Placement((0,) * len(tables), 1)).devices
        forward_ms, backward_ms = cost.split_ms
        where = slice(None) if device == EVERY_DEVICE else device
        forward_D[where] += forward_ms
        backward_D[where] += backward_ms
    exchanges = exchange_times(task, volumes_of(task, by_table), links)
    computes = [
        DeviceCost(forward, 0.0, 0.0, backward) if np.isfinite(forward + backward) else DeviceCost.out_of_memory()
        for forward, backward in zip(forward_D.tolist(), backward_D.tolist(), strict=True)
    ]
    times = (exchanges.forward, exchanges.backward, exchanges.input_dist)
    return with_modelled_exchanges(computes, *(one.tolist() for one in times))
