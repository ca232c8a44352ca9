"""Stage 3, once per round: what will a placement cost? Fits the cost network to all costs measured so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from evenshard.checkpoint import Checkpoint, load_checkpoint, new_checkpoint, save_checkpoint
from evenshard.cost_dataset import load_costs
from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.costs import CONTROL, RANDOM_SHARD, MeasuredPlacement
from evenshard.errors import BadFile
from evenshard.features import FeatureNormalizer
from evenshard.learn.fit_cost_net import CostTensors, FitConfig, fit_cost_net, predict
from evenshard.params import require
from evenshard.progress import progress
from evenshard.stages.outcome import Outcome
from evenshard.table_files import load_tables
from evenshard.tasks import distinct_tables, load_tasks
from evenshard.threads import one_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainCostConfig:
    """Section ``train_cost`` of params.yaml.

    Attributes:
        num_updates: gradient steps per round.
        minibatch_size: measured placements per step.
        learning_rate: Adam's in round 1; it falls linearly over the rounds.
        seed: of initial weights and minibatches.
    """

    num_updates: int = 300
    minibatch_size: int = 64
    learning_rate: float = 5e-4
    seed: int = 0


@dataclass(frozen=True)
class TrainCostInputs:
    """``costs``: the datasets of rounds 1 to ``round``; ``cost_net``: of the previous round, None in round 1."""

    tables: Path
    tasks: Path
    costs: tuple[Path, ...]
    round: int
    num_rounds: int
    cost_net: Path | None = None


@dataclass(frozen=True)
class TrainCostOutputs:
    """``cost_net``: folder of the network."""

    cost_net: Path


def run(config: TrainCostConfig, inputs: TrainCostInputs, outputs: TrainCostOutputs) -> Outcome:
    """Fits the network, going on from the previous round's.

    Raises:
        BadInput: if an input cannot be read.
    """
    for name in ("num_updates", "minibatch_size", "learning_rate"):
        require(getattr(config, name) > 0, f"train_cost.{name} is {getattr(config, name)}. Make it above 0.")
    pool = load_tables(inputs.tables)
    tasks = load_tasks(inputs.tasks, pool).train
    measured = [one for path in inputs.costs for one in load_costs(path, pool) if _teaches(one)]
    if not measured:
        problem = "no whole placement that fits its devices, so there is nothing to learn from"
        raise BadFile(inputs.costs[-1], problem, "Measure some with `evenshard benchmark --placements`.")
    torch.manual_seed(config.seed)
    if inputs.cost_net is None:
        checkpoint = new_checkpoint(
            DreamShardCostNet(), FeatureNormalizer.fit(distinct_tables(tasks), tasks[0].batch_size)
        )
        checkpoint.net.cost_scale_ms.fill_(max(1e-9, fmean(one.cost.max_device_ms for one in measured)))
    else:
        checkpoint = load_checkpoint(inputs.cost_net, DreamShardCostNet)
    data = CostTensors.of(measured, checkpoint.normalizer)
    fit = FitConfig(
        num_updates=config.num_updates,
        minibatch_size=config.minibatch_size,
        learning_rate=decayed(config.learning_rate, inputs.round, inputs.num_rounds),
    )
    generator = torch.Generator().manual_seed(config.seed * 1000 + inputs.round)
    show = partial(progress, description=f"train cost {inputs.round}")
    with one_thread():
        losses = fit_cost_net(checkpoint.net, checkpoint.optimizer, data, fit, generator, show)
    save_checkpoint(replace(checkpoint, round=inputs.round), outputs.cost_net)
    error = _median_abs_pct_error(checkpoint, data)
    log.info("round %d: cost network fitted to %d placements, median error %.1f %%", inputs.round, len(measured), error)
    return Outcome(
        {"loss": fmean(losses[-20:]), "fit_median_abs_pct_error": error, "num_placements": len(measured)}, losses
    )


def _teaches(one: MeasuredPlacement) -> bool:
    """Whole placements teach. A control would count several times, and a shard alone exchanges nothing."""
    return one.cost.fits and one.proposed_by not in (CONTROL, RANDOM_SHARD)


def decayed(learning_rate: float, round_number: int, num_rounds: int) -> float:
    """The learning rate of a round: linear from the full rate in round 1 to 0 after the last (DreamShard 4.1)."""
    return learning_rate * (1 - (round_number - 1) / num_rounds)


def _median_abs_pct_error(checkpoint: Checkpoint[DreamShardCostNet], data: CostTensors) -> float:
    with torch.no_grad():
        _, overall_N = predict(checkpoint.net, data, torch.arange(len(data.overall_N)))
    return float(((overall_N / data.overall_N - 1).abs() * 100).median())
