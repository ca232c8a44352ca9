"""The cost model of evenshard's search: convex in a device's load, for more tables and devices than it was trained on.

Being convex, it gives lower bounds.

A device's compute time is ``g(sum of its tables' representations) + lookups * p(rows) + work * l(widest table)``.
Representations are non-negative; ``g`` is convex and never falls (non-negative weights, ReLU), as kernels are: they
take the longest of several additive limits, plus fixed overheads. ``p``, what the passes of the sort take, and ``l``,
what lanes take that the widest table asks for, jump up and never down. Hence,
for tables with the sum S on D devices, whatever the placement (``lower_bound_ms``):

- the slowest device takes at least ``g(S / D)`` (Jensen's inequality), and an equal share of the passes that cannot be
  saved (a knapsack) and of the lanes that tables ask for themselves;
- the device that holds table t takes at least what t takes on its own.

The mean over the ensemble has this form as its members have. The network itself stands in ``network.py``.

The bounds hold for the model's own predictions. They say nothing sure about hardware where the model is wrong.

All-to-all times need no network: a latency and three counts of bytes over bandwidths, with four fitted numbers. The
bytes of the device that moves most are the only time that a device's own tables do not tell: all wait for it. Where the
other devices are not known, a device is taken for that one, which never makes the slowest device of a placement slower
than it is: the bounds hold.

Ours; DreamShard's network (``dreamshard/cost_net.py``) is neither convex nor bounded.

Legend: T tables, K members, H representation size (column 0: dims; ``JUMPS``: sums that decide about jumps;
``INPUTS``: inputs of the heads), N placements, D devices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from evenshard.measure.link import BYTES_PER_VALUE, Link
from evenshard.measure.price.device_price import ROUNDING
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.cost_model.network import (
    LANE_WORK,
    LOOKUPS,
    NUM_JUMP_SUMS,
    PASS_ROWS,
    ConvexNet,
    EnsembleSizes,
    jump_sums_TJ,
)
from evenshard.sharders.features import FeatureNormalizer
from evenshard.tables.table import Table
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadFile, TrainingFailed
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import cut
from evenshard.utils.outputs import NETWORK_FOLDER
from evenshard.utils.records import record_of
from evenshard.utils.saved import reading_saved
from evenshard.utils.weights import load_weights, save_weights

_Number = float | torch.Tensor
KIND = "convex_cost_model"

# Columns of a representation, after its dims.
ROWS, JUMPS, INPUTS = 1, slice(1, 1 + NUM_JUMP_SUMS), slice(1 + NUM_JUMP_SUMS, None)
# Weights that files of earlier versions lack.
ADDED_WEIGHTS = ("net.lane_weight",)
CHUNK_ENTRIES = 2**24  # of the table-to-device matrices of ``placement_ms``: 64 MB at a time
LEAST_HALF_WIDTH = 0.005  # held-out placements of known tables say too little about unseen tables


@dataclass(frozen=True)
class ExchangeTime:
    """An all-to-all as a latency and three counts of bytes over bandwidths, as in ``measure.link.Link``.

    Attributes:
        latency_ms: time that an exchange takes besides its bytes.
        ms_per_byte: of the busier direction of the device itself; the inverse of a bandwidth.
        slowest_ms_per_byte: of the busier direction of the device that moves most.
        total_ms_per_byte: of all that the devices send.
    """

    latency_ms: float = 0.0
    ms_per_byte: float = 0.0
    slowest_ms_per_byte: float = 0.0
    total_ms_per_byte: float = 0.0

    @property
    def takes_time(self) -> bool:
        """Whether any time is known of it; where no exchange was measured, none is."""
        return any(astuple(self))

    def link(self, source: str) -> Link:
        """The same as a link.

        Args:
            source: of its numbers.
        """
        own, slowest, shared = (
            1e-6 / one if one > 0 else math.inf
            for one in (self.ms_per_byte, self.slowest_ms_per_byte, self.total_ms_per_byte)
        )
        return Link(self.latency_ms * 1e3, source, own, slowest, shared)

    def problem(self) -> str | None:
        """Says in one clause what makes it impossible, or None."""
        fine = all(0 <= number < math.inf for number in astuple(self))
        return None if fine else f"an exchange takes {', '.join(f'{k} {v:g}' for k, v in asdict(self).items())}"

    def ms(
        self,
        own_dims: _Number,
        total_dims: _Number,
        num_devices: _Number,
        batch_size: int,
        most_dims: _Number | None = None,
    ) -> torch.Tensor:
        """One all-to-all of a device that holds ``own_dims`` of ``total_dims``, ms; 0 where there is one device.

        Args:
            most_dims: dims of the device that holds most; None takes each device for that one.
        """
        own, devices = torch.as_tensor(own_dims), torch.as_tensor(num_devices)
        own_bytes, slowest_bytes, total_bytes = exchanged_bytes(own, total_dims, devices, batch_size, most_dims)
        fixed_ms = self.latency_ms + total_bytes * self.total_ms_per_byte
        ms = own_bytes * self.ms_per_byte + slowest_bytes * self.slowest_ms_per_byte + fixed_ms
        return torch.where(devices > 1, ms, 0.0)


def exchanged_bytes(
    own_dims: torch.Tensor,
    total_dims: _Number,
    num_devices: _Number,
    batch_size: int,
    most_dims: _Number | None = None,
) -> tuple[torch.Tensor, torch.Tensor, _Number]:
    """Bytes of the busier direction of a device, and of the one that moves most, both convex; and what all send."""
    peers, bytes_per_dim = num_devices - 1, (batch_size / num_devices) * BYTES_PER_VALUE
    own = torch.maximum(own_dims * peers, total_dims - own_dims)
    slowest = (own_dims if most_dims is None else torch.as_tensor(most_dims, dtype=own_dims.dtype)) * peers
    return own * bytes_per_dim, slowest * bytes_per_dim, total_dims * (peers * bytes_per_dim)


@dataclass(frozen=True)
class Calibration:
    """How far to trust the prediction of a placement: 90 % of the held-out ones lay within ``factor`` deviations.

    A deviation, of the logarithm of the cost, is the members' spread and ``floor`` together, as independent errors.

    Attributes:
        factor: deviations to either side.
        floor: the error that all members share.
    """

    factor: float = 1.645
    floor: float = 0.05

    def problem(self) -> str | None:
        """Says in one clause what makes it impossible, or None."""
        fine = 0 <= self.factor < math.inf and 0 < self.floor < math.inf
        return None if fine else f"its intervals are {self.factor:g} deviations of at least {self.floor:g} wide"

    def deviation_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """[N] deviations of the logarithm of the cost."""
        return (spread_N.square() + self.floor**2).sqrt()

    def half_width_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """[N] what the interval has to either side, of the logarithm of the cost."""
        return (self.factor * self.deviation_N(spread_N)).clamp(min=LEAST_HALF_WIDTH)


class CostModel(nn.Module):
    """Predicts what devices and placements cost, in ms, how sure that is, and what no placement can do better than.

    Args:
        sizes: sizes of the ensemble.
        normalizer: normalizer of the 21 features.
        generator: draws the initial weights.

    Attributes:
        net: the compute times.
        exchange: the all-to-all times.
        calibration: of the intervals.
    """

    def __init__(
        self, sizes: EnsembleSizes, normalizer: FeatureNormalizer, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.net = ConvexNet(sizes, normalizer, generator)
        self.exchange, self.calibration = ExchangeTime(), Calibration()

    @torch.no_grad()
    def represent(self, tables: Sequence[Table], batch_size: int) -> torch.Tensor:
        """Non-negative representations that add up over a device's tables, [T, H] float32: dims, jumps, inputs."""
        dims_T1 = torch.tensor([[float(table.embedding_dim)] for table in tables])
        inputs_TI = self.net.encode(*self.net.table_inputs(tables, batch_size))
        return torch.cat([dims_T1, jump_sums_TJ(tables), inputs_TI], dim=1)

    # Devices ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def device_ms(
        self,
        sums: torch.Tensor,
        total_dims: _Number,
        num_devices: _Number,
        batch_size: int,
        most_dims: _Number | None = None,
    ) -> torch.Tensor:
        """Predicted total time of devices, [...] ms from sums of representations [..., H]: the members' mean.

        0 where a device is empty: all it does is receive, which takes no longer than what some other device sends.
        Of millions of devices, some ten thousand at a time are fastest.

        Args:
            total_dims: dims of all the task's tables; a number, or a tensor that broadcasts with [...].
            num_devices: number of devices of the task; likewise.
            batch_size: global batch, samples.
            most_dims: dims of the device of the placement that holds most; None takes each device for that one.
        """
        mix_O1 = self.net.sum_of_parts_OK().mean(dim=1, keepdim=True)
        compute = self.net.mixed_ms(sums[..., INPUTS], sums[..., JUMPS], mix_O1).squeeze(-1)
        exchange = 2 * self.exchange.ms(sums[..., 0], total_dims, num_devices, batch_size, most_dims)
        return torch.where(sums[..., 0] > 0, compute + exchange, 0.0)

    @torch.no_grad()
    def member_device_ms(
        self,
        sums: torch.Tensor,
        total_dims: _Number,
        num_devices: _Number,
        batch_size: int,
        most_dims: _Number | None = None,
    ) -> torch.Tensor:
        """Each member's ``device_ms``, [K, ...]."""
        compute = self.net.mixed_ms(sums[..., INPUTS], sums[..., JUMPS], self.net.sum_of_parts_OK()).movedim(-1, 0)
        exchange = 2 * self.exchange.ms(sums[..., 0], total_dims, num_devices, batch_size, most_dims)
        return torch.where(sums[..., 0] > 0, compute + exchange, 0.0)

    @torch.no_grad()
    def parts_ms(
        self,
        sums: torch.Tensor,
        total_dims: _Number,
        num_devices: _Number,
        batch_size: int,
        most_dims: _Number | None = None,
    ) -> torch.Tensor:
        """The four times of devices, [..., 4] ms: forward compute, forward and backward all-to-all, backward compute.

        They add up to ``device_ms``.
        """
        forward, backward = self.net.member_ms(sums[..., INPUTS], sums[..., JUMPS]).mean(dim=-2).unbind(-1)
        exchange = self.exchange.ms(sums[..., 0], total_dims, num_devices, batch_size, most_dims).expand_as(forward)
        parts = torch.stack([forward, exchange, exchange, backward], dim=-1)
        return torch.where(sums[..., :1] > 0, parts, 0.0)

    def wait_ms(self, most_dims: torch.Tensor, num_devices: int, batch_size: int) -> torch.Tensor:
        """What every device of a placement waits, in both exchanges, for the bytes of the one that holds most, ms."""
        wait = ExchangeTime(slowest_ms_per_byte=self.exchange.slowest_ms_per_byte)
        return 2 * wait.ms(most_dims, 0.0, num_devices, batch_size)

    # Placements ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def placement_ms(
        self, task: ShardingTask, placements: Sequence[Placement]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Predicted overall costs of placements of one task, and their 90 % intervals: mean, low and high, [N] ms."""
        mean_N, members_KN = self.overall_ms(task, placements)
        half_N = self.calibration.half_width_N(log_spread_N(members_KN))
        return mean_N, mean_N * torch.exp(-half_N), mean_N * torch.exp(half_N)

    @torch.no_grad()
    def overall_ms(self, task: ShardingTask, placements: Sequence[Placement]) -> tuple[torch.Tensor, torch.Tensor]:
        """Slowest device of placements of one task: by the mean of the members [N], and by each of them [K, N]; ms."""
        table_TH = self.represent(task.tables, task.batch_size)
        total_dims = float(table_TH[:, 0].sum())
        chunk = max(1, CHUNK_ENTRIES // (task.num_devices * len(task.tables)))
        means_N, members_KN = [torch.zeros(0)], [torch.zeros(self.net.sizes.num_members, 0)]
        for first in range(0, len(placements), chunk):
            where_NT = torch.tensor([one.device_of_table for one in placements[first : first + chunk]])
            holds_NDT = (where_NT[:, None, :] == torch.arange(task.num_devices)[:, None]).float()
            sums_NDH = holds_NDT @ table_TH
            most_N1 = sums_NDH[..., 0].amax(dim=1, keepdim=True)
            context = (sums_NDH, total_dims, task.num_devices, task.batch_size, most_N1)
            means_N.append(self.device_ms(*context).amax(dim=-1))
            members_KN.append(self.member_device_ms(*context).amax(dim=-1))
        return torch.cat(means_N), torch.cat(members_KN, dim=1)

    @torch.no_grad()
    def lower_bound_ms(self, task: ShardingTask) -> float:
        """What ``placement_ms`` predicts at least, as its mean, for every placement of the task; memory ignored.

        The larger of the even split and the costliest table on its own. An exchange is shortest at the even share of
        the dims, where sending and receiving balance; a table with fewer dims shares its device with others or waits
        for what it receives. Lowered by what float32 may round.
        """
        table_TH = self.represent(task.tables, task.batch_size)
        even_1H = table_TH.sum(dim=0, keepdim=True) / task.num_devices
        total_dims = float(table_TH[:, 0].sum())
        candidates = torch.cat([even_1H, table_TH])
        candidates[0, JUMPS] = 0.0  # what a device needs does not follow from the sum
        candidates[:, 0].clamp_(min=float(even_1H[0, 0]))
        bounds = self.device_ms(candidates, total_dims, task.num_devices, task.batch_size)
        least_ms = self._least_pass_ms(table_TH, task.num_devices) + self._own_lanes_ms(table_TH)
        bounds[0] += least_ms / task.num_devices
        return float(bounds.max()) * (1 - ROUNDING)

    def _own_lanes_ms(self, table_TH: torch.Tensor) -> float:
        """What lanes of all devices take at least: those that each table asks for itself."""
        mix_O1 = self.net.sum_of_parts_OK().mean(dim=1, keepdim=True)
        inputs_TI = table_TH[:, INPUTS]
        return float(self.net.lane_ms(inputs_TI[:, LANE_WORK], table_TH[:, JUMPS], mix_O1).sum())

    def _least_pass_ms(self, table_TH: torch.Tensor, num_devices: int) -> float:
        """What the passes of all devices take together, at least.

        A pass is saved on the devices with less than so many rows. Together these have room for that many rows each
        (all but one of them, if the tables have too many rows for all). The most lookups that fit in there are those
        of the tables with the most lookups per row, the last one cut (the knapsack's relaxation).
        """
        num_rows_T, lookups_T = table_TH[:, ROWS].double().numpy(), table_TH[:, INPUTS][:, LOOKUPS].double().numpy()
        densest_T = np.argsort(-lookups_T / num_rows_T)
        mix_O1 = self.net.sum_of_parts_OK().mean(dim=1, keepdim=True)
        total_ms = 0.0
        for limit, weight_ms in zip(PASS_ROWS, (self.net.pass_weight @ mix_O1).flatten().tolist(), strict=True):
            room = limit * (num_devices - (num_rows_T.sum() >= num_devices * limit))
            small_T = densest_T[num_rows_T[densest_T] < limit]
            rows = np.concatenate([[0.0], num_rows_T[small_T].cumsum()])
            saved = np.interp(room, rows, np.concatenate([[0.0], lookups_T[small_T].cumsum()]))
            total_ms += weight_ms * float(lookups_T.sum() - saved)
        return total_ms

    # Files -----------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes a folder, config.json and state.pt, as a whole or not at all.

        Raises:
            TrainingFailed: if its training has diverged; an older folder stays as it was.
        """
        if problem := self.exchange.problem() or self.calibration.problem():
            raise TrainingFailed(f"the training diverged: {problem}, so nothing was saved. Fit it to other costs.")
        config = {
            "kind": KIND,
            "sizes": asdict(self.net.sizes),
            "normalizer": asdict(self.net.normalizer),
            "exchange": asdict(self.exchange),
            "calibration": asdict(self.calibration),
        }
        with atomic_path(path, NETWORK_FOLDER) as draft:
            draft.mkdir()
            (draft / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            save_weights(self, draft / "state.pt")

    @staticmethod
    def load(path: Path) -> CostModel:
        """Reads a folder that ``save`` wrote.

        Raises:
            BadFile: if it is missing, torn, or holds something else.
        """
        with reading_saved(path, "cost model", "Fit the cost model again."):
            content = load_json((path / "config.json").read_bytes())
            kind = content.get("kind") if isinstance(content, dict) else None
            if kind != KIND:
                raise BadFile(path, f"holds a {cut(str(kind))}, not a {KIND}", "Name the other folder.")
            config = record_of(_Config, content)
            if problem := config.exchange.problem() or config.calibration.problem():
                raise ValueError(problem)
            model = CostModel(config.sizes, config.normalizer)
            model.exchange, model.calibration = config.exchange, config.calibration
            load_weights(model, path / "state.pt", ADDED_WEIGHTS)
            if not model.net.is_convex():
                raise ValueError("its weights are not those of a convex network")
            return model


@dataclass(frozen=True)
class _Config:
    kind: str
    sizes: EnsembleSizes
    normalizer: FeatureNormalizer
    exchange: ExchangeTime
    calibration: Calibration


def log_spread_N(members_KN: torch.Tensor) -> torch.Tensor:
    """[N] standard deviation of the members' logarithms; 0 for a single member."""
    logs_KN = members_KN.log()
    return ((logs_KN - logs_KN.mean(dim=0)).square().sum(dim=0) / max(len(logs_KN) - 1, 1)).sqrt()
