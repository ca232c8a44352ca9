"""Baselines: placements by other sharders, to compare an answer with.

Most baselines place whole tables. If the request allows other sharding types, one of them (``RULE``) also replicates
small tables and cuts the costliest. ``torchrec.baseline`` runs TorchRec's planner. A note marks a baseline that
violates a placement rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import brief
from evenshard.base.providers import load_provider
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import list_broken_rules, parts_by_table
from evenshard.placement.task import TASK_ID
from evenshard.planner.answer import Baseline, DifferenceInterval
from evenshard.planner.pricing import PartsMeasurer
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import AUTO
from evenshard.price.step import PartCosts
from evenshard.search.greedy import GreedyStarts
from evenshard.search.placer import GreedyPlacer
from evenshard.search.sharding_option import choices_from
from evenshard.search.space import SearchSpace, parts_of
from evenshard.sharders.catalog import SHARDERS, Resources, label_of, sharder

# The best heuristic over all sharding types: small tables are replicated, the costliest cut, the rest spread.
RULE = "best_rule_of_thumb"
BASELINES = (*(one.name for one in SHARDERS if not one.needs), RULE)
# TorchRec's planner with all allowed sharding types; left out if all tables must stay whole.
FULL_SPACE = next(one.name for one in SHARDERS if one.is_full_space)
# Baselines that cut and replicate tables.
FULL_SPACE_BASELINES = (FULL_SPACE, RULE)
TORCHREC = tuple(one.name for one in SHARDERS if one.package == "torchrec" and not one.is_full_space)
# Most tables times devices for these baselines: TorchRec takes seconds for 26 x 16 and minutes for 400 x 8.
MOST_SHARDS = 2_000
# A baseline without times, and its placement; None if it found none.
Candidate = tuple[Baseline, tuple[TablePart, ...] | None]


def place_baselines(request: PlacementRequest, costs: PartCosts, names: Sequence[str]) -> list[Candidate]:
    """Return the placements of baselines in the order of ``names``, without baselines that do not apply.

    Raises:
        BadConfig: if a name is unknown, or TorchRec is requested but not installed.
    """
    unknown = next((name for name in names if name not in BASELINES), None)
    if unknown is not None:
        raise BadConfig(f"there is no baseline {brief(unknown)}. Choose from {', '.join(BASELINES)}.")
    found: list[Candidate] = []
    for name in names:
        if name in FULL_SPACE_BASELINES and not allows_full_space(request):
            continue
        try:
            if name == FULL_SPACE:
                found += load_provider("torchrec_candidates")(request, costs)
            elif name == RULE:
                found.append(place_by_heuristic(costs))
            else:
                resources = Resources(hardware=request.hardware, link=request.nodes.intra or AUTO)
                placement = sharder(name, resources).place(request.task().as_whole)
                found.append((Baseline(name, None), placement.parts(request.tables)))
        except InfeasibleTask as error:
            found.append((Baseline(name, None, None, str(error).removeprefix(f"{TASK_ID}: ")), None))
    return found


def baseline_label(baseline: Baseline) -> str:
    """Return a baseline's display name, including which of its sharder's plans was chosen."""
    return f"{label_of(baseline.sharder)}, {baseline.chosen}" if baseline.chosen else label_of(baseline.sharder)


def predict_baselines(
    found: Sequence[Candidate],
    costs: PartCosts,
    measure: PartsMeasurer | None = None,
    saves: Callable[[Sequence[TablePart]], DifferenceInterval] | None = None,
) -> tuple[Baseline, ...]:
    """Predict the step times of baselines; ``saves`` returns the time that the answer saves over TorchRec's plans."""
    return tuple(
        baseline
        if parts is None
        else replace(
            baseline,
            predicted_ms=costs.predict(parts).predicted_ms,
            measured_ms=None if measure is None else measure(costs.task, [parts])[0].step_ms(costs.pipeline),
            note=find_violation(costs, parts),
            saves=saves(parts) if saves is not None and baseline.sharder in (*TORCHREC, FULL_SPACE) else None,
        )
        for baseline, parts in found
    )


def allows_full_space(request: PlacementRequest) -> bool:
    """Return True if the request is small enough, and allows baselines to cut or replicate tables."""
    return not request.is_whole and len(request.tables) * request.num_devices <= MOST_SHARDS


def place_by_heuristic(costs: PartCosts) -> Candidate:
    """Return the best placement of the search's heuristics, before annealing; raise InfeasibleTask if none fits."""
    space = SearchSpace(costs)
    starts = GreedyStarts(GreedyPlacer(space))
    best = next((found for found in starts.make_rules() if not found.overflow), None)
    if best is None:
        raise InfeasibleTask("no heuristic found a placement that fits")
    choices = choices_from(space.table, best.start.option_G, best.place_GS)
    return Baseline(RULE, None, setting=best.start.rule), parts_of(space, choices)


def find_violation(costs: PartCosts, parts: Sequence[TablePart]) -> str:
    """Return a clause that names the placement rule that is violated; empty if none is."""
    return next(list_broken_rules(costs.task, parts_by_table(costs.task, parts)), "")
