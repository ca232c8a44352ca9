"""The price of a learned model: its network in the form that a search evaluates, columns that add up over tables.

All calls of a device take what one with all their tables would; launching them takes at least what launching empty ones
does, one after the other. The network learned from pooled lookups: a sequence is bags of one.

Legend: P tables looked up, N devices, D devices, H columns, M members of the ensemble, U bent units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from evenshard.measure.kernel_calls import EVERY_DEVICE, HeldPart, Lookup
from evenshard.measure.price.device_price import Columns, DevicePrice, TangentLine
from evenshard.sharders.cost_model.cost_model import INPUTS, JUMPS, CostModel, log_spread_N
from evenshard.sharders.cost_model.network import LANE_WORK, LOOKUPS, NUM_JUMP_SUMS, PASS_ROWS
from evenshard.tables.reuse import FloatArray

ROWS, WIDER = 0, slice(1, NUM_JUMP_SUMS)  # what decides about jumps
WORK = slice(NUM_JUMP_SUMS, NUM_JUMP_SUMS + len(LANE_WORK))  # what jumps
LOOKED_UP = WORK.start + LANE_WORK.index(LOOKUPS)
LINEAR = slice(WORK.stop, WORK.stop + 2)  # forward, backward
FIRST_PIECE = LINEAR.stop
MAX_REPRESENTED = 2**14  # tables at a time
PASS_ROWS_ARRAY = np.array(PASS_ROWS, dtype=np.float32)


class LearnedPrice(DevicePrice):
    """The compute times of a device by the mean of an ensemble; see ``DevicePrice``.

    Args:
        model: the cost model; of its exchange times nothing is used.
    """

    num_maxima = 0
    is_by_call = False

    @torch.no_grad()
    def __init__(self, model: CostModel) -> None:
        self._model = model
        net = model.net
        each_O2 = net.time_scale_ms.repeat(net.sizes.num_members)[:, None] / net.sizes.num_members
        mix_O2 = each_O2 * torch.eye(2).repeat(net.sizes.num_members, 1)
        self._linear_I2 = net.linear_weight @ mix_O2
        self._output_U2 = (net.output_weight @ mix_O2).numpy().astype(np.float32)
        self._overhead_2 = (net.overhead @ mix_O2).numpy().astype(np.float32)
        self._bias_H = net.piece_bias.numpy().astype(np.float32)
        self._pass_ms_2 = (net.pass_weight @ mix_O2).numpy().astype(np.float32)
        self._lane_ms_2 = (net.lane_weight @ mix_O2).numpy().astype(np.float32)
        self._pieces = net.sizes.pieces
        self._width = FIRST_PIECE + len(self._bias_H)
        self._empty_ms_2 = self.call_ms(np.zeros((1, self._width), dtype=np.float32))[0]

    @torch.no_grad()
    def columns(self, lookups: Sequence[Lookup]) -> Columns:
        """[P, H] of tables: what decides about jumps and what jumps, the linear part, and what the bent units see."""
        lookups = [one.pooled for one in lookups]
        found = np.zeros((len(lookups), self._width), dtype=np.float32)
        for bags, numbers in _by_bags(lookups).items():
            for first in range(0, len(numbers), MAX_REPRESENTED):
                some = numbers[first : first + MAX_REPRESENTED]
                represented = self._model.represent([lookups[number].table for number in some], bags)
                jumps_TJ, inputs_TI = represented[:, JUMPS], represented[:, INPUTS]
                work_TW, linear_T2 = inputs_TI[:, LANE_WORK], inputs_TI @ self._linear_I2
                pieces_TH = inputs_TI @ self._model.net.piece_weight
                found[some] = torch.cat([jumps_TJ, work_TW, linear_T2, pieces_TH], dim=1).numpy()
        return found

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        """[N, 2] forward and backward time of single calls with these tables."""
        bent = (sums_NH[:, FIRST_PIECE:] + self._bias_H).reshape(len(sums_NH), self._pieces, len(self._output_U2))
        hidden = np.maximum(bent.max(axis=1), 0)
        smooth = self._overhead_2 + sums_NH[:, LINEAR] + hidden @ self._output_U2
        return np.asarray(smooth + self._jumps_ms(sums_NH))

    def _jumps_ms(self, sums_NH: Columns) -> Columns:
        """[N, 2] what passes of the sort and lanes take."""
        sorts_N2 = (sums_NH[:, ROWS, None] >= PASS_ROWS_ARRAY) @ self._pass_ms_2
        issued = (sums_NH[:, WIDER, None] > 0.5) * sums_NH[:, None, WORK]
        lanes_N2 = issued.reshape(len(sums_NH), -1) @ self._lane_ms_2
        return np.asarray(sums_NH[:, LOOKED_UP, None] * sorts_N2 + lanes_N2)

    def device_ms(self, times_GNQ: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """[N, 2] forward and backward time of devices for all their kernel calls."""
        calls_N1 = calls_N[:, None]
        times_N2 = np.maximum(times_GNQ[0], calls_N1 * self._empty_ms_2)
        return np.where(calls_N1 > 0, times_N2, 0.0).astype(np.float64)

    @torch.no_grad()
    def held_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """[D, M, 2] forward and backward time of devices that hold these parts, by each member."""
        net, lookups = self._model.net, [lookup.pooled for one in held for lookup in one.lookups]
        calls_D = np.zeros(num_devices, dtype=np.float32)
        for _, device in {(one.call, one.device) for one in held}:
            calls_D[slice(None) if device == EVERY_DEVICE else device] += 1
        if not lookups:
            return np.zeros((num_devices, net.sizes.num_members, 2))
        device_of_P = torch.tensor([one.device for one in held for _ in one.lookups])
        sums: torch.Tensor | None = None
        for bags, numbers in _by_bags(lookups).items():
            represented = self._model.represent([lookups[number].table for number in numbers], bags)
            if sums is None:
                sums = represented.new_zeros(num_devices, represented.shape[1])
            where = device_of_P[numbers]
            single = where != EVERY_DEVICE
            sums.index_add_(0, where[single], represented[single])
            sums += represented[~single].sum(dim=0)
        assert sums is not None
        calls_D11 = torch.from_numpy(calls_D)[:, None, None]
        inputs_DI, jumps_DJ = sums[:, INPUTS], sums[:, JUMPS]
        empty_M2 = net.member_ms(torch.zeros_like(inputs_DI[:1]), torch.zeros_like(jumps_DJ[:1]))
        times = torch.maximum(net.member_ms(inputs_DI, jumps_DJ), calls_D11 * empty_M2)
        return np.asarray(torch.where(calls_D11 > 0, times, torch.zeros(())).numpy(), dtype=np.float64)

    def interval(self, members_M: FloatArray) -> float:
        """Half the 90 % interval of a step, of its logarithm, by how unlike the members are."""
        spread_N = log_spread_N(torch.from_numpy(np.asarray(members_M, dtype=np.float32))[:, None])
        return float(self._model.calibration.half_width_N(spread_N))

    def line_at(self, sums_H: FloatArray) -> TangentLine:
        """The lines that touch the compute times at these sums, jumps left out."""
        bent = (sums_H[FIRST_PIECE:] + self._bias_H).reshape(self._pieces, -1)
        piece_U, hidden_U = bent.argmax(axis=0), np.maximum(bent.max(axis=0), 0)
        slopes_2H = np.zeros((2, len(sums_H)))
        slopes_2H[:, LINEAR] = np.eye(2)
        active_U = np.flatnonzero(hidden_U > 0)
        slopes_2H[:, FIRST_PIECE + piece_U[active_U] * bent.shape[1] + active_U] = self._output_U2[active_U].T
        values_2 = self._overhead_2 + sums_H[LINEAR] + hidden_U @ self._output_U2
        return TangentLine(values_2 - slopes_2H @ sums_H, slopes_2H)

    def own_steps_ms(self, columns_PH: Columns) -> FloatArray:
        """[2, P] time of the radix passes that a table's own rows need, and of lanes that its own columns do."""
        return np.asarray(self._jumps_ms(columns_PH).T)

    def launched_ms_2(self, calls: int) -> FloatArray:
        """[2] what so many empty calls take."""
        return np.asarray(calls * self._empty_ms_2)


def _by_bags(lookups: Sequence[Lookup]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, one in enumerate(lookups):
        found.setdefault(one.bags, []).append(number)
    return found
