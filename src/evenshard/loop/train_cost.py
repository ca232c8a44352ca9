"""Stage 3, once per round: fits two models to all costs measured so far.

The *cost network* of a learned sharder is used to train its policy. evenshard's *cost model* is used by its search.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from evenshard.base.console import progress
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.knobs import copy_fields
from evenshard.base.process import one_thread
from evenshard.base.provenance import Lineage
from evenshard.loop.loop import TrainCostConfig, TrainCostInputs, TrainCostOutputs
from evenshard.loop.stage import Outcome
from evenshard.measure.cost_dataset import load_costs
from evenshard.placement.task import ShardingTask, distinct_tables
from evenshard.placement.tasks import load_tasks
from evenshard.price.costs import MeasuredPlacement, optimizer_of
from evenshard.sharders.catalog import LearnedSharder, load_learned_sharder
from evenshard.sharders.checkpoint import Round, load_checkpoint, new_checkpoint, save_checkpoint
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.fit import CostModelFitConfig, cost_model_round
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.models import save_cost_model
from evenshard.sharders.training import FitConfig
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tables.files import load_tables

log = logging.getLogger(__name__)


def run(
    config: TrainCostConfig, inputs: TrainCostInputs, outputs: TrainCostOutputs, lineage: Lineage | None = None
) -> Outcome:
    """Fit the learned sharder's cost network from its last checkpoint, and evenshard's cost model from scratch.

    Raises:
        BadInput: if an input cannot be read.
    """
    if outputs.cost_net is None and outputs.cost_model is None:
        raise BadConfig("no output is given. Add --model-out MODEL/cost_model.")
    if outputs.cost_net is not None and inputs.tasks is None:
        raise BadConfig("the cost network needs tasks. Add --tasks, or omit --out to fit only the cost model.")
    method, pool = load_learned_sharder(inputs.method), load_tables(inputs.tables)
    ran = [placement for path in inputs.costs for placement in load_costs(path, pool) if placement.cost.fits]
    optimizer_of(ran)  # raises for several optimizers, before training
    lineage, outcome = lineage or Lineage(), Outcome({})
    if outputs.cost_net is not None and inputs.tasks is not None:
        known = _require(method.examples(ran), inputs, "Measure some with `evenshard benchmark --placements`.")
        tasks = load_tasks(inputs.tasks, pool).train
        outcome = _fit_cost_net(method, config, inputs, outputs.cost_net, known, tasks, lineage)
    if outputs.cost_model is None:
        return outcome
    _require(ran, inputs, "Measure some.")
    uncontrolled = [placement for placement in ran if not placement.is_control]
    more = _fit_cost_model(config, inputs, outputs.cost_model, uncontrolled, lineage)
    return Outcome({**outcome.metrics, **more}, outcome.curve)


def _require(
    measured: Sequence[MeasuredPlacement], inputs: TrainCostInputs, remedy: str
) -> Sequence[MeasuredPlacement]:
    if not measured:
        raise BadFile(inputs.costs[-1], "contains no placement that fits its devices", remedy)
    return measured


def _fit_cost_net(
    method: LearnedSharder,
    config: TrainCostConfig,
    inputs: TrainCostInputs,
    folder: Path,
    measured: Sequence[MeasuredPlacement],
    tasks: Sequence[ShardingTask],
    lineage: Lineage,
) -> Outcome:
    torch.manual_seed(config.seed)
    if inputs.cost_net is not None:
        before = load_checkpoint(inputs.cost_net, method.cost_net)
    else:
        before = new_checkpoint(method.cost_net(), FeatureNormalizer.fit(distinct_tables(tasks), tasks[0].batch_size))
    fit = copy_fields(config, FitConfig)
    generator = torch.Generator().manual_seed(config.seed * 1000 + inputs.round)
    show = partial(progress, description=f"train cost {inputs.round}")
    with one_thread():
        fitted = method.fit_round(before, measured, fit, Round(inputs.round, inputs.num_rounds), generator, show)
    save_checkpoint(fitted.checkpoint, folder, TrainingDomain.of(measured, lineage.git_commit, inputs.costs))
    error = fitted.median_abs_pct_error
    log.info("round %d: cost network fitted to %d placements, median error %.1f %%", inputs.round, len(measured), error)
    loss = fmean(fitted.losses[-20:])  # mean of the last minibatches, because single losses are noisy
    metrics = {"loss": loss, "fit_median_abs_pct_error": error, "num_placements": len(measured)}
    return Outcome(metrics, fitted.losses)


def _fit_cost_model(
    config: TrainCostConfig, inputs: TrainCostInputs, folder: Path, ran: Sequence[MeasuredPlacement], lineage: Lineage
) -> dict[str, float]:
    previous = CostModel.load(inputs.cost_model) if inputs.cost_model else None
    own = [one for one in ran if one.round == inputs.round and one.proposed_by == EvenshardSharder.name]
    fit = CostModelFitConfig(num_updates=config.convex_updates, seed=config.seed)
    show = partial(progress, description=f"cost model {inputs.round}")
    model, found = cost_model_round(ran, fit, previous, own, show)
    save_cost_model(folder, model, TrainingDomain.of(ran, lineage.git_commit, inputs.costs))
    count, error = found.num_devices, found.held_out_pct_error
    text = "round %d: cost model fitted to %d devices, median error on held-out placements %.1f %%"
    log.info(text, inputs.round, count, error)
    return {"cost_model_held_out_pct_error": error, "cost_model_num_devices": float(count)}
