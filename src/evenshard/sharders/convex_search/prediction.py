"""The prediction of an answer: its cost, how sure that is, and how much better any placement could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.cost_model import CostModel


@dataclass(frozen=True)
class PredictedDevice:
    """Predicted times of one device in one training step, ms; zero where it holds no table."""

    predicted_fwd_compute_ms: float
    predicted_fwd_all_to_all_ms: float
    predicted_bwd_all_to_all_ms: float
    predicted_bwd_compute_ms: float
    predicted_input_dist_ms: float = 0.0

    @property
    def predicted_total_ms(self) -> float:
        """Its times together."""
        return (
            self.predicted_input_dist_ms
            + self.predicted_fwd_compute_ms
            + self.predicted_fwd_all_to_all_ms
            + self.predicted_bwd_all_to_all_ms
            + self.predicted_bwd_compute_ms
        )


def step_shares_ms(devices: Sequence[PredictedDevice]) -> tuple[float, float]:
    """What kernels and exchanges take of the slowest device's time."""
    slowest = max(devices, key=lambda one: one.predicted_total_ms)
    compute_ms = slowest.predicted_fwd_compute_ms + slowest.predicted_bwd_compute_ms
    return compute_ms, slowest.predicted_total_ms - compute_ms


def exchange_share(devices: Sequence[PredictedDevice]) -> float:
    """The share of exchanges in the slowest device's time, 0 to 1."""
    compute_ms, exchange_ms = step_shares_ms(devices)
    total_ms = compute_ms + exchange_ms
    return exchange_ms / total_ms if total_ms > 0 else 0.0


@dataclass(frozen=True)
class PredictedPlacement:
    """A placement and what the cost model says about it.

    Attributes:
        placement: the placement of the tables.
        devices: predicted times, by device id.
        predicted_ms: predicted time of the slowest device.
        low_ms, high_ms: the 90 % interval of that by the cost model alone; a simulated device has an error of its own.
        lower_bound_ms: no placement of the task is predicted to cost less (memory left aside).
    """

    placement: Placement
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    low_ms: float
    high_ms: float
    lower_bound_ms: float

    @staticmethod
    def of(model: CostModel, task: ShardingTask, placement: Placement) -> PredictedPlacement:
        """What the model says about any placement of a task."""
        represented_TH = model.represent(task.tables, task.batch_size)
        sums_DH = represented_TH.new_zeros(task.num_devices, represented_TH.shape[1])
        sums_DH.index_add_(0, torch.tensor(placement.device_of_table), represented_TH)
        total_dims = float(represented_TH[:, 0].sum())
        most_dims = sums_DH[:, 0].max()
        parts = model.parts_ms(sums_DH, total_dims, task.num_devices, task.batch_size, most_dims).tolist()
        (mean,), (low,), (high,) = (column.tolist() for column in model.placement_ms(task, [placement]))
        devices = tuple(PredictedDevice(*times) for times in parts)
        return PredictedPlacement(placement, devices, mean, low, high, model.lower_bound_ms(task))
