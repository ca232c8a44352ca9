"""Rival placements of the same tables: rules of thumb and TorchRec's planner, compared by the same model.

Rules of thumb place whole tables; TorchRec's planner is asked for whole tables, in two orders, and where the request
allows more, for every way that is allowed, and with caches and UVM where nothing else fits. The best of its plans by
that model is its answer; among them is the plan that it makes without any setting. A rival that knows nothing of a rule
may break it, and is then marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.measure.collectives import Links
from evenshard.measure.config import MeasureConfig
from evenshard.measure.price.step import PartCosts
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import broken_rule, parts_by_table
from evenshard.placement.sharding import GRIDS, REPLICATED, ROWS_OF_ALL, TABLE_WISE
from evenshard.placement.task import TASK_ID
from evenshard.planner.answer import Rival
from evenshard.planner.pricing import PartsMeasurer
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.catalog import SHARDERS, Resources, sharder
from evenshard.sharders.torchrec.planner import Bandwidths, machine_bandwidths
from evenshard.sharders.torchrec.rival import OUR_MEMORY, PlannerSetting, TorchRecPlanner, offload_settings
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief

RIVALS = tuple(one.name for one in SHARDERS if not one.needs)
# TorchRec's planner where tables may be sharded in several ways; it is left out where whole tables are asked for.
FULL_SPACE = next(one.name for one in SHARDERS if one.is_full_space)
TORCHREC = tuple(one.name for one in SHARDERS if one.package == "torchrec" and not one.is_full_space)
# Columns of the narrowest part, which TorchRec has to be given; None leaves its own. The best plan is its answer.
TORCHREC_MIN_PARTITIONS = (None, 16, 32, 64)
# TorchRec as it comes: these are asked with its own bandwidths, and the last one without constraints but of types.
PLAIN = (PlannerSetting(), PlannerSetting(lookups=False))
# Tables times devices that it is asked for: it takes seconds for 26 x 16 and minutes for 400 x 8.
MOST_SHARDS = 2_000
# What it is asked with where tables do not fit: with our count of memory, so that its plans fit, too.
OFFLOAD_SETTINGS = offload_settings((0.02, 0.1), (None, 32), ("", *ROWS_OF_ALL), (OUR_MEMORY,))
# After which it answers with the best plan so far, for each setting.
_TIMEOUT_S = 5


# A setting of the sharder, empty where it has none, and its placement.
Candidate = tuple[str, tuple[TablePart, ...]]


def rivals(
    request: PlacementRequest, costs: PartCosts, names: Sequence[str], measure: PartsMeasurer | None = None
) -> tuple[Rival, ...]:
    """Each rival's answer, in the order of ``names``; without ``FULL_SPACE`` where that cannot be asked.

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
        if name == FULL_SPACE and not asked_full_space(request):
            continue
        try:
            candidates, asked = _full_space(request, costs.links) if name == FULL_SPACE else (_whole(name, request), "")
        except InfeasibleTask as error:
            found.append(Rival(name, None, None, str(error).removeprefix(f"{TASK_ID}: ")))
            continue
        priced = []
        for setting, parts in candidates:
            broken = broken_rule(costs.task, parts_by_table(costs.task, parts)) or ""
            priced.append((bool(broken), costs.predict(parts).predicted_ms, broken, setting, parts))
        _, predicted_ms, broken, setting, best = min(priced, key=lambda one: one[:2])
        if asked:
            setting = f"{setting}; the best by this model of {len(candidates)} plans: {asked}"
        measured_ms = None if measure is None else measure(costs.task, [best])[0].step_ms(costs.pipeline)
        found.append(Rival(name, predicted_ms, measured_ms, broken, setting))
    return tuple(found)


def asked_full_space(request: PlacementRequest) -> bool:
    """Whether TorchRec's planner can be asked for more than whole tables."""
    return set(request.types) != {TABLE_WISE} and len(request.tables) * request.num_devices <= MOST_SHARDS


def _whole(name: str, request: PlacementRequest) -> list[Candidate]:
    resources = Resources(measure=MeasureConfig(request.hardware))
    return [("", sharder(name, resources).place(request.task()).parts(request.tables))]


def _full_space(request: PlacementRequest, links: Links) -> tuple[list[Candidate], str]:
    """TorchRec's plans, and what it was asked with, in words.

    Raises:
        InfeasibleTask: if it finds none.
    """
    task = request.task()
    planner = TorchRecPlanner(task, machine_bandwidths(request.hardware, request.nodes, links), _TIMEOUT_S)
    chosen = _settings(request)
    found = [(str(plan.setting), plan.parts) for plan in planner.plans(chosen)]
    plain = TorchRecPlanner(task, Bandwidths(), _TIMEOUT_S).plans(PLAIN)
    found += [(f"{plan.setting}, its own bandwidths", plan.parts) for plan in plain]
    chosen, asked = [*chosen, *PLAIN], _asked_text(chosen)
    if not found and task.may_offload:
        chosen, asked = [*chosen, *OFFLOAD_SETTINGS], _offload_text()
        found = [(str(plan.setting), plan.parts) for plan in planner.plans(OFFLOAD_SETTINGS)]
    if not found:
        raise InfeasibleTask(f"TorchRec's planner found no plan in any of {len(chosen)} settings")
    return found, asked


def _settings(request: PlacementRequest) -> list[PlannerSetting]:
    """What it is asked with where it is told bandwidths and lookups."""
    grids = (False, True) if request.nodes.num_nodes > 1 and {*GRIDS} & {*request.types} else (False,)
    found = [PlannerSetting(columns, grid_shard=grid) for grid in grids for columns in TORCHREC_MIN_PARTITIONS]
    if {*REPLICATED} & {*request.types}:
        found += [PlannerSetting(columns, replicas=False) for columns in TORCHREC_MIN_PARTITIONS]
    return found


def _asked_text(chosen: Sequence[PlannerSetting]) -> str:
    """Settings where it is told bandwidths and lookups, and what it is asked besides, in words."""
    widths = dict.fromkeys("its own" if one.min_partition is None else str(one.min_partition) for one in chosen)
    ways = [f"min_partition {', '.join(widths)}"]
    ways += ["with replicas and without"] if not all(one.replicas for one in chosen) else []
    ways += ["with grid_shard and without"] if any(one.grid_shard for one in chosen) else []
    return (
        f"{', '.join(ways)}; and as it comes, with its own bandwidths, told pooling factors or not; its default "
        f"proposers, {_TIMEOUT_S} s each"
    )


def _offload_text() -> str:
    """What it is asked with where tables do not fit, in words."""
    factors = dict.fromkeys(f"{one.load_factor:g}" for one in OFFLOAD_SETTINGS)
    ways = dict.fromkeys(one.only or "every sharding type" for one in OFFLOAD_SETTINGS)
    return (
        f"with caches and UVM, load factors {', '.join(factors)}, {' or '.join(ways)}, replicas allowed; its scale-up "
        f"or all its proposers, {_TIMEOUT_S} s each"
    )
