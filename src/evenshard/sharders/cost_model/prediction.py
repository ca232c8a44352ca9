"""The prediction of an answer: its cost, how sure that is, and how much better any placement could be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenshard.measure.price.step import PredictedDevice
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.cost_model.cost_model import CostModel


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
