"""Cost networks in the form that a search evaluates: columns that add up over the tables of a kernel call.

Devices of one kind share a network. Legend: P parts, N kernel calls on devices, H columns, M members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from evenshard.sharders.convex_search.cost_model import CostModel
from evenshard.sharders.convex_search.network import LOOKUPS, PASS_ROWS
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

Columns = npt.NDArray[np.float32]
Looked = tuple[Table, int]
"""A table, and the samples of its bags."""
ROWS, LOOKED_UP, LINEAR, FIRST_PIECE = 0, 1, 2, 3
MAX_REPRESENTED = 2**14  # tables at a time


class CallNetwork:
    """Compute times of kernel calls on one kind of device, by the mean of an ensemble.

    Args:
        model: the cost model; of its exchange times nothing is used.
    """

    @torch.no_grad()
    def __init__(self, model: CostModel) -> None:
        self.model = model
        net = model.net
        mix_O1 = net.sum_of_parts_OK().mean(dim=1, keepdim=True)
        self._linear_I1 = net.linear_weight @ mix_O1
        self.output_U = (net.output_weight @ mix_O1).squeeze(1).numpy().astype(np.float32)
        self.overhead = float(net.overhead @ mix_O1)
        self.bias_H = net.piece_bias.numpy().astype(np.float32)
        self.pass_ms = (net.pass_weight @ mix_O1).flatten().numpy().astype(np.float32)
        self.pieces = net.sizes.pieces
        self.width = FIRST_PIECE + len(self.bias_H)

    def columns(self, looked_up: Sequence[Looked]) -> Columns:
        """[P, H] of tables that are looked up: rows, lookups, the linear part, and what the bent units see."""
        found = np.zeros((len(looked_up), self.width), dtype=np.float32)
        for batch_size, numbers in _by_batch(looked_up).items():
            for first in range(0, len(numbers), MAX_REPRESENTED):
                some = numbers[first : first + MAX_REPRESENTED]
                found[some] = self._columns([looked_up[number][0] for number in some], batch_size)
        return found

    @torch.no_grad()
    def _columns(self, tables: Sequence[Table], batch_size: int) -> Columns:
        represented = self.model.represent(tables, batch_size)
        rows_T1, inputs_TI = represented[:, 1:2], represented[:, 2:]
        lookups_T1, linear_T1 = inputs_TI[:, LOOKUPS, None], inputs_TI @ self._linear_I1
        pieces_TH = inputs_TI @ self.model.net.piece_weight
        return np.asarray(torch.cat([rows_T1, lookups_T1, linear_T1, pieces_TH], dim=1).numpy())

    def call_ms(self, sums: Columns) -> FloatArray:
        """[N] time of kernel calls, forward and backward, from the sums of their tables' columns [N, H]."""
        bent = (sums[:, FIRST_PIECE:] + self.bias_H).reshape(len(sums), self.pieces, -1)
        hidden = np.maximum(bent.max(axis=1), 0)
        passes = (sums[:, ROWS, None] >= PASS_ROWS_ARRAY) @ self.pass_ms
        return np.asarray(
            self.overhead + sums[:, LINEAR] + hidden @ self.output_U + sums[:, LOOKED_UP] * passes, dtype=np.float64
        )

    @torch.no_grad()
    def member_ms(self, looked_up: Sequence[Looked], cell_of_P: Sequence[int], num_cells: int) -> torch.Tensor:
        """[N, M, 2] forward and backward time of kernel calls, by each member; of empty ones, their overhead.

        Args:
            looked_up: tables.
            cell_of_P: the call of each.
            num_cells: calls.
        """
        sums: torch.Tensor | None = None
        cells = torch.tensor(cell_of_P, dtype=torch.int64)
        for batch_size, numbers in _by_batch(looked_up).items():
            represented = self.model.represent([looked_up[number][0] for number in numbers], batch_size)
            if sums is None:
                sums = represented.new_zeros(num_cells, represented.shape[1])
            sums.index_add_(0, cells[numbers], represented)
        if sums is None:
            return torch.zeros(num_cells, self.model.net.sizes.num_members, 2)
        return self.model.net.member_ms(sums[:, 2:], sums[:, 1])


PASS_ROWS_ARRAY = np.array(PASS_ROWS, dtype=np.float32)


def _by_batch(looked_up: Sequence[Looked]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, (_, batch_size) in enumerate(looked_up):
        found.setdefault(batch_size, []).append(number)
    return found
