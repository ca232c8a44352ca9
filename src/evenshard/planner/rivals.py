"""Rival placements of the same tables: rules of thumb and TorchRec's planner, compared by the same model.

They place whole tables; where the request allows splits, TorchRec's planner can be asked for those too. A rival that
knows nothing of a rule may break it, and is then marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evenshard.measure.config import MeasureConfig
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import COLUMN_STEP, TablePart, whole_tables
from evenshard.placement.placement import parts_on
from evenshard.placement.sharding import COLUMN_WISE, broken_rule, check_memory, parts_by_table
from evenshard.planner.answer import Rival
from evenshard.planner.pricing import MeasureParts
from evenshard.planner.request import TASK_ID, PlacementRequest
from evenshard.sharders.catalog import SHARDERS, Resources, entry, sharder
from evenshard.sharders.plan_search.costs import PartCosts
from evenshard.sharders.torchrec_planner import TorchRecSharder
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief

RIVALS = tuple(one.name for one in SHARDERS if not one.needs)
SPLITTING = next(one.name for one in SHARDERS if one.splits_columns)
"""TorchRec's planner where tables may be split by columns; it is left out where that is not allowed."""
TORCHREC = tuple(one.name for one in SHARDERS if one.package == "torchrec" and not one.splits_columns)
MIN_PARTITIONS = (64, 32, 16)
"""Columns of the narrowest part, which TorchRec has to be given; the best of these plans is its answer."""
MOST_SPLIT = 100
"""Tables that it is asked to split: it takes seconds for 100 and minutes for 400."""


def rivals(
    request: PlacementRequest, costs: PartCosts, names: Sequence[str], measure: MeasureParts | None = None
) -> tuple[Rival, ...]:
    """Each rival's answer, in the order of ``names``; without ``SPLITTING`` where that cannot be asked.

    Args:
        costs: what placements of the request's tables cost.
        names: names from ``RIVALS``.
        measure: measures their placements too, where there is one.

    Raises:
        BadConfig: if a name is unknown, or TorchRec is asked for and not installed.
    """
    unknown = next((name for name in names if name not in RIVALS), None)
    if unknown is not None:
        raise BadConfig(f"there is no sharder {brief(unknown)} to compare with. Choose from {', '.join(RIVALS)}.")
    found: list[Rival] = []
    for name in names:
        if name == SPLITTING and not asked_to_split(request):
            continue
        try:
            candidates = list(_split(request) if name == SPLITTING else _whole(name, request))
        except InfeasibleTask as error:
            found.append(Rival(name, None, None, str(error).removeprefix(f"{TASK_ID}: ")))
            continue
        judged = []
        for parts in candidates:
            broken = broken_rule(costs.task, parts_by_table(costs.task, parts)) or ""
            judged.append((bool(broken), costs.predict(parts).predicted_ms, broken, parts))
        _, predicted_ms, broken, best = min(judged, key=lambda one: one[:2])
        measured_ms = None if measure is None else measure(costs.task, [best])[0].max_device_ms
        found.append(Rival(name, predicted_ms, measured_ms, broken))
    return tuple(found)


def asked_to_split(request: PlacementRequest) -> bool:
    """Whether TorchRec's planner can be asked to split tables."""
    return COLUMN_WISE in request.types and len(request.tables) <= MOST_SPLIT


def _whole(name: str, request: PlacementRequest) -> Iterator[tuple[TablePart, ...]]:
    yield parts_on(whole_tables(request.tables), sharder(name, _resources(request)).place(request.task()))


def _split(request: PlacementRequest) -> Iterator[tuple[TablePart, ...]]:
    """TorchRec's plans, one for each of ``MIN_PARTITIONS`` with which it finds one.

    Raises:
        InfeasibleTask: if it finds none.
    """

    def size_of(part: Table) -> int:
        return part.size_bytes + state_bytes(part, request.optimizer)

    whole, task = request.task(), request.sharding_task()
    names = {table.name for table in request.tables if table.embedding_dim % COLUMN_STEP == 0}
    names -= {table.name for group in request.rules.together for table in request.tables if table.name in group}
    torchrec: TorchRecSharder = entry(SPLITTING).build(_resources(request))
    failures = []
    for columns in MIN_PARTITIONS:
        try:
            parts = torchrec.split(whole, names, columns, size_of)
            check_memory(task, parts)
        except InfeasibleTask as error:
            failures.append(error)
            continue
        yield parts
    if len(failures) == len(MIN_PARTITIONS):
        raise failures[0]


def _resources(request: PlacementRequest) -> Resources:
    return Resources(measure=MeasureConfig(request.hardware))
