"""Training of the cost model on the relative errors of every device of all measured placements.

Each member of the ensemble is trained without some of the placements, and its errors on these determine the width of
90 % prediction intervals. Because a search prefers placements that the model underestimates, errors of the previous
model on placements that it chose widen the intervals.

Legend: R measured devices with tables, P distinct pairs of table and batch size, K members of the ensemble,
N measured placements, M devices of a minibatch, Q pairs on these devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import COUNT, Range, check_knobs, knob
from evenshard.base.process import one_thread
from evenshard.price.collectives import whole_table_bytes
from evenshard.price.costs import OK, RANDOM_SHARD, DeviceCost, MeasuredPlacement
from evenshard.price.step import PredictedParts
from evenshard.sharders.cost_model.cost_model import Calibration, CostModel, ExchangeTime, log_spread_N
from evenshard.sharders.cost_model.network import ConvexNet, EnsembleSizes, jump_sums_TJ
from evenshard.sharders.cost_model.price import predict_whole
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import Track, descend, set_learning_rate
from evenshard.tables.locality import contiguous_share
from evenshard.tables.table import Table

ROBUST_BEYOND = 0.03  # relative error above which the loss is linear, so that jumps and outliers do not distort the fit
LEAST_TIME = 1e-4  # share of the mean time, to which shorter times are raised
WARM_UP = 0.1  # share of the updates in which the learning rate rises
COVERAGE = 0.9  # share of the measured costs within an interval
LEAST_FLOOR = 1e-3  # minimum of ``Calibration.floor``, because even a perfect fit is uncertain


@dataclass(frozen=True)
class CostModelFitConfig:
    """Settings of the cost model's size and training.

    Raises:
        BadConfig: if a value is out of its range.
    """

    num_members: int = knob(5, "members of the ensemble", range=Range(2, 1_000, whole=True))
    table_hidden: int = knob(16, "hidden units of a member's table network", range=COUNT)
    head_hidden: int = knob(4, "hidden units of a member's head", range=COUNT)
    pieces: int = knob(8, "linear functions per head unit; the unit returns their maximum", range=COUNT)
    num_updates: int = knob(1000, "gradient steps", range=COUNT)
    minibatch_size: int = knob(128, "devices per step", range=COUNT)
    learning_rate: float = knob(
        0.01, "learning rate of Adam after the warm-up; it then falls to 0", range=Range(0, 1e38, above=True)
    )
    across_batches: bool = knob(False, "True for costs with several batch sizes; see EnsembleSizes.across_batches")
    seed: int = knob(0, "seed of initial weights, held-out parts and minibatches")

    def __post_init__(self) -> None:
        check_knobs(self)


@dataclass(frozen=True)
class CostModelFitMetrics:
    """Errors and sizes of a fit."""

    losses: tuple[float, ...]  # loss of every update
    # Median absolute error of the overall costs of placements, %, each predicted by the member that was not trained on
    # it. The whole ensemble errs slightly less; on unseen tables, errors are slightly larger.
    held_out_pct_error: float
    exchange_pct_error: float  # median absolute error of the all-to-all times, %; NaN without any
    num_devices: int  # R, measured devices in the training data


@dataclass(frozen=True)
class DeviceRows:
    """Measured devices as tensors for training."""

    # Of the P distinct pairs.
    tables: tuple[Table, ...]
    batch_sizes: tuple[int, ...]
    held: torch.Tensor  # (device, pair) of every table on a device, device by device
    # Measured forward compute, backward compute and their sum, ms; the first two are NaN if only the sum is known.
    times_R3: torch.Tensor
    placement_R: torch.Tensor  # number of the device's placement, below N

    @staticmethod
    def of(measured: Sequence[MeasuredPlacement]) -> DeviceRows:
        """Convert all devices that have tables and did not run out of memory."""
        pairs = dict.fromkeys((t, one.task.batch_size) for one in measured for t in one.task.tables)
        numbers = {pair: n for n, pair in enumerate(pairs)}
        held: list[tuple[int, int]] = []
        times: list[tuple[float, float, float]] = []
        placements: list[int] = []
        for number, one in enumerate(measured):
            for shard, cost in zip(one.shards, one.cost.devices, strict=True):
                if shard and cost.status == OK:
                    held.extend((len(times), numbers[table, one.task.batch_size]) for table in shard)
                    times.append((*cost.split_ms, cost.compute_ms))
                    placements.append(number)
        tables, batch_sizes = tuple(table for table, _ in pairs), tuple(size for _, size in pairs)
        times_R3 = torch.tensor(times, dtype=torch.float32)  # float32, as the network
        return DeviceRows(tables, batch_sizes, torch.tensor(held), times_R3, torch.tensor(placements))

    def inputs(self, net: ConvexNet) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features [P, F] and scaled work [P, A] of all (table, batch size) pairs, for ``ConvexNet.encode``."""
        positions_of: dict[int, list[int]] = {}
        for position, size in enumerate(self.batch_sizes):
            positions_of.setdefault(size, []).append(position)
        parts = [net.table_inputs([self.tables[p] for p in own], size) for size, own in positions_of.items()]
        order_P = torch.tensor([p for own in positions_of.values() for p in own]).argsort()
        features_PF, work_PA = (torch.cat(part)[order_P] for part in zip(*parts, strict=True))
        return features_PF, work_PA


@one_thread()
def fit_cost_model(
    measured: Sequence[MeasuredPlacement], config: CostModelFitConfig, track: Track = iter
) -> tuple[CostModel, CostModelFitMetrics]:
    """Fit a cost model to measured placements and single shards.

    Without ``config.across_batches``, all must have the same batch size. The fit is deterministic.

    Raises:
        BadConfig: if no device with tables was measured, or there are several batch sizes.
    """
    rows = DeviceRows.of(measured)
    if not len(rows.times_R3):
        raise BadConfig("The costs have no measured device with tables. Benchmark placements that fit in memory.")
    if len(set(rows.batch_sizes)) > 1 and not config.across_batches:
        raise BadConfig("The costs have several batch sizes. Set across_batches, or benchmark at one batch size.")
    generator = torch.Generator().manual_seed(config.seed)
    sizes = EnsembleSizes(
        config.num_members,
        config.table_hidden,
        head_hidden=config.head_hidden,
        pieces=config.pieces,
        across_batches=config.across_batches,
        sees_hot_rows=len({*map(contiguous_share, rows.tables, rows.batch_sizes)} - {None}) > 1,
    )
    normalizer = FeatureNormalizer.fit(rows.tables, rows.batch_sizes[0])
    model = CostModel(sizes, normalizer, generator)
    held_out_by_N = assign_held_out_members(measured, config.num_members, generator)
    losses = _learn(model, rows, held_out_by_N[rows.placement_R], config, generator, track)
    model.exchange, exchange_pct_error = fit_exchange(measured)
    model.calibration, held_out_pct_error = calibrate(model, measured, held_out_by_N)
    return model, CostModelFitMetrics(tuple(losses), held_out_pct_error, exchange_pct_error, len(rows.times_R3))


def assign_held_out_members(
    measured: Sequence[MeasuredPlacement], num_members: int, generator: torch.Generator
) -> torch.Tensor:
    """Assign to each placement an ensemble member that is not trained on it, [N].

    Placements of a task share tables, so they get the same member if there are enough tasks.
    """
    tasks = {task_id: n for n, task_id in enumerate(dict.fromkeys(one.task.task_id for one in measured))}
    if len(tasks) < num_members:
        return torch.randperm(len(measured), generator=generator) % num_members
    member_of_task = torch.randperm(len(tasks), generator=generator) % num_members
    return member_of_task[torch.tensor([tasks[one.task.task_id] for one in measured])]


def _learn(
    model: CostModel,
    rows: DeviceRows,
    held_out_by_R: torch.Tensor,
    config: CostModelFitConfig,
    generator: torch.Generator,
    track: Track,
) -> list[float]:
    """Train the model in place on Huber losses of log forward, backward and total time."""
    net = model.net
    mean_ms_2 = rows.times_R3[:, :2].nanmean(dim=0)
    # If forward and backward were only measured together, half of the mean total is the scale of each.
    mean_ms_2 = torch.where(mean_ms_2.isnan(), rows.times_R3[:, 2].mean() / 2, mean_ms_2)
    net.time_scale_ms.copy_(mean_ms_2.clamp(min=1e-6))
    unscaled_PA = rows.inputs(net)[1]
    mean_A = (rows.held[:, 1].bincount(minlength=len(rows.tables)).float() @ unscaled_PA) / len(rows.times_R3)
    net.work_scale_A.copy_(torch.where(mean_A > 0, mean_A, 1.0))
    features_PF, work_PA = rows.inputs(net)
    jumps_PJ = jump_sums_TJ(rows.tables)
    goal_R3 = rows.times_R3.clamp(min=LEAST_TIME * float(net.time_scale_ms.min())).log()
    known_R3 = (~goal_R3.isnan()).float()
    # Devices faster than the mean weigh less, because the slow devices determine the cost of a placement.
    total_R = rows.times_R3[:, 2]
    weight_R = (total_R / total_R.mean()).clamp(max=1.0).sqrt()
    learns_RK = held_out_by_R[:, None] != torch.arange(config.num_members)
    of_known_R3 = known_R3 * 3 / known_R3.sum(dim=1, keepdim=True)
    weight_RK3 = (learns_RK * (weight_R / weight_R.mean())[:, None])[..., None] * of_known_R3[:, None]

    held_per_minibatch = config.minibatch_size * len(rows.held) / len(rows.times_R3)
    minibatches = _Minibatches(rows, only_used=len(rows.tables) > held_per_minibatch)
    optimizer = torch.optim.Adam(net.parameters(), lr=config.learning_rate, fused=True)
    losses = []
    for update in track(range(config.num_updates)):
        set_learning_rate(optimizer, config.learning_rate * _share_of_rate((update + 0.5) / config.num_updates))
        rows_M = torch.randint(len(goal_R3), (config.minibatch_size,), generator=generator)
        holds_MQ, pair_Q = minibatches.of(rows_M)
        encoded_QI = net.encode(features_PF[pair_Q], work_PA[pair_Q])
        times_MK2 = net.member_ms(holds_MQ @ encoded_QI, holds_MQ @ jumps_PJ[pair_Q])
        found_MK3 = torch.cat([times_MK2, times_MK2.sum(dim=2, keepdim=True)], dim=2).log()
        goal_M13 = goal_R3[rows_M, None]
        goal_MK3 = torch.where(goal_M13.isnan(), found_MK3.detach(), goal_M13)
        errors_MK3 = torch.nn.functional.huber_loss(found_MK3, goal_MK3, reduction="none", delta=ROBUST_BEYOND)
        loss = (errors_MK3 * weight_RK3[rows_M]).mean() / ROBUST_BEYOND
        descend(optimizer, loss)
        net.project()
        losses.append(loss.item())
    return losses


class _Minibatches:
    """Builder of small matrices for minibatches, instead of one large matrix of all devices and tables."""

    def __init__(self, rows: DeviceRows, only_used: bool) -> None:
        self._pair_of_held, self._all = rows.held[:, 1], None if only_used else torch.arange(len(rows.tables))
        self._count_R = rows.held[:, 0].bincount(minlength=len(rows.times_R3))
        self._first_R = self._count_R.cumsum(0) - self._count_R

    def of(self, rows_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a matrix that is 1 where a device has a (table, batch size) pair, [M, Q], and the pair numbers [Q]."""
        count_M = self._count_R[rows_M]
        row_of_held = torch.arange(len(rows_M)).repeat_interleave(count_M)
        within = torch.arange(len(row_of_held)) - (count_M.cumsum(0) - count_M)[row_of_held]
        pairs = self._pair_of_held[self._first_R[rows_M][row_of_held] + within]
        pair_Q, column = self._all, pairs
        if pair_Q is None:
            pair_Q, column = map(torch.from_numpy, np.unique(pairs.numpy(), return_inverse=True))
        holds_MQ = torch.zeros(len(rows_M), len(pair_Q))
        holds_MQ[row_of_held, column] = 1.0
        return holds_MQ, pair_Q


def _share_of_rate(progress: float) -> float:
    """Compute the learning rate's factor, which rises from 0 to 1 and falls to 0, both along a cosine."""
    if progress < WARM_UP:
        return 0.5 - 0.5 * math.cos(math.pi * progress / WARM_UP)
    return 0.5 + 0.5 * math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))


def fit_exchange(measured: Sequence[MeasuredPlacement]) -> tuple[ExchangeTime, float]:
    """Fit the all-to-all latency and bandwidths by relative least squares; also return the median error in %.

    The fitted numbers are non-negative. Without measured all-to-all times, they are 0 and the error is NaN.
    """
    from scipy.optimize import nnls

    rows = [
        (*num_bytes, 1.0, time_ms)  # 1.0 for the latency is last: bytes explain equal times first
        for one in measured
        for num_bytes, cost in zip(_device_bytes(one), one.cost.devices, strict=True)
        for time_ms in _exchange_times(one, cost)
    ]
    if not rows:
        return ExchangeTime(), math.nan
    *counts, times = np.array(rows).T
    columns = np.stack(counts, axis=1) / times[:, None]
    scale = np.maximum(columns.max(axis=0), np.finfo(np.float64).tiny)
    fitted = nnls(columns / scale, np.ones(len(times)))[0] / scale
    *per_byte, latency = fitted.tolist()
    errors = np.abs(columns @ fitted - 1)
    return ExchangeTime(latency, *per_byte), float(np.median(errors)) * 100


def _device_bytes(one: MeasuredPlacement) -> list[tuple[float, ...]]:
    """Return the bytes of each device in its busier direction, the most bytes of a device, and the total bytes."""
    dims = [float(sum(table.embedding_dim for table in shard)) for shard in one.shards]
    moved = whole_table_bytes(dims, one.task.batch_size)
    slowest, total = float(moved.intra_sent.max()), float(moved.intra_sent.sum())
    return [(own, slowest, total) for own in moved.intra.tolist()]


def _exchange_times(one: MeasuredPlacement, cost: DeviceCost) -> list[float]:
    if one.task.num_devices == 1 or cost.status != OK:
        return []
    return [time_ms for time_ms in (cost.fwd_all_to_all_ms, cost.bwd_all_to_all_ms) if time_ms > 0]


def cost_model_round(
    measured: Sequence[MeasuredPlacement],
    config: CostModelFitConfig,
    previous: CostModel | None = None,
    own: Sequence[MeasuredPlacement] = (),
    track: Track = iter,
) -> tuple[CostModel, CostModelFitMetrics]:
    """Fit the cost model of one round; errors on placements that the previous model chose widen its intervals.

    Args:
        previous: the model of the previous round; None in the first.
        own: measured placements that the previous model chose.
    """
    model, metrics = fit_cost_model(measured, config, track)
    if previous is not None:
        calibrate_for_chosen(model, previous, [one for one in own if one.cost.fits])
    return model, metrics


# Intervals ------------------------------------------------------------------------------------------------------------


def calibrate(
    model: CostModel, measured: Sequence[MeasuredPlacement], held_out_by_N: torch.Tensor
) -> tuple[Calibration, float]:
    """Calibrate the prediction intervals on held-out errors; return the calibration and the median error in %.

    Single shards are used only if there are no placements of several devices. A single member errs more than the whole
    ensemble, which compensates for the tables that a held-out placement shares with the training data.
    """
    ran = [number for number, one in enumerate(measured) if one.cost.fits]
    chosen = [number for number in ran if measured[number].proposed_by != RANDOM_SHARD] or ran
    if not chosen:
        return Calibration(), math.nan
    members_KN = _members_KN(_predict_measured(model, [measured[n] for n in chosen]))
    actual_N = torch.tensor([measured[n].cost.max_device_ms for n in chosen])
    held_out_N = members_KN.gather(0, held_out_by_N[chosen][None])[0]
    errors_N = (held_out_N / actual_N).log().abs()
    floor = max(float(errors_N.median()), LEAST_FLOOR)
    deviations_N = Calibration(floor=floor).deviation_N(log_spread_N(members_KN))
    factor = conformal_factor(errors_N, deviations_N)
    return Calibration(factor, floor), float((held_out_N / actual_N - 1).abs().median()) * 100


def calibrate_for_chosen(model: CostModel, first: CostModel, own: Sequence[MeasuredPlacement]) -> None:
    """Widen the intervals of ``model`` by the previous model's errors on the placements that it chose."""
    if not own:
        return
    predicted_N = torch.tensor([one.predicted_ms for one in _predict_measured(first, own)])
    members_KN = _members_KN(_predict_measured(model, own))
    errors_N = (torch.tensor([one.cost.max_device_ms for one in own]) / predicted_N).log().abs()
    factor = conformal_factor(errors_N, model.calibration.deviation_N(log_spread_N(members_KN)))
    model.calibration = replace(model.calibration, factor=max(model.calibration.factor, factor))


def _predict_measured(model: CostModel, measured: Sequence[MeasuredPlacement]) -> list[PredictedParts]:
    return predict_whole(model, [(one.task, one.placement) for one in measured])


def _members_KN(predicted: Sequence[PredictedParts]) -> torch.Tensor:
    return torch.tensor([one.members_ms for one in predicted]).T


def conformal_factor(errors_N: torch.Tensor, deviations_N: torch.Tensor) -> float:
    """Return the half-width of an interval, in deviations, that covers a new error with 90 % probability.

    By conformal prediction, this is the 0.9 (n + 1)-th smallest of the n ratios of error to deviation.
    """
    rank = min(math.ceil(COVERAGE * (len(errors_N) + 1)), len(errors_N))
    return float((errors_N / deviations_N).kthvalue(rank).values)
