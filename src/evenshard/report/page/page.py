"""An answer as a single self-contained HTML page, for ``--report`` and for notebooks.

Styles and script are inline, and the page tells the browser to load nothing else. Names come from the user and are
escaped. ``page.html.j2`` is the layout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from evenshard.base.messages import count_text, printable
from evenshard.base.outputs import write_text
from evenshard.base.units import decimals, ms_text, number_text, pct_text, range_text, size_text
from evenshard.placement.sharding import TYPES
from evenshard.planner.answer import PlacementAnswer, fullest_device, model_lineage, slowest_device
from evenshard.planner.baselines import FULL_SPACE, RULE
from evenshard.planner.memory import DEVICE_COMPONENTS
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import measured_or_simulated
from evenshard.price.step import STEP_PARTS, predicted_step_times
from evenshard.report import step_facts, table_facts
from evenshard.sharders.catalog import label_of
from evenshard.version import __version__

# Baselines that may cut tables, as named in a sentence.
_IN_WORDS = {FULL_SPACE: "TorchRec's planner with every sharding type", RULE: "the best rule of thumb"}
_MAX_ROWS = 32  # most devices that are drawn as rows with numbers; more become columns
MAX_OPEN = 40  # tables that are listed at first; more are collapsed
_NUM_SLOWEST, NUM_COSTLIEST = 8, 10  # numbers of costliest tables to list: of the slowest device, and of all devices
MAX_CUT_ROWS, MAX_STRIP = 100, 16  # most cut tables that have their own line, and most parts that a line draws
_LABELLED_PCT = 7.0  # least width of a bar's segment that shows its number
_MAX_SLOW_CACHES = 5  # most tables with slow caches that are named, slowest first
_LISTED = 12  # tables that an assumption names


def save_page(answer: PlacementAnswer, path: Path, missing: str = "") -> None:
    """Write the page atomically."""
    write_text(path, page(answer, missing))


def page(answer: PlacementAnswer, missing: str = "") -> str:
    """Return the page, deterministically. ``missing`` is the reason that TorchRec's planner is not compared."""
    not_compared = step_facts.not_compared_text(answer, missing)
    return render_template("page.html.j2", not_compared=not_compared, **_view(answer))


def render_template(name: str, **view: Any) -> str:
    """Render a template of this package, by file name, with the given variables; names are escaped."""
    places = Environment(
        loader=PackageLoader("evenshard.report.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    places.filters.update(ms=ms_text, pct=pct_text, size=size_text, count=number_text)
    return places.get_template(name).render(**view)


def _printable(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


def _view(answer: PlacementAnswer) -> dict[str, Any]:
    axis, slowest = time_axis(answer), slowest_device(answer.devices)
    kind = str(_trained_on(answer).get("hardware", ""))
    parts, bars, hosts = table_facts.placed_parts(answer), device_bars(answer), host_bars(answer)
    held = {segment.kind for bar in (*bars, *hosts) for segment in bar.segments}
    slow_caches = table_facts.slow_caches(answer)[:_MAX_SLOW_CACHES]
    cut = [table for table in table_facts.sharded_tables(answer) if not TYPES[table.sharding_type].is_replicated]
    return {
        "answer": answer,
        "request": answer.request,
        "version": __version__,
        "step_facts": step_facts,
        "table_facts": table_facts,
        "STEP_PARTS": STEP_PARTS,
        "predicted_step_times": predicted_step_times,
        "label_of": label_of,
        "device_text": device_text,
        "timed": step_facts.timing_word(answer),
        "whole_step": step_facts.whole_step_headline(answer),
        "predicted_by": f"a cost model trained on {measured_or_simulated(kind)} times" if kind else "a device model",
        "title": f"{count_text(len(answer.request.tables), 'table')} on {count_text(answer.num_devices, 'device')}",
        "best": step_facts.best_baseline(answer),
        "advice": [*step_facts.advice(answer), *(table_facts.slow_cache_text(answer, one) for one in slow_caches)],
        "axis": axis,
        "labelled_pct": _LABELLED_PCT,
        "bars": bars,
        "as_rows": answer.num_devices <= _MAX_ROWS,
        "labels_every": max(answer.num_devices // 16, 1),
        "slowest": slowest,
        "fullest": fullest_device(answer),
        "marked": slowest if answer.num_devices > 1 else None,
        "digits": decimals(answer.predicted_ms),
        "mean_ms": fmean(device.predicted_total_ms for device in answer.devices),
        "memory_kinds": [(at, name) for at, name in enumerate(MEMORY_KINDS) if at in held],
        "hosts": hosts[:_MAX_ROWS],
        "num_hosts": len(hosts),
        "kept": [*table_facts.kept_texts(answer), *table_facts.host_texts(answer)],
        "offloaded": {one.number: one for one in answer.offloaded},
        "baselines_axis": baseline_axis(answer),
        "baselines": sorted(answer.comparison, key=lambda one: (one.predicted_ms is None, one.predicted_ms or 0.0)),
        "cutting": [text for name, text in _IN_WORDS.items() if any(one.sharder == name for one in answer.comparison)],
        "baseline_measured": any(baseline.measured_ms is not None for baseline in answer.comparison),
        "on_slowest": table_facts.costliest([one for one in parts if slowest in one.part.devices], _NUM_SLOWEST),
        "costliest": table_facts.costliest(parts, NUM_COSTLIEST),
        "may_cut": not answer.request.is_whole,
        "near": list(step_facts.near_texts(answer)),
        "cut": cut[:MAX_CUT_ROWS],
        "num_cut": len(cut),
        "max_strip": MAX_STRIP,
        "parts": parts,
        "open_list": len(parts) <= MAX_OPEN,
        "warnings": tuple(step_facts.warning_texts(answer)),
        "notes": (*table_facts.assumed_lookups_texts(answer), *answer.notes),
        "listed": _LISTED,
        "asked": _request_rows(answer),
        "made_by": _made_by(answer),
        "ranges": _ranges(answer),
        "lineage": json.dumps(dict(answer.lineage), indent=1),
    }


# Request and lineage --------------------------------------------------------------------------------------------------


def _request_rows(answer: PlacementAnswer) -> list[tuple[str, str]]:
    request, rules = answer.request, answer.request.rules
    per_device = request.batch_size / request.num_devices
    asked = [
        ("Machine", step_facts.machine_text(request)),
        ("Devices", f"{request.num_devices:,}, {range_text(request.caps_bytes, size_text)} each"),
        ("Reserved", table_facts.reserve_text(request)),
        ("Dense model", f"{size_text(request.dense_bytes)} of each device" if request.dense_bytes else ""),
        ("Hosts", _hosts(request)),
        ("Compute kernels", ", ".join(request.kernels) if request.nodes.host_bytes or request.nodes.ssd_bytes else ""),
        ("Batch", f"{request.batch_size:,} samples, {number_text(per_device)} on each device"),
        ("Training pipeline", request.training_pipeline),
        ("Optimizer", step_facts.optimizer_text(request)),
        ("Dense optimizer", request.dense_optimizer),
        ("Links", step_facts.link_text(answer).removeprefix("link ")),
        ("Sharding types", ", ".join(request.types)),
        ("Communication", f"{request.communication.forward} forward, {request.communication.backward} backward"),
    ]
    asked += [("Pinned", f"{name} to device {_join_devices(where)}") for name, where in rules.pinned.items()]
    asked += [("Forbidden", f"{name} on device {_join_devices(where)}") for name, where in rules.forbidden.items()]
    if rules.forbidden_devices:
        asked.append(("Forbidden devices", _join_devices(rules.forbidden_devices)))
    asked += [("Allowed kernels", f"{name}: {', '.join(kernels)}") for name, kernels in rules.table_kernels.items()]
    asked += [("Together", ", ".join(group)) for group in rules.together]
    asked += [("Apart", ", ".join(group)) for group in rules.apart]
    return [(name, text) for name, text in asked if text]


def _hosts(request: PlacementRequest) -> str:
    machine, found = request.nodes, []
    for what, sizes, gb_s in (
        ("memory", machine.host_bytes, machine.host_gb_s),
        ("SSDs", machine.ssd_bytes, machine.ssd_gb_s),
    ):
        if any(sizes):
            rate = f" at {gb_s:.4g} GB/s" if gb_s else ""
            found.append(f"{range_text(sizes, size_text)} of {what} each{rate}")
    return ", ".join(found)


def _join_devices(devices: Iterable[int]) -> str:
    return ", ".join(str(device) for device in devices)


def _made_by(answer: PlacementAnswer) -> list[tuple[str, str]]:
    lineage = answer.lineage
    model = model_lineage(answer)
    trained_on = _trained_on(answer)
    found = [
        ("evenshard", lineage.get("evenshard_version")),
        ("Tables from", lineage.get("tables")),
        ("Model", model.get("source")),
        ("Model's sha256", model.get("sha256")),
        ("Trained on", trained_on.get("hardware")),
        ("Link", trained_on.get("link")),
        (f"Placements {measured_or_simulated(str(trained_on.get('hardware')))}", trained_on.get("num_measured")),
        ("Trained by", trained_on.get("evenshard_version")),
        ("Commit", trained_on.get("git_commit")),
    ]
    return [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in found if value]


def _ranges(answer: PlacementAnswer) -> list[tuple[str, str, str]]:
    seen = _trained_on(answer)
    parts = table_facts.placed_parts(answer)
    tables = [one.table for one in parts]
    shards = [[tables[number] for number in numbers] for numbers in answer.parts_on_device]
    dims = [sum(table.embedding_dim for table in shard) for shard in shards]
    asked: list[tuple[str, str, Iterable[float]]] = [
        ("Rows of a table", "num_rows", [table.num_rows for table in tables]),
        ("Dim of a table", "embedding_dim", [table.embedding_dim for table in tables]),
        ("Lookups per sample", "pooling_factor", [table.pooling_factor for table in tables]),
        ("Tables", "tables_per_placement", [len(tables)]),
        ("Devices", "num_devices", [answer.num_devices]),
        ("Tables on a device", "tables_per_device", [len(shard) for shard in shards]),
        ("Sum of dims on a device", "dims_per_device", dims),
        ("Batch, samples", "batch_size", [answer.request.batch_size]),
    ]
    return [
        (name, range_text(seen[key], number_text), range_text(tuple(values), number_text))
        for name, key, values in asked
        if _is_range(seen.get(key))
    ]


def _trained_on(answer: PlacementAnswer) -> Mapping[str, Any]:
    return model_lineage(answer).get("trained_on") or {}


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, int | float) for one in value)


def frame(answer: PlacementAnswer) -> str:
    """Return the page in an iframe for notebooks, which isolates its styles and its script."""
    return (
        f'<iframe title="placement" srcdoc="{escape(page(answer))}" sandbox="allow-scripts" '
        'style="border:0;width:100%;height:45em"></iframe>'
    )


# Axes and bars --------------------------------------------------------------------------------------------------------

NUM_TICKS = 5
HEADROOM = 1.02  # length of an axis, relative to the longest bar, which ends before the axis does
MEMORY_KINDS = tuple(DEVICE_COMPONENTS)  # components of memory by the number of their color
LEAST_PEAK = 0.005  # share of all memory up to which a peak above the components is not drawn


@dataclass(frozen=True)
class Axis:
    """An axis from zero to ``stop``, with a tick at each ``step``."""

    stop: float
    step: float

    @staticmethod
    def of(values: Iterable[float]) -> Axis:
        """Return an axis that fits all finite values."""
        longest = max((value for value in values if math.isfinite(value)), default=0.0)
        stop = longest * HEADROOM if longest > 0 else 1.0
        power = 10.0 ** math.floor(math.log10(stop / NUM_TICKS))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * NUM_TICKS >= stop)
        return Axis(stop, step)

    def pct(self, value: float) -> float:
        """Return the position of a value, per cent of the axis."""
        return min(max(value / self.stop, 0.0), 1.0) * 100 if math.isfinite(value) else 100.0

    @property
    def step_pct(self) -> float:
        """Return the distance between two ticks, per cent of the axis."""
        return self.pct(self.step)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Return the positions of ticks, per cent, with their labels."""
        digits = max(-math.floor(math.log10(self.step)), 0)
        return tuple(
            (self.pct(number * self.step), f"{number * self.step:,.{digits}f}")
            for number in range(math.floor(self.stop / self.step) + 1)
        )


class MemorySegment(NamedTuple):
    """A component of memory: the number of its color, its name, its size, and its length, per cent of the bar."""

    kind: int
    name: str
    num_bytes: int
    pct: float


@dataclass(frozen=True)
class MemoryBar:
    """The memory of a device, a host, or a host's SSDs.

    ``used_bytes`` is the peak, and ``full_pct`` its share of the limit. ``pct`` is the length of the bar, per cent of
    the axis. ``reserved_pct`` and ``peak_pct`` are per cent of the bar; a ``peak_pct`` of 0 draws no mark.
    """

    label: str
    segments: tuple[MemorySegment, ...]
    used_bytes: int
    limit_bytes: int
    pct: float
    full_pct: float
    reserved_pct: float = 0.0
    peak_pct: float = 0.0


def time_axis(answer: PlacementAnswer) -> Axis:
    """Return the axis of device times."""
    totals = [device.predicted_total_ms for device in answer.devices]
    return Axis.of([*totals, *answer.measured_device_ms, answer.predicted_ms, answer.high_ms, answer.lower_bound_ms])


def baseline_axis(answer: PlacementAnswer) -> Axis:
    """Return the axis of step times of evenshard and its baselines."""
    baselines = [time for one in answer.comparison for time in (one.predicted_ms, one.measured_ms) if time is not None]
    measured = [] if answer.measured_ms is None else [answer.measured_ms]
    return Axis.of([answer.predicted_ms, *measured, *baselines])


def device_bars(answer: PlacementAnswer) -> tuple[MemoryBar, ...]:
    """Return the memory of each device, by device id."""
    most = max(*answer.request.caps_bytes, 1)
    return tuple(
        MemoryBar(
            label=f"device {one.device}",
            segments=_segments(one.components, one.cap),
            used_bytes=one.most_bytes,
            limit_bytes=one.limit_bytes,
            pct=100 * one.cap / most,
            full_pct=100 * one.full,
            reserved_pct=100 * min(one.reserved / one.cap, 1) if one.cap else 0.0,
            peak_pct=100 * one.peak / one.cap if one.peak > one.counted_bytes + LEAST_PEAK * one.cap else 0.0,
        )
        for one in answer.memory
    )


def host_bars(answer: PlacementAnswer) -> tuple[MemoryBar, ...]:
    """Return the memory and SSDs of each host, if any host uses them."""
    hosts, found = answer.host_memory, []
    most = max(1, *(max(one.room, one.ssd_room) for one in hosts))
    for host in hosts:
        name = f"host {host.node}" if len(hosts) > 1 else "host"
        if any(one.used_bytes for one in hosts):
            segments = _segments((("weights", host.weights), ("optimizer state", host.optimizer_state)), host.room)
            pcts = 100 * host.room / most, 100 * host.full
            found.append(MemoryBar(name, segments, host.used_bytes, host.room, *pcts))
        if any(one.ssd for one in hosts):
            segments = _segments((("weights", host.ssd),), host.ssd_room)
            pcts = 100 * host.ssd_room / most, 100 * host.ssd_full
            found.append(MemoryBar(f"{name}, SSDs", segments, host.ssd, host.ssd_room, *pcts))
    return tuple(found)


def _segments(components: Iterable[tuple[str, int]], all_bytes: int) -> tuple[MemorySegment, ...]:
    return tuple(
        MemorySegment(MEMORY_KINDS.index(name), name, size, 100 * size / all_bytes if all_bytes else 0.0)
        for name, size in components
        if size
    )


def device_text(answer: PlacementAnswer, number: int) -> str:
    """Return the times and the memory of a device as a line."""
    device, memory = answer.devices[number], answer.memory[number]
    times = zip(STEP_PARTS, predicted_step_times(device), strict=True)
    each = ", ".join(f"{name} {ms_text(ms)}" for name, ms in times)
    held = ", ".join(f"{name} {size_text(size)}" for name, size in memory.components if size)
    return (
        f"device {number}: {ms_text(device.predicted_total_ms)} ms ({each}), waits "
        f"{ms_text(device.predicted_wait_ms)} ms; "
        f"{len(answer.parts_on_device[number]):,} tables, {size_text(memory.most_bytes)} of "
        f"{size_text(memory.limit_bytes)} ({pct_text(100 * memory.full)}; {held or 'nothing'})"
    )
