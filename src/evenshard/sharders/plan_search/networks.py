"""Cost networks in the form that a search evaluates: columns that add up over the tables of a kernel call.

Devices of one kind share a network. Legend: P parts, N kernel calls on devices, H columns, M members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
ROWS, LOOKED_UP, FIRST_PIECE = 0, 1, 4
LINEAR = slice(2, 4)  # forward, backward
AloneTimes = Callable[[Sequence[Looked]], FloatArray]
MAX_REPRESENTED = 2**14  # tables at a time


class CallNetwork:
    """Compute times of kernel calls on one kind of device, by the mean of an ensemble.

    Args:
        model: the cost model; of its exchange times nothing is used.
        alone_ms: forward and backward time of tables alone, [P, 2] ms, where a device model knows it. It corrects those
            that look their rows up more than once a sample: no model was trained on such tables.
    """

    @torch.no_grad()
    def __init__(self, model: CostModel, alone_ms: AloneTimes | None = None) -> None:
        self.model, self._alone_ms = model, alone_ms
        net = model.net
        each_O2 = net.time_scale_ms.repeat(net.sizes.num_members)[:, None] / net.sizes.num_members
        mix_O2 = each_O2 * torch.eye(2).repeat(net.sizes.num_members, 1)
        self._linear_I2 = net.linear_weight @ mix_O2
        self.output_U2 = (net.output_weight @ mix_O2).numpy().astype(np.float32)
        self.overhead_2 = (net.overhead @ mix_O2).numpy().astype(np.float32)
        self.bias_H = net.piece_bias.numpy().astype(np.float32)
        self.pass_ms_2 = (net.pass_weight @ mix_O2).numpy().astype(np.float32)
        self.pieces = net.sizes.pieces
        self.width = FIRST_PIECE + len(self.bias_H)
        self.empty_ms_2 = self._passes_ms(np.zeros((1, self.width), dtype=np.float32))[0]
        """Forward and backward time of a call that looks nothing up."""

    def columns(self, looked_up: Sequence[Looked]) -> Columns:
        """[P, H] of tables that are looked up: rows, lookups, the linear part, and what the bent units see."""
        found = np.zeros((len(looked_up), self.width), dtype=np.float32)
        for batch_size, numbers in _by_batch(looked_up).items():
            for first in range(0, len(numbers), MAX_REPRESENTED):
                some = numbers[first : first + MAX_REPRESENTED]
                found[some] = self._columns([looked_up[number][0] for number in some], batch_size)
        odd = self._odd(looked_up)
        found[odd, LINEAR] += self._missing_ms([looked_up[number] for number in odd], found[odd])
        return found

    def _odd(self, looked_up: Sequence[Looked]) -> list[int]:
        """Tables to correct."""
        if self._alone_ms is None:
            return []
        return [number for number, (table, _) in enumerate(looked_up) if table.pooling_factor > table.num_rows]

    def _missing_ms(self, looked_up: Sequence[Looked], columns_PH: Columns) -> Columns:
        """[P, 2] what the network says too little of tables alone."""
        if not looked_up or self._alone_ms is None:
            return np.zeros((len(looked_up), 2), dtype=np.float32)
        return np.maximum(self._alone_ms(looked_up) - self._passes_ms(columns_PH), 0).astype(np.float32)

    def _uncorrected(self, looked_up: Sequence[Looked]) -> Columns:
        """[P, H] columns by the network alone."""
        return np.concatenate([self._columns([table], batch_size) for table, batch_size in looked_up])

    @torch.no_grad()
    def _columns(self, tables: Sequence[Table], batch_size: int) -> Columns:
        represented = self.model.represent(tables, batch_size)
        rows_T1, inputs_TI = represented[:, 1:2], represented[:, 2:]
        lookups_T1, linear_T2 = inputs_TI[:, LOOKUPS, None], inputs_TI @ self._linear_I2
        pieces_TH = inputs_TI @ self.model.net.piece_weight
        return np.asarray(torch.cat([rows_T1, lookups_T1, linear_T2, pieces_TH], dim=1).numpy())

    def compute_ms(self, sums: Columns, calls: npt.NDArray[np.int64]) -> FloatArray:
        """[N] time of devices for all their kernel calls, forward and backward.

        The calls take what one with all their tables would; launching them takes at least what launching empty ones
        does, one after the other (``device_model.pass_ms``).

        Args:
            sums: [N, H] sums of the columns of all their tables.
            calls: [N] kernel calls; a device without any takes no time.
        """
        times_N2 = np.maximum(self._passes_ms(sums), calls[:, None] * self.empty_ms_2)
        return np.where(calls > 0, times_N2.sum(axis=1, dtype=np.float64), 0.0)

    def _passes_ms(self, sums: Columns) -> Columns:
        """[N, 2] forward and backward time of single calls."""
        bent = (sums[:, FIRST_PIECE:] + self.bias_H).reshape(len(sums), self.pieces, len(self.output_U2))
        hidden = np.maximum(bent.max(axis=1), 0)
        sorts = (sums[:, ROWS, None] >= PASS_ROWS_ARRAY) @ self.pass_ms_2
        smooth = self.overhead_2 + sums[:, LINEAR] + hidden @ self.output_U2
        return np.asarray(smooth + sums[:, LOOKED_UP, None] * sorts)

    @torch.no_grad()
    def member_ms(
        self, looked_up: Sequence[Looked], device_of_P: Sequence[int], calls: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """[D, M, 2] forward and backward time of devices, by each member, as ``compute_ms``.

        Args:
            looked_up: tables.
            device_of_P: the device of each.
            calls: [D] kernel calls.
        """
        net = self.model.net
        devices = torch.tensor(device_of_P, dtype=torch.int64)
        sums: torch.Tensor | None = None
        for batch_size, numbers in _by_batch(looked_up).items():
            represented = self.model.represent([looked_up[number][0] for number in numbers], batch_size)
            if sums is None:
                sums = represented.new_zeros(len(calls), represented.shape[1])
            sums.index_add_(0, devices[numbers], represented)
        if sums is None:
            return torch.zeros(len(calls), net.sizes.num_members, 2)
        calls_D11 = torch.from_numpy(np.asarray(calls, dtype=np.float32))[:, None, None]
        empty_M2 = net.member_ms(torch.zeros(1, sums.shape[1] - 2), torch.zeros(1))
        times = net.member_ms(sums[:, 2:], sums[:, 1])
        odd = self._odd(looked_up)
        if odd:
            some = [looked_up[number] for number in odd]
            missing_P2 = self.columns(some)[:, LINEAR] - self._uncorrected(some)[:, LINEAR]
            times.index_add_(0, devices[odd], torch.from_numpy(missing_P2)[:, None].expand(-1, times.shape[1], -1))
        times = torch.maximum(times, calls_D11 * empty_M2)
        return torch.where(calls_D11 > 0, times, torch.zeros(()))


PASS_ROWS_ARRAY = np.array(PASS_ROWS, dtype=np.float32)


def _by_batch(looked_up: Sequence[Looked]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, (_, batch_size) in enumerate(looked_up):
        found.setdefault(batch_size, []).append(number)
    return found
