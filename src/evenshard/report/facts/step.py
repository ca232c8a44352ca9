"""The step of an answer: its times, the device that it waits for, what no placement can beat, what would help."""

from __future__ import annotations

from statistics import fmean

from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.answer import PlacementAnswer, model_lineage, slowest_device
from evenshard.planner.units_meant import unit_warnings
from evenshard.report.facts.placed import PlacedPart, placed_parts
from evenshard.report.facts.setting import timing_word
from evenshard.utils.units import ms_text, pct_text

# Differences below are rounding.
AS_FAST_PCT = 0.05


# Unit of all times of an answer: lookups and exchanges of the tables, without the dense rest of a step.
EMBEDDING_WORK = "ms of embedding work per step"


def step_headline(answer: PlacementAnswer) -> str:
    """How long the embedding work of a step takes, and what that is worth."""
    step_ms = answer.predicted_ms if answer.measured_ms is None else answer.measured_ms
    step = f"{ms_text(step_ms)} {EMBEDDING_WORK}"
    return step if answer.num_devices == 1 else f"{step}, {gap_text(answer)}"


def gap_text(answer: PlacementAnswer) -> str:
    """Describe how far above any other placement the step is; of a learned model, as a claim of that model alone."""
    by = " (by this model)" if is_learned(answer) else ""
    if answer.gap_pct < AS_FAST_PCT:
        return f"no placement takes less{by}"
    return f"at most {pct_text(answer.gap_pct)} above any placement{by}"


def is_learned(answer: PlacementAnswer) -> bool:
    """Return whether a model predicted the times that was trained on measured costs."""
    return bool(model_lineage(answer).get("trained_on"))


def warning_texts(answer: PlacementAnswer) -> list[str]:
    """Return the sentences that precede an answer: values in an unlikely unit, a request outside the training range."""
    outside = _outside_range(answer)
    texts = [f"{clause}." for clause in answer.warnings if clause not in outside]
    if outside:
        texts.append(
            "The request is outside the training range of the model, so its predicted times are guesses: "
            f"{'; '.join(outside)}."
        )
    return texts


def _outside_range(answer: PlacementAnswer) -> list[str]:
    units = unit_warnings(answer.request)
    return [clause for clause in answer.warnings if clause not in units]


def timed_text(answer: PlacementAnswer) -> str:
    """Describe the source of the step time, predicted or measured, and its interval."""
    interval = f"90 %: {ms_text(answer.low_ms)} to {ms_text(answer.high_ms)} ms"
    if answer.measured_ms is None:
        return f"Predicted{' outside the training range' if _outside_range(answer) else ''} ({interval})"
    return f"{timing_word(answer).capitalize()} ({ms_text(answer.predicted_ms)} predicted, {interval})"


def bound_text(answer: PlacementAnswer) -> str:
    """What the lower bound says, and what it leaves aside."""
    return (
        f"{ms_text(answer.lower_bound_ms)} ms: by the model, no placement that the request allows takes less, however "
        f"tables are cut. Memory and the latencies of exchanges count; rules of places are left aside."
    )


# A part that takes this share of the step on its own decides it.
DECIDES = 0.95
# Memory that is fuller leaves little choice.
TIGHT = 0.9
# A mean device that takes this share of the step leaves little for one part to decide.
UNEVEN = 0.9
# A placement this close to the lower bound leaves nothing to gain.
CLOSE_PCT = 2.0


def advice(answer: PlacementAnswer) -> list[str]:
    """What would make a step faster, as far as the answer tells; one sentence or two each."""
    if answer.num_devices == 1:
        return []
    slowest, found = slowest_device(answer.devices), list[str]()
    mean_ms = fmean(device.predicted_total_ms for device in answer.devices)
    top = max((one for one in placed_parts(answer) if slowest in one.part.devices), key=lambda one: one.alone_ms)
    if top.alone_ms >= DECIDES * answer.predicted_ms and mean_ms < UNEVEN * answer.predicted_ms:
        found.append(_about_decisive(answer, top, mean_ms))
    elif answer.gap_pct <= CLOSE_PCT:
        found.append(
            f"{'By this model, no' if is_learned(answer) else 'No'} other placement gains more than "
            f"{pct_text(max(answer.gap_pct, 0.0))}. A faster step takes more devices, or tables with fewer dims or "
            f"lookups."
        )
    room, counted = (sum(getattr(one, what) for one in answer.memory) for what in ("limit_bytes", "most_bytes"))
    if answer.gap_pct > CLOSE_PCT and counted > TIGHT * room:
        found.append(
            f"{pct_text(100 * counted / room)} of the memory of all devices is taken, which leaves little choice. More "
            f"memory or devices may help."
        )
    idle = [device for device, held in enumerate(answer.parts_on_device) if not held]
    if idle:
        found.append(f"{f'Device {idle[0]} holds' if len(idle) == 1 else f'{len(idle)} devices hold'} no table.")
    return found


def _about_decisive(answer: PlacementAnswer, top: PlacedPart, mean_ms: float) -> str:
    head = (
        f"{top.table.name} decides the step: the device that holds it takes {ms_text(top.alone_ms)} ms at least, "
        f"while the mean device takes {ms_text(mean_ms)} ms."
    )
    if any(top.part.table in group for group in answer.request.rules.together):
        return f"{head} A rule keeps it together with others, so it cannot be cut."
    if answer.request.is_whole:
        return f"{head} Other sharding types may help (leave --sharding-types out)."
    what = "Other ways to shard it were" if top.way == TABLE_WISE else "Cutting it further was"
    return f"{head} {what} found not to pay."
