"""Sentences about an answer: machine and batch, step time, advice, baselines, and the placement in use.

Terminal, Markdown and page share these sentences and those of ``table_facts``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from statistics import fmean

from evenshard.base.messages import count_text, printable, tables_text
from evenshard.base.units import ms_text, pct_text, size_text
from evenshard.placement.memory import USUAL_PIPELINE
from evenshard.placement.sharding import Communication
from evenshard.planner.answer import (
    BY_RATING,
    DEFAULT_PLAN,
    Baseline,
    DifferenceInterval,
    PlacementAnswer,
    model_lineage,
    slowest_device,
)
from evenshard.planner.baselines import (
    FULL_SPACE,
    FULL_SPACE_BASELINES,
    MOST_SHARDS,
    TORCHREC,
    allows_full_space,
    baseline_label,
)
from evenshard.planner.pricing import hardware_of_devices
from evenshard.planner.request import PlacementRequest, list_unit_warnings
from evenshard.price.evidence import device_text
from evenshard.price.hardware import measured_or_simulated
from evenshard.price.link import is_modelled
from evenshard.price.step import PredictedDevice
from evenshard.price.step_time import hides_inputs
from evenshard.report.table_facts import PlacedPart, placed_parts

# Smaller differences are rounding, per cent.
AS_FAST_PCT = 0.05
# Unit of all times of an answer: lookups and communication of the tables, without the dense part of a step.
EMBEDDING_WORK = "ms of embedding work per step"
# Share of the step from which a single part determines it.
DECIDES = 0.95
# Share of memory from which little choice is left.
TIGHT = 0.9
# If the average device takes this share of the step, a single part hardly determines the step.
UNEVEN = 0.9
# Distance from the lower bound below which nothing can be gained, per cent.
CLOSE_PCT = 2.0


def machine_text(request: PlacementRequest) -> str:
    """Return the nodes, the number of devices and their hardware as text."""
    machine = request.nodes
    groups = [(group.num_devices, group.hardware) for group in machine.groups]
    kinds = groups or [(machine.num_devices, request.hardware)]
    if machine.num_nodes == 1 or len(kinds) > 1:
        text = " + ".join(f"{count:,} x {printable(hardware)}" for count, hardware in kinds)
        return text if machine.num_nodes == 1 else f"{text} on {machine.num_nodes:,} nodes"
    return f"{machine.num_nodes:,} nodes x {machine.devices_per_node:,} {printable(kinds[0][1])}"


def link_text(answer: PlacementAnswer) -> str:
    """Return the links of the machine, and whether their times are modelled; empty if no link is known."""
    machine = answer.request.nodes
    intra = machine.intra or answer.link
    if not intra:
        return ""
    how = "modelled" if is_modelled(intra) else "measured"
    if machine.num_domains == 1:
        return f"link {printable(intra)} ({how})"
    tier = "node" if machine.nodes_per_domain == 1 else f"{machine.nodes_per_domain} nodes"
    within = f"in a node, {printable(machine.inter)} between nodes"
    if machine.nodes_per_domain > 1:
        within = f"within {tier}, {printable(machine.inter)} between them"
    return f"link {printable(intra)} {within} ({how})"


def setting_text(answer: PlacementAnswer) -> str:
    """List the settings that determine the times: machine, links, batch, pipeline, data types, optimizer, model."""
    request, model = answer.request, model_lineage(answer)
    links = (request.nodes.intra or answer.link, request.nodes.inter if request.nodes.num_domains > 1 else "")
    facts = (
        machine_text(request),
        " + ".join(printable(one) for one in links if one),
        f"batch {request.batch_size:,}",
        request.training_pipeline,
        _communication_text(request.communication),
        optimizer_text(request),
        f"model {printable(str(model.get('source')))}" if model.get("trained_on") else "",
    )
    return ", ".join(fact for fact in facts if fact)


def optimizer_text(request: PlacementRequest) -> str:
    """Return the optimizer of the tables as text; if there are several, with the number of tables of each."""
    counts = Counter(request.optimizer_of(table.name) for table in request.tables).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return " + ".join(f"{name} ({count_text(count, 'table')})" for name, count in counts)


def _communication_text(types: Communication) -> str:
    if types == Communication():
        return ""
    if types.forward == types.backward:
        return f"{types.forward} communication"
    return f"{types.forward} forward and {types.backward} backward communication"


def timing_word(answer: PlacementAnswer) -> str:
    """Return "measured" or "simulated" for times on the request's hardware."""
    return measured_or_simulated(answer.request.hardware)


def device_error_text(answer: PlacementAnswer) -> str:
    """Describe how accurate the models of a simulated device and its links are; empty without such models."""
    return device_text(", ".join(hardware_of_devices(answer.request)), answer.device_error, answer.link_error)


# The step -------------------------------------------------------------------------------------------------------------


def whole_step_headline(answer: PlacementAnswer) -> str:
    """Return the time of the whole step, its interval and its parts; empty if the step is unknown."""
    step = answer.step
    if step is None:
        return ""
    return (
        f"{ms_text(step.total_ms)} ms per step, predicted (90 %: {ms_text(step.low_ms)} to {ms_text(step.high_ms)} "
        f"ms): {ms_text(step.embeddings_ms)} embeddings, {ms_text(step.dense_ms)} dense, {ms_text(step.exposed_ms)} "
        f"communication exposed"
    )


def overlap_text(answer: PlacementAnswer) -> str:
    """Explain the parts of the whole step and their overlap; empty if the step is unknown."""
    step, request = answer.step, answer.request
    if step is None:
        return ""
    inputs = "overlaps the step before" if hides_inputs(request.training_pipeline) else "is part of the step"
    text = f"{request.training_pipeline or USUAL_PIPELINE}: the input dist {inputs}"
    if request.dense is None or request.dense_ms is not None:
        return (
            f"{text}. The dense part takes {ms_text(step.dense_ms)} ms, as given. The interval reaches from full "
            f"overlap of the dense part and embedding work to none."
        )
    return (
        f"{text}; DDP's all-reduces of gradients overlap the backward pass for {ms_text(step.hidden_ms)} ms. The "
        f"interval reaches from full overlap of these all-reduces to none. Dense layers: {len(request.dense.products)} "
        f"products, {request.dense.num_weights:,} weights, {request.dense.dtype}; the GPU is assumed not to wait for "
        f"the host."
    )


def step_headline(answer: PlacementAnswer) -> str:
    """Return the embedding time of a step, how it was determined, and its interval."""
    predicted = ms_text(answer.predicted_ms)
    interval = f"90 %: {ms_text(answer.low_ms)} to {ms_text(answer.high_ms)} ms"
    if answer.measured_ms is None:
        where = " outside the training range" if _outside_range(answer) else ""
        return f"{predicted} {EMBEDDING_WORK}, predicted{where} ({interval})"
    how = f"{timing_word(answer)} ({predicted} predicted, {interval})"
    return f"{ms_text(answer.measured_ms)} {EMBEDDING_WORK}, {how}"


def gap_text(answer: PlacementAnswer) -> str:
    """Describe the distance of the predicted step time from the lower bound of the same model."""
    if answer.gap_pct < AS_FAST_PCT:
        return "optimal under the model"
    return f"at most {pct_text(answer.gap_pct)} above the model's lower bound"


def bound_headline(answer: PlacementAnswer) -> str:
    """Return a sentence with the lower bound of the step time, without a full stop."""
    text = f"{gap_text(answer)}, {ms_text(answer.lower_bound_ms)} ms"
    if answer.gap_pct < AS_FAST_PCT:
        text = f"{gap_text(answer)}: the lower bound is {ms_text(answer.lower_bound_ms)} ms"
    return text[0].upper() + text[1:]


def shares_ms(device: PredictedDevice) -> tuple[float, float, float]:
    """Return the forward, communication and backward time of a device, ms; they add up to its total."""
    forward_ms, backward_ms = device.predicted_fwd_compute_ms, device.predicted_bwd_compute_ms
    return forward_ms, device.predicted_total_ms - (forward_ms + backward_ms), backward_ms


def warning_texts(answer: PlacementAnswer) -> list[str]:
    """Return the warnings on unlikely units, values outside the training range, and memory that is almost full."""
    outside = _outside_range(answer)
    texts = [f"{clause}." for clause in answer.warnings if clause not in outside]
    if outside:
        texts.append(
            "The request is outside the training range of the model, so its predicted times are guesses: "
            f"{'; '.join(outside)}."
        )
    return [*texts, *answer.memory_warnings]


def _outside_range(answer: PlacementAnswer) -> list[str]:
    units = list_unit_warnings(answer.request)
    return [clause for clause in answer.warnings if clause not in units]


def bound_text(answer: PlacementAnswer) -> str:
    """Explain the lower bound."""
    return (
        f"{ms_text(answer.lower_bound_ms)} ms. Under the model, no placement that the request allows is faster, with "
        f"any sharding. The bound counts memory and the latency of communication, and ignores pinning rules."
    )


def advice(answer: PlacementAnswer) -> list[str]:
    """Return advice for a faster step, if the answer shows any; one or two sentences each."""
    if answer.num_devices == 1:
        return []
    slowest, found = slowest_device(answer.devices), list[str]()
    mean_ms = fmean(device.predicted_total_ms for device in answer.devices)
    top = max((one for one in placed_parts(answer) if slowest in one.part.devices), key=lambda one: one.alone_ms)
    if top.alone_ms >= DECIDES * answer.predicted_ms and mean_ms < UNEVEN * answer.predicted_ms:
        found.append(_about_decisive(answer, top, mean_ms))
    elif answer.gap_pct <= CLOSE_PCT:
        gain = f"Under the model, other placements gain at most {pct_text(answer.gap_pct)}. "
        found.append(
            f"{gain if answer.gap_pct >= AS_FAST_PCT else ''}For a faster step, use more devices, or tables with fewer "
            f"dims or lookups."
        )
    limit, counted = (sum(getattr(one, what) for one in answer.memory) for what in ("limit_bytes", "most_bytes"))
    if answer.gap_pct > CLOSE_PCT and counted > TIGHT * limit:
        found.append(
            f"Tables take {pct_text(100 * counted / limit)} of the memory of all devices, so few placements fit. More "
            f"memory or devices may help."
        )
    idle = [device for device, held in enumerate(answer.parts_on_device) if not held]
    if idle:
        found.append(f"{f'Device {idle[0]} has' if len(idle) == 1 else f'{len(idle)} devices have'} no table.")
    return found


def _about_decisive(answer: PlacementAnswer, top: PlacedPart, mean_ms: float) -> str:
    head = (
        f"Table {top.table.name} limits the step: it alone takes at least {ms_text(top.alone_ms)} ms on its device; "
        f"the average device takes {ms_text(mean_ms)} ms for all its tables."
    )
    if any(top.part.table in group for group in answer.request.rules.together):
        return f"{head} A rule keeps it together with other tables, so it cannot be sharded."
    if answer.request.is_whole:
        return f"{head} Other sharding types may help (omit --sharding-types)."
    return f"{head} The search found no faster sharding of it."


# Other placements -----------------------------------------------------------------------------------------------------


def best_baseline(answer: PlacementAnswer) -> Baseline | None:
    """Return the fastest baseline that has a placement and breaks no rule; measured times take precedence."""

    def rank(baseline: Baseline) -> tuple[float, bool, bool]:
        return _baseline_ms(baseline), baseline.sharder == "random", baseline.chosen in (DEFAULT_PLAN, BY_RATING)

    return min(_legal_baselines(answer), key=rank, default=None)


def _legal_baselines(answer: PlacementAnswer) -> list[Baseline]:
    return [baseline for baseline in answer.comparison if baseline.predicted_ms is not None and not baseline.note]


def baseline_difference(answer: PlacementAnswer, baseline: Baseline) -> str:
    """Compare a baseline's time with the answer's, both measured or both predicted; empty without a placement."""
    if baseline.predicted_ms is None:
        return ""
    if answer.measured_ms is not None and baseline.measured_ms is not None:
        return difference_text(_pct(baseline.measured_ms, answer.measured_ms))
    return difference_text(_pct(baseline.predicted_ms, answer.predicted_ms))


def _baseline_ms(baseline: Baseline) -> float:
    time_ms = baseline.predicted_ms if baseline.measured_ms is None else baseline.measured_ms
    return math.inf if time_ms is None else time_ms


def _pct(time_ms: float, reference_ms: float) -> float:
    return (time_ms / reference_ms - 1) * 100 if reference_ms and math.isfinite(reference_ms) else 0.0


def baseline_text(answer: PlacementAnswer) -> str | None:
    """Compare the answer with the best baseline; None without baselines.

    The difference is omitted if only the answer may cut tables.
    """
    baseline = best_baseline(answer)
    if baseline is None or answer.num_devices == 1:
        return None
    count = len(_legal_baselines(answer))
    name = f"{baseline_label(baseline)}{whole_tables_text(answer, baseline)}"
    who = f"Best of {count} baselines ({name})" if count > 1 else name
    text = f"{who}: {ms_text(_baseline_ms(baseline))} ms"
    if not answer.request.is_whole and all(one.sharder not in FULL_SPACE_BASELINES for one in answer.comparison):
        return text
    return f"{text}, {baseline_difference(answer, baseline)}"


def asked_texts(answer: PlacementAnswer) -> Iterator[str]:
    """Yield the time and the setting of each baseline that has one: options of its planner, or a rule of thumb."""
    for one in answer.comparison:
        if one.setting:
            time = "" if one.predicted_ms is None else f"{ms_text(one.predicted_ms)} ms, "
            yield f"{baseline_label(one)}: {time}{one.setting}"


def worth_texts(answer: PlacementAnswer) -> Iterator[str]:
    """Compare the answer with TorchRec's default plan and with the placement in use, if there are any.

    Each line has the interval of the difference, in which errors common to both cancel.
    """
    plain = [one for one in answer.comparison if one.saves is not None and one.chosen in ("", DEFAULT_PLAN)]
    if plain:
        baseline = max(plain, key=lambda one: one.chosen)
        yield f"TorchRec's default plan: {_saved_text(answer, baseline.predicted_ms or 0.0, baseline.saves)}"
    near = answer.nearness
    if near is not None and near.stay_saves is not None:
        in_use = "The placement in use" if not near.stay_bytes else "The fewest moves from the placement in use"
        yield f"{in_use}: {_saved_text(answer, near.stay_ms, near.stay_saves)}"


def _saved_text(answer: PlacementAnswer, other_ms: float, saves: DifferenceInterval | None) -> str:
    if saves is None or saves.low_ms == saves.high_ms:
        return f"{ms_text(other_ms)} ms, {difference_text(_pct(other_ms, answer.predicted_ms))}"
    low_pct, high_pct = (100 * one / answer.predicted_ms for one in (saves.low_ms, saves.high_ms))
    share = difference_text(100 * saves.ms / answer.predicted_ms)
    return f"{ms_text(other_ms)} ms, {share} (90 %: {ends_text(low_pct, high_pct, 'faster', 'slower')})"


def ends_text(low_pct: float, high_pct: float, below: str, above: str) -> str:
    """Return an interval as text: "2 % to 5 %"; or, if it includes 0, such as "2 % slower to 3 % faster"."""
    if low_pct < 0 < high_pct:
        return f"{pct_text(-low_pct)} {below} to {pct_text(high_pct)} {above}"
    return " to ".join(pct_text(one) for one in sorted((abs(low_pct), abs(high_pct))))


def whole_tables_text(answer: PlacementAnswer, baseline: Baseline) -> str:
    """Return a suffix for a baseline's name if it keeps tables whole but the answer may shard them."""
    return ", whole tables" if not answer.request.is_whole and baseline.sharder not in FULL_SPACE_BASELINES else ""


def not_compared_text(answer: PlacementAnswer, reason: str = "") -> str | None:
    """Return a sentence if TorchRec's planner was not compared, or only for whole tables; None if it was.

    Args:
        reason: why it is missing; empty if it was not requested.
    """
    who = "TorchRec's planner"
    if not answer.request.is_whole and all(baseline.sharder != FULL_SPACE for baseline in answer.comparison):
        if any(baseline.sharder in TORCHREC for baseline in answer.comparison):
            who += " with all sharding types"
        if not allows_full_space(answer.request):
            reason = f"it takes minutes if tables times devices exceed {MOST_SHARDS:,}"
        reason = reason or "add --report"
    return f"{who} was not compared: {reason.rstrip('.')}." if reason and answer.num_devices > 1 else None


def difference_text(difference_pct: float) -> str:
    """Describe a difference of step times in words."""
    if abs(difference_pct) < AS_FAST_PCT:
        return "as fast"
    return f"{pct_text(abs(difference_pct))} {'slower' if difference_pct > 0 else 'faster'}"


def near_texts(answer: PlacementAnswer) -> Iterator[str]:
    """Yield texts on moves from the placement in use, and step times with the fewest and with unlimited moves."""
    near = answer.nearness
    if near is None:
        return
    most = "" if near.max_move_bytes is None else f" (limit {_size(near.max_move_bytes)})"
    if near.moved_bytes:
        yield f"{_size(near.moved_bytes)} move{most} from {printable(near.source)}: {tables_text(near.moved_tables)}"
    else:
        yield f"nothing moves{most} from {printable(near.source)}"
    if near.new_tables:
        yield f"new tables, which move nothing: {tables_text(near.new_tables)}"
    if near.gone_tables:
        yield f"removed tables: {tables_text(near.gone_tables)}"
    stay = "without moves" if not near.stay_bytes else f"with the fewest bytes moved ({_size(near.stay_bytes)})"
    yield (
        f"{ms_text(near.stay_ms)} ms {stay}, {ms_text(answer.predicted_ms)} ms with this placement, "
        f"{ms_text(near.free_ms)} ms without a limit ({_size(near.free_bytes)} moved)"
    )


def _size(num_bytes: int) -> str:
    return size_text(num_bytes) if num_bytes else "0 GB"
