"""The items of a task as tensors: their columns, what they take of a device, and where they may go.

Legend: I items, D devices, H columns, R kinds of room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from evenshard.placement.items import Items
from evenshard.placement.placement import legal_mask
from evenshard.placement.task import ShardingTask


class TaskCostModel(Protocol):
    """What a device costs: a function of the sum of its tables' columns, and a wait that all devices share.

    All wait for the device that exchanges most. Its wait is the sum of those of its tables, so a placement costs
    the slowest device of all and the longest wait of all.

    Attributes:
        columns_TH: columns of the task's tables.
        empty_H: columns of a device without tables.
        wait_T: what all devices wait for a table's bytes if its device exchanges most, ms.
    """

    @property
    def columns_TH(self) -> torch.Tensor: ...

    @property
    def empty_H(self) -> torch.Tensor: ...

    @property
    def wait_T(self) -> torch.Tensor: ...

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        """Cost of devices without that wait, [...] ms from ``empty_H`` plus their tables' columns [..., H]."""
        ...


@dataclass(frozen=True)
class ItemTensors:
    """The items of a task, for a cost model of its devices.

    Attributes:
        items: the items.
        columns_IH: sums of their tables' columns.
        wait_I: sums of their tables' waits.
        needs_RI: room that they take, int64.
        room_RD: room of the devices, int64.
        allowed_ID: False where an item may not go; None where all may go everywhere.
    """

    items: Items
    columns_IH: torch.Tensor
    wait_I: torch.Tensor
    needs_RI: torch.Tensor
    room_RD: torch.Tensor
    allowed_ID: torch.Tensor | None

    @staticmethod
    def of(task: ShardingTask, cost_model: TaskCostModel) -> ItemTensors:
        """The items of a task whose tables have the cost model's columns."""
        items = Items.of(task)
        columns_IH = cost_model.columns_TH.new_zeros(len(items.members), cost_model.columns_TH.shape[1])
        item_of_T = torch.from_numpy(items.item_of_T)
        columns_IH.index_add_(0, item_of_T, cost_model.columns_TH)
        return ItemTensors(
            items=items,
            columns_IH=columns_IH,
            wait_I=torch.zeros(len(items.members)).index_add_(0, item_of_T, cost_model.wait_T),
            needs_RI=torch.from_numpy(items.needs_IR).t().contiguous(),
            room_RD=torch.from_numpy(items.room_DR).t().contiguous(),
            allowed_ID=torch.from_numpy(items.allowed_ID) if items.restricted_I.any() else None,
        )


def has_room(over: torch.Tensor, needs: torch.Tensor) -> torch.Tensor:
    """Whether all kinds of room suffice.

    Args:
        over: [R, ...] what a device holds beyond its room; what is still free is below 0.
        needs: [R, ...] what would come; the dimensions behind R broadcast.
    """
    legal: torch.Tensor = legal_mask(over[0], needs[0], 0)
    for kind in range(1, len(over)):
        legal = legal & legal_mask(over[kind], needs[kind], 0)
    return legal
