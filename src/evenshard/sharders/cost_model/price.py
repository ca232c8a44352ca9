"""Fast form of a cost model for searches: the same predictions, from sums over tables that a search updates.

Several kernel calls on a device are predicted as one call with all their tables, but never below the time of as many
empty calls. The network is trained on pooled lookups, so a sequence is predicted as bags of size 1.

Legend: P tables looked up, N and D devices, H features that add up over tables, M members, U hidden units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links
from evenshard.price.device_model import LANE_LIMITS
from evenshard.price.kernel_calls import EVERY_DEVICE, Columns, DevicePrice, HeldPart, Lookup, group_by_bags
from evenshard.price.step import DeviceKind, PartCosts, PredictedParts
from evenshard.price.step_time import LARGEST_SUM
from evenshard.search.bound_lines import PriceBounds, SharedSteps, TangentLine, price_bounds
from evenshard.sharders.cost_model.cost_model import INPUTS, JUMPS, CostModel, log_spread_N
from evenshard.sharders.cost_model.network import LANE_WORK, LOOKUPS, NUM_JUMP_SUMS, PASS_ROWS
from evenshard.tables.reuse import FloatArray

ROWS, WIDER = 0, slice(1, NUM_JUMP_SUMS)  # the features that determine jumps
WORK = slice(NUM_JUMP_SUMS, NUM_JUMP_SUMS + len(LANE_WORK))  # the features by which jumps are multiplied
LOOKED_UP = WORK.start + LANE_WORK.index(LOOKUPS)
LINEAR = slice(WORK.stop, WORK.stop + 2)  # forward, backward
FIRST_PIECE = LINEAR.stop
MAX_REPRESENTED = 2**14  # tables per batch
PASS_ROWS_ARRAY = np.array(PASS_ROWS, dtype=np.float32)


class LearnedPrice(DevicePrice):
    """Fast predictor (price) of compute times: the mean of the cost model's ensemble."""

    num_maxima = 0
    is_by_call = False
    lane_limits = LANE_LIMITS

    @torch.no_grad()
    def __init__(self, model: CostModel) -> None:
        self._model = model
        net = model.net
        each_O2 = net.time_scale_ms.repeat(net.sizes.num_members)[:, None] / net.sizes.num_members
        mix_O2 = each_O2 * torch.eye(2).repeat(net.sizes.num_members, 1)
        self._linear_I2 = net.linear_weight @ mix_O2
        self.output_U2 = (net.output_weight @ mix_O2).numpy().astype(np.float32)
        self.overhead_2 = (net.overhead @ mix_O2).numpy().astype(np.float32)
        self.bias_H = net.piece_bias.numpy().astype(np.float32)
        self.pass_ms_2 = (net.pass_weight @ mix_O2).numpy().astype(np.float32)
        self._lane_ms_2 = (net.lane_weight @ mix_O2).numpy().astype(np.float32)
        self.pieces = net.sizes.pieces
        self._width = FIRST_PIECE + len(self.bias_H)
        self.empty_ms_2 = self.call_ms(np.zeros((1, self._width), dtype=np.float32))[:, 0]

    @property
    def sees_hot_rows(self) -> bool:
        """Return True if the model was trained with the share of contiguous hot rows as a feature."""
        return self._model.net.sizes.sees_hot_rows

    @torch.no_grad()
    def columns(self, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None) -> Columns:
        """Return features of tables, [P, H]. The compute time of a device depends on their sums over its tables."""
        lookups = [one.pooled for one in lookups]
        if dims_P is not None:
            lookups = [one.with_dim(dim) for one, dim in zip(lookups, dims_P.tolist(), strict=True)]
        found = np.zeros((len(lookups), self._width), dtype=np.float32)
        for some, represented in self._represent(lookups):
            jumps_TJ, inputs_TI = represented[:, JUMPS], represented[:, INPUTS]
            work_TW, linear_T2 = inputs_TI[:, LANE_WORK], inputs_TI @ self._linear_I2
            pieces_TH = inputs_TI @ self._model.net.piece_weight
            found[some] = torch.cat([jumps_TJ, work_TW, linear_T2, pieces_TH], dim=1).numpy()
        return found

    def _represent(self, lookups: Sequence[Lookup]) -> Iterator[tuple[list[int], torch.Tensor]]:
        for bags, numbers in group_by_bags(lookups).items():
            for first in range(0, len(numbers), MAX_REPRESENTED):
                some = numbers[first : first + MAX_REPRESENTED]
                yield some, self._model.represent([lookups[number].table for number in some], bags)

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        """Compute forward and backward time of N kernel calls, [2, N], from the sums over the tables of each call."""
        bent = (sums_NH[:, FIRST_PIECE:] + self.bias_H).reshape(len(sums_NH), self.pieces, len(self.output_U2))
        hidden = np.maximum(bent.max(axis=1), 0)
        smooth = self.overhead_2 + sums_NH[:, LINEAR] + hidden @ self.output_U2
        return np.asarray((smooth + self.jumps_ms(sums_NH)).T)

    def jumps_ms(self, sums_NH: Columns) -> Columns:
        """Compute forward and backward time of radix-sort passes and warp lanes, which rise in steps, [N, 2]."""
        sorts_N2 = (sums_NH[:, ROWS, None] >= PASS_ROWS_ARRAY) @ self.pass_ms_2
        issued = (sums_NH[:, WIDER, None] > 0.5) * sums_NH[:, None, WORK]
        lanes_N2 = issued.reshape(len(sums_NH), -1) @ self._lane_ms_2
        return np.asarray(sums_NH[:, LOOKED_UP, None] * sorts_N2 + lanes_N2)

    def device_ms(self, times_QGN: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """Compute forward and backward time of devices, [2, N], which is at least that of ``calls_N`` empty calls."""
        times_2N = np.maximum(times_QGN[:, 0], calls_N * self.empty_ms_2[:, None])
        return np.where(calls_N > 0, times_2N, 0.0).astype(np.float64)

    @torch.no_grad()
    def held_parts_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """Compute each ensemble member's forward and backward time of devices with these parts, [D, M, 2]."""
        net, lookups = self._model.net, [lookup.pooled for one in held for lookup in one.lookups]
        calls_D = np.zeros(num_devices, dtype=np.float32)
        for _, device in {(one.call, one.device) for one in held}:
            calls_D[slice(None) if device == EVERY_DEVICE else device] += 1
        if not lookups:
            return np.zeros((num_devices, net.sizes.num_members, 2))
        rows: dict[Lookup, int] = {}
        row_P = torch.tensor([rows.setdefault(lookup, len(rows)) for lookup in lookups])
        device_P = torch.tensor([one.device for one in held for _ in one.lookups])
        found_RH = torch.zeros(len(rows), INPUTS.start + len(net.piece_weight))
        for some, represented in self._represent(list(rows)):
            found_RH[some] = represented
        held_PH, is_single_P = found_RH[row_P], device_P != EVERY_DEVICE
        sums_DH = torch.zeros(num_devices, found_RH.shape[1])
        sums_DH.index_add_(0, device_P[is_single_P], held_PH[is_single_P])
        sums_DH += held_PH[~is_single_P].sum(dim=0)
        calls_D11 = torch.from_numpy(calls_D)[:, None, None]
        inputs_DI, jumps_DJ = sums_DH[:, INPUTS], sums_DH[:, JUMPS]
        empty_M2 = net.member_ms(torch.zeros_like(inputs_DI[:1]), torch.zeros_like(jumps_DJ[:1]))
        times = torch.maximum(net.member_ms(inputs_DI, jumps_DJ), calls_D11 * empty_M2)
        return np.asarray(torch.where(calls_D11 > 0, times, torch.zeros(())).numpy(), dtype=np.float64)

    def interval(self, members_M: FloatArray) -> float:
        """Return the half-width of the 90 % interval of log step time, from the spread of the members."""
        spread_N = log_spread_N(torch.from_numpy(np.asarray(members_M, dtype=np.float32))[:, None])
        return float(self._model.calibration.half_width_N(spread_N))


class LearnedBounds(PriceBounds):
    """Lower bounds of the compute times that a ``LearnedPrice`` predicts."""

    price: LearnedPrice

    def line_at(self, sums_H: FloatArray, calls: int = 0) -> TangentLine:
        """Return the tangent at ``sums_H`` to the compute times without sort passes and warp lanes."""
        price = self.price
        bent = (sums_H[FIRST_PIECE:] + price.bias_H).reshape(price.pieces, -1)
        piece_U, hidden_U = bent.argmax(axis=0), np.maximum(bent.max(axis=0), 0)
        slopes_2H = np.zeros((2, len(sums_H)))
        slopes_2H[:, LINEAR] = np.eye(2)
        active_U = np.flatnonzero(hidden_U > 0)
        slopes_2H[:, FIRST_PIECE + piece_U[active_U] * bent.shape[1] + active_U] = price.output_U2[active_U].T
        values_2 = price.overhead_2 + sums_H[LINEAR] + hidden_U @ price.output_U2
        return TangentLine(values_2 - slopes_2H @ sums_H, slopes_2H)

    def own_steps_ms(self, columns_PH: Columns) -> FloatArray:
        """Return the time of the sort passes and warp lanes that each table alone on a device needs, [2, P]."""
        return np.asarray(self.price.jumps_ms(columns_PH).T)

    def shared_steps(self, columns_PH: Columns, num_devices: int, total_rows: int) -> SharedSteps:
        """Return a bound on the radix-sort passes that devices need only for the rows of several tables together."""
        return SharedPasses(self.price.pass_ms_2.astype(np.float64), columns_PH, num_devices, total_rows)

    def least_launch_ms_2(self, calls: int) -> FloatArray:
        """Return the forward and backward time of this number of empty kernel calls, [2]."""
        return np.asarray(calls * self.price.empty_ms_2)


price_bounds.register(LearnedPrice, LearnedBounds)


class SharedPasses(SharedSteps):
    """Lower bound of the total time of radix-sort passes on all devices, attributed to tables.

    A device with fewer rows than the limit of a pass (``PASS_ROWS``) saves the pass for all its lookups. All devices
    may save it, or all but one if the tables have too many rows. The most lookups that save it are the optimum of a
    knapsack problem, whose capacity is the limit times these devices. The bound is its LP relaxation: it takes tables
    by lookups per row until one fills the capacity.

    Legend: L passes, P tables looked up.

    Args:
        pass_ms_L2: forward and backward time of each pass, for the mean lookups per device.
        columns_PH, num_devices, total_rows: see ``PriceBounds.shared_steps``.
    """

    def __init__(self, pass_ms_L2: FloatArray, columns_PH: Columns, num_devices: int, total_rows: int) -> None:
        rows_P, lookups_P = columns_PH[:, [ROWS, LOOKED_UP]].astype(np.float64).T
        limits_L = np.array(PASS_ROWS)
        room_L = limits_L * (num_devices - (total_rows >= num_devices * limits_L))
        prices = [
            _least_density(rows_P[own_P], lookups_P[own_P], room)
            for own_P, room in zip(rows_P < limits_L[:, None], room_L.tolist(), strict=True)
        ]
        self._pass_ms_L2, self._lookups_per_row_L = pass_ms_L2, np.array(prices)
        self.at_0_2 = -(self._lookups_per_row_L * room_L / num_devices) @ pass_ms_L2

    def compute_work(self, columns_PH: Columns) -> FloatArray:
        """Return the pass time that the bound attributes to tables that would not need the pass alone, [2, P]."""
        rows_P1, lookups_P1 = columns_PH[:, [ROWS, LOOKED_UP]].astype(np.float64).T[..., None]
        paid_PL = np.minimum(lookups_P1, rows_P1 * self._lookups_per_row_L) * (rows_P1 < np.array(PASS_ROWS))
        return np.asarray((paid_PL @ self._pass_ms_L2).T)


def _least_density(rows_P: FloatArray, lookups_P: FloatArray, room: float) -> float:
    """Add tables, most lookups per row first; return this ratio for the table that exceeds ``room``, 0 if all fit."""
    densities_P = lookups_P / rows_P
    order_P = np.argsort(-densities_P)
    inside = int(np.searchsorted(rows_P[order_P].cumsum(), room))
    return float(densities_P[order_P[inside]]) if inside < len(order_P) else 0.0


def whole_costs(model: CostModel, task: ShardingTask, price: LearnedPrice | None = None) -> PartCosts:
    """Build a predictor for placements of whole tables, whose step time is that of the slowest device.

    All-to-all times are those fitted to the training data. The input dist is not predicted.
    """
    exchange = model.exchange.link("fitted to the all-to-alls of the training data")
    kind = DeviceKind(price or LearnedPrice(model), float("inf"))
    return PartCosts(task, [kind], [0] * task.num_devices, Links(exchange, counts_inputs=False), LARGEST_SUM)


def predict_whole(model: CostModel, placed: Iterable[tuple[ShardingTask, Placement]]) -> list[PredictedParts]:
    """Predict placements of whole tables, in order; the placements of each task form one batch."""
    price, jobs = LearnedPrice(model), list(placed)
    numbers_of: dict[ShardingTask, list[int]] = {}
    for number, (task, _) in enumerate(jobs):
        numbers_of.setdefault(task, []).append(number)
    found: dict[int, PredictedParts] = {}
    for task, numbers in numbers_of.items():
        predicted = whole_costs(model, task, price).predict_whole([jobs[number][1] for number in numbers])
        found.update(zip(numbers, predicted, strict=True))
    return [found[number] for number in range(len(jobs))]
