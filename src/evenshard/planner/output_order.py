"""Order of a pooled collection's output, which depends on the sharding plan, and placements that keep this order.

``ShardedEmbeddingBagCollection`` orders its output, keys and ``values()``, by these criteria:

1. sharding types, in the order in which they first occur among the collection's tables;
2. ranks; a table cut by columns belongs to its first rank. ``row_wise`` and ``data_parallel`` tables skip this
   criterion, because all ranks have them;
3. kernel calls of a rank, in the order of their first tables; tables share a call if data type, pooling, optimizer and
   cache are equal;
4. the tables of a call, in the order of the collection, each with all its features.

The output of an ``EmbeddingCollection`` is a dict, so this order does not apply to it.

Most single changes of a placement change the order. ``place_in_order`` therefore restricts the sharding types and
devices of each table such that every allowed placement has the order of the current placement, or of the unsharded
model. It tries these restrictions:

- all tables are row_wise, or all are data_parallel, which keeps the order of the tables;
- all tables are whole or cut by columns, which TorchRec then treats as one type; they are laid out in order over the
  devices, and neighboring tables share at most one device;
- with a current placement, tables keep their types, tables of a column type are laid out as above, and tables whose
  rows are on one node stay on that node.

The layout is balanced by the work of the tables, then by predicted device times. The fastest answer with the right
order wins. A note says that faster placements with this order may exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import cut
from evenshard.base.units import ms_text
from evenshard.placement import sharding
from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING, TablePart
from evenshard.placement.task import TableLimits
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest, memory_problem
from evenshard.search.search import EFFORTS, QUICK
from evenshard.tables.table import Table

# Keys of an order that a message shows at most, so that it stays readable.
MOST_KEYS = 8
BY_NAME = "Look up pooled outputs by name (output[feature]), or place with --keep-output-order."


@dataclass(frozen=True)
class OutputTable:
    """Properties of a table that determine the order of a pooled collection's output."""

    name: str
    keys: tuple[str, ...]  # keys in the output, one per feature
    sharding_type: str  # as written in the plan
    ranks: tuple[int, ...]  # ranks with a shard of it; (0,) for a replicated table
    call: Hashable  # identifies the kernel call on a rank


@dataclass(frozen=True)
class OrderChange:
    """A pooled collection whose output order changes; orders are lists of keys."""

    collection: str  # its path in the model; empty if unknown
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the change as a sentence, with the keys around the first difference."""
        first = next((at for at, pair in enumerate(zip(self.old, self.new, strict=False)) if pair[0] != pair[1]), 0)
        start = max(first - 1, 0) if len(self.old) > MOST_KEYS else 0
        before, now = (keys_text(keys, start) for keys in (self.old, self.new))
        name = f" of {cut(self.collection)}" if self.collection else ""
        return f"The order of the pooled output{name} changes: {before} -> {now}."


def keys_text(keys: Sequence[str], start: int = 0) -> str:
    """Return some keys as text, starting at ``start``."""
    left = len(keys) - start - MOST_KEYS
    ends = ("... " if start else "", f" ... ({left:,} more)" if left > 0 else "")
    return f"{ends[0]}{cut(' '.join(keys[start : start + MOST_KEYS]), 200)}{ends[1]}"


def sort_outputs(tables: Sequence[OutputTable]) -> tuple[OutputTable, ...]:
    """Sort a collection's tables, given in its own order, in the order of its sharded output."""
    found: dict[OutputTable, None] = {}
    for sharding_type in dict.fromkeys(table.sharding_type for table in tables):
        tables_on: dict[int, list[OutputTable]] = {}
        for table in tables:
            if table.sharding_type == sharding_type:
                for rank in dict.fromkeys(table.ranks):
                    tables_on.setdefault(rank, []).append(table)
        for _, of_rank in sorted(tables_on.items()):
            for call in dict.fromkeys(table.call for table in of_rank):
                found |= dict.fromkeys(table for table in of_rank if table.call == call)
    return tuple(found)


def output_keys(tables: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, ...]]:
    """Return the output keys of each table from its name and features.

    TorchRec appends the table to a feature that several tables share: feature@table.
    """
    counts = Counter(feature for _, features in tables for feature in features)
    return [tuple(f"{key}@{name}" if counts[key] > 1 else key for key in features) for name, features in tables]


def output_orders(
    request: PlacementRequest, parts_of_table: Mapping[str, Sequence[TablePart]]
) -> dict[str, tuple[OutputTable, ...]]:
    """Return the tables of each pooled collection in the order of its output, by path.

    The tables of a file count as one collection in file order. Equal optimizers are assumed to have equal settings.
    """
    collections = collections_of(request.tables)
    return {path: sort_outputs(_output_tables(request, tables, parts_of_table)) for path, tables in collections.items()}


def orders_of_model(tables: Sequence[Table]) -> dict[str, tuple[OutputTable, ...]]:
    """Return the pooled tables of each unsharded collection in order, by the collection's path in the model."""
    return {
        path: tuple(
            OutputTable(table.name, keys, sharding.TABLE_WISE, (0,), None)
            for table, keys in zip(own, _keys_of(own), strict=True)
        )
        for path, own in collections_of(tables).items()
    }


def collections_of(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Group the tables of pooled collections by the collection's path in the model."""
    collections: dict[str, list[Table]] = {}
    for table in tables:
        if not table.is_sequence:
            collections.setdefault(table.module, []).append(table)
    return collections


def _keys_of(tables: Sequence[Table]) -> list[tuple[str, ...]]:
    return output_keys([(table.name, table.feature_names or (table.name,)) for table in tables])


def _output_tables(
    request: PlacementRequest, tables: Sequence[Table], parts_of_table: Mapping[str, Sequence[TablePart]]
) -> list[OutputTable]:
    types = [
        sharding.type_among(request.limits_of(table.name).types, parts_of_table[table.name], table, request.nodes)
        for table in tables
    ]
    found = []
    for table, keys, own_type in zip(tables, _keys_of(tables), types, strict=True):
        parts = parts_of_table[table.name]
        ranks = (0,) if sharding.TYPES[own_type].is_replicated else tuple(sorted({part.device for part in parts}))
        widest = max(part.columns.size for part in parts)
        # Tables on fused and fused_uvm share a kernel call; each cache has its own (``_cache_params`` of plans).
        kernel, load_factor = parts[0].storage.kernel, parts[0].storage.load_factor
        own_load = load_factor if kernel == FUSED_UVM_CACHING else None
        cache = FUSED if kernel in (FUSED, FUSED_UVM) else (kernel, own_load, widest)
        call = (table.dtype, table.pooling, request.optimizer_of(table.name), cache)
        found.append(
            OutputTable(table.name, keys, sharding.join_type(own_type, sharding.SHARDING_TYPES, types), ranks, call)
        )
    return found


def order_changes(
    old: Mapping[str, Sequence[OutputTable]], new: Mapping[str, Sequence[OutputTable]]
) -> tuple[OrderChange, ...]:
    """Return the collections that have the same keys in both placements, but in another order."""
    changes = (
        OrderChange(path, *(tuple(key for table in tables for key in table.keys) for tables in (old[path], new[path])))
        for path in new
        if path in old
    )
    return tuple(change for change in changes if change.old != change.new and sorted(change.old) == sorted(change.new))


# Layouts that are searched, each corrected by the predicted times of the previous layout. More take longer.
LAYOUTS = 3
Orders = Mapping[str, tuple[OutputTable, ...]]
# Function that searches a request with at most the given number of changes.
Place = Callable[[PlacementRequest, float], PlacementAnswer]


def place_in_order(request: PlacementRequest, place: Place, old: PlacementAnswer | None = None) -> PlacementAnswer:
    """Return the fastest placement found whose pooled outputs keep the order of ``old``, or else of the tables.

    Args:
        place: function that answers a request without ``keep_output_order``.

    Raises:
        BadConfig: if there is no order to keep, or the old placement has other pooled tables.
        InfeasibleTask: if no placement with the order was found.
    """
    orders = _kept_orders(request, old)
    plain = replace(request, keep_output_order=False)
    free = place(plain, float("inf"))
    found = [free] if _has_order(request, free, orders) else []
    for limits in _list_fixed_limits(request, orders, old):
        found += _answers(plain, limits, place, request, orders)
    work = {table.name: table.pooling_factor * table.embedding_dim for table in request.tables}
    for _ in range(LAYOUTS):
        laid_out = _lay_out(request, orders, old, work)
        answers = [] if laid_out is None else _answers(plain, laid_out, place, request, orders)
        found += answers
        if not answers:
            break
        work = _correct_work(work, answers[0])
    if not found:
        raise InfeasibleTask(
            f"no placement was found whose pooled outputs have the order {_text(orders)}.",
            "Look up pooled outputs by name in the model (output[feature]), and leave keep_output_order out.",
        )
    best = min(found, key=lambda answer: answer.predicted_ms)
    note = (
        f"keep_output_order: pooled outputs have the order {_text(orders)}. Without it the step takes "
        f"{ms_text(free.predicted_ms)} ms. Faster placements with this order may exist."
    )
    nearness = best.nearness
    if nearness is not None and free.nearness is not None:
        nearness = replace(nearness, free_ms=free.nearness.free_ms, free_bytes=free.nearness.free_bytes)
    return replace(
        best,
        nearness=nearness,
        request=replace(request, assumptions=best.request.assumptions),
        lower_bound_ms=min(free.lower_bound_ms, best.predicted_ms),
        notes=(*best.notes, note),
    )


def _kept_orders(request: PlacementRequest, old: PlacementAnswer | None) -> Orders:
    orders = orders_of_model(request.tables)
    if not orders:
        raise BadConfig(
            "keep_output_order has no effect: no table is pooled, and outputs of an EmbeddingCollection are looked up "
            "by name. Leave it out."
        )
    if old is None:
        return orders
    before = output_orders(old.request, old.parts_of_table)
    for path, tables in orders.items():
        if {table.keys for table in before.get(path, ())} != {table.keys for table in tables}:
            raise BadConfig(
                "keep_output_order: the placement of near has other pooled tables or features, so the output changes "
                "in any case. Leave keep_output_order out, or give a placement of the same tables."
            )
    return {path: before[path] for path in orders}


def _keys(orders: Orders) -> dict[str, tuple[str, ...]]:
    return {path: tuple(key for table in tables for key in table.keys) for path, tables in orders.items()}


def _has_order(request: PlacementRequest, answer: PlacementAnswer, orders: Orders) -> bool:
    return _keys(output_orders(request, answer.parts_of_table)) == _keys(orders)


def _text(orders: Orders) -> str:
    return "; ".join(keys_text(keys) for keys in _keys(orders).values())


def _answers(
    plain: PlacementRequest, limits: Mapping[str, TableLimits], place: Place, request: PlacementRequest, orders: Orders
) -> list[PlacementAnswer]:
    if (limited := _with_limits(plain, limits)) is None:
        return []
    with suppress(InfeasibleTask, BadConfig):  # for example, more moves from ``near`` than allowed
        answer = place(limited, EFFORTS[QUICK].changes)
        return [answer] if _has_order(request, answer, orders) else []
    return []


def _with_limits(request: PlacementRequest, limits: Mapping[str, TableLimits]) -> PlacementRequest | None:
    """Return the request with further limits of tables; None if they leave a table without a type or a device."""
    types, pinned, kernels = dict(request.rules.table_types), dict(request.rules.pinned), {}
    for name, own in limits.items():
        before = request.limits_of(name)
        devices = own.devices if before.devices is None or own.devices is None else own.devices & before.devices
        allowed = tuple(name for name in sharding.TYPES if name in own.types & before.types)
        if not allowed or devices == frozenset():
            return None
        types[name] = allowed
        if devices is not None:
            pinned[name] = tuple(sorted(devices))
        usable = [kernel for kernel in (FUSED, FUSED_UVM) if memory_problem(kernel, request.nodes) is None]
        kept = [kernel for kernel in request.rules.table_kernels.get(name, request.kernels) if kernel in usable]
        if kept:  # caches would need separate kernel calls, which change the order
            kernels[name] = tuple(kept)
    rules = replace(
        request.rules, table_types=types, pinned=pinned, table_kernels={**request.rules.table_kernels, **kernels}
    )
    return replace(request, rules=rules)


def _list_fixed_limits(
    request: PlacementRequest, orders: Orders, old: PlacementAnswer | None
) -> Iterator[Mapping[str, TableLimits]]:
    """Yield tables' limits that always keep the order: all as in ``old``, all row_wise, or all data_parallel."""
    names = [table.name for tables in orders.values() for table in tables]
    if old is not None:
        yield {name: _keep_table(old.type_of_table[name], old.parts_of_table[name]) for name in names}
    for sharding_type in (sharding.ROW_WISE, sharding.DATA_PARALLEL):
        yield dict.fromkeys(names, TableLimits(frozenset({sharding_type})))


def _keep_table(own_type: str, parts: Sequence[TablePart]) -> TableLimits:
    is_on_all = sharding.TYPES[own_type].is_replicated or own_type in sharding.ROWS_OF_ALL
    return TableLimits(frozenset({own_type}), None if is_on_all else frozenset(part.device for part in parts))


def _lay_out(
    request: PlacementRequest, orders: Orders, old: PlacementAnswer | None, work: Mapping[str, float]
) -> Mapping[str, TableLimits] | None:
    """Return each table's limits, with column-cut tables on the devices in order; None if devices are too few."""
    position = {table.name: at for at, table in enumerate(request.tables)}
    of_name = {table.name: table for table in request.tables}
    limits: dict[str, TableLimits] = {}
    for tables in orders.values():
        groups: dict[str, list[OutputTable]] = {}
        for table in tables:
            groups.setdefault(sharding.TABLE_WISE if old is None else table.sharding_type, []).append(table)
        for own_type, group in groups.items():
            if sharding.TYPES[own_type].span(request.nodes) > 1 or sharding.TYPES[own_type].is_replicated:
                assert old is not None
                limits |= {table.name: _keep_table(own_type, old.parts_of_table[table.name]) for table in group}
                continue
            runs = _split_runs([of_name[table.name] for table in group], position, request)
            devices = _devices_in_order(runs, work, request.num_devices)
            if devices is None:
                return None
            types = frozenset({sharding.TABLE_WISE, *sharding.COLUMNS_ALONE})
            limits |= {name: TableLimits(types, own) for name, own in devices.items()}
    return limits


def _split_runs(tables: Sequence[Table], position: Mapping[str, int], request: PlacementRequest) -> list[list[Table]]:
    """Split tables into runs that may not share a device, because TorchRec would change the order of the tables."""
    runs: list[list[Table]] = []
    calls: list[tuple[str, str, str]] = []
    for table in tables:
        call = (table.dtype, table.pooling, request.optimizer_of(table.name))
        if not runs or position[runs[-1][-1].name] > position[table.name] or call in calls[:-1]:
            runs.append([])
            calls = []
        runs[-1].append(table)
        if call not in calls:
            calls.append(call)
    return runs


def _devices_in_order(
    runs: Sequence[Sequence[Table]], work: Mapping[str, float], num_devices: int
) -> dict[str, frozenset[int]] | None:
    """Return the consecutive devices of each table; tables of different runs share none. None if too few devices."""
    if len(runs) > num_devices:
        return None
    totals = [max(sum(work[table.name] for table in run), 1e-12) for run in runs]  # above 0, as it is a divisor
    counts = [1] * len(runs)
    # Each further device goes to the run with the most work per device.
    for _ in range(num_devices - len(runs)):
        counts[max(range(len(runs)), key=lambda at: totals[at] / counts[at])] += 1
    found, first = {}, 0
    for run, total, count in zip(runs, totals, counts, strict=True):
        done = 0.0
        for table in run:
            # From the device of the table's first unit of work to that of its last; 1e-9 absorbs rounding.
            low = min(int(done / total * count + 1e-9), count - 1)
            done += work[table.name]
            high = min(max(-int(-(done / total * count - 1e-9) // 1) - 1, low), count - 1)
            found[table.name] = frozenset(range(first + low, first + high + 1))
        first += count
    return found


def _correct_work(work: Mapping[str, float], answer: PlacementAnswer) -> dict[str, float]:
    total_ms = [device.predicted_total_ms for device in answer.devices]
    mean_ms = sum(total_ms) / len(total_ms) or 1.0
    factor_of: dict[str, list[float]] = {}
    for part in answer.parts:
        factor_of.setdefault(part.table, []).extend(total_ms[device] / mean_ms for device in part.devices)
    return {name: value * sum(factor_of[name]) / len(factor_of[name]) for name, value in work.items()}
