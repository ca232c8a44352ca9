"""Training of evenshard's cost model: on DreamShard's measurements, on random shards, and on its own first answers.

Placements of one kind of task show devices of one kind: with 25 tables each, no device of a random placement has few
rows, and what such a device would save in the sort is never seen. Random shards of all sizes show it. And a search
finds what a model is wrong about: some placements of its own, measured, correct it where it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evenshard.measure.costs import RANDOM_SHARD, MeasuredPlacement, Provenance
from evenshard.measure.hardware import Measure
from evenshard.placement.placement import Placement, alone
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import distinct_tables, sample_shards
from evenshard.sharders.base import TrainedSharder
from evenshard.sharders.cost_model.calibration import calibrate_for_chosen
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.fit import CostModelFitConfig, CostModelFitMetrics, fit_cost_model
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.utils.errors import InfeasibleTask


@dataclass(frozen=True)
class EvenshardConfig:
    """What is measured beside the placements that are there, and how the model is fitted.

    Attributes:
        num_shards: random shards, each measured alone on a device.
        own_placements: train tasks that a first model places; the placements are measured.
        own_rounds: times that this is done, each time with the model that has learned from the times before.
        fit: training of each model; its seed is the training's.
        search: search by which the models place.
    """

    num_shards: int = 100
    own_placements: int = 20
    own_rounds: int = 1
    fit: CostModelFitConfig = field(default_factory=CostModelFitConfig)
    search: SearchConfig = field(default_factory=lambda: SearchConfig(scores_per_table=1_000))


@dataclass(frozen=True)
class TrainedEvenshard:
    """What training leaves behind.

    Attributes:
        model: the cost model.
        metrics: metrics of its last fit.
        measured: additional measurements, in order.
    """

    model: CostModel
    metrics: CostModelFitMetrics
    measured: tuple[MeasuredPlacement, ...]


def cost_model_round(
    measured: Sequence[MeasuredPlacement],
    config: CostModelFitConfig,
    previous: CostModel | None = None,
    own: Sequence[MeasuredPlacement] = (),
    track: Callable[[range], Iterable[int]] = iter,
) -> tuple[CostModel, CostModelFitMetrics]:
    """One round of the cost model: a new fit, as sure of its own choices as the previous model's choices allow.

    Args:
        measured: everything known, random shards included.
        previous: the model of the round before; None in the first.
        own: placements that the previous model chose and that were then measured.
        track: wraps the range of updates, for a progress bar.
    """
    model, metrics = fit_cost_model(measured, config, track)
    if previous is not None:
        calibrate_for_chosen(model, previous, [one for one in own if one.cost.fits])
    return model, metrics


def train_evenshard(
    tasks: Sequence[ShardingTask],
    known: Sequence[MeasuredPlacement],
    measure: Measure,
    provenance: Provenance,
    config: EvenshardConfig,
    seed: int,
    policy: TrainedSharder | None = None,
) -> TrainedEvenshard:
    """Trains on ``tasks``; the same seed gives the same model where the costs are the same.

    Args:
        tasks: train tasks; they share the batch size unless ``config.fit.across_batches``.
        known: placements of such tasks that have been measured, as by DreamShard's loop.
        measure: measures placements, such as ``SimulatedHardware.measure_many``.
        provenance: provenance of the measurements.
        policy: policy whose rollouts are starts of the search; None: no such starts.
    """
    rng, fit = np.random.default_rng([seed, 7]), replace(config.fit, seed=seed)
    round_number = 1 + max((one.round for one in known), default=0)
    added: list[MeasuredPlacement] = []

    def add(jobs: Sequence[tuple[ShardingTask, Placement]], who: str) -> None:
        for (task, placement), cost in zip(jobs, measure(jobs), strict=True):
            name = f"{who}-{len(added):05d}"
            added.append(MeasuredPlacement.whole(name, round_number, who, task, placement, cost, provenance))

    if config.num_shards:
        shards = _sample_shards(tasks, config.num_shards, rng)
        add([(shard, alone(shard)) for shard in shards], RANDOM_SHARD)
    model, metrics = cost_model_round([*known, *added], fit)
    for _ in range(config.own_rounds if config.own_placements else 0):
        sharder = EvenshardSharder(model, policy, replace(config.search, seed=seed))
        chosen = rng.choice(len(tasks), size=min(config.own_placements, len(tasks)), replace=False)
        before = len(added)
        add(_placed(sharder, [tasks[int(number)] for number in chosen]), sharder.name)
        model, metrics = cost_model_round([*known, *added], fit, model, added[before:])
    return TrainedEvenshard(model, metrics, tuple(added))


def _sample_shards(tasks: Sequence[ShardingTask], count: int, rng: np.random.Generator) -> list[ShardingTask]:
    """Shards of all tasks' tables, at each batch size as many as it has tasks: a table's reuse belongs to its batch."""
    with_batch: dict[int, list[ShardingTask]] = {}
    for task in tasks:
        with_batch.setdefault(task.batch_size, []).append(task)
    shards: list[ShardingTask] = []
    seen = 0
    for batch_size, own in with_batch.items():
        seen += len(own)
        due = round(count * seen / len(tasks)) - len(shards)
        shards.extend(sample_shards(distinct_tables(own), due, batch_size, own[0].memory_cap_bytes, rng))
    return shards


def _placed(sharder: EvenshardSharder, tasks: Sequence[ShardingTask]) -> list[tuple[ShardingTask, Placement]]:
    jobs = []
    for task in tasks:
        try:
            jobs.append((task, sharder.place(task)))
        except InfeasibleTask:  # nothing can be learned from it
            continue
    return jobs
