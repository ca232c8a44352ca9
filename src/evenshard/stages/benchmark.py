"""Stage 2, once per round: what do placements really cost? Proposes placements and measures them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from evenshard.checkpoint import load_checkpoint
from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.costs import MeasuredPlacement, save_costs
from evenshard.errors import InfeasibleTask
from evenshard.measure import MeasureConfig, measure_all, open_hardware
from evenshard.params import require
from evenshard.placement import Placement
from evenshard.progress import progress
from evenshard.sharders.dreamshard import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.random import random_placement
from evenshard.stages.outcome import Outcome
from evenshard.table_files import load_tables
from evenshard.tasks import PlacementTask, load_tasks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Section ``benchmark`` of params.yaml.

    Attributes:
        placements_per_round: placements to measure in each round.
        seed: of tasks and placements.
    """

    placements_per_round: int
    seed: int = 0


@dataclass(frozen=True)
class BenchmarkInputs:
    """``policy`` and ``cost_net``: those of the previous round, or None in round 1, which places at random."""

    tables: Path
    tasks: Path
    round: int
    cost_net: Path | None = None
    policy: Path | None = None


@dataclass(frozen=True)
class BenchmarkOutputs:
    """``costs``: the cost dataset of this round."""

    costs: Path


def run(config: BenchmarkConfig, measure: MeasureConfig, inputs: BenchmarkInputs, outputs: BenchmarkOutputs) -> Outcome:
    """Measures placements of train tasks and writes them as a cost dataset; returns metrics.

    Raises:
        BadInput: if an input cannot be read or no train task fits its devices.
        MeasurementFailed: if a kernel fails.
    """
    require(
        config.placements_per_round >= 1,
        f"benchmark.placements_per_round is {config.placements_per_round}. Make it at least 1.",
    )
    tasks = load_tasks(inputs.tasks, load_tables(inputs.tables)).train
    tasks_to_try = _cycle(tasks, config.placements_per_round, np.random.default_rng([config.seed, inputs.round]))
    proposals = list(_proposals(config, inputs, tasks_to_try))
    hardware = open_hardware(measure)
    log.info("round %d: measuring %d placements on %s", inputs.round, len(proposals), hardware.provenance.hardware)
    costs = measure_all(
        hardware,
        [(number, task, placement) for number, (task, placement, _) in enumerate(proposals)],
        measure,
        partial(progress, description=f"benchmark {inputs.round}"),
    )
    measured = [
        MeasuredPlacement(
            measurement_id=f"round{inputs.round}-{number:05d}",
            round=inputs.round,
            proposed_by=proposed_by,
            task=task,
            placement=placement,
            cost=cost,
            provenance=hardware.provenance,
        )
        for number, ((task, placement, proposed_by), cost) in enumerate(zip(proposals, costs, strict=True))
    ]
    save_costs(measured, outputs.costs)
    share = hardware.time_share
    mean_ms = fmean(cost.max_device_ms for cost in costs)
    log.info(
        "round %d: mean %.2f ms per step; %.0f %% of %.1f s went into kernels",
        inputs.round,
        mean_ms,
        100 * share.kernel_share,
        share.wall_s,
    )
    metrics = {
        "mean_measured_ms": mean_ms,
        "num_placements": float(len(measured)),
        "kernel_share_of_wall_time": share.kernel_share,
        "wall_s": share.wall_s,
    }
    return Outcome(metrics, [cost.max_device_ms for cost in costs])


def _cycle(tasks: tuple[PlacementTask, ...], count: int, rng: np.random.Generator) -> list[PlacementTask]:
    """``count`` tasks, every task once in random order before any comes again: rounds then compare like with like."""
    order: list[int] = []
    while len(order) < count:
        order.extend(rng.permutation(len(tasks)).tolist())
    return [tasks[number] for number in order[:count]]


def _proposals(
    config: BenchmarkConfig, inputs: BenchmarkInputs, tasks: list[PlacementTask]
) -> Iterator[tuple[PlacementTask, Placement, str]]:
    """Placements to measure: sampled from the previous round's policy; random where it is missing or found no room."""
    rng = np.random.default_rng([config.seed, inputs.round, 1])
    sampled: list[Placement | None] = [None] * len(tasks)
    if inputs.policy is not None and inputs.cost_net is not None:
        policy = load_checkpoint(inputs.policy, DreamShardPolicy)
        cost_net = load_checkpoint(inputs.cost_net, DreamShardCostNet)
        sharder = DreamShardSharder(cost_net.net, policy.net, policy.normalizer)
        sampled = sharder.sample(tasks, torch.Generator().manual_seed(config.seed * 1000 + inputs.round))
    any_fits = False
    for task, placement in zip(tasks, sampled, strict=True):
        try:
            proposal = (task, placement, "dreamshard") if placement else (task, random_placement(task, rng), "random")
        except InfeasibleTask as error:
            log.warning("skipped: %s", error)
            continue
        any_fits = True
        yield proposal
    if not any_fits:
        raise InfeasibleTask(f"{inputs.tasks}: no train task fits its devices. Raise memory_cap_gb or num_devices.")
