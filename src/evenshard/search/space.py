"""Search space: the sharding options of each table group and the costs of their shards.

If device memory is short, large tables may also be offloaded: each option is repeated for every cache size, and without
a cache.

Legend: G groups, D devices, N changes, C kernel calls, L collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np

from evenshard.placement import sharding
from evenshard.placement.parts import (
    COLUMN_STEP,
    FUSED,
    ON_DEVICE,
    Storage,
    TablePart,
    cut_rows,
    even_widths,
    row_starts,
    spans_of_sizes,
    storages_of,
    whole_part,
)
from evenshard.placement.placement import common_device_mask, merge_groups, parts_by_table, separation_groups
from evenshard.placement.sharding import TABLE_COLUMN_WISE, TABLE_WISE, TYPES, least_limited_column_type
from evenshard.placement.task import ShardingTask, common_kernels
from evenshard.price.collectives import latencies_ms
from evenshard.price.loads import Indices, Mask
from evenshard.price.step import PartCosts
from evenshard.search import sharding_option
from evenshard.search.shard_builder import ShardArrays, ShardBuilder
from evenshard.search.sharding_option import Choice, Cuts, OptionRun
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

MAX_CUTS = 128  # most column shards of a table
# Largest number of tables times devices for which everything is tried; less is tried in larger tasks.
SMALL = 2**16
# Cache sizes to try for ``fused_uvm_caching`` and ``key_value``, as shares of the table (TorchRec's load factor).
CACHE_LOAD_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
# Part of the devices' memory that whole tables must fill before other memory is considered.
SHORT_SHARE = 0.85
# Smaller tables, relative to a device's memory, stay in device memory.
LEAST_OFFLOADED = 1e-3


_BY_ROWS = tuple(one for one in TYPES.values() if one.cuts_rows)


class SearchSpace:
    """All table groups of a task with their options, and the price columns of all shards.

    Single tables come first, then tables that stay together. ``ShardBuilder`` describes ``calls``, ``lookups`` and
    ``collective_of_call``. If ``is_small``, all even column cuts are included.

    Args:
        offloads: True to include offloaded options, if the task allows them; by default, if device memory is short or
            the rules require it.
    """

    def __init__(self, costs: PartCosts, offloads: bool | None = None) -> None:
        self.costs, self.task = costs, costs.task
        self.offloads = is_short_of_memory(costs.task) if offloads is None else offloads
        self.is_small = len(self.task.tables) * self.task.num_devices <= SMALL
        self._builder = ShardBuilder(costs)
        self.calls, self.collective_of_call = self._builder.calls, self._builder.collective_of_call
        self.lookups = self._builder.lookups
        self._cuts_of: dict[tuple[object, ...], tuple[tuple[str, Cuts], ...]] = {}
        self.groups = tuple(self._groups())
        self.lookups.update()

    @cached_property
    def lane_limits(self) -> tuple[int, ...]:
        """Return the widths above which a row takes more warp lanes, if some groups are narrower and some wider."""
        limits = {limit for price in self.costs.prices for limit in price.lane_limits}
        widest = [max(self.task.tables[at].embedding_dim for at in group.tables) for group in self.groups]
        return tuple(limit for limit in sorted(limits) if min(widest) <= limit < max(widest))

    @property
    def span_of_call(self) -> list[int]:
        """Return, for each kernel call, the number of consecutive devices that do the same lookups."""
        return [TYPES[call.sharding_type].span(self.task.machine) for call in self.calls]

    @cached_property
    def memory_D(self) -> Indices:
        """Return the memory of each device, bytes, [D]."""
        return np.array(self.task.room_bytes, dtype=np.int64)

    @cached_property
    def shard_arrays(self) -> ShardArrays:
        """Return all shards as arrays."""
        return self._builder.arrays()

    @cached_property
    def means(self) -> sharding_option.MeanCollections:
        """Return the collections with MEAN tables, which are cut by rows as a whole or not at all."""
        return sharding_option.MeanCollections(self.costs, self.groups, self.table, len(self.shard_arrays.span_P))

    @cached_property
    def table(self) -> sharding_option.OptionTable:
        """Return all options as arrays."""
        runs = [run for group in self.groups for run in group.runs]
        of_type: dict[str, int] = {}
        of_storage: dict[Storage, int] = {}
        type_R = np.array([of_type.setdefault(run.sharding_type, len(of_type)) for run in runs])
        storage_R = np.array([of_storage.setdefault(run.storage, len(of_storage)) for run in runs])
        of_widths: dict[tuple[int, ...], int] = {}
        cut_of = {
            cuts: np.array([of_widths.setdefault(widths, len(of_widths)) for widths in cuts.of_options])
            for cuts in dict.fromkeys(run.cuts for run in runs)
        }
        homes = [(TYPES[one].span(self.task.machine), TYPES[one].home_span(self.task.machine)) for one in of_type]
        options_R = np.array([len(run.cuts.slots) for run in runs])
        return sharding_option.OptionTable(
            np.array([_num_options(group.runs) for group in self.groups]),
            np.concatenate([run.cuts.count_O for run in runs]),
            np.concatenate([run.first_shard + run.cuts.slot_A for run in runs]),
            (tuple(of_type), type_R.repeat(options_R)),
            (tuple(of_storage), storage_R.repeat(options_R)),
            np.array(homes)[type_R.repeat(options_R)].T,
            np.concatenate([cut_of[run.cuts] for run in runs]),
            self.shard_arrays,
        )

    def options(self, group: int) -> list[sharding_option.ShardingOption]:
        """Return the options of a group."""
        return [self.option(group, number) for number in range(int(self.table.num_options_G[group]))]

    def option(self, group: int, number: int) -> sharding_option.ShardingOption:
        """Return an option of a group."""
        return self.table.option(int(self.table.first_option_G[group]) + number)

    def latencies(self, is_used_NC: Mask) -> FloatArray:
        """Return the communication latencies of the used kernel calls, [3, N], in the order of ``ExchangeTimes``.

        Calls that share a collective count once.
        """
        of_call_CL, latency_L3 = self._collectives
        return np.asarray(((is_used_NC @ of_call_CL) @ latency_L3).T)

    @cached_property
    def _collectives(self) -> tuple[Mask, FloatArray]:
        """Return the collective of each kernel call, [C, L], and the latencies of each, [L, 3]."""
        names = list(dict.fromkeys(self.collective_of_call))
        of_call_CL = np.array([[own == name for name in names] for own in self.collective_of_call])
        return of_call_CL, np.array([latencies_ms(self.task.machine, {name}, self.costs.links) for name in names])

    def add_options(self, group: int, shapes: Iterable[tuple[str, Sequence[int], Storage]]) -> range:
        """Add options to a group of one table, and return their indices.

        Args:
            shapes: type, widths of the parts and storage of each option.
        """
        own = self.groups[group]
        (position,), first = own.tables, _num_options(own.runs)
        own.runs.extend(self._run(position, name, storage, Cuts.of([widths])) for name, widths, storage in shapes)
        self.lookups.update()
        for outdated in ("shard_arrays", "table", "means", "_collectives"):
            vars(self).pop(outdated, None)
        return range(first, _num_options(own.runs))

    def find_or_add_option(self, group: int, name: str, widths: Sequence[int], storage: Storage) -> int | None:
        """Return the index of a group's option with this type, this storage and these widths, in this order.

        A missing option is added, unless it is row-wise or replicated in device memory; then return None.
        """
        own = self.groups[group]
        usual = self.column_type(own.tables[0]) if name == sharding.COLUMN_WISE else name  # an equivalent type
        is_alone, first = len(own.tables) == 1, 0
        for run in own.runs:
            if (run.sharding_type, run.storage) == (usual, storage):
                for number, of_option in enumerate(run.cuts.of_options, first):
                    if of_option == tuple(widths) or not is_alone:
                        return number
            first += len(run.cuts.slots)
        stays = not (TYPES[name].cuts_rows or TYPES[name].is_replicated)
        if own.runs and is_alone and (stays or storage != ON_DEVICE):
            return self.add_options(group, [(usual, widths, storage)])[0]
        return None

    def _groups(self) -> Iterator[sharding_option.TableGroup]:
        task = self.task
        number_of = {position: number for number, group in enumerate(task.together) for position in group}
        groups = merge_groups(len(task.tables), task.together)
        # Single tables come first, then the groups in the order of the rules.
        for members in sorted(groups, key=lambda group: max(number_of.get(position, -1) for position in group)):
            allowed_D, apart = common_device_mask(task, members), separation_groups(task, members)
            yield sharding_option.TableGroup(members, list(self._runs(members)), allowed_D, apart)

    def _runs(self, members: Sequence[int]) -> Iterator[OptionRun]:
        for storage in self._storages(members):
            if len(members) > 1:
                columns = _whole(sum(self.task.tables[at].embedding_dim for at in members))
                yield OptionRun(TABLE_WISE, storage, columns, self._builder.add_together(members, storage))
                continue
            for name, cuts in self._cuts(members[0], storage.is_on_device):
                yield self._run(members[0], name, storage, cuts)

    def _run(self, position: int, name: str, storage: Storage, cuts: Cuts) -> OptionRun:
        return OptionRun(name, storage, cuts, self._builder.add(position, name, storage, cuts.widths))

    def _storages(self, members: Sequence[int]) -> list[Storage]:
        kernels = common_kernels(self.task, members)
        are_large = (self.task.tables[at].size_bytes > LEAST_OFFLOADED * max(self.task.room_bytes) for at in members)
        leaves = FUSED not in kernels or (self.offloads and any(are_large))
        elsewhere = [one for one in kernels if one != FUSED and leaves]
        return [
            *([ON_DEVICE] if FUSED in kernels else []),
            *(one for kernel in elsewhere for one in storages_of(kernel, CACHE_LOAD_FACTORS)),
        ]

    def _cuts(self, position: int, on_device: bool) -> tuple[tuple[str, Cuts], ...]:
        """Return each sharding type with its column cuts; offloaded tables have only power-of-two cuts, no replicas."""
        task, limits, table = self.task, self.task.limits_of(position), self.task.tables[position]
        allowed = task.num_devices if limits.devices is None else len(limits.devices)
        has_rows = tuple(_has_rows_for(table, own.span(task.machine)) for own in _BY_ROWS)
        alike = (limits.min_columns, allowed, position in task.kept_apart, on_device)
        key = (frozenset(task.types[position]), table.embedding_dim, has_rows, *alike)
        if key not in self._cuts_of:
            self._cuts_of[key] = tuple(self._list_cuts(position, allowed, on_device))
        return self._cuts_of[key]

    def _list_cuts(self, position: int, allowed: int, on_device: bool) -> Iterator[tuple[str, Cuts]]:
        limits, machine = self.task.limits_of(position), self.task.machine
        whole_columns = self.task.tables[position].embedding_dim
        fewest = self.task.fewest_column_parts(self.task.tables[position])
        for own in self._types(position):
            if own.is_replicated and not on_device:
                continue
            if not own.cuts_columns:
                yield own.name, _whole(whole_columns)
                continue
            most = own.most_column_parts(machine) if own.cuts_rows else min(own.most_column_parts(machine), allowed)
            cuts = _round_cuts(whole_columns, most, limits.min_columns, fewest, self.is_small and on_device)
            if cuts.slots:
                yield own.name, cuts

    def column_type(self, position: int) -> str:
        """Return the column-wise sharding type of a table: within a node, or across nodes if allowed."""
        return least_limited_column_type(self.task.types[position], self.task.machine, TABLE_COLUMN_WISE)

    def _types(self, position: int) -> list[sharding.ShardingType]:
        """Return the types, fewest shards first, without types that are equivalent to another."""
        machine, table, types = self.task.machine, self.task.tables[position], set(self.task.types[position])
        if machine.num_devices == 1:
            return [TYPES[TABLE_WISE]]
        is_narrow = self.task.fewest_column_parts(table) == 1
        if is_narrow and any(TYPES[one].may_be_whole for one in types):
            types.add(TABLE_WISE)
        if rows_of_all := types & {*sharding.ROWS_ALONE} & {*sharding.types_on_all(machine)}:
            types = types - rows_of_all | {sharding.ROW_WISE}
        types -= {*sharding.COLUMNS_ALONE} - {self.column_type(position)}
        if position in self.task.kept_apart:
            fewer = {one for one in types if TYPES[one].span(machine) == 1}
        else:
            # The search assumes that every device has rows: cuts that leave devices without rows are a last resort.
            fewer = {one for one in types if not TYPES[one].cuts_rows or _has_rows_for(table, TYPES[one].span(machine))}
        found = (TYPES[one] for one in TYPES if one in (fewer or types))
        return sorted(found, key=lambda one: (one.is_replicated, one.cuts_rows))


def _num_options(runs: Sequence[OptionRun]) -> int:
    return sum(len(run.cuts.slots) for run in runs)


def _has_rows_for(table: Table, devices: int) -> bool:
    return len(row_starts(table.num_rows, devices)) == devices


def is_short_of_memory(task: ShardingTask) -> bool:
    """Return True if offloading is allowed and tables fill ``SHORT_SHARE`` of memory, or a table requires it."""
    if not task.may_offload:
        return False
    return sum(task.table_bytes) > SHORT_SHARE * sum(task.room_bytes) or any(
        FUSED not in task.kernels_of(position) for position in range(len(task.tables))
    )


@lru_cache(maxsize=4096)
def _whole(columns: int) -> Cuts:
    return Cuts.of([(columns,)])


@lru_cache(maxsize=4096)
def _round_cuts(columns: int, most: int, least_width: int, fewest: int, tries_all: bool) -> Cuts:
    found = column_cuts(columns, most, least_width, fewest)
    return Cuts.of(one for one in found if tries_all or len(one).bit_count() == 1 or len(one) == fewest)


def column_cuts(columns: int, most: int, least_width: int, fewest: int = 2) -> Iterator[tuple[int, ...]]:
    """Return even cuts of a table's columns into 2, 3, 4, 6, 8, ... parts of multiples of four columns.

    Args:
        columns: columns of the table.
        most: most parts.
        least_width: columns of the narrowest part.
        fewest: fewest parts; the cut into exactly this many comes first.
    """
    steps, rest = divmod(columns, COLUMN_STEP)
    if rest:
        return
    for parts in (fewest, *(count for count in _COUNTS if count > fewest)):
        if parts == 1:
            continue
        if parts > min(most, steps):
            return
        widths = even_widths(columns, parts)
        if widths[-1] < least_width:
            return
        yield widths


# Numbers of column shards to try: all small ones, then ever sparser.
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, MAX_CUTS)


def parts_of(space: SearchSpace, choices: Sequence[Choice]) -> tuple[TablePart, ...]:
    """Convert the choices of all groups to table parts, in the order of the task's tables."""
    found: dict[int, Sequence[TablePart]] = {}
    for number, choice in enumerate(choices):
        found.update(parts_of_group(space, number, choice))
    return tuple(part for position in range(len(space.task.tables)) for part in found[position])


def parts_of_group(space: SearchSpace, number: int, choice: Choice) -> dict[int, list[TablePart]]:
    """Return the parts of each table of a group, by the table's position, ordered by columns, then rows."""
    task, group = space.task, space.groups[number]
    option = space.option(number, choice.option)
    found: dict[int, list[TablePart]] = {}
    for position in group.tables:
        table = task.tables[position]
        own = found.setdefault(position, [])
        if TYPES[option.sharding_type].is_replicated:
            own.append(whole_part(table, tuple(range(task.num_devices))))
            continue
        widths = option.widths if len(group.tables) == 1 else [table.embedding_dim]
        for place, columns in zip(choice.places, spans_of_sizes(widths), strict=True):
            devices = range(place * option.span, (place + 1) * option.span)
            own += cut_rows(table, devices, columns, option.storage)
    return found


def choices_of(space: SearchSpace, parts: Sequence[TablePart]) -> list[Choice] | None:
    """Convert a placement to a choice of option and devices for each group; None if an option is missing.

    Unevenly cut rows are treated as evenly cut.
    """
    by_table = parts_by_table(space.task, parts)
    found = []
    for number, group in enumerate(space.groups):
        choice = find_choice(space, number, by_table[space.task.tables[group.tables[0]].name])
        if choice is None:
            return None
        found.append(choice)
    return found


def find_choice(space: SearchSpace, number: int, of_table: Sequence[TablePart]) -> Choice | None:
    """Return the option and devices of a group by which its first table has these parts; None if there are none."""
    task, machine, group = space.task, space.task.machine, space.groups[number]
    option_name = sharding.sharding_type(of_table, task.tables[group.tables[0]], machine)
    span = TYPES[option_name].span(machine)
    places = {part.columns: part.devices[0] // span for part in of_table}
    option = space.find_or_add_option(number, option_name, [columns.size for columns in places], of_table[0].storage)
    return None if option is None else Choice(option, tuple(places.values()))
