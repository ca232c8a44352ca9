"""The best placement known by true cost: annealing of many placements at once, each priced as a whole.

An exchange depends on what all four devices hold, so a placement cannot be priced device by device as in ``annealing``.

Legend: M chains, W windows of a step, D devices, T tables, H representation size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import one_hot

from benchmarks.references.true_costs import TrueCosts
from evenshard.measure.step_time import LARGEST_SUM, Phases, windows
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask


@dataclass(frozen=True)
class TrueAnnealConfig:
    """How long and how hot. A temperature is the relative slowdown accepted one time in e.

    Attributes:
        chains: placements that are annealed side by side.
        steps: proposals to each.
        hot: first temperature of the hottest chain.
        warm: likewise, of the coolest.
        cold: last temperature of all chains.
        move_share: proposals that move one table; the others swap two.
        power: the energy is this norm of the devices' times in each window: next to their maximum but smooth.
        seed: seed of everything drawn.
    """

    chains: int = 64
    steps: int = 1000
    hot: float = 0.02
    warm: float = 0.002
    cold: float = 0.0001
    move_share: float = 0.4
    power: float = 48.0
    seed: int = 0


class _Prices:
    """What placements of one task cost."""

    def __init__(self, costs: TrueCosts, task: ShardingTask, pipeline: str) -> None:
        self._costs, self._num_devices, self._pipeline = costs, task.num_devices, pipeline
        self._represented_TH = costs.represent(task.tables)
        self._dims_T1 = torch.tensor([[float(table.embedding_dim)] for table in task.tables])
        self._bytes_T1 = torch.tensor([[size] for size in task.table_bytes], dtype=torch.float64)
        self._caps_D = torch.tensor(task.room_bytes, dtype=torch.float64)

    def windows_ms(self, device_of_MT: torch.Tensor) -> torch.Tensor:
        """[M, W, D] of placements; infinite where a device has no room."""
        holds_MDT = one_hot(device_of_MT, self._num_devices).transpose(1, 2)
        plain_MDT = holds_MDT.float()
        compute_MD = self._costs.compute_ms(plain_MDT @ self._represented_TH) * holds_MDT.any(dim=2)
        fwd_MD, bwd_MD = self._costs.exchange_ms((plain_MDT @ self._dims_T1).squeeze(-1))
        full_MD = (holds_MDT.double() @ self._bytes_T1).squeeze(-1) > self._caps_D
        nothing, compute, fwd, bwd = (one.numpy() for one in (torch.zeros_like(fwd_MD), compute_MD, fwd_MD, bwd_MD))
        found = [window.total for window in windows(Phases(nothing, nothing, fwd, bwd, compute), self._pipeline)]
        return torch.from_numpy(np.stack(found, axis=1)).masked_fill(full_MD[:, None], torch.inf)


def best_true(
    costs: TrueCosts,
    task: ShardingTask,
    starts: Sequence[Placement],
    config: TrueAnnealConfig,
    pipeline: str = LARGEST_SUM,
) -> tuple[Placement, float]:
    """The best placement found from legal starts, at most as slow as the fastest of them, and its time in ms.

    Args:
        pipeline: that makes the phases of devices a step, as ``step_time.windows`` takes it.
    """
    generator = torch.Generator().manual_seed(config.seed)
    prices, rows = _Prices(costs, task, pipeline), torch.arange(config.chains)
    given = torch.tensor([start.device_of_table for start in starts])
    given = given[_step_ms(prices.windows_ms(given)).argsort(stable=True)]
    now_MT = given[rows % len(given)]
    ms_MWD = prices.windows_ms(now_MT)
    best_MT, best_M = now_MT.clone(), _step_ms(ms_MWD)
    energy_M = _energy(ms_MWD, config.power)
    hot_M = torch.logspace(0, 1, config.chains, base=config.hot / config.warm) * config.warm
    num_tables, num_devices = len(task.tables), task.num_devices
    for step in range(config.steps):
        done = step / config.steps
        temperature_M = hot_M ** (1 - done) * config.cold**done
        one, other = torch.randint(num_tables, (2, config.chains), generator=generator)
        drawn_2M = torch.rand(2, config.chains, generator=generator)
        source_M, target_M = now_MT[rows, one], now_MT[rows, other]
        moves_M = (drawn_2M[0] < config.move_share) | (source_M == target_M)
        away_M = (source_M + torch.randint(1, num_devices, (config.chains,), generator=generator)) % num_devices
        new_MT = now_MT.clone()
        new_MT[rows, other] = torch.where(moves_M, target_M, source_M)
        new_MT[rows, one] = torch.where(moves_M, away_M, target_M)
        ms_MWD = prices.windows_ms(new_MT)
        new_energy_M = _energy(ms_MWD, config.power)
        accepted_M = new_energy_M / energy_M - 1 <= -temperature_M * torch.log1p(-drawn_2M[1])
        now_MT[accepted_M], energy_M[accepted_M] = new_MT[accepted_M], new_energy_M[accepted_M]
        step_M = _step_ms(ms_MWD)
        better_M = step_M < best_M
        best_MT[better_M], best_M[better_M] = new_MT[better_M], step_M[better_M]
    placement = Placement(tuple(best_MT[best_M.argmin()].tolist()), num_devices)
    check_placement(task, placement)
    return placement, costs.measure(task, placement).step_ms(pipeline)


def _step_ms(ms_MWD: torch.Tensor) -> torch.Tensor:
    """[M] the time of steps."""
    return ms_MWD.amax(dim=2).sum(dim=1)


def _energy(ms_MWD: torch.Tensor, power: float) -> torch.Tensor:
    """[M] the norms of windows together, of times in double precision, whose powers float32 does not hold."""
    energy_M: torch.Tensor = torch.linalg.vector_norm(ms_MWD.double(), ord=power, dim=2).sum(dim=1)
    return energy_M
