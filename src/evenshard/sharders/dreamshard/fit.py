"""Training of the cost network: mean squared error on measured placements (DreamShard, section 3.2).

Legend: N measured placements, D devices, P distinct tables, F features, C = 3 costs, M placements of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from evenshard.measure.costs import MeasuredPlacement
from evenshard.sharders.dreamshard.cost_gradient import CostGradient
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.features import FeatureNormalizer


@dataclass(frozen=True)
class FitConfig:
    """How long and how fast to learn.

    Attributes:
        num_updates: gradient steps.
        minibatch_size: measured placements per step.
        learning_rate: of Adam, already decayed for this round.
    """

    num_updates: int
    minibatch_size: int
    learning_rate: float


@dataclass(frozen=True)
class CostTensors:
    """Measured placements, ready for learning.

    Attributes:
        features_PF: normalised features of the distinct tables.
        holds_NDP: 1 where a device holds a table, float32. Summing representations is then one product, however many
            placements share a table, and each table is encoded once per update.
        device_mask_ND: False for devices a placement does not have.
        costs_NDC: measured forward compute, backward all-to-all, backward compute, ms.
        overall_N: measured cost of the slowest device, ms.
    """

    features_PF: torch.Tensor
    holds_NDP: torch.Tensor
    device_mask_ND: torch.Tensor
    costs_NDC: torch.Tensor
    overall_N: torch.Tensor

    @staticmethod
    def of(measured: Sequence[MeasuredPlacement], normalizer: FeatureNormalizer) -> CostTensors:
        """Tensors of measured placements that share one batch size."""
        batch_sizes = {one.task.batch_size for one in measured}
        assert len(batch_sizes) == 1, "the placements of one cost dataset share the batch size"
        distinct = {
            table: number
            for number, table in enumerate(dict.fromkeys(table for one in measured for table in one.task.tables))
        }
        num_devices = max(one.task.num_devices for one in measured)
        holds_NDP = torch.zeros(len(measured), num_devices, len(distinct))
        costs_NDC = torch.zeros(len(measured), num_devices, 3)
        device_mask_ND = torch.zeros(len(measured), num_devices, dtype=torch.bool)
        for row, one in enumerate(measured):
            tables = torch.tensor([distinct[table] for table in one.task.tables])
            holds_NDP[row, torch.tensor(one.placement.device_of_table), tables] = 1.0
            for device, cost in enumerate(one.cost.devices):
                costs_NDC[row, device] = torch.tensor(
                    [cost.fwd_compute_ms, cost.bwd_all_to_all_ms, cost.bwd_compute_ms]
                )
                device_mask_ND[row, device] = True
        return CostTensors(
            features_PF=normalizer(list(distinct), batch_sizes.pop()),
            holds_NDP=holds_NDP,
            device_mask_ND=device_mask_ND,
            costs_NDC=costs_NDC,
            overall_N=torch.tensor([one.cost.max_device_ms for one in measured]),
        )


def predict(net: DreamShardCostNet, data: CostTensors, rows_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Predicted device costs [M, D, C] and overall costs [M], ms."""
    sums_MDH = data.holds_NDP[rows_M] @ net.encode(data.features_PF)
    return net.device_costs(sums_MDH), net.overall_cost(sums_MDH, data.device_mask_ND[rows_M])


def fit_cost_net(
    net: DreamShardCostNet,
    optimizer: torch.optim.Optimizer,
    data: CostTensors,
    config: FitConfig,
    generator: torch.Generator,
    track: Callable[[range], Iterable[int]] = iter,
) -> list[float]:
    """Trains the network in place; the loss is the sum of four mean squared errors (three heads and the overall head).

    Args:
        track: wraps the range of updates, for a progress bar.

    Returns:
        The loss of every update, in units of the squared cost scale.
    """
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate
    num_placements = len(data.overall_N)
    write_gradient = CostGradient(net, data)
    losses = []
    for _ in track(range(config.num_updates)):
        rows_M = torch.randint(num_placements, (config.minibatch_size,), generator=generator)
        # A placement that was drawn twice is predicted once and counts twice: early rounds have fewer than M.
        losses.append(write_gradient(*torch.unique(rows_M, return_counts=True)))
        optimizer.step()
    return losses
