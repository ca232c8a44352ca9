"""A training as its traces show it, beside what evenshard predicts for its tables, and as measured costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief
from evenshard.base.provenance import Lineage
from evenshard.base.units import BYTES_PER_GB
from evenshard.loop.commands import ObserveInputs
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.traces.ranks import ObservedTraining, RankTimes, observe
from evenshard.placement.memory import STATE_NUMBERS, optimizer_problem
from evenshard.placement.parts import TablePart, tables_of_parts, whole_part
from evenshard.placement.sharding import BY_COLUMNS, sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import model_lineage
from evenshard.planner.file import load_answer
from evenshard.planner.place import place_request
from evenshard.planner.pricing import link_error, model_of, named_model, part_costs, price_parts, reprice_answer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from evenshard.price.evidence import device_text, with_device_error
from evenshard.price.hardware import HardwareName, profile_of_gpu
from evenshard.price.step import PredictedDevice, exchange_share
from evenshard.price.step_time import device_ms, step_ms
from evenshard.report.step_facts import device_error_text
from evenshard.sharders.model import Model
from evenshard.tables.files import load_tables, save_tables
from evenshard.tables.table import Table
from evenshard.torchrec.plan.file import load_plan_parts

# ``proposed_by`` of a placement that a training ran with.
OBSERVED = "observed"
_UNKNOWN_MEMORY = 64 * BYTES_PER_GB


@dataclass(frozen=True)
class ObservedAndPredicted:
    """Observed times of a training beside evenshard's prediction, ms.

    Attributes:
        source: file of the placement or of the tables.
        predicted_by: the model.
        devices: predicted times by rank; None where the source does not say where the tables live: then the total is
            that of the placement which evenshard would choose.
        predicted_ms: embedding work of a step; without data_parallel tables, which no trace shows apart.
        low_ms, high_ms: 90 % interval of that, the error of a simulated device included.
        device: evidence behind the simulated device; empty for a model of real hardware.
        observed_ms: embedding work of a step in the traces.
        observed_devices_ms: the same of each rank, without waits.
        notes: limits of the comparison, a sentence each.
    """

    source: str
    predicted_by: str
    devices: tuple[PredictedDevice, ...] | None
    predicted_ms: float
    low_ms: float
    high_ms: float
    device: str
    observed_ms: float
    observed_devices_ms: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Placed:
    """Parts of a training's tables, whether the training is known to have run with them, and their prediction."""

    request: PlacementRequest
    parts: tuple[TablePart, ...]
    known: bool
    comparison: ObservedAndPredicted


def run(
    inputs: ObserveInputs, costs: Path | None = None, tables: Path | None = None
) -> tuple[ObservedTraining, ObservedAndPredicted | None]:
    """Read the traces, compare them with a prediction where there is one, and write the costs.

    Args:
        costs: the cost dataset to write, if any.
        tables: the tables of that dataset to write, if any: parts of tables are tables there.
    """
    if tables is not None and costs is None:
        raise BadConfig("--tables-out writes the tables of a cost dataset. Add --costs-out.")
    observation = observe(inputs.traces)
    source = inputs.placement or inputs.tables
    if source is None:
        if costs is not None:
            raise BadConfig("a trace does not say which rank holds which tables. Name the file that does: --placement.")
        return observation, None
    placed = _read_placement(source, inputs, observation)
    if costs is not None:
        measured = _measurement_of(source, placed, observation)
        save_costs([measured], costs, Lineage.here({}))
        if tables is not None:
            save_tables(measured.task.tables, tables)
    return observation, placed.comparison


# The placement -------------------------------------------------------------------------------------------------------


def _read_placement(source: Path, inputs: ObserveInputs, observation: ObservedTraining) -> _Placed:
    keys = _keys_of(source)
    if "request" in keys:
        return _of_answer(source, inputs.model, observation)
    if "world_size" in keys:
        parts, tables, world_size = _of_plan(source, inputs.tables, inputs.columns)
        _require_world(source, world_size, observation)
    else:
        tables, parts = load_tables(source, inputs.columns), ()
        if observation.world_size == 1:
            parts = tuple(whole_part(table, (0,)) for table in tables)
    if observation.batch_size is None:
        raise BadConfig("the traces do not say the batch size. Record them with record_shapes=True.")
    model = _model(inputs.model, observation)
    request = PlacementRequest(
        tables=tables,
        caps_bytes=(observation.memory_bytes or _UNKNOWN_MEMORY,) * observation.world_size,
        batch_size=observation.batch_size,
        optimizer=observation.optimizer if observation.optimizer in STATE_NUMBERS else "sgd",
        hardware=model.hardware,
    )
    known = bool(parts)
    shown, fused, notes = _without_replicas(source, request, parts)
    costs = part_costs(shown, model)
    prediction = costs.predict(fused or place_request(request, model).parts)
    answered, _ = price_parts(shown, model, costs, prediction)
    ends = (answered.model_low_ms, answered.model_high_ms)
    low_ms, high_ms = with_device_error(
        model.device_error,
        answered.predicted_ms,
        *ends,
        link_error(request, model),
        exchange_share(prediction.devices, costs.pipeline),
    )
    comparison = ObservedAndPredicted(
        source=str(source),
        predicted_by=model.source,
        devices=prediction.devices if known else None,
        predicted_ms=prediction.predicted_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        device=device_text(model.hardware, model.device_error, link_error(request, model)),
        observed_ms=float(step_ms(observation.phases, costs.pipeline)),
        observed_devices_ms=tuple(device_ms(observation.phases, costs.pipeline).tolist()),
        notes=(*_differences(source, shown, fused, observation), *notes) if known else (),
    )
    return _Placed(request, parts or prediction.parts, known, comparison)


def _without_replicas(
    source: Path, request: PlacementRequest, parts: Sequence[TablePart]
) -> tuple[PlacementRequest, tuple[TablePart, ...], tuple[str, ...]]:
    """Leave out data_parallel tables: DDP reduces their gradients together with those of dense layers."""
    replicated = {part.table for part in parts if len(part.devices) > 1}
    if not replicated:
        return request, tuple(parts), ()
    tables = tuple(table for table in request.tables if table.name not in replicated)
    if not tables:
        problem = "all of its tables are data_parallel, and the traces show tables that are not"
        raise BadFile(source, problem, "Name the placement that the training ran with.")
    optimizers = {name: own for name, own in request.table_optimizers.items() if name not in replicated}
    names = ", ".join(map(brief, sorted(replicated)))
    return (
        replace(request, tables=tables, rules=Rules(), table_optimizers=optimizers),
        tuple(part for part in parts if part.table not in replicated),
        (f"Both leave out data_parallel tables, which traces do not show apart from dense layers: {names}.",),
    )


def _keys_of(source: Path) -> set[str]:
    content = read_json(source, "JSON", "Check the file.") if source.suffix == ".json" else None
    return {*content} if isinstance(content, dict) else set()


def _of_plan(
    source: Path, tables: Path | None, columns: Mapping[str, str] | None = None
) -> tuple[tuple[TablePart, ...], tuple[Table, ...], int]:
    if tables is None:
        raise BadConfig(f"{source} is a TorchRec plan, which knows no lookups. Add the table file: --tables.")
    parts, world_size = load_plan_parts(source)
    return parts, load_tables(tables, columns), world_size


def _of_answer(source: Path, model: str | None, observation: ObservedTraining) -> _Placed:
    answer = load_answer(source)
    _require_world(source, answer.num_devices, observation)
    if observation.batch_size not in (None, answer.request.batch_size):
        raise BadFile(
            source,
            f"it is for a batch of {answer.request.batch_size:,} samples, the traces have {observation.batch_size:,}",
            f"Place the tables with --batch-size {observation.batch_size}.",
        )
    request, parts, notes = _without_replicas(source, answer.request, answer.parts)
    seen = answer
    if notes:
        zeros = (0.0,) * len(parts)
        of_parts = replace(answer, request=request, parts=parts, alone_ms=zeros, adds_ms=zeros)
        seen = reprice_answer(of_parts, parts, model_of(model or named_model(answer)))
    comparison = ObservedAndPredicted(
        source=str(source),
        predicted_by=str(model_lineage(answer).get("source", "")),
        devices=seen.devices,
        predicted_ms=seen.predicted_ms,
        low_ms=seen.low_ms,
        high_ms=seen.high_ms,
        device=device_error_text(answer),
        observed_ms=float(step_ms(observation.phases, request.training_pipeline)),
        observed_devices_ms=tuple(device_ms(observation.phases, request.training_pipeline).tolist()),
        notes=(*_differences(source, request, parts, observation), *notes),
    )
    return _Placed(answer.request, answer.parts, True, comparison)


def _require_world(source: Path, num_devices: int, observation: ObservedTraining) -> None:
    if num_devices != observation.world_size:
        problem = f"it places tables on {num_devices} devices, the training has {observation.world_size} ranks"
        raise BadFile(source, problem, "Name the placement that the training ran with.")


def _model(where: str | None, observation: ObservedTraining) -> Model:
    if where is not None:
        return model_of(where)
    gpu = observation.ranks[0].gpu
    profile = profile_of_gpu(gpu)
    if profile is None:
        raise BadConfig(f"there is no device model of {gpu or 'a CPU'}. Name one: --model.")
    return model_of(None, str(HardwareName.of("simulated", profile)))


# The costs -----------------------------------------------------------------------------------------------------------


def _differences(
    source: Path, request: PlacementRequest, parts: Sequence[TablePart], observation: ObservedTraining
) -> list[str]:
    found = []
    features = {table.name: table.num_features for table in request.tables}
    for rank in observation.ranks:
        dims = sum(part.columns.size * features[part.table] for part in parts if part.device == rank.rank)
        if rank.sum_of_dims not in (None, dims):
            found.append(
                f"Rank {rank.rank} looked up {rank.sum_of_dims:,} columns in its trace, {source} gives it "
                f"{dims:,}: is this the placement that the training ran with?"
            )
    return found


def _measurement_of(source: Path, placed: _Placed, observation: ObservedTraining) -> MeasuredPlacement:
    """Return the observation as a measured placement; refuse one with unknown waiting or missing ranks."""
    if not placed.known:
        problem = "it does not say which rank holds which tables"
        raise BadFile(source, problem, "Name placement.json or the TorchRec plan: --placement.")
    if observation.missing_ranks:
        missing = ", ".join(map(str, observation.missing_ranks))
        raise BadConfig(f"costs need the traces of all {observation.world_size} ranks; missing: {missing}. Give them.")
    if observation.world_size > 1 and any(one.waiting_ms is None for one in observation.ranks):
        raise BadConfig("the ranks have recorded different collectives. Record all of them with one schedule.")
    if observation.unseen:
        raise BadConfig(f"costs need all of a step; the traces do not show {', '.join(observation.unseen)}.")
    by_name = {table.name: table for table in placed.request.tables}
    for table in placed.request.tables:
        of_table = [part for part in placed.parts if part.table == table.name]
        way = sharding_type(of_table, table, placed.request.nodes)
        if way not in BY_COLUMNS:
            raise BadConfig(
                f"a cost dataset holds whole tables and columns of tables; {brief(table.name)} is sharded {way}. Leave "
                f"--costs-out out."
            )
    if differences := placed.comparison.notes:
        raise BadFile(source, differences[0].rstrip("?"), "Name the placement that it ran with.")
    if unknown := optimizer_problem(observation.optimizer):
        raise BadConfig(f"costs need an optimizer that evenshard knows: {unknown}. Leave --costs-out out.")
    gpu = observation.ranks[0].gpu
    name = f"{OBSERVED}-{round(observation.started_at * 1e6)}"
    tables = tables_of_parts(placed.parts, by_name.values())
    return MeasuredPlacement(
        measurement_id=name,
        round=0,
        proposed_by=OBSERVED,
        task=ShardingTask.whole(
            name,
            tables,
            observation.world_size,
            max(placed.request.rooms_bytes),
            placed.request.batch_size,
        ),
        parts=tuple(whole_part(table, part.devices) for table, part in zip(tables, placed.parts, strict=True)),
        cost=PlacementCost(tuple(map(_device_cost, observation.ranks)), "measured"),
        provenance=Provenance(
            hardware=HardwareName.of(*(("cuda", gpu) if gpu else ("cpu", "unknown"))).provenance,
            driver="unknown",
            versions="unknown",
            link=observation.backend or "none",
            seed=0,
            repeats=min(one.num_steps for one in observation.ranks),
            optimizer=observation.optimizer,
        ),
        measured_at=observation.started_at,
    )


def _device_cost(rank: RankTimes) -> DeviceCost:
    """Return the times of a rank; a training of one rank has no communication."""
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
