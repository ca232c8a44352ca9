"""Stage 2, once per round: proposes placements and measures their costs, with kernels or a device model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from statistics import fmean

import numpy as np

from evenshard.base.console import progress
from evenshard.base.errors import BadFile, MeasurementFailed, require
from evenshard.base.installation import require_package
from evenshard.base.provenance import Lineage
from evenshard.loop.loop import BenchmarkConfig, BenchmarkInputs, BenchmarkOutputs
from evenshard.loop.propose import Proposers, placement_jobs, select_part, shard_jobs, sharding_jobs
from evenshard.loop.stage import Outcome
from evenshard.measure.campaign import Job, load_measured, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.distributed.collective import local_world_size
from evenshard.measure.hardware import TimeShare
from evenshard.measure.journal import Journal, journal_beside
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.noise import estimate_noise, find_controls
from evenshard.measure.plan import save_measure_plan
from evenshard.measure.torchrec_step import ShardedJob
from evenshard.placement.tasks import load_tasks
from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.tables.files import load_tables

log = logging.getLogger(__name__)


def run(
    config: BenchmarkConfig,
    measure: MeasureConfig,
    inputs: BenchmarkInputs,
    outputs: BenchmarkOutputs,
    lineage: Lineage | None = None,
) -> Outcome:
    """Measure placements of train tasks and random shards, write them as a cost dataset, and return metrics.

    Raises:
        BadInput: if an input cannot be read or no train task fits its devices.
        MeasurementFailed: if a kernel fails; earlier measurements stay in the journal.
    """
    whole, sharded = _plan_jobs(config, measure, inputs)
    jobs = [*whole, *sharded]
    if outputs.plan is not None:
        require(not sharded, "a plan can only contain whole tables. Omit --sharded, or measure here under torchrun.")
        save_measure_plan(whole, measure, outputs.plan)
        log.info("%s: %d placements and shards to measure", outputs.plan, len(jobs))
        return Outcome({"num_placements": float(len(jobs))})
    own_journal = journal_beside(outputs.costs)
    if inputs.budget_minutes == 0 and not (inputs.journal or own_journal).exists():
        raise BadFile(inputs.journal or own_journal, "no such file", "Name a journal with measurements.")
    require_package("pyarrow")  # fails here, not after an hour of measuring
    share = TimeShare(0.0, 0.0)
    with Journal(inputs.journal or own_journal) as journal:
        if inputs.budget_minutes == 0:
            measured = load_measured(jobs, measure, journal)
        else:
            measured, share = _measure(jobs, measure, journal, inputs)
    if not measured:
        raise MeasurementFailed("Nothing was measured. Raise --budget-minutes, or name a journal with measurements.")
    save_costs(measured, outputs.costs, lineage)
    own_journal.unlink(missing_ok=True)
    return _summarize(measured, len(jobs), share, inputs.round)


def _plan_jobs(
    config: BenchmarkConfig, measure: MeasureConfig, inputs: BenchmarkInputs
) -> tuple[list[Job], list[ShardedJob]]:
    """Return all jobs of the round, ordered so that a run that ends early has measured a random sample of them."""
    require(
        config.placements_per_round + config.shards_per_round + config.sharded_per_round > 0,
        "benchmark.placements_per_round, shards_per_round and sharded_per_round are all 0. Raise one of them.",
    )
    require(
        1 <= inputs.part <= inputs.num_parts,
        f"part is {inputs.part}, but the parts are 1 to {inputs.num_parts}. Choose one of these.",
    )
    pool = load_tables(inputs.tables)
    tasks = load_tasks(inputs.tasks, pool).train
    require(bool(tasks), f"{inputs.tasks} has no train tasks. Generate some with `evenshard generate-tables`.")
    proposers = Proposers.load(inputs.cost_net, inputs.policy, inputs.cost_model, config.searched_share)
    jobs = placement_jobs(tasks, config.placements_per_round, inputs.round, config.seed, proposers)
    jobs += shard_jobs(pool, tasks[0], config.shards_per_round, inputs.round, config.seed)
    if config.shards_per_round:
        order = np.random.default_rng([config.seed, inputs.round, 3]).permutation(len(jobs))
        jobs = [jobs[number] for number in order]
    sharded = sharding_jobs(
        tasks,
        config.sharded_per_round,
        config.sharding_types,
        config.ranks_per_node or local_world_size(),
        measure.optimizer,
        inputs.round,
        config.seed,
    )
    whole = select_part(jobs, inputs.part, inputs.num_parts, tasks, measure)
    return whole, sharded[inputs.part - 1 :: inputs.num_parts]


def _measure(
    jobs: Sequence[Job], measure: MeasureConfig, journal: Journal, inputs: BenchmarkInputs
) -> tuple[list[MeasuredPlacement], TimeShare]:
    with closing(open_hardware(measure)) as hardware:
        for job in jobs:
            if isinstance(job, ShardedJob):
                job.check(hardware)  # before anything else is measured
        log.info("round %d: measuring %d placements on %s", inputs.round, len(jobs), hardware.provenance.hardware)
        if len(journal):
            log.info("%s: resuming with %d measurements of an earlier run", journal.path, len(journal))
        budget_s = None if inputs.budget_minutes is None else 60 * inputs.budget_minutes
        show = partial(progress, description=f"benchmark {inputs.round}")
        measured = measure_jobs(hardware, jobs, measure, journal, budget_s, show)
        return measured, hardware.time_share


def _summarize(found: Sequence[MeasuredPlacement], num_jobs: int, share: TimeShare, round_number: int) -> Outcome:
    measured = [placement for placement in found if placement.task.is_whole]
    placements = [one for one in measured if not one.is_control and one.proposed_by != RANDOM_SHARD]
    costs = [placement.cost.max_device_ms for placement in placements if placement.cost.fits]
    metrics = {
        "num_placements": float(len(placements)),
        "num_searched": float(sum(placement.proposed_by == EvenshardSharder.name for placement in placements)),
        "num_shards": float(sum(placement.proposed_by == RANDOM_SHARD for placement in measured)),
        "num_sharded": float(len(found) - len(measured)),
        "num_out_of_memory": float(sum(not placement.cost.fits for placement in found)),
        "kernel_share_of_wall_time": share.kernel_share,
        "wall_s": share.wall_s,
    }
    if costs:
        metrics["mean_measured_ms"] = fmean(costs)
        log.info("round %d: mean %.2f ms per step", round_number, metrics["mean_measured_ms"])
    within = estimate_noise([find_controls(measured)]).within_run_pct
    if within is not None:
        metrics["within_run_noise_pct"] = within
    log.info(
        "round %d: %d of %d done; %.0f %% of %.1f s spent in kernels",
        round_number,
        len(found),
        num_jobs,
        100 * share.kernel_share,
        share.wall_s,
    )
    return Outcome(metrics, costs)
