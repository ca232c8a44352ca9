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
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart, part_table
from evenshard.placement.sharding import (
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
    Communication,
)
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rivals import FULL_SPACE, MOST_SHARDS, asked_full_space
from evenshard.sharders.catalog import label_of
from evenshard.sharders.convex_search.prediction import PredictedDevice
from evenshard.tables.table import Table
from evenshard.utils.messages import printable
from evenshard.utils.units import ms_text, pct_text, size_text

MAX_NAMES, MAX_CUT, MAX_LISTED_PARTS = 3, 4, 4
"""Tables that a line names: of those that need a word each, of those whose parts it lists; and parts that it lists."""
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

STEP_PARTS = ("input exchange", "forward", "forward exchange", "backward exchange", "backward")
"""The five times of a device, in the order of a training step."""


def predicted_step_times(device: PredictedDevice) -> tuple[float, ...]:
    """The predicted times of a device, in the order of ``STEP_PARTS``."""
    return (
        device.predicted_input_dist_ms,
        device.predicted_fwd_compute_ms,
        device.predicted_fwd_all_to_all_ms,
        device.predicted_bwd_all_to_all_ms,
        device.predicted_bwd_compute_ms,
    )


@dataclass(frozen=True)
class PlacedPart:
    """A table, or some of its rows and columns, where it lives.

    Attributes:
        part: the part and its devices.
        table: the part as a table of its own.
        way: the sharding type of its table.
        size_bytes: weights and optimizer state, on each of its devices.
        alone_ms: no device that holds it is predicted to take less.
        adds_ms: time that its device would save without it.
        share: share of the device's time, 0 to 1; of the slowest one of a replica's.
    """

    part: TablePart
    table: Table
    way: str
    size_bytes: int
    alone_ms: float
    adds_ms: float
    share: float

    @property
    def where(self) -> str:
        """Its device, or that it is on all."""
        return "all" if len(self.part.devices) > 1 else str(self.part.device)


@dataclass(frozen=True)
class SpreadTable:
    """A table that is not whole on one device.

    Attributes:
        name: its name.
        way: its sharding type.
        parts: its parts, by columns, then rows.
    """

    name: str
    way: str
    parts: tuple[PlacedPart, ...]

    @property
    def columns(self) -> dict[Span, tuple[PlacedPart, ...]]:
        """The parts of each cut by columns, by their rows."""
        found: dict[Span, tuple[PlacedPart, ...]] = {}
        for one in self.parts:
            found[one.part.columns] = (*found.get(one.part.columns, ()), one)
        return found


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
    tables = {table.name: table for table in answer.request.tables}
    columns = (answer.parts, answer.part_bytes, answer.alone_ms, answer.adds_ms)
    found = []
    for part, size_bytes, alone_ms, adds_ms in zip(*columns, strict=True):
        share = min(max(adds_ms / max(*(total_ms[device] for device in part.devices), 1e-12), 0.0), 1.0)
        table, way = part_table(part, tables[part.table]), answer.type_of_table[part.table]
        found.append(PlacedPart(part, table, way, size_bytes, alone_ms, adds_ms, share))
    return tuple(found)


def costliest(parts: Sequence[PlacedPart], count: int) -> list[PlacedPart]:
    """The part of each table that adds most to its device; those that add most first."""
    by_table: dict[str, PlacedPart] = {}
    for one in parts:
        if one.part.table not in by_table or one.adds_ms > by_table[one.part.table].adds_ms:
            by_table[one.part.table] = one
    return sorted(by_table.values(), key=lambda one: (-one.adds_ms, one.part.table))[:count]


def sharded_tables(answer: PlacementAnswer) -> tuple[SpreadTable, ...]:
    """The tables that are cut or replicated, in their order."""
    parts: dict[str, tuple[PlacedPart, ...]] = {}
    for one in placed_parts(answer):
        if one.way != TABLE_WISE:
            parts[one.part.table] = (*parts.get(one.part.table, ()), one)
    return tuple(SpreadTable(name, of_table[0].way, of_table) for name, of_table in parts.items())


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


def machine_text(request: PlacementRequest) -> str:
    """The nodes, the devices and what they are."""
    machine = request.nodes
    groups = [(group.num_devices, group.hardware) for group in machine.groups]
    kinds = groups or [(machine.num_devices, request.hardware)]
    if machine.num_nodes == 1 or len(kinds) > 1:
        text = " + ".join(f"{count:,} x {printable(hardware)}" for count, hardware in kinds)
        return text if machine.num_nodes == 1 else f"{text} on {machine.num_nodes:,} nodes"
    return f"{machine.num_nodes:,} nodes x {machine.devices_per_node:,} {printable(kinds[0][1])}"


def link_text(answer: PlacementAnswer) -> str:
    """The links of the machine, and whether their times come from a model; empty where none is known."""
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
    """What the times are of: machine, links, batch, optimizer and what is left for tables."""
    request = answer.request
    model = "" if timing_word(answer) == "measured" else " (a device model, not a GPU)"
    reserved = f"{size_text(request.reserved_bytes)} of each device" if request.reserved_bytes else "no memory"
    facts = (
        machine_text(request) + model,
        link_text(answer),
        f"batch {request.batch_size:,}",
        _communication_text(request.communication),
        f"optimizer {request.optimizer}",
        f"{reserved} reserved",
    )
    return ", ".join(fact for fact in facts if fact)


def _communication_text(way: Communication) -> str:
    """Data types on the way; empty where they are as usual."""
    if way == Communication():
        return ""
    return f"exchanged as {way.forward}" if way.forward == way.backward else f"{way.forward} out, {way.backward} back"


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

    An answer that may cut tables is not called faster by so much than others that may not.
    """
    rival = best_rival(answer)
    if rival is None or answer.num_devices == 1:
        return None
    count = len(legal_rivals(answer))
    who = f"The best of {count} others ({label_of(rival.sharder)})" if count > 1 else label_of(rival.sharder)
    text = f"{who}{whole_tables_text(answer, rival)}: {ms_text(_rival_ms(rival))} ms"
    return text if _no_rival_cuts(answer) else f"{text}, {rival_difference(answer, rival)}"


def may_cut(request: PlacementRequest) -> bool:
    """Whether tables may be cut or replicated."""
    return set(request.types) != {TABLE_WISE}


def _no_rival_cuts(answer: PlacementAnswer) -> bool:
    """Whether the answer might cut tables, and none of the others might."""
    return may_cut(answer.request) and all(rival.sharder != FULL_SPACE for rival in answer.comparison)


def whole_tables_text(answer: PlacementAnswer, rival: Rival) -> str:
    """What to add to a rival's name where the answer might cut tables and it might not."""
    return ", whole tables" if may_cut(answer.request) and rival.sharder != FULL_SPACE else ""


def not_compared_text(answer: PlacementAnswer, reason: str = "") -> str | None:
    """What to say where TorchRec's planner is missing among the others, or is there for whole tables only.

    Args:
        reason: why it is missing; empty where it was not asked for.
    """
    who = "TorchRec's planner"
    if _no_rival_cuts(answer):
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


def bound_text(answer: PlacementAnswer) -> str:
    """What the lower bound says, and what it leaves aside."""
    return (
        f"{ms_text(answer.lower_bound_ms)} ms: by the model, no placement that the request allows takes less, however "
        f"tables are cut. Memory counts; latencies of exchanges and rules of places are left aside."
    )


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
    top = max((one for one in placed_parts(answer) if slowest in one.part.devices), key=lambda one: one.alone_ms)
    if top.alone_ms >= DECIDES * answer.predicted_ms and mean_ms < UNEVEN * answer.predicted_ms:
        found.append(_about_decisive(answer, top, mean_ms))
    elif answer.gap_pct <= CLOSE_PCT:
        found.append(
            f"No other placement gains more than {pct_text(max(answer.gap_pct, 0.0))}. A faster step takes more "
            f"devices, or tables with fewer dims or lookups."
        )
    room = sum(max(cap - request.reserved_bytes, 0) for cap in request.caps_bytes)
    if answer.gap_pct > CLOSE_PCT and sum(answer.used_bytes) > TIGHT * room:
        found.append(
            f"Tables fill {pct_text(100 * sum(answer.used_bytes) / room)} of the memory of all devices, which leaves "
            f"little choice. More memory or devices may help."
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
    if not may_cut(answer.request):
        return f"{head} Other sharding types may help (leave --sharding-types out)."
    what = "Other ways to shard it were" if top.way == TABLE_WISE else "Cutting it further was"
    return f"{head} {what} found not to pay."


def sharding_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Each sharding type in use, and how many tables are sharded so, which, and where."""
    cut: dict[str, list[SpreadTable]] = {}
    for table in sharded_tables(answer):
        cut.setdefault(table.way, []).append(table)
    whole = sum(way == TABLE_WISE for way in answer.type_of_table.values())
    found = [(TABLE_WISE, f"{_count(whole)}, each on one device")] if whole else []
    for way in SHARDING_TYPES:
        if tables := cut.get(way):
            found.append((way, f"{_count(len(tables))}{_which(answer, way, tables)}"))
    return found


def _count(tables: int) -> str:
    return f"{tables:,} table{'s' * (tables != 1)}"


def _which(answer: PlacementAnswer, way: str, tables: Sequence[SpreadTable]) -> str:
    machine = answer.request.nodes
    if way == DATA_PARALLEL:
        size = size_text(sum(table.parts[0].size_bytes for table in tables))
        return f", {size} on every device: {names_text([table.name for table in tables])}"
    if way == ROW_WISE:
        return f", rows over all {machine.num_devices:,} devices: {names_text([table.name for table in tables])}"
    if way == TABLE_ROW_WISE:
        names = [f"{table.name} {where_text(table, machine).removeprefix('by rows ')}" for table in tables]
        return f", rows over the {machine.devices_per_node:,} devices of a node: {names_text(names)}"
    shown = "; ".join(f"{printable(table.name)} {where_text(table, machine)}" for table in tables[:MAX_CUT])
    more = len(tables) - MAX_CUT
    return f": {shown}{f'; {more:,} more' if more > 0 else ''}"


def where_text(table: SpreadTable, machine: Machine) -> str:
    """The cuts of a table and their devices or nodes."""
    columns = table.columns
    if len(columns) > MAX_LISTED_PARTS:
        devices = {device for one in table.parts for device in one.part.devices}
        return f"in {len(columns):,} parts by columns on {len(devices):,} devices"
    return ", ".join(
        f"{f'{span} ' if len(columns) > 1 else ''}{_home(parts, machine)}" for span, parts in columns.items()
    )


def _home(parts: Sequence[PlacedPart], machine: Machine) -> str:
    if len(parts) == 1:
        return f"on {parts[0].where}"
    nodes = sorted({machine.node_of(one.part.device) for one in parts})
    where = f"node {nodes[0]}" if len(nodes) == 1 < machine.num_nodes else f"{len(parts):,} devices"
    return f"by rows on {where}"


def names_text(names: Sequence[str]) -> str:
    """The first three of many names."""
    shown = ", ".join(printable(name) for name in names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
