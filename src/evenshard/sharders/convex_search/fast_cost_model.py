"""The cost model of one task in the form that a search evaluates a million times: columns that only need adding up.

Everything the head does before its first bend is linear, so it can be done once for each table: columns for dims, rows,
lookups and the linear part, and one for each piece of each unit. A device is then a sum of columns, and its cost takes
maxima and one short product.

Legend: T tables, H = 4 + pieces * units columns, U units of all members.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.cost_model import CostModel
from evenshard.sharders.convex_search.network import LOOKUPS


class FastCostModel:
    """Device costs of one task; the same numbers as ``CostModel.device_ms`` but for rounding. See ``TaskCostModel``."""

    columns_TH: torch.Tensor
    empty_H: torch.Tensor
    wait_T: torch.Tensor

    @torch.no_grad()
    def __init__(self, model: CostModel, task: ShardingTask) -> None:
        net = model.net
        mix_O1 = net.sum_of_parts_OK().mean(dim=1, keepdim=True)
        represented = model.represent(task.tables, task.batch_size)
        plain_T2, inputs_TI = represented[:, :2], represented[:, 2:]
        lookups_T1, linear_T1 = inputs_TI[:, LOOKUPS, None], inputs_TI @ (net.linear_weight @ mix_O1)
        self.columns_TH = torch.cat([plain_T2, lookups_T1, linear_T1, inputs_TI @ net.piece_weight], dim=1)
        self.empty_H = torch.cat([torch.zeros(3), net.overhead @ mix_O1, net.piece_bias])
        self._output_U = (net.output_weight @ mix_O1).squeeze(1)
        self._net, self._mix_O1 = net, mix_O1
        # The bytes of the device that moves most stand apart: they are the same time on all devices.
        self._exchange = replace(model.exchange, slowest_ms_per_byte=0.0)
        self._task, self._total_dims = task, float(plain_T2[:, 0].sum())
        self.wait_T = model.wait_ms(plain_T2[:, 0], task.num_devices, task.batch_size)

    @torch.no_grad()
    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        """Predicted time of devices without that wait, [...] ms from sums of columns [..., H]; 0 where one is empty."""
        dims, num_rows, lookups, linear = sums[..., :4].unbind(-1)
        hidden = torch.relu(_highest(sums[..., 4:], self._net.sizes.pieces))
        compute = linear + hidden @ self._output_U + lookups * self._net.pass_ms(num_rows, self._mix_O1).squeeze(-1)
        exchange = 2 * self._exchange.ms(dims, self._total_dims, self._task.num_devices, self._task.batch_size)
        return torch.where(dims > 0, compute + exchange, 0.0)


def _highest(columns: torch.Tensor, pieces: int) -> torch.Tensor:
    """[..., U] the highest piece of each unit, from [..., pieces * U]: one half against the other, again and again.

    ``amax`` gives the same in five times the time: a search spends most of its time here.
    """
    units = columns.shape[-1] // pieces
    while pieces > 1:
        half = pieces // 2 * units
        higher = torch.maximum(columns[..., :half], columns[..., half : 2 * half])
        columns = torch.cat([higher, columns[..., 2 * half :]], dim=-1) if pieces % 2 else higher
        pieces -= pieces // 2
    return columns
