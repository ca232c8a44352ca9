"""Other placements beside an answer: an earlier one that it is near to, and rivals; and what the answer saves.

Rules of thumb place whole tables; where the request allows more, the best of those that replicate small tables and cut
the costliest ones is a rival, too. TorchRec's planner stands in ``torchrec.baseline``. A rival that knows nothing of a
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import brief
from evenshard.base.providers import provided
from evenshard.placement.memory import SGD
from evenshard.placement.moves import EarlierPlacement, SharedPiece, larger_machine, same_shape, shared_pieces
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import broken_rule, parts_by_table
from evenshard.placement.task import TASK_ID
from evenshard.planner.answer import (
    Nearness,
    PlacementAnswer,
    PricedParts,
    Rival,
    Saving,
    slowest_device,
)
from evenshard.planner.pricing import PartsMeasurer, link_error, price_parts
from evenshard.planner.request import PlacementRequest, kept_optimizers
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import AUTO
from evenshard.price.step import PartCosts, step_shares_ms
from evenshard.search.greedy import GreedyStarts
from evenshard.search.placer import GreedyPlacer
from evenshard.search.sharding_option import choices_from
from evenshard.search.space import SearchSpace, parts_of
from evenshard.sharders.catalog import SHARDERS, Resources, label_of, sharder
from evenshard.sharders.model import Model
from evenshard.tables.table import Table

if TYPE_CHECKING:  # it needs SciPy
    from evenshard.search.near_placement import NearResult


@dataclass(frozen=True)
class Near:
    """An earlier answer, and the bytes that may move from it."""

    old: PlacementAnswer
    source: str  # its file
    max_move_bytes: int | None = None  # None for no bound

    @property
    def most_bytes(self) -> float:
        """Bytes that may move; infinite without a bound."""
        return float("inf") if self.max_move_bytes is None else self.max_move_bytes

    def earlier(self, request: PlacementRequest) -> EarlierPlacement:
        """The part of the old answer that a request can use."""
        of_old = {table.name: table for table in self.old.request.tables}
        usable = {
            table.name: self.old.parts_of_table[table.name]
            for table in request.tables
            if table.name in of_old and same_shape(of_old[table.name], table)
        }
        return EarlierPlacement(usable, self.old.request.nodes, kept_optimizers(self.old.request, request))


def pieces_of_both(
    old: PlacementAnswer, new: PlacementAnswer, tables: Sequence[Table], optimizer_of: Mapping[str, str]
) -> Iterator[SharedPiece]:
    """The pieces of tables that neither answer cuts, table after table by columns, then rows.

    Args:
        tables: tables of both answers, of the same shape in both.
        optimizer_of: the optimizer whose state moves with a table's weights; none moves with a table that it lacks.
    """
    machine = larger_machine(old.request.nodes, new.request.nodes)
    for table in tables:
        before, after = old.parts_of_table[table.name], new.parts_of_table[table.name]
        yield from shared_pieces(table, before, after, machine, optimizer_of.get(table.name, SGD))


def with_nearness(
    answer: PlacementAnswer, near: Near, found: NearResult, free_ms: float, stay_saves: Saving
) -> PlacementAnswer:
    """The answer with what it moves."""
    before = {table.name: table for table in near.old.request.tables}
    now = {table.name: table for table in answer.request.tables}
    usable = [table for name, table in now.items() if name in before and same_shape(before[name], table)]
    pieces = pieces_of_both(near.old, answer, usable, kept_optimizers(near.old.request, answer.request))
    moved = [piece for piece in pieces if piece.moved_bytes]
    return replace(
        answer,
        nearness=Nearness(
            source=near.source,
            max_move_bytes=near.max_move_bytes,
            moved_bytes=sum(piece.moved_bytes for piece in moved),
            moved_tables=tuple(dict.fromkeys(piece.table for piece in moved)),
            new_tables=(
                *(name for name in now if name not in before),
                *(name for name in now if name in before and not same_shape(before[name], now[name])),
            ),
            gone_tables=tuple(name for name in before if name not in now),
            stay_ms=found.stay.predicted_ms,
            stay_bytes=found.stay_bytes,
            free_ms=min(free_ms, answer.predicted_ms),  # what is near is free, too
            free_bytes=found.free_bytes,
            stay_saves=stay_saves,
        ),
    )


# Correlation of a learned model's errors of two placements whose slowest devices do the same work.
MOST_ALIKE = 0.8
# The part of the variance of an error of a device, and of its links, that two placements which share no work do not
# share; and the part of a device's that no two placements share.
KERNELS_UNLIKE, EXCHANGES_UNLIKE = 0.2, 0.08
KERNELS_OWN = 0.02


def saving(
    old: PricedParts,
    new: PricedParts,
    pipelines: tuple[str, str],
    shared: float,
    errors: tuple[DeviceError | None, DeviceError | None],
) -> Saving:
    """Return the time that the new placement saves, with its interval.

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
    request: PlacementRequest, model: Model, costs: PartCosts, new: PricedParts
) -> Callable[[Sequence[TablePart]], Saving]:
    """Return a function that compares an answer with other parts for the same request, and returns the time saved."""
    errors, names = (model.device_error, link_error(request, model)), [table.name for table in request.tables]

    def saves(parts: Sequence[TablePart]) -> Saving:
        if set(parts) == set(new.parts):
            return Saving(0.0, 0.0, 0.0)
        old, _ = price_parts(request, model, costs, costs.predict(parts))
        return saving(old, new, (costs.pipeline,) * 2, shared_work(old, new, names), errors)

    return saves


def shared_work(old: PricedParts, new: PricedParts, tables: Collection[str]) -> float:
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


def _work(priced: PricedParts) -> defaultdict[str, float]:
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
    """Return a rival's name for readers, with the plan that was chosen among its sharder's."""
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
            note=rule_broken_by(costs, parts),
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
                yield from provided("torchrec_candidates")(request, costs)
            elif name == RULE:
                yield best_rule(costs)
            else:
                resources = Resources(hardware=request.hardware, link=request.nodes.intra or AUTO)
                found = sharder(name, resources).place(request.task().as_whole)
                yield Rival(name, None), found.parts(request.tables)
        except InfeasibleTask as error:
            yield Rival(name, None, None, str(error).removeprefix(f"{TASK_ID}: ")), None


def asked_full_space(request: PlacementRequest) -> bool:
    """True if TorchRec's planner and rules of thumb can be asked for more than whole tables."""
    return not request.is_whole and len(request.tables) * request.num_devices <= MOST_SHARDS


def best_rule(costs: PartCosts) -> Candidate:
    """The best of the search's rules of thumb, as they are.

    Raises:
        InfeasibleTask: if none finds room.
    """
    space = SearchSpace(costs)
    starts = GreedyStarts(GreedyPlacer(space))
    best = next((one for one in starts.rules() if not one.overflow), None)
    if best is None:
        raise InfeasibleTask("no rule of thumb found room for the tables")
    choices = choices_from(space.table, best.start.option_G, best.place_GS)
    return Rival(RULE, None, setting=best.start.rule), parts_of(space, choices)


def rule_broken_by(costs: PartCosts, parts: Sequence[TablePart]) -> str:
    """Return the rule of the task that a placement breaks, in a clause; empty if it breaks none."""
    return broken_rule(costs.task, parts_by_table(costs.task, parts)) or ""
