"""Observed times of a training job from its traces, compared with predictions and written as measured costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief, printable, text_table
from evenshard.base.provenance import Lineage
from evenshard.base.units import BYTES_PER_GB
from evenshard.loop.commands import ObserveInputs
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.traces.ranks import ObservedTraining, RankTimes, observe
from evenshard.placement.memory import STATE_NUMBERS, optimizer_problem
from evenshard.placement.parts import TablePart, tables_of_parts, whole_part
from evenshard.placement.sharding import BY_COLUMNS, sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import PricedParts, interval_ms, model_lineage
from evenshard.planner.file import load_answer
from evenshard.planner.place import place_request
from evenshard.planner.pricing import errors_of, find_model_source, model_of, part_costs, price_parts, reprice_answer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from evenshard.price.evidence import Errors, device_text
from evenshard.price.hardware import HardwareName, profile_of_gpu
from evenshard.price.step import PredictedDevice, collect_phases
from evenshard.price.step_time import device_ms, step_ms
from evenshard.sharders.model import Model
from evenshard.tables.files import load_tables, save_tables
from evenshard.torchrec.plan.file import load_plan_parts

OBSERVED = "observed"  # ``proposed_by`` of the placement of an observed training
_UNKNOWN_MEMORY = 64 * BYTES_PER_GB  # assumed if the traces lack the memory of a device; a prediction needs some limit
NOT_SEEN = "not seen"
_HEADS = ["rank", "input dist", "forward", "forward communication", "backward communication", "backward"]


@dataclass(frozen=True)
class ObservedAndPredicted:
    """Observed times of a step's embedding work and evenshard's prediction, ms.

    Excludes data_parallel tables, because traces do not show them. The interval includes the error of a simulated
    device.
    """

    source: str  # file of the placement or of the tables
    predicted_by: str
    devices: tuple[PredictedDevice, ...] | None  # by rank; None for a table file, whose tables evenshard places
    predicted_ms: float
    low_ms: float  # 90 % interval
    high_ms: float
    device: str  # evidence for the simulated device; empty for a model of real hardware
    observed_ms: float
    observed_devices_ms: tuple[float, ...]  # by rank, without waits
    notes: tuple[str, ...]  # limits of the comparison, a sentence each


@dataclass(frozen=True)
class _TrainingPlacement:
    request: PlacementRequest
    parts: tuple[TablePart, ...]
    known: bool  # True if the run is known to use these parts
    comparison: ObservedAndPredicted


def run(
    inputs: ObserveInputs, costs: Path | None = None, tables: Path | None = None
) -> tuple[ObservedTraining, ObservedAndPredicted | None]:
    """Read the traces, compare them with a prediction if a placement or tables are given, and write the costs.

    Args:
        costs: cost dataset to write, if any.
        tables: table file of that dataset to write, if any; each part of a sharded table is a table in it.
    """
    if tables is not None and costs is None:
        raise BadConfig("--tables-out writes the tables of a cost dataset. Add --costs-out.")
    observation = observe(inputs.traces)
    source = inputs.placement or inputs.tables
    if source is None:
        if costs is not None:
            raise BadConfig("traces do not show which rank holds which tables. Add --placement.")
        return observation, None
    placed = _read_placement(source, inputs, observation)
    if costs is not None:
        measured = _measurement_of(source, placed, observation)
        save_costs([measured], costs, Lineage.current({}))
        if tables is not None:
            save_tables(measured.task.tables, tables)
    return observation, placed.comparison


# The placement -------------------------------------------------------------------------------------------------------


def _read_placement(source: Path, inputs: ObserveInputs, observation: ObservedTraining) -> _TrainingPlacement:
    content = read_json(source, "JSON", "Check the file.") if source.suffix == ".json" else None
    keys = {*content} if isinstance(content, dict) else set()
    if "request" in keys:
        return _compare_answer(source, inputs.model, observation)
    if "world_size" in keys:
        if inputs.tables is None:
            raise BadConfig(f"{source} is a TorchRec plan without pooling factors. Add the table file with --tables.")
        parts, world_size = load_plan_parts(source)
        tables = load_tables(inputs.tables, inputs.columns)
        _require_world(source, world_size, observation)
    else:
        tables, parts = load_tables(source, inputs.columns), ()
        if observation.world_size == 1:
            parts = tuple(whole_part(table, (0,)) for table in tables)
    if observation.batch_size is None:
        raise BadConfig("the traces lack the batch size. Record them with record_shapes=True.")
    model = _load_model(inputs.model, observation)
    request = PlacementRequest(
        tables=tables,
        caps_bytes=(observation.memory_bytes or _UNKNOWN_MEMORY,) * observation.world_size,
        batch_size=observation.batch_size,
        optimizer=observation.optimizer if observation.optimizer in STATE_NUMBERS else "sgd",
        hardware=model.hardware,
    )
    known = bool(parts)
    shown, fused, notes = _drop_replicas(source, request, parts)
    costs = part_costs(shown, model)
    prediction = costs.predict(fused or place_request(request, model).parts)
    answered, _ = price_parts(shown, model, costs, prediction)
    errors = errors_of(shown, model, answered)
    comparison = _compare(source, observation, shown, answered, model.source, errors, notes if known else None)
    return _TrainingPlacement(request, parts or prediction.parts, known, comparison)


def _compare(
    source: Path,
    observation: ObservedTraining,
    request: PlacementRequest,
    priced: PricedParts,
    predicted_by: str,
    errors: Errors,
    notes: Sequence[str] | None,
) -> ObservedAndPredicted:
    """Compare observed and predicted times; ``notes`` is None if the tables of each rank are unknown."""
    pipeline = request.training_pipeline
    low_ms, high_ms = interval_ms(priced, *errors, pipeline)
    return ObservedAndPredicted(
        source=str(source),
        predicted_by=predicted_by,
        devices=None if notes is None else priced.devices,
        predicted_ms=priced.predicted_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        device=device_text(request.hardware, *errors),
        observed_ms=float(step_ms(observation.phases, pipeline)),
        observed_devices_ms=tuple(device_ms(observation.phases, pipeline).tolist()),
        notes=() if notes is None else (*_find_differences(source, request, priced.parts, observation), *notes),
    )


def _drop_replicas(
    source: Path, request: PlacementRequest, parts: Sequence[TablePart]
) -> tuple[PlacementRequest, tuple[TablePart, ...], tuple[str, ...]]:
    """Drop data_parallel tables: DDP reduces their gradients with the dense layers', so traces do not show them."""
    replicated = {part.table for part in parts if len(part.devices) > 1}
    if not replicated:
        return request, tuple(parts), ()
    tables = tuple(table for table in request.tables if table.name not in replicated)
    if not tables:
        problem = "all of its tables are data_parallel, but the traces show other tables"
        raise BadFile(source, problem, "Name the placement that the training ran with.")
    optimizers = {name: own for name, own in request.table_optimizers.items() if name not in replicated}
    names = ", ".join(map(brief, sorted(replicated)))
    return (
        replace(request, tables=tables, rules=Rules(), table_optimizers=optimizers),
        tuple(part for part in parts if part.table not in replicated),
        (f"Both times exclude data_parallel tables, which traces mix with dense layers: {names}.",),
    )


def _compare_answer(source: Path, model: str | None, observation: ObservedTraining) -> _TrainingPlacement:
    answer = load_answer(source)
    _require_world(source, answer.num_devices, observation)
    if observation.batch_size not in (None, answer.request.batch_size):
        raise BadFile(
            source,
            f"its batch size is {answer.request.batch_size:,}, but the traces have {observation.batch_size:,} samples",
            f"Place the tables with --batch-size {observation.batch_size}.",
        )
    request, parts, notes = _drop_replicas(source, answer.request, answer.parts)
    seen = answer
    if notes:
        zeros = (0.0,) * len(parts)
        of_parts = replace(answer, request=request, parts=parts, alone_ms=zeros, adds_ms=zeros)
        seen = reprice_answer(of_parts, parts, model_of(model or find_model_source(answer)))
    predicted_by, errors = str(model_lineage(answer).get("source", "")), (answer.device_error, answer.link_error)
    comparison = _compare(source, observation, request, seen, predicted_by, errors, notes)
    return _TrainingPlacement(answer.request, answer.parts, True, comparison)


def _require_world(source: Path, num_devices: int, observation: ObservedTraining) -> None:
    if num_devices != observation.world_size:
        problem = f"it places tables on {num_devices} devices, but the training run has {observation.world_size} ranks"
        raise BadFile(source, problem, "Name the placement that the training ran with.")


def _load_model(where: str | None, observation: ObservedTraining) -> Model:
    if where is not None:
        return model_of(where)
    gpu = observation.ranks[0].gpu
    profile = profile_of_gpu(gpu)
    if profile is None:
        raise BadConfig(f"no device model for {gpu or 'a CPU'}. Name a model with --model.")
    return model_of(None, str(HardwareName.of("simulated", profile)))


# The costs -----------------------------------------------------------------------------------------------------------


def _find_differences(
    source: Path, request: PlacementRequest, parts: Sequence[TablePart], observation: ObservedTraining
) -> list[str]:
    found = []
    features = {table.name: table.num_features for table in request.tables}
    for rank in observation.ranks:
        dims = sum(part.columns.size * features[part.table] for part in parts if part.device == rank.rank)
        if rank.sum_of_dims not in (None, dims):
            found.append(
                f"The sum of dims on rank {rank.rank} is {rank.sum_of_dims:,} in its trace, but {dims:,} in {source}. "
                "The training may have used another placement."
            )
    return found


def _measurement_of(source: Path, placed: _TrainingPlacement, observation: ObservedTraining) -> MeasuredPlacement:
    """Convert the observation to a measured placement; raise BadInput if the traces are incomplete."""
    if not placed.known:
        problem = "it does not show which rank holds which tables"
        raise BadFile(source, problem, "Give the path of placement.json or of the TorchRec plan with --placement.")
    if observation.missing_ranks:
        missing = ", ".join(map(str, observation.missing_ranks))
        raise BadConfig(f"costs need the traces of all {observation.world_size} ranks. Add ranks {missing}.")
    if observation.world_size > 1 and any(rank.waiting_ms is None for rank in observation.ranks):
        raise BadConfig("the ranks recorded different collectives. Record all ranks with one profiler schedule.")
    if observation.unseen:
        raise BadConfig(f"costs need whole steps, but the traces lack {', '.join(observation.unseen)}.")
    by_name = {table.name: table for table in placed.request.tables}
    for table in placed.request.tables:
        of_table = [part for part in placed.parts if part.table == table.name]
        found = sharding_type(of_table, table, placed.request.nodes)
        if found not in BY_COLUMNS:
            raise BadConfig(
                f"costs support whole and column-wise tables, but {brief(table.name)} is {found}. Omit --costs-out."
            )
    if differences := placed.comparison.notes:
        raise BadFile(source, differences[0].rstrip("."), "Name the placement that the training ran with.")
    if unknown := optimizer_problem(observation.optimizer):
        raise BadConfig(f"costs cannot be written: the {unknown}. Omit --costs-out.")
    gpu = observation.ranks[0].gpu
    name = f"{OBSERVED}-{round(observation.started_at * 1e6)}"
    tables = tables_of_parts(placed.parts, by_name.values())
    return MeasuredPlacement(
        measurement_id=name,
        round=0,
        proposed_by=OBSERVED,
        task=ShardingTask.whole(
            name, tables, observation.world_size, max(placed.request.rooms_bytes), placed.request.batch_size
        ),
        parts=tuple(whole_part(table, part.devices) for table, part in zip(tables, placed.parts, strict=True)),
        cost=PlacementCost(tuple(map(_device_cost, observation.ranks)), "measured"),
        provenance=Provenance(
            hardware=HardwareName.of(*(("cuda", gpu) if gpu else ("cpu", "unknown"))).provenance,
            driver="unknown",
            versions="unknown",
            link=observation.backend or "none",
            seed=0,
            repeats=min(rank.num_steps for rank in observation.ranks),
            optimizer=observation.optimizer,
        ),
        measured_at=observation.started_at,
    )


def _device_cost(rank: RankTimes) -> DeviceCost:
    """Convert the times of a rank; with a single rank there is no communication."""
    waiting = rank.waiting_ms or {}
    return DeviceCost(
        fwd_compute_ms=rank.forward_ms,
        fwd_all_to_all_ms=rank.exchange_ms["forward"] or 0.0,
        bwd_all_to_all_ms=rank.exchange_ms["backward"] or 0.0,
        bwd_compute_ms=rank.backward_ms,
        fwd_compute_spread_ms=rank.forward_spread_ms,
        bwd_compute_spread_ms=rank.backward_spread_ms,
        fwd_wait_ms=waiting.get("forward") or 0.0,
    )


# As text --------------------------------------------------------------------------------------------------------------


def observation_text(observation: ObservedTraining, comparison: ObservedAndPredicted | None) -> str:
    """Format the observed times and their comparison with predictions for a terminal."""
    heads = [*_HEADS, "other collectives", "waiting", "step, ms"]
    ranks, num_steps = observation.ranks, observation.ranks[0].num_steps
    given = f"{len(ranks)} of {observation.world_size} ranks" if observation.world_size > 1 else "1 rank"
    kinds = ", ".join(dict.fromkeys(rank.gpu or "CPU" for rank in ranks))
    lines = [
        f"{given} on {kinds}, {observation.step_ms:.2f} ms per step. Times in ms (share of the step), medians of "
        f"{num_steps} step{'s' * (num_steps > 1)}:",
        text_table([heads, *map(_row, ranks)], ">", "  "),
    ]
    if (last := observation.waits_for) is not None:
        waiting = {rank.rank: rank.all_waiting_ms or 0.0 for rank in observation.ranks}
        others = fmean(ms for rank, ms in waiting.items() if rank != last)
        slowest = max(observation.ranks, key=lambda rank: rank.compute_ms)
        lines.append(
            f"The step waits for rank {last}, which waits {waiting[last]:.3f} ms; the other ranks wait {others:.3f} ms "
            f"on average. Rank {slowest.rank} has the slowest embedding tables: {slowest.compute_ms:.3f} ms for "
            "forward and backward."
        )
    if (balance := observation.balance) is not None:
        share = balance.total_ms / observation.step_ms
        lines.append(
            f"Perfect balance saves at most {_time(balance.total_ms)} of a step ({share:.1%}): forward "
            f"{_time(balance.forward_ms)}, backward {_time(balance.backward_ms)}, communication "
            f"{_time(balance.exchanges_ms)}."
        )
    if (rest_ms := observation.rest_ms()) is not None:
        lines.append(
            f"The rest of the step (dense layers, their all-reduce, the host) takes {_time(rest_ms)}. Predict whole "
            f"steps of other placements with --dense-ms {rest_ms:.4g}."
        )
    lines += [f"Note: {note}" for note in observation.notes]
    if comparison is not None:
        lines += _comparison_lines(observation, comparison)
    return "\n".join(printable(line) for line in "\n".join(lines).splitlines())  # names come from files


def _row(rank: RankTimes) -> list[str]:
    cells = [_share(ms, rank.step_ms) for ms in (*rank.phases_ms, rank.exchange_ms["other"])]
    if rank.num_tables == 0:
        cells[1] = cells[4] = "none"
    with_waiting = rank.waiting_ms is None and any(ms is not None for ms in rank.exchange_ms.values())
    waiting = "in them" if with_waiting else _share(rank.all_waiting_ms, rank.step_ms)
    return [str(rank.rank), *cells, waiting, f"{rank.step_ms:.2f}"]


def _share(time_ms: float | None, step_ms: float) -> str:
    return NOT_SEEN if time_ms is None else f"{time_ms:.3f} ({time_ms / step_ms:.1%})"


def _time(time_ms: float | None) -> str:
    return NOT_SEEN if time_ms is None else f"{time_ms:.3f} ms"


def _comparison_lines(observation: ObservedTraining, comparison: ObservedAndPredicted) -> list[str]:
    observed, predicted = comparison.observed_ms, comparison.predicted_ms
    interval = f"90 %: {comparison.low_ms:.3f} to {comparison.high_ms:.3f}"
    of_device = [f"{comparison.device}."] if comparison.device else []
    unseen = f", without {', '.join(observation.unseen)}, which the traces lack" if observation.unseen else ""
    if comparison.devices is None:
        return [
            f"Embedding tables take {observed:.3f} ms of a step{unseen}. {comparison.predicted_by} predicts "
            f"{predicted:.3f} ms ({interval}) for {comparison.source}, placed by evenshard.",
            *of_device,
        ]
    inside = "inside the interval" if comparison.low_ms <= observed <= comparison.high_ms else "outside the interval"
    verdict = f"not comparable{unseen}" if unseen else inside
    rows = [[*_HEADS, "together"]]
    totals = [device.predicted_total_ms for device in comparison.devices]
    predicted_D6 = np.array([*collect_phases(comparison.devices), totals]).T
    for rank, together_ms in zip(observation.ranks, comparison.observed_devices_ms, strict=True):
        pairs = zip((*rank.phases_ms, together_ms), predicted_D6[rank.rank].tolist(), strict=True)
        cells = (f"{NOT_SEEN if seen is None else f'{seen:.3f}'} / {expected:.3f}" for seen, expected in pairs)
        rows.append([str(rank.rank), *cells])
    return [
        f"Observed / predicted for {comparison.source} by {comparison.predicted_by}, ms:",
        text_table(rows, ">", "  "),
        f"Embedding tables take {observed:.3f} ms of a step, {predicted:.3f} ms predicted ({interval}): {verdict}.",
        *of_device,
        *(f"Note: {note}" for note in comparison.notes),
    ]
