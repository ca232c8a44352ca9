"""Learned cost model of devices: an ensemble of networks for compute, and a formula for all-to-alls.

The model predicts a device's compute time as
``g(sum of its tables' representations) + lookups * p(rows) + work * l(widest table)``.

- ``g`` is convex and non-decreasing, like the time of a kernel: the longest of several additive limits, plus an
  overhead. Convexity makes lower bounds possible.
- ``p`` and ``l`` are non-decreasing step functions: the time of FBGEMM's radix-sort passes, which depends on the rows
  of the shard, and of the warp lanes, which depends on its widest table. Their steps are called jumps.

``network.py`` defines the network, and ``price.py`` predicts placements. ``ExchangeTime`` is
the formula for all-to-alls, with four fitted numbers.

Legend: T tables, K members of the ensemble, N placements, H size of a representation (column 0 is the dim; columns
``JUMPS`` determine the jumps; columns ``INPUTS`` are inputs of ``g``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import torch
from torch import nn

from evenshard.base.documents import load_json
from evenshard.base.errors import BadFile, TrainingFailed, blame_folder
from evenshard.base.messages import cut
from evenshard.base.outputs import NETWORK_FOLDER, atomic_path
from evenshard.base.tensor_files import load_weights, save_weights
from evenshard.base.typed import record_of
from evenshard.price.link_model import Link
from evenshard.sharders.cost_model.network import NUM_JUMP_SUMS, ConvexNet, EnsembleSizes, jump_sums_TJ
from evenshard.sharders.features import FeatureNormalizer
from evenshard.tables.table import Table

KIND = "convex_cost_model"

JUMPS, INPUTS = slice(1, 1 + NUM_JUMP_SUMS), slice(1 + NUM_JUMP_SUMS, None)
LEAST_HALF_WIDTH = 0.005  # minimum, because errors on unseen tables are larger than the held-out errors


@dataclass(frozen=True)
class ExchangeTime:
    """Time of an all-to-all: a latency, plus time per byte that the device, the busiest device and all devices move."""

    latency_ms: float = 0.0  # fixed time of an all-to-all
    ms_per_byte: float = 0.0  # for the device's own busier direction; an inverse bandwidth
    slowest_ms_per_byte: float = 0.0  # for the busier direction of the device that moves most
    total_ms_per_byte: float = 0.0  # for all bytes that the devices send

    @property
    def takes_time(self) -> bool:
        """Return True if any constant is above 0, so that an all-to-all takes time."""
        return any(astuple(self))

    def link(self, source: str) -> Link:
        """Convert to a ``Link`` with the given source."""
        own, slowest, shared = (
            1e-6 / one if one > 0 else math.inf
            for one in (self.ms_per_byte, self.slowest_ms_per_byte, self.total_ms_per_byte)
        )
        return Link(self.latency_ms * 1e3, source, own, slowest, shared)

    def problem(self) -> str | None:
        """Return the reason that the constants are invalid; None if they are valid."""
        fine = all(0 <= number < math.inf for number in astuple(self))
        return None if fine else f"all-to-all constants are {', '.join(f'{k} {v:g}' for k, v in asdict(self).items())}"


@dataclass(frozen=True)
class Calibration:
    """Width of prediction intervals: 90 % of held-out errors were within ``factor`` deviations.

    The deviation of a log cost combines two independent errors: the spread of the ensemble's members, and ``floor``.
    """

    factor: float = 1.645  # half-width of the interval in deviations
    floor: float = 0.05  # error that all members share

    def problem(self) -> str | None:
        """Return the reason that the calibration is invalid; None if it is valid."""
        fine = 0 <= self.factor < math.inf and 0 < self.floor < math.inf
        return None if fine else f"its calibration is invalid: factor {self.factor:g}, floor {self.floor:g}"

    def deviation_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """Return the deviations of log costs, [N], given the spread of the members."""
        return (spread_N.square() + self.floor**2).sqrt()

    def half_width_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """Return the half-widths of the 90 % intervals of log costs, [N], given the spread of the members."""
        return (self.factor * self.deviation_N(spread_N)).clamp(min=LEAST_HALF_WIDTH)


class CostModel(nn.Module):
    """Cost model: the network for compute times, the all-to-all constants, and the calibration of intervals."""

    def __init__(
        self, sizes: EnsembleSizes, normalizer: FeatureNormalizer, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.net = ConvexNet(sizes, normalizer, generator)
        self.exchange, self.calibration = ExchangeTime(), Calibration()

    @torch.no_grad()
    def represent(self, tables: Sequence[Table], batch_size: int) -> torch.Tensor:
        """Compute representations of tables, [T, H] float32, whose sum over a device's tables determines its time."""
        dims_T1 = torch.tensor([[float(table.embedding_dim)] for table in tables])
        inputs_TI = self.net.encode(*self.net.table_inputs(tables, batch_size))
        return torch.cat([dims_T1, jump_sums_TJ(tables), inputs_TI], dim=1)

    def save(self, path: Path) -> None:
        """Write a folder with config.json and state.pt, atomically.

        Raises:
            TrainingFailed: if the training diverged; an existing folder is kept.
        """
        if problem := self.exchange.problem() or self.calibration.problem():
            raise TrainingFailed(f"the training diverged: {problem}, so nothing was saved. Use other measured costs.")
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
        """Load a model from a folder written by ``save``.

        Raises:
            BadFile: if it is missing, incomplete, or not a cost model.
        """
        with blame_folder(path, "cost model", "Fit the cost model again."):
            content = load_json((path / "config.json").read_bytes())
            kind = content.get("kind") if isinstance(content, dict) else None
            if kind != KIND:
                raise BadFile(path, f"contains a {cut(str(kind))}, not a {KIND}", "Name another folder.")
            config = record_of(_Config, content)
            if problem := config.exchange.problem() or config.calibration.problem():
                raise ValueError(problem)
            model = CostModel(config.sizes, config.normalizer)
            model.exchange, model.calibration = config.exchange, config.calibration
            load_weights(model, path / "state.pt")
            if not model.net.is_convex():
                raise ValueError("its weights do not give a convex function")
            return model


@dataclass(frozen=True)
class _Config:
    kind: str
    sizes: EnsembleSizes
    normalizer: FeatureNormalizer
    exchange: ExchangeTime
    calibration: Calibration


def log_spread_N(members_KN: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of the members' log predictions, [N]; 0 for a single member."""
    logs_KN = members_KN.log()
    return ((logs_KN - logs_KN.mean(dim=0)).square().sum(dim=0) / max(len(logs_KN) - 1, 1)).sqrt()
