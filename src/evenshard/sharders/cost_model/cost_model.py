"""Learned cost model, convex in a device's load; extrapolates to more tables and devices.

Convexity makes lower bounds possible (``bounds/``).

A device's compute time is ``g(sum of its tables' representations) + lookups * p(rows) + work * l(widest table)``.
Representations are non-negative; ``g`` is convex and non-decreasing (non-negative weights, ReLU), as kernels are: they
take the longest of several additive limits, plus fixed overheads. ``p``, the time of the sort's passes, and ``l``, the
time of the lanes of the widest table, are non-decreasing step functions. The mean of the ensemble has this form
because its members have it. The network itself is in ``network.py``.

All-to-all times need no network: a latency and three byte counts over bandwidths, with four fitted numbers.

``price.py`` predicts the costs of placements by the model.

Ours; DreamShard's network (``dreamshard/sharder.py``) is neither convex nor bounded.

Legend: T tables, K members, H representation size (column 0: dims; ``JUMPS``: sums that decide about jumps;
``INPUTS``: inputs of the heads), N placements.
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
LEAST_HALF_WIDTH = 0.005  # held-out placements of known tables underestimate errors on unseen tables


@dataclass(frozen=True)
class ExchangeTime:
    """All-to-all time model: latency plus own, slowest and total bytes over bandwidths, as in ``Link``."""

    latency_ms: float = 0.0  # fixed time of an all-to-all
    ms_per_byte: float = 0.0  # for the device's own busier direction; an inverse bandwidth
    slowest_ms_per_byte: float = 0.0  # for the busier direction of the device that moves most
    total_ms_per_byte: float = 0.0  # for all bytes that the devices send

    @property
    def takes_time(self) -> bool:
        """Return True if the all-to-all was measured and takes time."""
        return any(astuple(self))

    def link(self, source: str) -> Link:
        """Convert to a ``Link`` with the given source."""
        own, slowest, shared = (
            1e-6 / one if one > 0 else math.inf
            for one in (self.ms_per_byte, self.slowest_ms_per_byte, self.total_ms_per_byte)
        )
        return Link(self.latency_ms * 1e3, source, own, slowest, shared)

    def problem(self) -> str | None:
        """Return why the constants are impossible; None if they are valid."""
        fine = all(0 <= number < math.inf for number in astuple(self))
        return None if fine else f"all-to-all takes {', '.join(f'{k} {v:g}' for k, v in asdict(self).items())}"


@dataclass(frozen=True)
class Calibration:
    """Calibration of prediction intervals: 90 % of held-out errors were within ``factor`` deviations.

    A deviation of log cost combines the members' spread and ``floor``, as independent errors.
    """

    factor: float = 1.645  # half-width of the interval in deviations
    floor: float = 0.05  # error that all members share

    def problem(self) -> str | None:
        """Return why the width is impossible; None if it is valid."""
        fine = 0 <= self.factor < math.inf and 0 < self.floor < math.inf
        return None if fine else f"its intervals are {self.factor:g} deviations of at least {self.floor:g} wide"

    def deviation_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """Return the deviations of log cost, [N]."""
        return (spread_N.square() + self.floor**2).sqrt()

    def half_width_N(self, spread_N: torch.Tensor) -> torch.Tensor:
        """Return the half-width of the 90 % interval of log cost, [N]."""
        return (self.factor * self.deviation_N(spread_N)).clamp(min=LEAST_HALF_WIDTH)


class CostModel(nn.Module):
    """Predictor of device times: a network for compute, all-to-all constants, and the calibration of intervals."""

    def __init__(
        self, sizes: EnsembleSizes, normalizer: FeatureNormalizer, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.net = ConvexNet(sizes, normalizer, generator)
        self.exchange, self.calibration = ExchangeTime(), Calibration()

    @torch.no_grad()
    def represent(self, tables: Sequence[Table], batch_size: int) -> torch.Tensor:
        """Compute non-negative table representations (dims, jumps, inputs) that add up over tables, [T, H] float32."""
        dims_T1 = torch.tensor([[float(table.embedding_dim)] for table in tables])
        inputs_TI = self.net.encode(*self.net.table_inputs(tables, batch_size))
        return torch.cat([dims_T1, jump_sums_TJ(tables), inputs_TI], dim=1)

    def save(self, path: Path) -> None:
        """Write a folder with config.json and state.pt, atomically.

        Raises:
            TrainingFailed: if the training diverged; an existing folder is kept.
        """
        if problem := self.exchange.problem() or self.calibration.problem():
            raise TrainingFailed(f"the training diverged: {problem}, so nothing was saved. Use other costs.")
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
            BadFile: if it is missing, torn, or not a cost model.
        """
        with blame_folder(path, "cost model", "Fit the cost model again."):
            content = load_json((path / "config.json").read_bytes())
            kind = content.get("kind") if isinstance(content, dict) else None
            if kind != KIND:
                raise BadFile(path, f"holds a {cut(str(kind))}, not a {KIND}", "Name the other folder.")
            config = record_of(_Config, content)
            if problem := config.exchange.problem() or config.calibration.problem():
                raise ValueError(problem)
            model = CostModel(config.sizes, config.normalizer)
            model.exchange, model.calibration = config.exchange, config.calibration
            load_weights(model, path / "state.pt")
            if not model.net.is_convex():
                raise ValueError("its weights are not convex")
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
