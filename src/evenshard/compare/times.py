"""The step times of two answers: one model predicts both on the new request, or the answers' own figures are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from evenshard.measure.evidence import DeviceError, device_text
from evenshard.placement.plan import check_sharding
from evenshard.planner.answer import PlacementAnswer, Saving, model_lineage
from evenshard.planner.pricing import Priced, link_error, part_costs, price_parts
from evenshard.planner.rules import Rules
from evenshard.planner.saving import saving, shared_work
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.model import Model
from evenshard.sharders.search.space import SearchSpace
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.messages import count_text
from evenshard.utils.process import one_thread

OWN_FIGURES = "the files' own figures"


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
        pipelines = old.request.training_pipeline, new.request.training_pipeline
        times = _times(OWN_FIGURES, old, new, pipelines, shared, errors, new.lower_bound_ms, is_same)
        return times, (*unlike, *_of_device(device_text(new.request.hardware, *errors)))
    costs = part_costs(new.request, model)
    same_machine = old.request.nodes == new.request.nodes
    # Memory, rules and links of the new machine say nothing about the old one.
    of_old = replace(new.request, caps_bytes=old.request.caps_bytes, machine=old.request.machine, rules=Rules())
    costs_of_old = costs if same_machine else part_costs(of_old, model)
    before, _ = price_parts(of_old, model, costs_of_old, costs_of_old.predict(old.parts))
    after, _ = price_parts(new.request, model, costs, costs.predict(new.parts))
    bound_ms = min(lower_bound_ms(SearchSpace(costs), after.predicted_ms), after.predicted_ms)
    notes = [f"{one}; both are judged by the new one" for one in _other_loads(old, new)]
    if same_machine:
        try:
            check_sharding(costs.task, old.parts)
        except InfeasibleTask as error:
            notes.append(f"the old placement is not legal any more: {error}")
    errors = model.device_error, link_error(new.request, model)
    is_same = same_machine and set(old.parts) == set(new.parts)
    shared = shared_work(before, after, [table.name for table in new.request.tables])
    times = _times(model.source, before, after, (costs.pipeline,) * 2, shared, errors, bound_ms, is_same)
    return times, (*notes, *_of_device(device_text(model.hardware, *errors)))


def _ends(one: Priced) -> tuple[float, float, float]:
    return one.predicted_ms, one.model_low_ms, one.model_high_ms


def _looked_up_alike(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    before = {table.name: table for table in old.request.tables}
    return [table.name for table in new.request.tables if before.get(table.name) == table]


def _times(
    predicted_by: str,
    old: Priced,
    new: Priced,
    pipelines: tuple[str, str],
    shared: float,
    errors: tuple[DeviceError | None, DeviceError | None],
    bound_ms: float,
    is_same: bool,
) -> StepTimes:
    found = Saving(0.0, 0.0, 0.0) if is_same else saving(old, new, pipelines, shared, errors)
    ends = found.ms, found.low_ms, found.high_ms
    return StepTimes(predicted_by, old.predicted_ms, new.predicted_ms, *ends, bound_ms)


def _of_device(device: str) -> Iterator[str]:
    """How sure the two times are. A simulated device is as fast or slow for both: the difference in per cent stands."""
    if device:
        yield f"{device}, for both placements alike"


def _other_loads(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    found = []
    if old.request.batch_size != new.request.batch_size:
        found.append(f"the batch was {old.request.batch_size:,} samples and is {new.request.batch_size:,}")
    before = {table.name: (table.pooling_factor, table.reuse_bins) for table in old.request.tables}
    now = {table.name: (table.pooling_factor, table.reuse_bins) for table in new.request.tables}
    count = sum(before[name] != now[name] for name in before.keys() & now.keys())
    if count:
        found.append(f"{count_text(count, 'table')} changed pooling factors or histograms")
    return found


def _unlike(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    found = [f"{one}; each file's figure is for its own" for one in _other_loads(old, new)]
    digests = [model_lineage(one).get("sha256") for one in (old, new)]
    if digests[0] is None or digests[0] != digests[1]:
        found.append("the files' figures are of different models")
    return found
