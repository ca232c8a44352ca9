"""Stage 4, once per round: trains the policy of a learned sharder against its cost network, without measuring."""

from __future__ import annotations

import logging
import math
from functools import partial
from statistics import fmean

import torch

from evenshard.base.console import progress
from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.process import one_thread
from evenshard.loop.loop import TrainPolicyConfig, TrainPolicyInputs, TrainPolicyOutputs
from evenshard.loop.stage import Outcome
from evenshard.placement.tasks import load_tasks
from evenshard.sharders.catalog import load_learned_sharder
from evenshard.sharders.checkpoint import Round, load_checkpoint, new_checkpoint, read_kind, save_checkpoint
from evenshard.tables.files import load_tables

log = logging.getLogger(__name__)


def run(config: TrainPolicyConfig, inputs: TrainPolicyInputs, outputs: TrainPolicyOutputs) -> Outcome:
    """Train the policy, from its checkpoint of the previous round if there is one.

    Raises:
        BadInput: if an input cannot be read.
    """
    tasks = load_tasks(inputs.tasks, load_tables(inputs.tables)).train
    method = load_learned_sharder(config.method)
    if (kind := read_kind(inputs.cost_net)) != method.cost_net.kind:
        raise BadConfig(
            f"train_policy.method is {method.name}, but {inputs.cost_net} contains a {brief(kind)}. Fit the cost "
            f"network with evenshard train-cost --method {method.name}."
        )
    settings = method.settings_of(config)
    cost_net = load_checkpoint(inputs.cost_net, method.cost_net)
    torch.manual_seed(config.seed)
    if inputs.policy is not None:
        policy = load_checkpoint(inputs.policy, method.policy)
    else:
        policy = new_checkpoint(method.policy(), cost_net.normalizer)
    generator = torch.Generator().manual_seed(config.seed * 1000 + inputs.round)
    show = partial(progress, description=f"train policy {inputs.round}")
    this_round = Round(inputs.round, inputs.num_rounds)
    with one_thread():
        policy, history = method.train_round(policy, cost_net.net, tasks, settings, this_round, generator, show)
    save_checkpoint(policy, outputs.policy)
    finished = [value for value in history if math.isfinite(value)]
    if not finished:
        log.warning("round %d: every episode was infeasible; the policy was not updated", inputs.round)
        return Outcome({"num_dead_updates": len(history)}, [])
    last = fmean(finished[-max(1, len(finished) // 5) :])  # mean of the last fifth, because single updates are noisy
    objective = method.objective
    log.info("round %d: %s of sampled placements %.3g -> %.3g", inputs.round, objective, finished[0], last)
    return Outcome(
        {objective: last, f"first_{objective}": finished[0], "num_dead_updates": len(history) - len(finished)},
        finished,
        curve_name=f"{objective}_per_update",
    )
