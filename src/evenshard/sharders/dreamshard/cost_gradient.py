"""The gradient of the cost network's loss, written out by hand, layer by layer.

A fit takes thousands of steps on a network so small that recording them for automatic differentiation takes as long as
the products do. The gradient here is the same but for rounding (``tests/sharders/dreamshard/test_cost_gradient.py``).

Legend: N measured placements, U of them in a step, D devices, S = U * D devices in one row, P distinct tables,
F features, G = 128 hidden size of the table MLP, H = 32 representation size, K = 64 hidden size of a head, C = 3 costs,
X = C * K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet, linear_layers

if TYPE_CHECKING:
    from evenshard.sharders.dreamshard.fit import CostTensors


class CostGradient:
    """Writes the gradient of the loss on some placements into the network's parameters.

    Args:
        net: read anew at every call, so that it may change in between; its ``cost_scale_ms`` must stay.
        data: the measured placements.
    """

    @torch.no_grad()
    def __init__(self, net: DreamShardCostNet, data: CostTensors) -> None:
        self._first, self._second = linear_layers(net.table_mlp)
        self._heads = [
            linear_layers(head) for head in (net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head)
        ]
        self._overall_hidden, self._overall_output = linear_layers(net.overall_head)
        self._features_PF = data.features_PF
        self._mask_ND = data.device_mask_ND
        self._costs_NDC = data.costs_NDC / net.cost_scale_ms
        self._overall_N = data.overall_N / net.cost_scale_ms
        self._holds_NDP = data.holds_NDP

    @torch.no_grad()
    def __call__(self, rows_U: torch.Tensor, times_U: torch.Tensor) -> float:
        """The loss, in units of the squared cost scale; its gradient is in ``grad`` of every parameter.

        Args:
            rows_U: distinct placements.
            times_U: how often each of them counts.
        """
        mask_UD = self._mask_ND[rows_U]
        weight_U = times_U.float()
        weight_S1 = (mask_UD * weight_U[:, None]).view(-1, 1)

        # Forward: tables, devices, three costs of each, overall cost.
        hidden_PG = _linear(self._first, self._features_PF).relu_()
        repr_PH = _linear(self._second, hidden_PG).relu_()
        holds_SP = self._holds_NDP[rows_U].flatten(0, 1)
        sums_SH = holds_SP @ repr_PH
        weight_XH = torch.cat([layer.weight for layer, _ in self._heads])
        bias_X = torch.cat([layer.bias for layer, _ in self._heads])
        weight_CK = torch.cat([layer.weight for _, layer in self._heads])
        bias_C = torch.cat([layer.bias for _, layer in self._heads])
        head_SX = linear(sums_SH, weight_XH, bias_X).relu_()
        head_SCK = head_SX.view(-1, *weight_CK.shape)
        error_SC = (head_SCK * weight_CK).sum(dim=2).add_(bias_C) - self._costs_NDC[rows_U].flatten(0, 1)
        # Representations are never negative: a device that a placement does not have is zero, and so never the worst.
        sums_UDH = sums_SH.view(*mask_UD.shape, -1)
        worst_UH = sums_UDH.amax(dim=1)
        overall_UK = _linear(self._overall_hidden, worst_UH).relu_()
        error_U = _linear(self._overall_output, overall_UK).squeeze(1) - self._overall_N[rows_U]

        # Backward, in the opposite order; each d_ is the slope of the loss in what it is named after.
        d_overall_U1 = (2 / weight_U.sum() * weight_U * error_U)[:, None]
        d_hidden_UK = _relu_slope(d_overall_U1 @ self._overall_output.weight, overall_UK)
        d_worst_UH = d_hidden_UK @ self._overall_hidden.weight
        _set_gradient(self._overall_output, d_overall_U1, overall_UK)
        _set_gradient(self._overall_hidden, d_hidden_UK, worst_UH)

        d_costs_SC = error_SC * (2 / weight_S1.sum() * weight_S1)
        d_weight_CK = (d_costs_SC[..., None] * head_SCK).sum(dim=0)
        d_head_SX = _relu_slope((d_costs_SC[..., None] * weight_CK).view(head_SX.shape), head_SX)
        d_sums_SH = d_head_SX @ weight_XH
        is_worst_UDH = sums_UDH == worst_UH[:, None]  # devices that are equally bad share the slope
        d_sums_SH += (is_worst_UDH * (d_worst_UH / is_worst_UDH.sum(dim=1))[:, None]).flatten(0, 1)
        d_weight_XH, d_bias_X, d_bias_C = d_head_SX.t() @ sums_SH, d_head_SX.sum(dim=0), d_costs_SC.sum(dim=0)
        size = weight_CK.shape[1]
        for number, (hidden, output) in enumerate(self._heads):
            of_head = slice(number * size, (number + 1) * size)
            hidden.weight.grad, hidden.bias.grad = d_weight_XH[of_head], d_bias_X[of_head]
            output.weight.grad, output.bias.grad = d_weight_CK[number : number + 1], d_bias_C[number : number + 1]

        d_repr_PH = _relu_slope(holds_SP.t() @ d_sums_SH, repr_PH)
        d_hidden_PG = _relu_slope(d_repr_PH @ self._second.weight, hidden_PG)
        _set_gradient(self._second, d_repr_PH, hidden_PG)
        _set_gradient(self._first, d_hidden_PG, self._features_PF)
        device_loss = (error_SC.square() * weight_S1).sum() / weight_S1.sum()
        return float(device_loss + (error_U.square() * weight_U).sum() / weight_U.sum())


def _linear(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    return linear(inputs, layer.weight, layer.bias)


def _relu_slope(d_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Slope in the input of a ReLU from that in its output."""
    d_input: torch.Tensor = torch.ops.aten.threshold_backward(d_output, output, 0)
    return d_input


def _set_gradient(layer: nn.Linear, d_outputs: torch.Tensor, inputs: torch.Tensor) -> None:
    layer.weight.grad, layer.bias.grad = d_outputs.t() @ inputs, d_outputs.sum(dim=0)
