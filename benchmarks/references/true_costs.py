"""What placements on 4 x RTX 2080 Ti really cost, as far as the measurements of other people say.

The measurements come from smooth networks that NeuroShard's authors fitted to theirs. Networks of the same shape are
fitted to them here: to the compute of shards (MLSys 2023: table MLP, sum over the tables, head) and to the exchanges
between four devices. ``TrueCosts`` puts the two together as ``Hardware``, so that whatever can be measured on a
simulated device can be measured on these costs.

Legend: P distinct tables, S shards, N exchanges, D devices, F features, H representation size.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from benchmarks.references.others_measurements import BATCH_SIZE, NUM_DEVICES, Measurements, files, read
from evenshard.measure.costs import DeviceCost, PlacementCost, Provenance
from evenshard.measure.hardware import TimeShare
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray, feasible_reuse_bins
from evenshard.tables.table import Table
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig
from evenshard.version import __version__

NUM_FEATURES = 6 + NUM_REUSE_BINS
FWD_SHARE = 1 / 3  # of a shard's time, which is measured as a whole; the total of a device does not depend on it
LEAST_MS = 1.0  # shorter times count with their absolute error
NEAR = 0.01  # relative error below which the loss is square and not linear
DIMS_UNIT, START_UNIT_MS = 500.0, 5.0  # make the inputs of the exchange networks numbers near 1


@dataclass(frozen=True)
class FitConfig:
    """How to fit the networks.

    Attributes:
        num_networks: networks of compute; their mean counts.
        shard_epochs, exchange_epochs: passes over the measurements.
        minibatch_size: measurements per step.
        learning_rate: highest rate of Adam, in a one-cycle schedule.
        seed: seed of initial weights and minibatches.
    """

    num_networks: int = 3
    shard_epochs: int = 300
    exchange_epochs: int = 600
    minibatch_size: int = 256
    learning_rate: float = 0.01
    seed: int = 0


class ShardNet(nn.Module):
    """Compute of shards: table MLP F-128-32, sum over the tables, head 32-64-1."""

    mean_F: torch.Tensor
    scale_F: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table_mlp = nn.Sequential(nn.Linear(NUM_FEATURES, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("mean_F", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale_F", torch.ones(NUM_FEATURES))

    def represent(self, features_PF: torch.Tensor) -> torch.Tensor:
        """[P, H] of tables."""
        represented: torch.Tensor = self.table_mlp((features_PF - self.mean_F) / self.scale_F)
        return represented

    def ms(self, sums: torch.Tensor) -> torch.Tensor:
        """[...] of shards, from the sums [..., H] of their tables' representations."""
        found: torch.Tensor = self.head(sums).squeeze(-1)
        return found


class ExchangeNet(nn.Module):
    """Exchange of each of the four devices, from all devices' dims and starts: 8-128-64-32-16-4."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (2 * NUM_DEVICES, 128, 64, 32, 16)
        hidden = [part for size in pairwise(sizes) for part in (nn.Linear(*size), nn.ReLU())]
        self.mlp = nn.Sequential(*hidden, nn.Linear(sizes[-1], NUM_DEVICES))

    def forward(self, dims_ND: torch.Tensor, start_ms_ND: torch.Tensor) -> torch.Tensor:
        """[N, D] in ms."""
        found: torch.Tensor = self.mlp(torch.cat([dims_ND / DIMS_UNIT, start_ms_ND / START_UNIT_MS], dim=-1))
        return found


def features_PF(tables: Sequence[Table]) -> torch.Tensor:
    """Features of tables: dim, rows and pooling factor, plain and as logarithms, and the reuse histogram."""
    plain_P3 = np.array([[one.embedding_dim, one.num_rows, one.pooling_factor] for one in tables], dtype=np.float64)
    logs_P3 = np.log(plain_P3 + np.array([0.0, 0.0, 1.0]))
    bins_PK = [one.reuse_bins or feasible_reuse_bins(one.num_rows, one.pooling_factor * BATCH_SIZE) for one in tables]
    return torch.tensor(np.concatenate([plain_P3, logs_P3, np.array(bins_PK)], axis=1), dtype=torch.float32)


@dataclass(frozen=True)
class ShardTensors:
    """Shards, ready for learning: those of shard s are ``flat[first_S[s] : first_S[s] + count_S[s]]``."""

    features_PF: torch.Tensor
    flat: torch.Tensor
    first_S: torch.Tensor
    count_S: torch.Tensor

    @staticmethod
    def of(shards: Sequence[Sequence[Table]]) -> ShardTensors:
        """Tensors of shards; each distinct table once."""
        number = {table: n for n, table in enumerate(dict.fromkeys(table for shard in shards for table in shard))}
        count_S = torch.tensor([len(shard) for shard in shards])
        flat = torch.tensor([number[table] for shard in shards for table in shard])
        return ShardTensors(features_PF(list(number)), flat, count_S.cumsum(0) - count_S, count_S)

    def ms(self, net: ShardNet, shards: torch.Tensor) -> torch.Tensor:
        """What a network says of some shards."""
        count = self.count_S[shards]
        row = torch.repeat_interleave(torch.arange(len(shards)), count)
        place = torch.arange(len(row)) - torch.repeat_interleave(count.cumsum(0) - count, count)
        represented = net.represent(self.features_PF[self.flat[self.first_S[shards][row] + place]])
        return net.ms(represented.new_zeros(len(shards), represented.shape[1]).index_add_(0, row, represented))


def fit_shard_net(shards: Sequence[Sequence[Table]], ms: FloatArray, config: FitConfig, seed: int) -> ShardNet:
    """One network of compute."""
    data = ShardTensors.of(shards)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ShardNet()
        occurring = data.features_PF[data.flat]
        net.mean_F.copy_(occurring.mean(dim=0))
        net.scale_F.copy_(occurring.std(dim=0) + 1e-6)
        _fit(net, lambda chosen: data.ms(net, chosen), ms, config.shard_epochs, config)
    return net


def fit_exchange_net(dims_ND: FloatArray, start_ms_ND: FloatArray, ms_ND: FloatArray, config: FitConfig) -> ExchangeNet:
    """The network of one direction."""
    dims, start = (torch.tensor(one, dtype=torch.float32) for one in (dims_ND, start_ms_ND))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        net = ExchangeNet()
        _fit(net, lambda chosen: net(dims[chosen], start[chosen]), ms_ND, config.exchange_epochs, config)
    return net


def _fit(
    net: nn.Module, ms: Callable[[torch.Tensor], torch.Tensor], target: FloatArray, epochs: int, config: FitConfig
) -> None:
    """Trains in place, on relative errors, with minibatches drawn from torch's global generator.

    Args:
        ms: what the network says of the measurements with these numbers.
    """
    true = torch.tensor(target, dtype=torch.float32)
    size = min(config.minibatch_size, len(true))
    steps = len(true) // size
    optimizer = torch.optim.Adam(net.parameters(), lr=config.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=epochs * steps, pct_start=0.05
    )
    for _ in range(epochs):
        for chosen in torch.randperm(len(true))[: steps * size].chunk(steps):
            scale = true[chosen].clamp(min=LEAST_MS)
            loss = smooth_l1_loss(ms(chosen) / scale, true[chosen] / scale, beta=NEAR)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


class TrueCosts:
    """Hardware that costs what the fitted networks say: 4 x RTX 2080 Ti, FP32, batch 65,536, plain SGD.

    A device's times are its compute and its two exchanges, begun at the same time by all: waiting is no part of them,
    as with all other hardware, and the exchange of indices was not measured. Memory is not looked at; the caps of a
    task are its sharder's business.
    """

    def __init__(self, nets: Sequence[ShardNet], fwd: ExchangeNet, bwd: ExchangeNet) -> None:
        self._nets, self._fwd, self._bwd = tuple(nets), fwd, bwd
        self._represented: dict[Table, torch.Tensor] = {}
        self._opened = time.perf_counter()
        self.provenance = Provenance(
            hardware="simulated: true costs of 4 x RTX 2080 Ti",
            driver="none",
            versions=f"evenshard {__version__}",
            link="true exchanges of 4 x RTX 2080 Ti",
            seed=0,
            repeats=1,
        )

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """All of them, those of compute first."""
        return (*self._nets, self._fwd, self._bwd)

    @property
    def time_share(self) -> TimeShare:
        """No kernel runs; wall time since this hardware was opened."""
        return TimeShare(0.0, time.perf_counter() - self._opened)

    @torch.no_grad()
    def represent(self, tables: Sequence[Table]) -> torch.Tensor:
        """[T, K * H] of tables, by all K networks side by side."""
        missing = [table for table in dict.fromkeys(tables) if table not in self._represented]
        if missing:
            features = features_PF(missing)
            found = torch.cat([net.represent(features) for net in self._nets], dim=1)
            self._represented.update(zip(missing, found, strict=True))
        return torch.stack([self._represented[table] for table in tables])

    @torch.no_grad()
    def compute_ms(self, sums: torch.Tensor) -> torch.Tensor:
        """[...] forward and backward compute of shards that hold tables, from sums [..., K * H]."""
        parts = sums.chunk(len(self._nets), dim=-1)
        return torch.stack([net.ms(part) for net, part in zip(self._nets, parts, strict=True)]).mean(dim=0)

    @torch.no_grad()
    def exchange_ms(self, dims_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, D] forward and backward exchange of placements, all devices beginning at once."""
        start_ms_ND = torch.zeros_like(dims_ND)
        return self._fwd(dims_ND, start_ms_ND), self._bwd(dims_ND, start_ms_ND)

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """The cost of one placement; also of a shard alone on one device, which exchanges nothing.

        Raises:
            BadConfig: if the task has another batch size, or several devices but not four.
        """
        if task.batch_size != BATCH_SIZE or task.num_devices not in (1, NUM_DEVICES):
            raise BadConfig(
                f"{task.task_id}: {task.num_devices} devices at batch {task.batch_size} were not measured. "
                f"Use {NUM_DEVICES} devices, or one, at batch {BATCH_SIZE}."
            )
        represented, device_of_T = self.represent(task.tables), torch.tensor(placement.device_of_table)
        sums_DH = represented.new_zeros(task.num_devices, represented.shape[1]).index_add_(0, device_of_T, represented)
        holds_D = torch.bincount(device_of_T, minlength=task.num_devices) > 0
        compute_D = self.compute_ms(sums_DH).clamp(min=0) * holds_D
        dims = torch.tensor([float(table.embedding_dim) for table in task.tables])
        dims_D = torch.zeros(task.num_devices).index_add_(0, device_of_T, dims)
        fwd_D, bwd_D = (torch.zeros(1), torch.zeros(1))
        if task.num_devices > 1:
            fwd_D, bwd_D = (one[0].clamp(min=0) for one in self.exchange_ms(dims_D[None]))
        rows = zip(compute_D.tolist(), fwd_D.tolist(), bwd_D.tolist(), strict=True)
        return PlacementCost(
            tuple(DeviceCost(ms * FWD_SHARE, fwd, bwd, ms * (1 - FWD_SHARE)) for ms, fwd, bwd in rows), "modelled"
        )

    def measure_many(self, jobs: Sequence[tuple[ShardingTask, Placement]]) -> list[PlacementCost]:
        """The cost of each (task, placement)."""
        return [self.measure(*job) for job in jobs]

    def close(self) -> None:
        """Forgets what was kept for speed."""
        self._represented.clear()


def fit_true_costs(measured: Measurements, config: FitConfig) -> TrueCosts:
    """Fits all networks to all measurements."""
    nets = [
        fit_shard_net(measured.shards, measured.shard_ms, config, config.seed + number)
        for number in range(config.num_networks)
    ]
    dims, start = measured.dims_ND, measured.start_ms_ND
    fwd = fit_exchange_net(dims, start, measured.fwd_ms_ND, config)
    return TrueCosts(nets, fwd, fit_exchange_net(dims, np.zeros_like(start), measured.bwd_ms_ND, config))


def load_true_costs(truth: Path, cache: Path, config: FitConfig) -> TrueCosts:
    """The networks fitted to the measurements in a folder; those of an earlier call where nothing has changed.

    Args:
        truth: folder of the measurements.
        cache: folder that keeps the networks.
    """
    known = cache_file(truth, cache, config, "networks", ".pt")
    if not known.exists():
        fitted = fit_true_costs(read(truth), config)
        with atomic_path(known) as draft:
            torch.save([net.state_dict() for net in fitted.networks], draft)
    nets = [ShardNet() for _ in range(config.num_networks)]
    costs = TrueCosts(nets, ExchangeNet(), ExchangeNet())
    for net, state in zip(costs.networks, torch.load(known), strict=True):
        net.load_state_dict(state)
    return costs


def cache_file(truth: Path, cache: Path, config: FitConfig, what: str, suffix: str) -> Path:
    """The file that keeps what was found with these measurements and settings; its folder exists.

    Raises:
        BadFile: if a measurement is missing.
    """
    digest = hashlib.sha256(repr(config).encode())
    for path in files(truth):
        digest.update(path.read_bytes())
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{what}_{digest.hexdigest()[:12]}{suffix}"
