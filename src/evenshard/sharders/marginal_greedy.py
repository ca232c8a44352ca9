"""Which placements does a cost model suggest by itself? Table after table to the device that stays the fastest.

The costliest table comes first; every step asks what each device would cost with the table on it. That is done once
freely, and once for each way to keep the rows of some devices below a pass of the sort (``PASS_ROWS``): such a device
sorts faster as a whole, but no single move or swap leads there, as all its large tables would have to leave at once.

Legend: S ways, T tables, D devices.
"""

from __future__ import annotations

import torch

from evenshard.cost_nets.convex_net import PASS_ROWS
from evenshard.placement import Placement, legal_mask
from evenshard.sharders.local_search import ShardScorer
from evenshard.tasks import PlacementTask

MAX_SPLITS = 8  # numbers of devices with few rows that are tried, per limit and criterion; all up to 8 devices


@torch.no_grad()
def marginal_greedy(task: PlacementTask, scorer: ShardScorer) -> list[Placement]:
    """The placements that found room for all tables, without the limit on rows first; none if there is none."""
    alone_ms_T = scorer.device_ms(scorer.empty_H + scorer.columns_TH)
    allowed_STD, limit_SD = _splits(task, alone_ms_T)
    num_ways, num_tables, num_devices = allowed_STD.shape
    size_T = torch.tensor([table.size_bytes for table in task.tables])
    rows_T = torch.tensor([float(table.num_rows) for table in task.tables])
    # Tables that may not go everywhere come first, the costliest first among equals.
    order_ST = alone_ms_T.argsort(descending=True, stable=True).expand(num_ways, -1)
    free_ST = allowed_STD.all(dim=2).gather(1, order_ST)
    order_ST = order_ST.gather(1, free_ST.byte().argsort(dim=1, stable=True))

    way_S = torch.arange(num_ways)
    sums_SDH = scorer.empty_H.expand(num_ways, num_devices, -1).clone()
    used_SD = torch.zeros(num_ways, num_devices, dtype=torch.int64)
    held_rows_SD = torch.zeros(num_ways, num_devices)
    device_ST = torch.zeros(num_ways, num_tables, dtype=torch.int64)
    placed_S = torch.ones(num_ways, dtype=torch.bool)
    for table_S in order_ST.T:
        legal_SD = legal_mask(used_SD, size_T[table_S, None], task.memory_cap_bytes) & allowed_STD[way_S, table_S]
        legal_SD &= held_rows_SD + rows_T[table_S, None] < limit_SD
        with_it_SDH = sums_SDH + scorer.columns_TH[table_S, None]
        device_S = scorer.device_ms(with_it_SDH).masked_fill(~legal_SD, torch.inf).argmin(dim=1)
        placed_S &= legal_SD.any(dim=1)
        device_ST[way_S, table_S] = device_S
        sums_SDH[way_S, device_S] = with_it_SDH[way_S, device_S]
        used_SD[way_S, device_S] += size_T[table_S]
        held_rows_SD[way_S, device_S] += rows_T[table_S]
    return [Placement(tuple(row), num_devices) for row in device_ST[placed_S].tolist()]


def _splits(task: PlacementTask, alone_ms_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[S, T, D] which tables may go to which devices, and [S, D] the rows that each must stay below.

    The last devices hold few rows. Kept off them are the tables of many rows, or of many rows for their time, as far
    as the devices have no room for them together.
    """
    rows_T, devices = torch.tensor([float(table.num_rows) for table in task.tables]), task.num_devices
    allowed = [torch.ones(len(rows_T), devices, dtype=torch.bool)]
    limits = [torch.full((devices,), torch.inf)]
    numbers = torch.linspace(1, devices, min(devices, MAX_SPLITS)).round().tolist()
    for limit in PASS_ROWS[1:]:  # one pass is for fewer rows than most tables have
        if rows_T.sum() < limit:
            continue
        for criterion_T in (rows_T, rows_T / alone_ms_T):
            order_T = criterion_T.argsort(stable=True)
            total_T = rows_T[order_T].cumsum(0)
            for number in numbers:
                few_D = torch.arange(devices) >= devices - number
                kept_off_T = torch.zeros(len(rows_T), dtype=torch.bool)
                kept_off_T[order_T[total_T >= number * limit]] = True
                allowed.append(~(kept_off_T[:, None] & few_D))
                limits.append(torch.where(few_D, limit, torch.inf))
    return torch.stack(allowed), torch.stack(limits)
