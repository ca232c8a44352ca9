"""Steps from the user's knobs to an answer: request, task, search, measurements, answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from heapq import heapify, heapreplace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.installation import require_package
from evenshard.base.knobs import knobs_of
from evenshard.base.messages import brief
from evenshard.base.process import one_thread
from evenshard.base.typed import read_record, record_of, settings_of
from evenshard.base.units import ms_text
from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.parts import COLUMN_STEP, FUSED, TablePart, whole_part
from evenshard.placement.placement import check_sharding, is_legal_sharding, parts_by_table
from evenshard.placement.sharding import TABLE_WISE, Communication
from evenshard.placement.task import ShardingTask, allow_row_wise_means
from evenshard.planner.answer import Near, PlacementAnswer, match_earlier_placement
from evenshard.planner.baselines import place_baselines, predict_baselines
from evenshard.planner.capacity import explain_infeasibility
from evenshard.planner.hosts import MachineAndMemory
from evenshard.planner.intervals import predict_saving
from evenshard.planner.knobs import Knobs, Search, Training, groups, place_knob
from evenshard.planner.optimizers import TableOptimizers, note_replicas
from evenshard.planner.output_order import place_in_order
from evenshard.planner.pricing import PartsMeasurer, errors_of, part_costs, price_parts
from evenshard.planner.request import PlacementRequest, list_unit_warnings, sharding_types_of
from evenshard.planner.rules import Rules
from evenshard.price.costs import PlacementCost
from evenshard.price.dense import DenseLayers, DenseModel
from evenshard.price.gpu_profile import profile_of
from evenshard.price.hardware import HardwareName
from evenshard.price.link import warn_beyond_span
from evenshard.price.step import PartCosts, PredictedParts
from evenshard.price.step_time import round_for_sorting
from evenshard.search.infeasibility import require_feasible_sharding, require_types
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.search import (
    EFFORTS,
    NORMAL,
    PlanSearch,
    PlanSearchEffort,
    PlanSearchResult,
    Progress,
    get_effort,
)
from evenshard.search.space import SearchSpace
from evenshard.sharders.catalog import roll_out
from evenshard.sharders.model import Model
from evenshard.tables.assumptions import Assumption, TableSet, list_approximations
from evenshard.tables.table import Table
from evenshard.version import __version__

if TYPE_CHECKING:
    from evenshard.search.near_placement import NearResult

INTERRUPTED = "The search was interrupted. This is the best placement found so far; a full run may find a better one."


def build_request(
    knobs: Knobs, known: TableSet, optimizers: TableOptimizers, devices: MachineAndMemory, dense_bytes: int
) -> PlacementRequest:
    """Build the request for tables on a machine from the user's knobs; no other function builds requests.

    Raises:
        BadConfig: if a knob is invalid for these tables or this machine.
    """
    given = {name: value for group in groups() for name, value in vars(getattr(knobs, group.name)).items()}
    kept = (one.name for one in knobs_of(PlacementRequest) if one.default == place_knob(one.name).default)
    return PlacementRequest(
        tables=known.tables,
        caps_bytes=devices.caps_bytes,
        batch_size=knobs.training.batch_size,
        reserved_bytes=devices.reserved_bytes,
        optimizer=optimizers.optimizer,
        rules=Rules.of(**vars(knobs.table_rules)),
        communication=Communication.of(knobs.training.communication),
        sharding_types=sharding_types_of(knobs.sharding),
        machine=devices.machine,
        hardware=devices.hardware,
        assumptions=(*known.assumptions, *optimizers.assumptions),
        reserved_share=devices.reserved_share,
        dense_bytes=dense_bytes,
        training_pipeline=knobs.training.training_pipeline,
        compute_kernels=tuple(knobs.sharding.compute_kernels),
        table_optimizers=optimizers.of_tables,
        dense=dense_layers(knobs.training, known, devices.hardware),
        **{name: given[name] for name in kept},
    )


def dense_layers(training: Training, known: TableSet, hardware: str) -> DenseLayers | None:
    """Return the dense layers that the user gives, or those of a public set; None if there are none.

    Raises:
        BadConfig: if the given layers are invalid, or the hardware has no model of them.
    """
    given = training.dense
    if given is None:
        return None if known.dense is None else record_of(DenseModel, known.dense).of_tables(known.tables)
    if training.dense_ms is not None:
        raise BadConfig("dense and dense_ms are both given. Give one of the two.")
    gpu = profile_of(HardwareName.parse(hardware))
    if gpu is None or not gpu.tflops:
        raise BadConfig(f"dense: {hardware} has no model of dense layers. Give their time as dense_ms.")
    if isinstance(given, Mapping):
        return settings_of(DenseModel, dict(given), "dense", "Correct it.").of_tables(known.tables)
    remedy = f"Its keys are {', '.join(key.name for key in fields(DenseModel))}."
    return read_record(DenseModel, read_yaml(Path(given), remedy), given, remedy).of_tables(known.tables)


@dataclass(frozen=True)
class PlaceConfig:
    """Settings of a search: its effort, its starting placements, and the baselines to compare with.

    Attributes:
        compare: names from ``BASELINES``.
        num_measured: number of candidates to time with ``measure``; 0 relies on the model.
        near: the current placement, and the number of bytes that may move from it.
        known: placements to start from, such as TorchRec's. The answer is predicted to be at least as fast as each
            legal one, and as each legal baseline.
        tables_from: source of the tables, for the lineage.
    """

    effort: PlanSearchEffort = field(default_factory=lambda: EFFORTS[NORMAL])
    seed: int = 0
    compare: tuple[str, ...] = ()
    num_measured: int = 0
    measure: PartsMeasurer | None = None
    near: Near | None = None
    known: Sequence[Sequence[TablePart]] = ()
    tables_from: str | None = None
    progress: Progress | None = None

    @staticmethod
    def of(search: Search) -> PlaceConfig:
        """Return the settings of these knobs; raise BadConfig for an unknown effort."""
        return PlaceConfig(get_effort(search.effort), search.seed, tuple(search.compare), search.num_measured)


@one_thread()
def place_request(request: PlacementRequest, model: Model, config: PlaceConfig | None = None) -> PlacementAnswer:
    """Answer a request; the answer is deterministic. Runs on one thread, because the matrices are small.

    Raises:
        InfeasibleTask: if no legal placement exists or was found; the message says which, and what would help.
        BadConfig: if ``config`` is invalid, or FBGEMM's kernels do not support a table.
    """
    config = config or PlaceConfig()
    _check_dims(request.tables)
    if request.keep_output_order:

        def place(limited: PlacementRequest, most_changes: float) -> PlacementAnswer:
            effort = replace(config.effort, changes=int(min(config.effort.changes, most_changes)))
            return place_request(limited, model, replace(config, effort=effort))

        return place_in_order(request, place, None if config.near is None else config.near.old)
    costs = part_costs(request, model)
    baselines = place_baselines(request, costs, config.compare)
    known = (*config.known, *(parts for _, parts in baselines if parts is not None))
    space, free, near = _search(request, model, costs, config, known)
    result = near or free
    best, measured = result.best, None
    if config.num_measured:
        best, measured = _measure_candidates(costs, config, result.candidates)
    elif config.near is None:
        best = make_small_tables_whole(costs, best)
    check_sharding(costs.task, best.parts)
    answered, widened = price_parts(request, model, costs, best)
    kernels, links = errors_of(request, model, answered)
    saves = partial(predict_saving, request, model, costs, answered)
    interrupted = INTERRUPTED if result.is_interrupted else None
    notes = (interrupted, widened, *_notes(request, model, best.parts, costs.divisions_ms(best.parts)))
    in_rows = {part.table for part in best.parts if len(part.devices) == 1 and part.rows.start > 0}
    even = [table.name for table in request.tables if table.name in in_rows and table.row_shares is None]
    assumptions = dict.fromkeys(
        (
            *request.assumptions,
            *chain.from_iterable(map(list_approximations, request.tables)),
            *(Assumption(name, "row_shares", "lookups are spread evenly over its rows") for name in even),
        )
    )
    answer = PlacementAnswer(
        request=replace(request, assumptions=tuple(assumptions)),
        **vars(answered),
        lower_bound_ms=min(lower_bound_ms(space, best.predicted_ms), best.predicted_ms),
        warnings=(
            *list_unit_warnings(request),
            *(() if model.trained_on is None else model.trained_on.outside(request.task())),
        ),
        comparison=predict_baselines(baselines, costs, config.measure if config.num_measured else None, saves),
        measured=measured,
        measured_ms=None if measured is None else measured.step_ms(costs.pipeline),
        lineage=_lineage(model, config),
        link=model.link,
        notes=tuple(filter(None, notes)),
        device_error=kernels,
        link_error=links,
    )
    if config.near is None or near is None:
        return answer
    return config.near.add_to(answer, near, free.best.predicted_ms, saves(near.stay.parts))


def _search(
    request: PlacementRequest,
    model: Model,
    costs: PartCosts,
    config: PlaceConfig,
    known: Sequence[Sequence[TablePart]],
) -> tuple[SearchSpace, PlanSearchResult, NearResult | None]:
    searched = costs.of_task(allow_row_wise_means(costs.task))
    try:
        require_types(searched.task)
        if request.rules != Rules() and not costs.task.may_offload:
            require_feasible_sharding(searched.task)
        starts = _starts(request, model, config.seed, costs.task, known)
        search = PlanSearch(searched, config.effort, config.seed, config.progress)
        free = search.run(starts)
    except InfeasibleTask as error:
        raise explain_infeasibility(request, error) from None
    near, beside = config.near, None
    if near is not None:
        require_package("scipy")
        from evenshard.search.near_placement import NearSearch

        beside = NearSearch(search, match_earlier_placement(near.old, request), near.most_bytes).run(free)
    return search.space, free, beside


def _measure_candidates(
    costs: PartCosts, config: PlaceConfig, candidates: Sequence[tuple[TablePart, ...]]
) -> tuple[PredictedParts, PlacementCost]:
    assert config.measure is not None, "measuring needs hardware"
    candidates = candidates[: config.num_measured]
    measured = config.measure(costs.task, candidates)
    step_ms = [one.step_ms(costs.pipeline) for one in measured]
    number = min(range(len(measured)), key=lambda one: step_ms[one] + costs.divisions_ms(candidates[one]))
    return costs.predict(candidates[number]), measured[number]


def _lineage(model: Model, config: PlaceConfig) -> dict[str, Any]:
    lineage = {
        "evenshard_version": __version__,
        "model": {
            "source": model.source,
            "sha256": model.digest,
            **({} if model.registered is None else {"mlflow": dict(model.registered)}),
            **({} if model.trained_on is None else {"trained_on": asdict(model.trained_on)}),
        },
        "tables": config.tables_from,
        "search": {"seed": config.seed, "num_measured": config.num_measured, "changes": config.effort.changes},
    }
    return dict(json.loads(json.dumps(lineage)))  # equal to the lineage of a loaded file


def _check_dims(tables: Sequence[Table]) -> None:
    """Raise BadConfig for an embedding dim that FBGEMM rejects; neither FBGEMM nor TorchRec pads rows."""
    for table in tables:
        if table.embedding_dim % COLUMN_STEP:
            wider = -(-table.embedding_dim // COLUMN_STEP) * COLUMN_STEP
            raise BadConfig(
                f"table {brief(table.name)} has embedding_dim {table.embedding_dim}, but FBGEMM's kernels need a "
                f"multiple of {COLUMN_STEP}. Use {wider} here and in the model."
            )


def _starts(
    request: PlacementRequest, model: Model, seed: int, task: ShardingTask, known: Sequence[Sequence[TablePart]]
) -> list[tuple[TablePart, ...]]:
    on_device = (FUSED in task.kernels_of(at) for at in range(len(task.tables)))
    are_whole = all(TABLE_WISE in types for types in task.types) and all(on_device)
    placements = roll_out(model.policy, request.task().as_whole, seed) if model.policy is not None and are_whole else ()
    found = dict.fromkeys(tuple(parts) for parts in (*known, *(one.parts(request.tables) for one in placements)))
    return [parts for parts in found if is_legal_sharding(task, parts)]


def _notes(
    request: PlacementRequest, model: Model, parts: Sequence[TablePart], divisions_ms: float
) -> Iterator[str | None]:
    asked_for = dict.fromkeys(request.optimizer_of(table.name) for table in request.tables)
    learned = None if model.trained_on is None else model.trained_on.optimizer
    for asked in asked_for:
        if learned not in (None, asked):
            order = list(STATE_NUMBERS)
            word = "slower" if order.index(asked) > order.index(learned) else "faster"
            yield f"Times are predicted for {learned}: {asked}'s memory is counted, but not its {word} backward pass."
    yield from note_replicas(request, tuple(dict.fromkeys(one.table for one in parts if len(one.devices) > 1)))
    yield warn_beyond_span(request.nodes.intra or model.link, request.nodes.domain_size)
    if divisions_ms:
        yield (
            f"In collections with MEAN tables, all tables are cut by rows: TorchRec handles row-wise MEAN correctly "
            f"only this way. Dividing the sums adds about {ms_text(divisions_ms)} ms per step, which is not included."
        )


# Weights of at most 64 KB make a small table, which readers of a plan expect to be whole.
MOST_BYTES = 2**16
# Whole small tables may make the step slower by 1 %, or by 0.01 ms: two kernel launches, which models hardly resolve.
MOST_SLOWER, RESOLUTION_MS = 0.01, 0.01
# After so many single tables that exceed this limit, the remaining tables stay cut.
MOST_FAILURES = 4


def make_small_tables_whole(costs: PartCosts, found: PredictedParts) -> PredictedParts:
    """Make small cut tables whole where that does not slow the step; try all, then halves, down to single tables."""
    task, by_table = costs.task, parts_by_table(costs.task, found.parts)
    cut = [one for one in task.tables if one.size_bytes <= MOST_BYTES and len(by_table[one.name]) > 1]
    most_ms = found.predicted_ms + max(MOST_SLOWER * found.predicted_ms, RESOLUTION_MS)
    left, failures = [cut] if cut else [], 0
    while left and failures < MOST_FAILURES:
        tables = left.pop()
        whole = _with_whole(costs, found, tables)
        if whole.predicted_ms <= most_ms and is_legal_sharding(task, whole.parts):
            found = whole
        elif len(tables) > 1:
            middle = len(tables) // 2
            left += [tables[middle:], tables[:middle]]
        else:
            failures += 1
    return found


def _with_whole(costs: PartCosts, found: PredictedParts, tables: Sequence[Table]) -> PredictedParts:
    names = {table.name for table in tables}
    parts, own = [], dict[str, TablePart]()
    for part in found.parts:
        if part.table in names:
            own[part.table] = part
        else:
            parts.append(part)
    # The work of a whole table is estimated as the mean work of a part.
    each_ms = sum(one.predicted_total_ms for one in found.devices) / len(found.parts)
    num_parts = Counter(device for part in found.parts for device in part.devices)
    work = [(round_for_sorting(one.predicted_total_ms), num_parts[at], at) for at, one in enumerate(found.devices)]
    heapify(work)
    for table in tables:
        work_ms, count, device = work[0]
        parts.append(whole_part(table, (device,), own[table.name].storage))
        heapreplace(work, (round_for_sorting(work_ms + each_ms), count + 1, device))
    return costs.predict(parts)
