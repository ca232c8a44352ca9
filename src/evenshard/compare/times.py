"""The step times of two answers: one model predicts both on the new request, or the answers' own figures are used.

A cost model's error of a step is mostly its error of the slowest device. Where that does the same work in both
placements, the error is the same, and goes out of the difference; of other work it is another error.
benchmarks/savings_202611.md measures how far that goes: with the correlation here, nine in ten true savings lie in
their 90 % intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from evenshard.measure.evidence import DeviceError, device_text
from evenshard.measure.price.step import step_shares_ms
from evenshard.placement.plan import check_sharding
from evenshard.planner.answer import PlacementAnswer, model_lineage, slowest_device
from evenshard.planner.pricing import Priced, link_error, part_costs, priced
from evenshard.planner.rules import Rules
from evenshard.sharders.model import Model
from evenshard.sharders.search.bounds import lower_bound_ms
from evenshard.sharders.search.space import SearchSpace
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.messages import counted
from evenshard.utils.process import one_thread

OWN_FIGURES = "the files' own figures"
# Correlation of the errors of two placements whose slowest devices do the same work.
MOST_ALIKE = 0.8


@dataclass(frozen=True)
class StepTimes:
    """Predicted times of a step, ms.

    Attributes:
        predicted_by: the model that predicted both, or ``OWN_FIGURES``.
        old_ms, new_ms: time of the step.
        saves_ms: the difference; below 0 where the new placement is slower.
        saves_low_ms, saves_high_ms: 90 % interval of it, the error of a simulated device included.
        lower_bound_ms: no placement that the new answer's request allows is predicted to cost less.
    """

    predicted_by: str
    old_ms: float
    new_ms: float
    saves_ms: float
    saves_low_ms: float
    saves_high_ms: float
    lower_bound_ms: float


@one_thread()
def step_times(old: PlacementAnswer, new: PlacementAnswer, model: Model | None) -> tuple[StepTimes, tuple[str, ...]]:
    """The times, and what to know about them.

    Args:
        model: judges both, which must be of the same tables; None: their own figures.
    """
    if model is None:
        unlike = tuple(_unlike(old, new))
        is_same = old.parts == new.parts and _ends(old) == _ends(new)
        shared = 0.0 if unlike else shared_work(old, new, _looked_up_alike(old, new))
        errors = new.device_error, new.link_error
        ends = _End(old, old.request.training_pipeline), _End(new, new.request.training_pipeline)
        times = _times(OWN_FIGURES, *ends, shared, new.lower_bound_ms, errors, is_same)
        return times, (*unlike, *_of_device(device_text(new.request.hardware, *errors)))
    costs = part_costs(new.request, model)
    same_machine = old.request.nodes == new.request.nodes
    # Memory, rules and links of the new machine say nothing about the old one.
    of_old = replace(new.request, caps_bytes=old.request.caps_bytes, machine=old.request.machine, rules=Rules())
    costs_of_old = costs if same_machine else part_costs(of_old, model)
    before, _ = priced(of_old, model, costs_of_old, costs_of_old.predict(old.parts))
    after, _ = priced(new.request, model, costs, costs.predict(new.parts))
    bound_ms = min(lower_bound_ms(SearchSpace(costs)), after.predicted_ms)
    notes = [f"{one}; both are judged by the new one" for one in _other_loads(old, new)]
    if same_machine:
        try:
            check_sharding(costs.task, old.parts)
        except InfeasibleTask as error:
            notes.append(f"the old placement is not legal any more: {error}")
    errors = model.device_error, link_error(new.request, model)
    is_same = same_machine and set(old.parts) == set(new.parts)
    shared = shared_work(before, after, [table.name for table in new.request.tables])
    ends = _End(before, costs.pipeline), _End(after, costs.pipeline)
    times = _times(model.source, *ends, shared, bound_ms, errors, is_same)
    return times, (*notes, *_of_device(device_text(model.hardware, *errors)))


class _End(NamedTuple):
    """A placement with its prices, and the training pipeline that makes them a step."""

    priced: Priced
    pipeline: str

    @property
    def shares_ms(self) -> tuple[float, float]:
        """What kernels and exchanges take of the step."""
        return step_shares_ms(self.priced.devices, self.pipeline)


def _ends(one: Priced) -> tuple[float, float, float]:
    return one.predicted_ms, one.model_low_ms, one.model_high_ms


def _looked_up_alike(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    """Names of the tables that are the same in both requests."""
    before = {table.name: table for table in old.request.tables}
    return [table.name for table in new.request.tables if before.get(table.name) == table]


def _times(
    predicted_by: str,
    old: _End,
    new: _End,
    shared: float,
    bound_ms: float,
    errors: tuple[DeviceError | None, DeviceError | None],
    is_same: bool,
) -> StepTimes:
    """The times, with an interval of their difference.

    The more of their work the two slowest devices share, the more alike the model errs in both. A simulated device is
    as fast or slow for both, and so is a link: their errors scale what kernels and what exchanges save.

    Args:
        errors: of the device and of its links, as ``error_factors`` takes them.
    """
    before, after = old.priced, new.priced
    saves = 0.0 if is_same else before.predicted_ms - after.predicted_ms
    below = above = 0.0
    if not is_same:
        alike = error_correlation(shared)
        (old_ms, old_low_ms, old_high_ms), (new_ms, new_low_ms, new_high_ms) = _ends(before), _ends(after)
        below = difference_error(old_ms - old_low_ms, new_high_ms - new_ms, alike)
        above = difference_error(old_high_ms - old_ms, new_ms - new_low_ms, alike)
    kernels, links = errors
    saved = [(saves, kernels)]
    if links is not None and not is_same:
        old_parts, new_parts = old.shares_ms, new.shares_ms
        saved = [(old_parts[0] - new_parts[0], kernels), (old_parts[1] - new_parts[1], links)]
    for saves_ms, error in saved:
        if error is not None:
            larger, smaller = error.factor - 1, 1 - 1 / error.factor
            below = math.hypot(below, abs(saves_ms) * (smaller if saves_ms > 0 else larger))
            above = math.hypot(above, abs(saves_ms) * (larger if saves_ms > 0 else smaller))
    return StepTimes(
        predicted_by, before.predicted_ms, after.predicted_ms, saves, saves - below, saves + above, bound_ms
    )


def _of_device(device: str) -> Iterator[str]:
    """How sure the two times are. A simulated device is as fast or slow for both: the difference in per cent stands."""
    if device:
        yield f"{device}, for both placements alike"


def _other_loads(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    """What the two requests say differently about the work, in clauses."""
    found = []
    if old.request.batch_size != new.request.batch_size:
        found.append(f"the batch was {old.request.batch_size:,} samples and is {new.request.batch_size:,}")
    before = {table.name: (table.pooling_factor, table.reuse_bins) for table in old.request.tables}
    now = {table.name: (table.pooling_factor, table.reuse_bins) for table in new.request.tables}
    count = sum(before[name] != now[name] for name in before.keys() & now.keys())
    if count:
        found.append(f"{counted(count, 'table')} changed pooling factors or histograms")
    return found


def _unlike(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    """Why the answers' own figures say little beside each other."""
    found = [f"{one}; each file's figure is for its own" for one in _other_loads(old, new)]
    digests = [model_lineage(one).get("sha256") for one in (old, new)]
    if digests[0] is None or digests[0] != digests[1]:
        found.append("the files' figures are of different models")
    return found


def shared_work(old: Priced, new: Priced, tables: Collection[str]) -> float:
    """The part of the slowest devices' work that both placements' do: 0 for none of it, 1 for all.

    Args:
        tables: names of the tables that are looked up alike in both; others have nothing in common.
    """
    one, other = _work(old), _work(new)
    both_ms = sum(min(one[name], other[name]) for name in tables)
    all_ms = math.sqrt(sum(one.values()) * sum(other.values()))
    return both_ms / all_ms if all_ms > 0 else 0.0


def error_correlation(shared: float) -> float:
    """The correlation of a cost model's errors of two placements that have so much of their work in common."""
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
