"""Stage 4, once per round: trains the policy on the estimated MDP, without measuring."""

from __future__ import annotations

import logging
import math
from functools import partial
from statistics import fmean

import torch

from evenshard.placement.tasks import load_tasks
from evenshard.sharders.checkpoint import Round, load_checkpoint, save_checkpoint
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, new_policy, policy_round
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy
from evenshard.stages.loop import TrainPolicyConfig, TrainPolicyInputs, TrainPolicyOutputs
from evenshard.stages.stage import Outcome
from evenshard.tables.files import load_tables
from evenshard.utils.console import progress
from evenshard.utils.params import require
from evenshard.utils.process import one_thread

log = logging.getLogger(__name__)


def run(config: TrainPolicyConfig, inputs: TrainPolicyInputs, outputs: TrainPolicyOutputs) -> Outcome:
    """Trains the policy, going on from the previous round's.

    Raises:
        BadInput: if an input cannot be read.
    """
    for name in ("num_updates", "num_episodes", "learning_rate"):
        require(getattr(config, name) > 0, f"train_policy.{name} is {getattr(config, name)}. Make it above 0.")
    tasks = load_tasks(inputs.tasks, load_tables(inputs.tables)).train
    cost_net = load_checkpoint(inputs.cost_net, DreamShardCostNet)
    torch.manual_seed(config.seed)
    policy = load_checkpoint(inputs.policy, DreamShardPolicy) if inputs.policy else new_policy(cost_net.normalizer)
    learn = ReinforceConfig(config.num_updates, config.num_episodes, config.learning_rate, config.entropy_weight)
    generator = torch.Generator().manual_seed(config.seed * 1000 + inputs.round)
    show = partial(progress, description=f"train policy {inputs.round}")
    this_round = Round(inputs.round, inputs.num_rounds)
    with one_thread():
        policy, history = policy_round(policy, cost_net.net, tasks, learn, this_round, generator, show)
    save_checkpoint(policy, outputs.policy)
    finished = [value for value in history if math.isfinite(value)]
    if not finished:
        log.warning("round %d: no episode found room for its tables; the policy has learned nothing", inputs.round)
        return Outcome({"num_dead_updates": len(history)}, [])
    last = fmean(finished[-max(1, len(finished) // 5) :])
    log.info("round %d: predicted cost of sampled placements %.2f -> %.2f ms", inputs.round, finished[0], last)
    return Outcome(
        {"predicted_ms": last, "first_predicted_ms": finished[0], "num_dead_updates": len(history) - len(finished)},
        finished,
    )
