"""The highlights of an answer: the slowest device, what decides it, the best rival, what would help.

The terminal summary and the page show the same things; both take them from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from evenshard.measure.evidence import device_text
from evenshard.measure.hardware import measured_or_simulated
from evenshard.measure.link import is_modelled
from evenshard.placement.parts import TablePart
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.rivals import FULL_SPACE, MOST_SHARDS, asked_full_space
from evenshard.sharders.catalog import label_of
from evenshard.tables.table import Table
from evenshard.utils.messages import printable
from evenshard.utils.units import ms_text, pct_text, size_text

MAX_NAMES = 3
AS_FAST_PCT = 0.05
"""Differences below are rounding."""
DECIDES = 0.95
"""A part that takes this share of the step on its own decides it."""
TIGHT = 0.9
"""Memory that is fuller leaves little choice."""
UNEVEN = 0.9
"""A mean device that takes this share of the step leaves little for one part to decide."""
CLOSE_PCT = 2.0
"""A placement this close to the lower bound leaves nothing to gain."""

STEP_PARTS = ("forward", "forward all-to-all", "backward all-to-all", "backward")
"""The four times of a device, in the order of a training step."""


@dataclass(frozen=True)
class PlacedPart:
    """A table, or some of its columns, where it lives.

    Attributes:
        part: the part and its device.
        table: the part as a table of its own.
        size_bytes: weights and optimizer state.
        alone_ms: no device that holds it is predicted to take less.
        adds_ms: time that its device would save without it.
        share: share of the device's time, 0 to 1.
    """

    part: TablePart
    table: Table
    size_bytes: int
    alone_ms: float
    adds_ms: float
    share: float

    @property
    def is_split(self) -> bool:
        """Whether it is some of the table's columns only."""
        return self.table.name != self.part.table


@dataclass(frozen=True)
class AssumedGroup:
    """The same assumption about several tables.

    Attributes:
        column: column of the tables, such as ``reuse_bins``.
        text: the assumed value, and why.
        tables: their names, in order.
    """

    column: str
    text: str
    tables: tuple[str, ...]


# What stands out ------------------------------------------------------------------------------------------------------


def slowest_device(answer: PlacementAnswer) -> int:
    """The device that a step waits for, by the model."""
    return max(range(answer.num_devices), key=lambda device: answer.devices[device].predicted_total_ms)


def placed_parts(answer: PlacementAnswer) -> tuple[PlacedPart, ...]:
    """All parts, in their order."""
    total_ms = [device.predicted_total_ms for device in answer.devices]
    columns = (answer.parts, answer.task.tables, answer.task.table_bytes, answer.alone_ms, answer.adds_ms)
    found = []
    for part, table, size_bytes, alone_ms, adds_ms in zip(*columns, strict=True):
        share = adds_ms / max(total_ms[part.device], 1e-12)
        found.append(PlacedPart(part, table, size_bytes, alone_ms, adds_ms, min(max(share, 0.0), 1.0)))
    return tuple(found)


def costliest(parts: Sequence[PlacedPart], count: int) -> list[PlacedPart]:
    """Those that add most to their device, most first."""
    return sorted(parts, key=lambda one: (-one.adds_ms, one.table.name))[:count]


def split_tables(answer: PlacementAnswer) -> dict[str, tuple[PlacedPart, ...]]:
    """The parts of each split table, from its first column to its last, by the table's name."""
    found: dict[str, tuple[PlacedPart, ...]] = {}
    for one in placed_parts(answer):
        if one.is_split:
            found[one.part.table] = (*found.get(one.part.table, ()), one)
    return found


def assumed_groups(answer: PlacementAnswer) -> tuple[AssumedGroup, ...]:
    """The assumptions, the same ones about several tables together."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in answer.request.assumptions:
        names.setdefault((one.column, one.text), []).append(one.table)
    return tuple(AssumedGroup(column, text, tuple(tables)) for (column, text), tables in names.items())


# Comparison -----------------------------------------------------------------------------------------------------------


def best_rival(answer: PlacementAnswer) -> Rival | None:
    """The fastest of those that found a placement and broke no rule; measured times count where there are any."""
    return min(legal_rivals(answer), key=lambda rival: (_rival_ms(rival), rival.sharder == "random"), default=None)


def legal_rivals(answer: PlacementAnswer) -> list[Rival]:
    """Those that found a placement and broke no rule."""
    return [rival for rival in answer.comparison if rival.predicted_ms is not None and not rival.note]


def rival_pct(answer: PlacementAnswer, rival: Rival) -> float | None:
    """How much slower than the answer a rival is, per cent; negative where it is faster, None without a placement.

    Measured against measured where both are, predicted against predicted otherwise.
    """
    if rival.predicted_ms is None:
        return None
    if answer.measured is not None and rival.measured_ms is not None:
        return _pct(rival.measured_ms, answer.measured.max_device_ms)
    return _pct(rival.predicted_ms, answer.predicted_ms)


def rival_difference(answer: PlacementAnswer, rival: Rival) -> str:
    """How much slower than the answer a rival is, in words; empty without a placement."""
    difference_pct = rival_pct(answer, rival)
    return "" if difference_pct is None else difference_text(difference_pct)


def _rival_ms(rival: Rival) -> float:
    time_ms = rival.predicted_ms if rival.measured_ms is None else rival.measured_ms
    return math.inf if time_ms is None else time_ms


def _pct(time_ms: float, reference_ms: float) -> float:
    return (time_ms / reference_ms - 1) * 100 if reference_ms and math.isfinite(reference_ms) else 0.0


# In words -------------------------------------------------------------------------------------------------------------


def setting_text(answer: PlacementAnswer) -> str:
    """What the times are of: hardware, link, batch, optimizer and what is left for tables."""
    request = answer.request
    model = "" if timing_word(answer) == "measured" else " (a device model, not a GPU)"
    how = "modelled" if is_modelled(answer.link) else "measured"
    link = f", link {printable(answer.link)} ({how})" if answer.link else ""
    reserved = f"{size_text(request.reserved_bytes)} of each device" if request.reserved_bytes else "no memory"
    return (
        f"{request.num_devices:,} x {printable(request.hardware)}{model}{link}, batch {request.batch_size:,}, "
        f"optimizer {request.optimizer}, {reserved} reserved"
    )


def timing_word(answer: PlacementAnswer) -> str:
    """Measured or simulated: what times on the request's hardware are, beside the predicted ones."""
    return measured_or_simulated(answer.request.hardware)


def device_error_text(answer: PlacementAnswer) -> str:
    """What stands behind the times of a simulated device; empty for real hardware."""
    return device_text(answer.request.hardware, answer.device_error)


def step_headline(answer: PlacementAnswer) -> str:
    """How long a step takes, and how good that is."""
    interval = f"90 %: {ms_text(answer.low_ms)} to {ms_text(answer.high_ms)}"
    if answer.measured is None:
        step = f"{ms_text(answer.predicted_ms)} ms per step predicted ({interval})"
    else:
        predicted = f"{ms_text(answer.predicted_ms)} predicted, {interval}"
        step = f"{ms_text(answer.measured.max_device_ms)} ms per step {timing_word(answer)} ({predicted})"
    return step if answer.num_devices == 1 else f"{step}, {gap_text(answer)}"


def rival_text(answer: PlacementAnswer) -> str | None:
    """How the answer compares with the best of the others; None where there is nothing to compare with.

    An answer that may split tables is not called faster by so much than others that may not.
    """
    rival = best_rival(answer)
    if rival is None or answer.num_devices == 1:
        return None
    count = len(legal_rivals(answer))
    who = f"The best of {count} others ({label_of(rival.sharder)})" if count > 1 else label_of(rival.sharder)
    text = f"{who}{whole_tables_text(answer, rival)}: {ms_text(_rival_ms(rival))} ms"
    return text if _no_rival_splits(answer) else f"{text}, {rival_difference(answer, rival)}"


def _no_rival_splits(answer: PlacementAnswer) -> bool:
    """Whether the answer might split tables by columns, and none of the others might."""
    return answer.request.allow_column_split and all(rival.sharder != FULL_SPACE for rival in answer.comparison)


def whole_tables_text(answer: PlacementAnswer, rival: Rival) -> str:
    """What to add to a rival's name where the answer might split tables and it might not."""
    return ", with whole tables" if answer.request.allow_column_split and rival.sharder != FULL_SPACE else ""


def not_compared_text(answer: PlacementAnswer, reason: str = "") -> str | None:
    """What to say where TorchRec's planner is missing among the others, or its column splits are.

    Args:
        reason: why it is missing; empty where it was not asked for.
    """
    who = "TorchRec's planner"
    if _no_rival_splits(answer):
        who += ", which shards tables in every way too,"
        if not asked_full_space(answer.request):
            reason = f"it takes minutes for more than {MOST_SHARDS:,} tables times devices"
        reason = reason or "add --report"
    return f"{who} was not compared: {reason.rstrip('.')}." if reason and answer.num_devices > 1 else None


def gap_text(answer: PlacementAnswer) -> str:
    """How far from the lower bound it is, in words."""
    if answer.gap_pct < AS_FAST_PCT:
        return "as good as possible by the model"
    return f"within {pct_text(answer.gap_pct)} of the best possible"


def difference_text(difference_pct: float) -> str:
    """A difference of step times in words."""
    if abs(difference_pct) < AS_FAST_PCT:
        return "as fast"
    return f"{pct_text(abs(difference_pct))} {'slower' if difference_pct > 0 else 'faster'}"


def advice(answer: PlacementAnswer) -> list[str]:
    """What would make a step faster, as far as the answer tells; one sentence or two each."""
    if answer.num_devices == 1:
        return []
    slowest, request, found = slowest_device(answer), answer.request, []
    mean_ms = fmean(device.predicted_total_ms for device in answer.devices)
    top = max((one for one in placed_parts(answer) if one.part.device == slowest), key=lambda one: one.alone_ms)
    if top.alone_ms >= DECIDES * answer.predicted_ms and mean_ms < UNEVEN * answer.predicted_ms:
        found.append(_about_decisive(answer, top, mean_ms))
    elif answer.gap_pct <= CLOSE_PCT:
        found.append(
            f"Moving tables gains {pct_text(max(answer.gap_pct, 0.0))} at most. A faster step takes more devices, or "
            f"tables with fewer dims or lookups."
        )
    room = sum(max(cap - request.reserved_bytes, 0) for cap in request.caps_bytes)
    if answer.gap_pct > CLOSE_PCT and sum(answer.used_bytes) > TIGHT * room:
        found.append(
            f"Tables fill {pct_text(100 * sum(answer.used_bytes) / room)} of the memory of all devices, which leaves "
            f"little choice. More memory or devices may help; the lower bound leaves memory aside."
        )
    idle = [device for device, shard in enumerate(answer.shards()) if not shard]
    if idle:
        found.append(f"{f'Device {idle[0]} holds' if len(idle) == 1 else f'{len(idle)} devices hold'} no table.")
    return found


def _about_decisive(answer: PlacementAnswer, top: PlacedPart, mean_ms: float) -> str:
    head = (
        f"{top.table.name} decides the step: the device that holds it takes {ms_text(top.alone_ms)} ms at least, "
        f"while the mean device takes {ms_text(mean_ms)} ms."
    )
    if top.part.table not in answer.request.splittable:
        return f"{head} A rule keeps it together with others, so it cannot be split by columns."
    if not top.part.halves():
        return f"{head} It cannot be split {'further' if top.is_split else 'by columns'}: its dim is too small."
    if not answer.request.allow_column_split:
        return f"{head} Splitting it by columns may help (--allow-column-split)."
    return f"{head} Splitting it {'further ' if top.is_split else ''}was found not to pay."


def names_text(names: Sequence[str]) -> str:
    """The first three of many names."""
    shown = ", ".join(printable(name) for name in names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
