"""Sharding options of the search: groups of tables, and the options of each.

A group is one table, or tables that stay together in one shard. An option is a sharding type, the widths of the shards
and a storage. A choice is an option of a group, and a place for each of its shards: a device for columns of a table, a
node or the machine for rows, or all devices for replicas. For rows and replicas, one entry represents the equal shards
of all these devices. Collections with MEAN tables are row-wise as a whole.

Legend: D devices, G groups, O options of all groups or cuts, A shards of all options or parts of all cuts, K
collections, P shards, M placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, Storage
from evenshard.placement.sharding import ROWS_ALONE
from evenshard.price.loads import Indices, Mask, Rows
from evenshard.price.step import PartCosts
from evenshard.search.shard_builder import ShardArrays
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import MEAN

# Overflow for each group that has to change.
WRONG = 0.1


@dataclass(frozen=True)
class ShardingOption:
    """Sharding option of a group of tables, like TorchRec's ``ShardingOption``.

    Each shard is on ``span`` consecutive devices; its place is the index of this block of devices. All shards are
    within ``home_span`` consecutive devices. ``shards`` are indices into the space's shards, ``widths`` their columns.
    """

    sharding_type: str
    storage: Storage
    span: int
    home_span: int
    shards: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cuts:
    """Column cuts of a table, one per option.

    ``widths`` are the distinct widths of all cuts; ``slots`` has, for each part of each cut, the index of its width.
    """

    widths: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(cuts: Iterable[Sequence[int]]) -> Cuts:
        """Build from lists of widths, storing each distinct width once."""
        numbers: dict[int, int] = {}
        slots = tuple(tuple(numbers.setdefault(width, len(numbers)) for width in widths) for widths in cuts)
        return Cuts(tuple(numbers), slots)

    @cached_property
    def of_options(self) -> tuple[tuple[int, ...], ...]:
        """Return the widths of each cut."""
        return tuple(tuple(self.widths[slot] for slot in slots) for slots in self.slots)

    @cached_property
    def slot_A(self) -> npt.NDArray[np.int64]:
        """Return the index in ``widths`` of each part's width, for all parts of all cuts in order, [A]."""
        return np.array([slot for slots in self.slots for slot in slots], dtype=np.int64)

    @cached_property
    def count_O(self) -> npt.NDArray[np.int64]:
        """Return the number of parts of each cut, [O]."""
        return np.array([len(slots) for slots in self.slots], dtype=np.int64)


class OptionRun(NamedTuple):
    """Consecutive options of a group with one type and storage."""

    sharding_type: str
    storage: Storage
    cuts: Cuts
    first_shard: int


class OptionTable:
    """All options of all groups, concatenated, and the shards of each.

    Attributes:
        num_options_G, first_option_G: number of options of each group, and the index of the first.
        group_O, number_O: the group of each option, and its index in the group.
        count_O, first_O: number of shards of each option, and the index of the first in ``shard_A``.
        shard_A, option_A: the index of each shard among the distinct shards, and its option.
        type_O, storage_O: indices into ``types`` and ``storages``.
        span_O, home_O: consecutive devices of each shard, and of all shards together.
        bytes_O, width_O: device memory of the largest shard, and columns of the widest.
        is_unusual_O: False if the columns are cut evenly into 1, 2, 4, 8, ... parts, or into equal parts whose width is
            a power of two.
        shape_O: an id of the type and the columns of the first shard.
        twin_O, first_twin_O, num_twins_O: all options, sorted so that twins, which differ only in storage, are
            neighbors; the index of each option's first twin, and the number of its twins.
    """

    def __init__(
        self,
        num_options_G: Indices,
        count_O: Indices,
        shard_A: Indices,
        types: tuple[tuple[str, ...], Indices],
        storages: tuple[tuple[Storage, ...], Indices],
        homes_2O: Indices,
        cut_O: Indices,
        shards: ShardArrays,
    ) -> None:
        self.num_options_G, self.count_O, self.shard_A = num_options_G, count_O, shard_A
        (self.types, self.type_O), (self.storages, self.storage_O) = types, storages
        self.span_O: Indices = homes_2O[0]
        self.home_O: Indices = homes_2O[1]
        self.first_option_G = np.cumsum(num_options_G) - num_options_G
        self.group_O = np.repeat(np.arange(len(num_options_G)), num_options_G)
        self.number_O = np.arange(len(self.group_O)) - self.first_option_G[self.group_O]
        self.first_O = np.cumsum(count_O) - count_O
        self.option_A = np.repeat(np.arange(len(count_O)), count_O)
        self.most_shards = int(count_O.max())
        self.place_type: np.dtype[Any] = np.dtype(np.int16 if self.home_O.max() < 2**15 else np.int64)
        self._columns_A = columns_A = shards.columns_P[shard_A]
        self.bytes_O = np.maximum.reduceat(shards.size_P[shard_A], self.first_O)
        self.width_O = np.maximum.reduceat(columns_A, self.first_O)
        least_O = np.minimum.reduceat(columns_A, self.first_O)
        is_even_O = self.width_O - least_O <= COLUMN_STEP
        is_power_O = (self.width_O == least_O) & _is_power_of_two(self.width_O)
        self.is_unusual_O = ~(is_even_O & (_is_power_of_two(count_O) | is_power_O))
        self.is_on_device_O = np.array([storage.is_on_device for storage in self.storages])[self.storage_O]
        self.is_replica_O = shards.values_P[shard_A[self.first_O]] > 0
        columns_O = columns_A[self.first_O]
        shapes_O = self.type_O * (columns_O.max() + 1) + columns_O
        self.shape_O = np.unique(shapes_O, return_inverse=True)[1]
        alike_O = (self.group_O * len(self.types) + self.type_O) * (cut_O.max() + 1) + cut_O
        _, twins_O, count_B = np.unique(alike_O, return_inverse=True, return_counts=True)
        self.twin_O = np.argsort(twins_O, kind="stable")
        self.num_twins_O = count_B[twins_O]
        self.first_twin_O = (np.cumsum(count_B) - count_B)[twins_O]

    def pad_by_group(self, values_O: FloatArray) -> FloatArray:
        """Reshape option values to [G, options of a group], padded with infinity."""
        found = np.full((len(self.num_options_G), int(self.num_options_G.max())), np.inf)
        found[self.group_O, self.number_O] = values_O
        return found

    def option(self, number: int) -> ShardingOption:
        """Return an option, given its index among those of all groups."""
        own = slice(self.first_O[number], self.first_O[number] + self.count_O[number])
        return ShardingOption(
            self.types[self.type_O[number]],
            self.storages[self.storage_O[number]],
            int(self.span_O[number]),
            int(self.home_O[number]),
            tuple(self.shard_A[own].tolist()),
            tuple(self._columns_A[own].tolist()),
        )


def _is_power_of_two(numbers: Indices) -> Mask:
    return np.asarray(numbers & (numbers - 1) == 0)


@dataclass(frozen=True)
class TableGroup:
    """Tables that are placed together (one table, or tables that stay together), by position in the task.

    ``allowed_D`` marks allowed devices, None for all; ``apart`` are the indices of the keep-apart rules for its tables.
    """

    tables: tuple[int, ...]
    runs: list[OptionRun]
    allowed_D: npt.NDArray[np.bool_] | None
    apart: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The sharding of a table group: the index of its option, and each shard's index among devices or device blocks."""

    option: int
    places: tuple[int, ...] = (0,)


@dataclass
class Shards(Rows):
    """Shards added or removed. ``change_F`` is each shard's change (or chain), ``device_F`` its first device."""

    change_F: Indices
    shard_F: Indices
    device_F: Indices
    sign_F: Indices


@dataclass
class Edits(Rows):
    """New options of table groups, with the devices of shards; one change may edit several groups."""

    change_E: Indices
    group_E: Indices
    option_E: Indices
    place_ES: Indices


def edits_of(table: OptionTable, changes: Sequence[Mapping[int, Choice]]) -> Edits:
    """Convert changes to ``Edits``; each change maps table groups to their new options and devices."""
    change_E = np.repeat(np.arange(len(changes)), [len(change) for change in changes])
    group_E = np.array([group for change in changes for group in change], dtype=np.int64)
    choices = [choice for change in changes for choice in change.values()]
    return Edits(change_E, group_E, *arrays_of(table, choices, group_E))


def arrays_of(table: OptionTable, choices: Sequence[Choice], group_E: Indices | None = None) -> tuple[Indices, Indices]:
    """Convert choices of groups (by default all) to indices of options, [E], and of devices or blocks, [E, S]."""
    first_E = table.first_option_G if group_E is None else table.first_option_G[group_E]
    place_ES = np.zeros((len(choices), table.most_shards), dtype=table.place_type)
    for place_S, one in zip(place_ES, choices, strict=True):
        place_S[: len(one.places)] = one.places
    return first_E + np.array([one.option for one in choices], dtype=np.int64), place_ES


def choices_from(table: OptionTable, option_G: Indices, place_GS: Indices) -> list[Choice]:
    """Convert indices of options, [G], and of devices or blocks of devices, [G, S], to choices of groups."""
    number_G = option_G - table.first_option_G
    return [
        Choice(int(number), tuple(places[:count].tolist()))
        for number, places, count in zip(number_G, place_GS, table.count_O[option_G], strict=True)
    ]


class MeanCollections:
    """Collections with MEAN tables that a search shards by rows as a whole or not at all.

    TorchRec computes means of row shards by dividing a collection's whole output, which is correct only if all of its
    tables are row-wise. If only some are, each group that would have to change adds to the memory overflow. If a MEAN
    table is row-wise, the time of the division is added to the step.

    ``number_G`` is the index in ``names`` of the collection of each group, -1 for none. ``is_row_O`` and ``is_mean_O``
    mark options that shard tables of the collections, and their MEAN tables, by rows.
    """

    def __init__(self, costs: PartCosts, groups: Sequence[TableGroup], table: OptionTable, num_shards: int) -> None:
        task = costs.task
        self.names = sorted(task.may_be_row_wise) if task.means_of_rows else []
        firsts = [task.tables[group.tables[0]] for group in groups]
        number_of = {name: number for number, name in enumerate(self.names)}
        self.number_G = np.array([number_of.get(one.collection, -1) for one in firsts])
        self._size_K = np.bincount(self.number_G[self.number_G >= 0], minlength=len(self.names))
        self._divided_K = np.array([costs.division_ms({name}) for name in self.names])
        number_O = self.number_G[table.group_O]
        self.is_row_O = np.array([name in ROWS_ALONE for name in table.types])[table.type_O] & (number_O >= 0)
        self.is_mean_O = self.is_row_O & np.array([one.pooling == MEAN for one in firsts])[table.group_O]
        self._number_P = np.full(num_shards, -1)
        number_O = number_O + len(self.names) * self.is_mean_O
        self._number_P[table.shard_A[table.first_O[self.is_row_O]]] = number_O[self.is_row_O]

    def count_rows(self, shards: Shards, count: int) -> Indices:
        """Count row-sharded tables of each collection, non-MEAN first and then MEAN, for M changes, [M, 2 K]."""
        own, size = shards.select(self._number_P[shards.shard_F] >= 0), 2 * len(self.names)
        found = np.bincount(own.change_F * size + self._number_P[own.shard_F], own.sign_F, count * size)
        return found.reshape(count, size).astype(np.int64)

    def overflow(self, rows_MK: Indices) -> FloatArray:
        """Return the penalty of row-wise MEAN tables in collections whose other tables are not all row-wise, [M]."""
        others_MK, means_MK = np.split(rows_MK, 2, axis=1)
        return np.asarray(WRONG * np.minimum(means_MK, self._size_K - means_MK - others_MK).sum(axis=1))

    def division_ms(self, rows_MK: Indices) -> FloatArray:
        """Return the time of dividing the outputs of collections with MEAN tables cut by rows, [M] ms."""
        return np.asarray((rows_MK[:, len(self.names) :] > 0) @ self._divided_K)
