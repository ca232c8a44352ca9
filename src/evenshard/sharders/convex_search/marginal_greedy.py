"""Greedy placements by a cost model: table after table goes to the device that stays the fastest.

The costliest table comes first; every step asks what each device would cost with the table on it. That is done once
freely, and once for each way to keep the rows of some devices below a pass of the sort (``PASS_ROWS``): such a device
sorts faster as a whole, but no single move or swap leads there, as all its large tables would have to leave at once.

What is placed is an item: a table, or tables that stay together.

Legend: S ways, I items, D devices, H columns, R kinds of room.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.item_tensors import ItemTensors, TaskCostModel, has_room
from evenshard.sharders.convex_search.network import PASS_ROWS

MAX_SPLITS = 8  # numbers of devices with few rows that are tried, per limit and criterion; all up to 8 devices


@torch.no_grad()
def marginal_greedy(task: ShardingTask, cost_model: TaskCostModel, max_splits: int = MAX_SPLITS) -> list[Placement]:
    """The placements that found room for all tables, without the limit on rows first; none if there is none."""
    items = ItemTensors.of(task, cost_model)
    alone_ms_I = cost_model.device_ms(cost_model.empty_H + items.columns_IH) + items.wait_I
    rows_I = torch.tensor(
        [float(sum(task.tables[position].num_rows for position in one)) for one in items.items.members]
    )
    # One pass is for fewer rows than most tables have.
    allowed_SID, limit_SD = row_splits(rows_I, alone_ms_I, task.num_devices, PASS_ROWS[1:], max_splits)
    if items.allowed_ID is not None:
        allowed_SID &= items.allowed_ID
    num_ways, num_items, num_devices = allowed_SID.shape
    # Items that may not go everywhere come first, the costliest first among equals.
    order_SI = alone_ms_I.argsort(descending=True, stable=True).expand(num_ways, -1)
    free_SI = allowed_SID.all(dim=2).gather(1, order_SI)
    order_SI = order_SI.gather(1, free_SI.byte().argsort(dim=1, stable=True))

    way_S = torch.arange(num_ways)
    sums_SDH = cost_model.empty_H.expand(num_ways, num_devices, -1).clone()
    wait_SD = torch.zeros(num_ways, num_devices)
    over_RSD = -items.room_RD[:, None].repeat(1, num_ways, 1)
    held_rows_SD = torch.zeros(num_ways, num_devices)
    device_SI = torch.zeros(num_ways, num_items, dtype=torch.int64)
    placed_S = torch.ones(num_ways, dtype=torch.bool)
    for item_S in order_SI.T:
        needs_RS = items.needs_RI[:, item_S]
        legal_SD = has_room(over_RSD, needs_RS[..., None]) & allowed_SID[way_S, item_S]
        legal_SD &= held_rows_SD + rows_I[item_S, None] < limit_SD
        with_it_SDH = sums_SDH + items.columns_IH[item_S, None]
        with_it_SD = torch.maximum(wait_SD + items.wait_I[item_S, None], wait_SD.amax(dim=1, keepdim=True))
        with_it_SD += cost_model.device_ms(with_it_SDH)
        device_S = with_it_SD.masked_fill(~legal_SD, torch.inf).argmin(dim=1)
        placed_S &= legal_SD.any(dim=1)
        device_SI[way_S, item_S] = device_S
        sums_SDH[way_S, device_S] = with_it_SDH[way_S, device_S]
        wait_SD[way_S, device_S] += items.wait_I[item_S]
        over_RSD[:, way_S, device_S] += needs_RS
        held_rows_SD[way_S, device_S] += rows_I[item_S]
    return [items.items.placement(row) for row in device_SI[placed_S].tolist()]


def row_splits(
    rows_I: torch.Tensor, alone_ms_I: torch.Tensor, num_devices: int, pass_rows: Sequence[float], max_splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[S, I, D] which items may go to which devices, and [S, D] the rows that each must stay below.

    The first way is free. In the others the last devices hold few rows: kept off them are the items of many rows, or
    of many rows for their time, as far as the devices have no room for them together.

    Args:
        rows_I: rows of each item.
        alone_ms_I: its time on a device of its own.
        num_devices: D.
        pass_rows: numbers of rows from which on the sort of a device takes one more pass.
        max_splits: numbers of devices with few rows that are tried, per limit and criterion.
    """
    allowed = [torch.ones(len(rows_I), num_devices, dtype=torch.bool)]
    limits = [torch.full((num_devices,), torch.inf)]
    numbers = torch.linspace(1, num_devices, min(num_devices, max_splits)).round().tolist()
    for limit in pass_rows:
        if rows_I.sum() < limit:
            continue
        for criterion_I in (rows_I, rows_I / alone_ms_I):
            order_I = criterion_I.argsort(stable=True)
            total_I = rows_I[order_I].cumsum(0)
            for number in numbers:
                few_D = torch.arange(num_devices) >= num_devices - number
                kept_off_I = torch.zeros(len(rows_I), dtype=torch.bool)
                kept_off_I[order_I[total_I >= number * limit]] = True
                allowed.append(~(kept_off_I[:, None] & few_D))
                limits.append(torch.where(few_D, limit, torch.inf))
    return torch.stack(allowed), torch.stack(limits)
