"""Rival placements of the same tables, compared by the same model, and the saving of one placement against another.

Rules of thumb place whole tables; where the request allows more, the best of those that replicate small tables and cut
the costliest ones is a rival, too. TorchRec's planner is asked for whole tables, in two orders, and for every sharding
type, with the settings of ``sharders.torchrec.planner``; with caches and UVM where nothing else fits. Its plan as it
comes, the one that it rates best itself and the best by the model are three rivals. A rival that knows nothing of a
rule may break it, and is then marked.

Two errors count in a saving. A learned model's error of a step is mostly its error of the slowest device. Where that
does the same work in both placements, the error is the same, and goes out of the difference; of other work it is
another error (benchmarks/measured_once_202611.md). A simulated device and its links err in their constants, which are
the same for all placements: that scales what kernels and what exchanges save. Work that is unlike adds an error of its
own, and so does what a device model lacks, as timed kernels of plans show (docs/decisions/0042-differences.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from evenshard.measure.config import MeasureConfig
from evenshard.measure.evidence import DeviceError
from evenshard.measure.hardware import AUTO
from evenshard.measure.price.step import PartCosts, step_shares_ms
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import broken_rule, parts_by_table
from evenshard.placement.task import TASK_ID
from evenshard.planner.answer import BY_MODEL, BY_RATING, PLAIN_PLAN, Rival, Saving, slowest_device
from evenshard.planner.pricing import PartsMeasurer, Priced, link_error, price_parts
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.catalog import SHARDERS, Resources, label_of, sharder
from evenshard.sharders.model import Model
from evenshard.sharders.search.construction import Construction, Works
from evenshard.sharders.search.rules_of_thumb import rules_of_thumb
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import parts_of
from evenshard.sharders.torchrec.planner import (
    AS_IT_COMES,
    OFFLOAD_SETTINGS,
    SETTINGS,
    machine_bandwidths,
    require_torchrec,
)
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief

# Correlation of a learned model's errors of two placements whose slowest devices do the same work.
MOST_ALIKE = 0.8
# The part of the variance of an error of a device, and of its links, that two placements which share no work do not
# share; and the part of a device's that no two placements share.
KERNELS_UNLIKE, EXCHANGES_UNLIKE = 0.2, 0.08
KERNELS_OWN = 0.02


def saving(
    old: Priced,
    new: Priced,
    pipelines: tuple[str, str],
    shared: float,
    errors: tuple[DeviceError | None, DeviceError | None],
) -> Saving:
    """What the new placement saves.

    Args:
        old, new: two placements of the same tables.
        pipelines: training pipelines that make their phases a step.
        shared: of the slowest devices' work, by ``shared_work``.
        errors: of the device and of its links; None of the first for real hardware, of the second where exchanges are
            off with the kernels.
    """
    saves = old.predicted_ms - new.predicted_ms
    alike = error_correlation(shared)
    below = difference_error(old.predicted_ms - old.model_low_ms, new.model_high_ms - new.predicted_ms, alike)
    above = difference_error(old.model_high_ms - old.predicted_ms, new.predicted_ms - new.model_low_ms, alike)
    kernels, links = errors
    kernels_unlike = KERNELS_UNLIKE * (1 - shared**2) + KERNELS_OWN
    shares = [(old.predicted_ms, new.predicted_ms, kernels, kernels_unlike)]
    if links is not None:
        pairs = zip(
            *(step_shares_ms(one.devices, of) for one, of in zip((old, new), pipelines, strict=True)), strict=True
        )
        unlike = ((kernels, kernels_unlike), (links, EXCHANGES_UNLIKE * (1 - shared**2)))
        shares = [(*pair, *of) for pair, of in zip(pairs, unlike, strict=True)]
    for old_ms, new_ms, error, unlike_share in shares:
        if error is not None:
            saves_ms, larger, smaller = old_ms - new_ms, error.factor - 1, 1 - 1 / error.factor
            own_ms = math.log(error.factor) * math.sqrt(unlike_share) * math.hypot(old_ms, new_ms)
            below = math.hypot(below, abs(saves_ms) * (smaller if saves_ms > 0 else larger), own_ms)
            above = math.hypot(above, abs(saves_ms) * (larger if saves_ms > 0 else smaller), own_ms)
    return Saving(saves, saves - below, saves + above)


def saving_against(
    request: PlacementRequest, model: Model, costs: PartCosts, new: Priced
) -> Callable[[Sequence[TablePart]], Saving]:
    """What an answer saves against another placement of its request: a function of the latter's parts."""
    errors, names = (model.device_error, link_error(request, model)), [table.name for table in request.tables]

    def saves(parts: Sequence[TablePart]) -> Saving:
        if set(parts) == set(new.parts):
            return Saving(0.0, 0.0, 0.0)
        old, _ = price_parts(request, model, costs, costs.predict(parts))
        return saving(old, new, (costs.pipeline,) * 2, shared_work(old, new, names), errors)

    return saves


def shared_work(old: Priced, new: Priced, tables: Collection[str]) -> float:
    """Return the share, 0 to 1, of the slowest devices' work that is the same, of tables looked up alike in both."""
    one, other = _work(old), _work(new)
    both_ms = sum(min(one[name], other[name]) for name in tables)
    all_ms = math.sqrt(sum(one.values()) * sum(other.values()))
    return min(both_ms / all_ms, 1.0) if all_ms > 0 else 0.0


def error_correlation(shared: float) -> float:
    """The correlation of a learned model's errors of two placements that have so much of their work in common."""
    return MOST_ALIKE * shared**2


def difference_error(one: float, other: float, correlation: float) -> float:
    """The error of a difference of two values from theirs, in any unit; 0 where both are the same."""
    return math.sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))


def _work(priced: Priced) -> defaultdict[str, float]:
    """The work of the slowest device, table by table: ms that its parts take alone."""
    slowest = slowest_device(priced.devices)
    work: defaultdict[str, float] = defaultdict(float)
    for part, ms in zip(priced.parts, priced.alone_ms, strict=True):
        if slowest in part.devices:
            work[part.table] += ms
    return work


# The best rule of thumb over all sharding types: small tables replicated, the costliest ones cut, the rest dealt out.
RULE = "best_rule_of_thumb"
RIVALS = (*(one.name for one in SHARDERS if not one.needs), RULE)
# TorchRec's planner where tables may be sharded in several ways; it is left out where whole tables are asked for.
FULL_SPACE = next(one.name for one in SHARDERS if one.is_full_space)
# Rivals that cut tables and replicate them.
CUTTING = (FULL_SPACE, RULE)
TORCHREC = tuple(one.name for one in SHARDERS if one.package == "torchrec" and not one.is_full_space)
# Tables times devices that these are asked for: TorchRec takes seconds for 26 x 16 and minutes for 400 x 8.
MOST_SHARDS = 2_000
# TorchRec's timeout for each setting: the best plan found by then counts. With its defaults it has no timeout.
_TIMEOUT_S = 5


# A rival without its times, and its placement; None where there is none.
Candidate = tuple[Rival, tuple[TablePart, ...] | None]


def rival_placements(request: PlacementRequest, costs: PartCosts, names: Sequence[str]) -> list[Candidate]:
    """Return each rival's placement, in the order of ``names``, without those of ``CUTTING`` that cannot be asked.

    Raises:
        BadConfig: if a name is unknown, or TorchRec is asked for and not installed.
    """
    unknown = next((name for name in names if name not in RIVALS), None)
    if unknown is not None:
        raise BadConfig(f"there is no sharder {brief(unknown)} to compare with. Choose from {', '.join(RIVALS)}.")
    return list(_candidates(request, costs, names))


def rival_label(rival: Rival) -> str:
    """What a reader would call a rival, and which of its sharder's plans it is."""
    return f"{label_of(rival.sharder)}, {rival.chosen}" if rival.chosen else label_of(rival.sharder)


def rivals(
    found: Sequence[Candidate],
    costs: PartCosts,
    measure: PartsMeasurer | None = None,
    saves: Callable[[Sequence[TablePart]], Saving] | None = None,
) -> tuple[Rival, ...]:
    """Return candidates with their times, and with the saving against TorchRec's where ``saves`` tells it."""
    return tuple(
        rival
        if parts is None
        else replace(
            rival,
            predicted_ms=costs.predict(parts).predicted_ms,
            measured_ms=None if measure is None else measure(costs.task, [parts])[0].step_ms(costs.pipeline),
            note=_rule_broken_by(costs, parts),
            saves=saves(parts) if saves is not None and rival.sharder in (*TORCHREC, FULL_SPACE) else None,
        )
        for rival, parts in found
    )


def _candidates(request: PlacementRequest, costs: PartCosts, names: Sequence[str]) -> Iterator[Candidate]:
    for name in names:
        if name in CUTTING and not asked_full_space(request):
            continue
        try:
            if name == FULL_SPACE:
                yield from _full_space(request, costs)
            elif name == RULE:
                yield best_rule(costs)
            else:
                measured = MeasureConfig(request.hardware, request.nodes.intra or AUTO)
                found = sharder(name, Resources(measure=measured)).place(request.task())
                yield Rival(name, None), found.parts(request.tables)
        except InfeasibleTask as error:
            yield Rival(name, None, None, str(error).removeprefix(f"{TASK_ID}: ")), None


def asked_full_space(request: PlacementRequest) -> bool:
    """Whether TorchRec's planner and rules of thumb can be asked for more than whole tables."""
    return not request.is_whole and len(request.tables) * request.num_devices <= MOST_SHARDS


def best_rule(costs: PartCosts) -> Candidate:
    """The best of the search's rules of thumb, as they are.

    Raises:
        InfeasibleTask: if none finds room.
    """
    space = SearchSpace(costs)
    rule = next(iter(rules_of_thumb(Construction(space, Works.of(space)))), None)
    if rule is None:
        raise InfeasibleTask("no rule of thumb found room for the tables")
    return Rival(RULE, None, setting=rule.name), parts_of(space, rule.choices)


def _full_space(request: PlacementRequest, costs: PartCosts) -> Iterator[Candidate]:
    """Return TorchRec's own plan, the one that it rates best, and the best by the model."""
    require_torchrec()
    from evenshard.sharders.torchrec.rival import TorchRecPlanner

    task = request.task()
    bandwidths = machine_bandwidths(request.hardware, request.nodes, costs.links)
    patient, planner = (TorchRecPlanner(task, bandwidths, timeout_s) for timeout_s in (None, _TIMEOUT_S))
    plans, num_settings = [*patient.plans(SETTINGS[:1]), *planner.plans(SETTINGS[1:])], len(SETTINGS)
    if not plans and task.may_offload:
        plans, num_settings = [*planner.plans(OFFLOAD_SETTINGS)], num_settings + len(OFFLOAD_SETTINGS)
    if not plans:
        raise InfeasibleTask(f"TorchRec's planner found no plan in any of {num_settings} settings")
    plain = next((one for one in plans if one.setting == AS_IT_COMES), None)
    if plain is None:
        note = "TorchRec's planner as it comes found no plan"
        yield Rival(FULL_SPACE, None, None, note, str(AS_IT_COMES), chosen=PLAIN_PLAN), None
    else:
        yield Rival(FULL_SPACE, None, setting=str(plain.setting), chosen=PLAIN_PLAN), plain.parts
    on_device = all(part.storage.is_on_device for plan in plans for part in plan.parts)
    rated = min(plans, key=lambda one: planner.rating_ms(one.parts) if on_device else one.rating_ms)
    yield Rival(FULL_SPACE, None, setting=str(rated.setting), chosen=BY_RATING), rated.parts
    best = min(plans, key=lambda one: (bool(_rule_broken_by(costs, one.parts)), costs.predict(one.parts).predicted_ms))
    setting = f"{best.setting}; best of {num_settings} settings"
    yield Rival(FULL_SPACE, None, setting=setting, chosen=BY_MODEL), best.parts


def _rule_broken_by(costs: PartCosts, parts: Sequence[TablePart]) -> str:
    return broken_rule(costs.task, parts_by_table(costs.task, parts)) or ""
