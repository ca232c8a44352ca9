"""The tables of an answer as text: their memory, storage, sharding and assumptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.base.messages import count_text, names_text, printable
from evenshard.base.units import BYTES_PER_GB, UNITS, ms_text, pct_text, range_text, size_text
from evenshard.placement import sharding
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COMPUTE_KERNELS, FUSED, KEY_VALUE, Span, TablePart, part_table
from evenshard.planner.answer import PlacementAnswer, fullest_device
from evenshard.planner.memory import RESERVED_SHARE, NodeMemory, OffloadedPart
from evenshard.planner.request import PlacementRequest
from evenshard.tables.assumptions import Assumption, TableSet
from evenshard.tables.table import Table

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
# Column of the assumption that is shown before all others, because times depend on it most.
LOOKUPS = "pooling_factor"
UNCOUNTED = ("CUDA context", "NCCL", "fragmentation")
# Shares from which a slow cache is mentioned: missed distinct rows of a batch, and share of its device's time.
HIGH_MISS_RATIO, WORTH_A_WORD = 0.2, 0.05


def reserve_text(request: PlacementRequest) -> str:
    """Describe reserved memory and, without a training pipeline, which memory is counted. Without a full stop."""
    share = request.reserved_share
    what = [pct_text(100 * share).replace(".0 ", " ")] if share else []
    what += [size_text(request.reserved_bytes)] if request.reserved_bytes else []
    dense = [] if request.dense_bytes else ["the dense model (--dense-gb counts it)"]
    *first, last = (*UNCOUNTED, *dense)
    uncounted = f"{', '.join(first)} and {last}"
    if what:
        why = ", as in TorchRec's planner," if share == RESERVED_SHARE else ""
        text = f"{' and '.join(what)} of each device reserved{why} for {uncounted}"
    else:
        text = f"No memory reserved for {uncounted}"
    if request.training_pipeline:
        return text
    return f"{text}. Without a training pipeline, only weights and optimizer state are counted"


def memory_unit(answer: PlacementAnswer) -> tuple[str, int]:
    """Return the unit of memory in the table of devices, GB or MB, and its size in bytes."""
    return ("GB", BYTES_PER_GB) if max(answer.request.caps_bytes) >= BYTES_PER_GB else ("MB", 2**20)


def fullest_text(answer: PlacementAnswer) -> str:
    """Return the memory of the fullest device by component, its limit, its peak and its reserve."""
    fullest, (unit, of_unit) = fullest_device(answer), memory_unit(answer)
    counted = fullest.counted_bytes
    small, of_small = next((one for one in UNITS if counted >= 0.01 * one[1]), UNITS[-1])
    if of_small > of_unit:
        small, of_small = unit, of_unit
    shown = [(what, size) for what, size in fullest.components if size >= 0.005 * of_small]
    rest = counted - sum(size for _, size in shown)
    shown += [("the rest", rest)] if rest >= 0.005 * of_small else []
    parts = [f"{what} {size / of_small:.2f}" for what, size in shown]
    where = f"device {fullest.device}, the fullest: " if answer.num_devices > 1 else ""
    reserved = f"; {fullest.reserved / of_unit:.2f} {unit} reserved" if fullest.reserved else ""
    of_sum = "" if small == unit else f" {small}"
    total = f"{counted / of_small:.2f}{of_sum} of {fullest.limit_bytes / of_unit:.2f} {unit}"
    peak = ""
    if fullest.peak - counted >= 0.005 * of_small:
        peak = f", {fullest.peak / of_small:.2f}{of_sum} when {fullest.moment}"
    return f"{where}{' + '.join(parts)} = {total}{peak}{reserved}"


def is_offloaded(answer: PlacementAnswer) -> bool:
    """Return True if some table is not in device memory."""
    return any(not kept.is_on_device for kept in answer.storage_of_table.values())


def kept_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Return each storage in use, with number, size and names of its tables; empty if all are in device memory."""
    if not is_offloaded(answer):
        return []
    tables: dict[str, list[str]] = {}
    for name, kept in answer.storage_of_table.items():
        tables.setdefault(kept.kernel, []).append(name)
    return [(kernel, _kernel_text(answer, kernel, tables[kernel])) for kernel in COMPUTE_KERNELS if kernel in tables]


def _kernel_text(answer: PlacementAnswer, kernel: str, names: Sequence[str]) -> str:
    held, cached = 0, 0
    for part, size in zip(answer.parts, answer.part_memory, strict=True):
        if part.storage.kernel != kernel:
            continue
        outside = size.host_bytes + size.ssd_weights
        held += outside or len(part.devices) * (size.weights + size.optimizer_state)
        cached += (size.weights + size.cache_state) if part.storage.is_cached else 0
    count = f"{count_text(len(names), 'table')}, {size_text(held)}"
    if kernel == FUSED:
        return f"{count} in device memory"
    text = f"{count} {'on SSDs' if kernel == KEY_VALUE else 'in host memory'}"
    if cached:
        factors = {answer.storage_of_table[name].load_factor for name in names}
        of = range_text(factors, "{:.3g}".format)
        text += f", caches of {size_text(cached)} in device memory (load factor{'s' * (len(factors) > 1)} {of})"
    return f"{text}: {names_text(names)}"


def offload_text(answer: PlacementAnswer) -> str:
    """Return the time for access to host memory and SSDs on the slowest device that uses them; empty if none does."""
    taken = [0.0] * answer.num_devices
    for one in answer.offloaded:
        taken[one.part.device] += one.offload_ms
    if not any(taken):
        return ""
    slowest = max((one.part.device for one in answer.offloaded), key=lambda device: _device_ms(answer, device))
    return (
        f"access to host memory and SSDs takes {ms_text(taken[slowest])} of the "
        f"{ms_text(_device_ms(answer, slowest))} ms of device {slowest}"
    )


def slow_caches(answer: PlacementAnswer) -> list[OffloadedPart]:
    """Return each table's slowest part with many cache misses and a long time, slowest first."""
    worst: dict[str, OffloadedPart] = {}
    for one in sorted(answer.offloaded, key=lambda one: -one.offload_ms):
        takes_long = one.offload_ms >= WORTH_A_WORD * _device_ms(answer, one.part.device)
        if takes_long and one.miss_ratio is not None and one.miss_ratio >= HIGH_MISS_RATIO:
            worst.setdefault(one.part.table, one)
    return list(worst.values())


def slow_cache_text(answer: PlacementAnswer, one: OffloadedPart) -> str:
    """Return the misses of a cache, their time, and the remedy."""
    return (
        f"{printable(one.part.table)} misses {pct_text(100 * (one.miss_ratio or 0.0))} of the distinct rows of a batch "
        f"at load factor {one.part.storage.load_factor:.3g} ({one.source}). This takes {ms_text(one.offload_ms)} of "
        f"the {ms_text(_device_ms(answer, one.part.device))} ms of device {one.part.device}. Give the table a larger "
        f"cache or more device memory."
    )


def _device_ms(answer: PlacementAnswer, device: int) -> float:
    return answer.devices[device].predicted_total_ms


def host_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Return the host memory and SSDs in use, with their totals; empty if none are in use."""
    hosts, found = answer.host_memory, []
    for word, used, room in (
        ("host memory", [one.used_bytes for one in hosts], [one.room for one in hosts]),
        ("SSDs", [one.ssd for one in hosts], [one.ssd_room for one in hosts]),
    ):
        if any(used):
            found.append((word, _of_hosts(hosts, used, room)))
    return found


def _of_hosts(hosts: Sequence[NodeMemory], used: Sequence[int], room: Sequence[int]) -> str:
    fullest = max(range(len(hosts)), key=lambda node: used[node] / max(room[node], 1))
    share = used[fullest] / max(room[fullest], 1)
    where = f" on host {fullest}, the fullest of {len(hosts):,}" if len(hosts) > 1 else ""
    text = f"{size_text(used[fullest])} of {size_text(room[fullest])} used{where} ({pct_text(100 * share)})"
    return f"{text}; {size_text(sum(used))} in all" if len(hosts) > 1 else text


@dataclass(frozen=True)
class PlacedPart:
    """A part of a table on its device, with its predicted times.

    ``table`` is the part as a table of its own, ``sharding_type`` that of the whole table. A device with the part
    takes at least ``alone_ms``, and would save ``adds_ms`` without it. ``share`` is ``adds_ms`` as a fraction of the
    device's time, or of the slowest device's for a replica.
    """

    part: TablePart
    table: Table
    sharding_type: str
    size_bytes: int
    alone_ms: float
    adds_ms: float
    share: float

    @property
    def where(self) -> str:
        """Return the device as text; "all" for a replica."""
        return "all" if len(self.part.devices) > 1 else str(self.part.device)


@dataclass(frozen=True)
class SpreadTable:
    """A table that is cut or replicated, with its sharding type and its parts, sorted by columns, then rows."""

    name: str
    sharding_type: str
    parts: tuple[PlacedPart, ...]

    @property
    def columns(self) -> dict[Span, tuple[PlacedPart, ...]]:
        """Map each range of columns to the parts that hold it, sorted by rows."""
        found: dict[Span, tuple[PlacedPart, ...]] = {}
        for one in self.parts:
            found[one.part.columns] = (*found.get(one.part.columns, ()), one)
        return found


def placed_parts(answer: PlacementAnswer) -> tuple[PlacedPart, ...]:
    """Return all parts in the order of the answer."""
    total_ms = [device.predicted_total_ms for device in answer.devices]
    tables = {table.name: table for table in answer.request.tables}
    columns = (answer.parts, answer.part_bytes, answer.alone_ms, answer.adds_ms)
    found = []
    for part, size_bytes, alone_ms, adds_ms in zip(*columns, strict=True):
        share = min(max(adds_ms / max(*(total_ms[device] for device in part.devices), 1e-12), 0.0), 1.0)
        table, sharding_type = part_table(part, tables[part.table]), answer.type_of_table[part.table]
        found.append(PlacedPart(part, table, sharding_type, size_bytes, alone_ms, adds_ms, share))
    return tuple(found)


def costliest(parts: Sequence[PlacedPart], count: int) -> list[PlacedPart]:
    """Return each table's part that adds most time to its device: at most ``count``, the largest times first."""
    by_table: dict[str, PlacedPart] = {}
    for one in parts:
        if one.part.table not in by_table or one.adds_ms > by_table[one.part.table].adds_ms:
            by_table[one.part.table] = one
    return sorted(by_table.values(), key=lambda one: (-one.adds_ms, one.part.table))[:count]


def sharded_tables(answer: PlacementAnswer) -> tuple[SpreadTable, ...]:
    """Return the tables that are cut or replicated, in order."""
    parts: dict[str, tuple[PlacedPart, ...]] = {}
    for one in placed_parts(answer):
        if one.sharding_type != sharding.TABLE_WISE:
            parts[one.part.table] = (*parts.get(one.part.table, ()), one)
    return tuple(SpreadTable(name, of_table[0].sharding_type, of_table) for name, of_table in parts.items())


MAX_CUT, MAX_LISTED_PARTS = 4, 4  # tables whose parts a line lists, and parts that it lists


def sharding_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Return each sharding type in use, with the number, names and devices of its tables."""
    cut: dict[str, list[SpreadTable]] = {}
    for table in sharded_tables(answer):
        cut.setdefault(table.sharding_type, []).append(table)
    whole = sum(name == sharding.TABLE_WISE for name in answer.type_of_table.values())
    found = [(sharding.TABLE_WISE, f"{count_text(whole, 'table')}, each on one device")] if whole else []
    for sharding_type in sharding.SHARDING_TYPES:
        if tables := cut.get(sharding_type):
            count = count_text(len(tables), "table")
            found.append((sharding_type, f"{count}{_which(answer, sharding_type, tables)}"))
    return found


def _which(answer: PlacementAnswer, sharding_type: str, tables: Sequence[SpreadTable]) -> str:
    machine = answer.request.nodes
    if sharding.TYPES[sharding_type].is_replicated:
        names = [table.name for table in tables]
        held = zip(answer.parts, answer.part_memory, strict=True)
        size = sum(one.weights + one.optimizer_state for part, one in held if part.table in names)
        return f", {size_text(size)} of weights and optimizer state on every device: {names_text(names)}"
    if sharding_type in sharding.ROWS_ALONE and sharding.TYPES[sharding_type].scope == sharding.EVERYWHERE:
        return f", rows over all {machine.num_devices:,} devices: {names_text([table.name for table in tables])}"
    if sharding_type in sharding.ROWS_ALONE:
        names = [f"{table.name} {where_text(table, machine).removeprefix('by rows ')}" for table in tables]
        return f", rows over the {machine.devices_per_node:,} devices of a node: {names_text(names)}"
    shown = "; ".join(f"{printable(table.name)} {where_text(table, machine)}" for table in tables[:MAX_CUT])
    more = len(tables) - MAX_CUT
    return f": {shown}{f'; {more:,} more' if more > 0 else ''}"


def where_text(table: SpreadTable, machine: Nodes) -> str:
    """Return the parts of a table and their devices or nodes as text."""
    columns = table.columns
    if len(columns) > MAX_LISTED_PARTS:
        devices = {device for one in table.parts for device in one.part.devices}
        return f"in {len(columns):,} parts by columns on {len(devices):,} devices"
    return ", ".join(
        f"{f'{span} ' if len(columns) > 1 else ''}{_home(parts, machine)}" for span, parts in columns.items()
    )


def _home(parts: Sequence[PlacedPart], machine: Nodes) -> str:
    if len(parts) == 1:
        return f"on {parts[0].where}"
    nodes = sorted({machine.node_of(one.part.device) for one in parts})
    where = f"node {nodes[0]}" if len(nodes) == 1 < machine.num_nodes else f"{len(parts):,} devices"
    return f"by rows on {where}"


# Assumptions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AssumedGroup:
    """An assumption shared by several tables: column, assumed value with its reason, and table names."""

    column: str
    text: str
    tables: tuple[str, ...]


def assumed_groups(answer: PlacementAnswer | TableSet) -> tuple[AssumedGroup, ...]:
    """Group the assumptions of an answer or of tables whose texts differ only in numbers."""
    found: dict[tuple[str, str], list[Assumption]] = {}
    for one in answer.assumptions:
        found.setdefault((one.column, _NUMBER.sub("#", one.text)), []).append(one)
    return tuple(
        AssumedGroup(column, _with_ranges([one.text for one in alike]), tuple(one.table for one in alike))
        for (column, _), alike in found.items()
    )


def assumed_lookups_texts(answer: PlacementAnswer) -> list[str]:
    """Return sentences on tables with assumed lookups, and how to provide them; empty if all are known."""
    groups = [group for group in assumed_groups(answer) if group.column == LOOKUPS]
    tables = tuple(name for group in groups for name in group.tables)
    if not tables:
        return []
    which = f"{count_text(len(tables), 'table')} ({names_text(tables)})"
    said, name = "; ".join(dict.fromkeys(group.text for group in groups)), printable(tables[0])
    return [
        f"The lookups per sample of {which} are assumed: {said}. Times and memory grow with them. Give "
        f"pooling_factors={{{name!r}: 37.5}} (--pooling-factors {name}=37.5), or traffic."
    ]


def _with_ranges(texts: Sequence[str]) -> str:
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([sorted(set(numbers), key=lambda one: float(one.replace(",", ""))) for numbers in columns])

    def span(_: re.Match[str]) -> str:
        numbers = next(ranges)
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    return _NUMBER.sub(span, texts[0])
