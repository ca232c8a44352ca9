"""Cost of a placement whose devices are measured or simulated one after another, without real communication.

Communication times come from link models (``price.collectives``), and every row of a cost dataset records this. The
wait of a device is its forward time subtracted from the slowest device's.

If tables are cut, each kernel call of each device is measured as a separate shard. Replicas are measured with a fused
update, without the pass over their dense gradients. Sequence tables are measured as bags of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenshard.measure.hardware import Hardware
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement, parts_by_table, place_on_one_device
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import ExchangeTimes, Links, all_to_all_ms, exchange_times, volumes_of
from evenshard.price.costs import OK, DeviceCost, PlacementCost
from evenshard.price.kernel_calls import EVERY_DEVICE, KernelCall, list_held_parts
from evenshard.price.link_model import Link
from evenshard.tables.table import Table


def sequential_cost(computes: Sequence[DeviceCost], exchanges: ExchangeTimes) -> PlacementCost:
    """Add modelled communication and waits to the compute costs of a placement's devices.

    A device that is out of memory is returned unchanged.
    """
    waits_ms = compute_skew_ms([compute.split_ms[0] for compute in computes])
    times = (ms_D.tolist() for ms_D in (exchanges.input_dist, exchanges.forward, exchanges.backward))
    devices = (
        compute.with_exchange(out, back, wait, inputs) if compute.status == OK else compute
        for compute, wait, inputs, out, back in zip(computes, waits_ms, *times, strict=True)
    )
    return PlacementCost(tuple(devices), all_to_all="modelled")


def compute_skew_ms(fwd_compute_ms: Sequence[float]) -> tuple[float, ...]:
    """Return how long each device waits, after its own forward, until the slowest joins the all-to-all, ms.

    This slightly overestimates the delay: on 4 x RTX 2080 Ti, each ms of wait delays the end of the all-to-all by 0.91
    to 0.98 ms, because devices that are ready begin to communicate.

    A device out of memory (infinite time) does not take part: it does not wait, and no other device waits for it.
    """
    last = max((own for own in fwd_compute_ms if math.isfinite(own)), default=0.0)
    return tuple(last - own if math.isfinite(own) else 0.0 for own in fwd_compute_ms)


def combine_whole_tables(
    task: ShardingTask, placement: Placement, computes: Sequence[DeviceCost], link: Link
) -> PlacementCost:
    """Return the cost of a placement of whole tables; every device has all indices, so none are communicated."""
    dims = [0] * placement.num_devices
    for table, device in zip(task.tables, placement.device_of_table, strict=True):
        dims[device] += table.embedding_dim
    # Every device has the indices of the whole batch, so there is no input dist. Forward is a share of backward.
    backward_D = all_to_all_ms(link, dims, task.batch_size)
    return sequential_cost(computes, ExchangeTimes(np.zeros(len(dims)), link.forward_share * backward_D, backward_D))


def measure_parts(hardware: Hardware, task: ShardingTask, parts: Sequence[TablePart], links: Links) -> PlacementCost:
    """Measure a placement of table parts on hardware that measures whole tables only.

    Raises:
        MeasurementFailed: if a kernel fails.
    """
    by_table = parts_by_table(task, parts)
    cells: dict[tuple[KernelCall, int, int], list[Table]] = {}
    for held in list_held_parts(task, by_table):
        for table, batch_size, *_ in (lookup.pooled for lookup in held.lookups):
            cells.setdefault((held.call, held.device, batch_size), []).append(table)
    forward_D, backward_D = np.zeros(task.num_devices), np.zeros(task.num_devices)
    for (_, device, batch_size), tables in cells.items():
        shard = ShardingTask.whole("shard", tuple(tables), 1, sum(table.size_bytes for table in tables), batch_size)
        (cost,) = hardware.measure(shard, place_on_one_device(shard)).devices
        forward_ms, backward_ms = cost.split_ms
        where = slice(None) if device == EVERY_DEVICE else device
        forward_D[where] += forward_ms
        backward_D[where] += backward_ms
    computes = [
        DeviceCost(forward, 0.0, 0.0, backward) if np.isfinite(forward + backward) else DeviceCost.out_of_memory()
        for forward, backward in zip(forward_D.tolist(), backward_D.tolist(), strict=True)
    ]
    return sequential_cost(computes, exchange_times(task, volumes_of(task, by_table), links))
