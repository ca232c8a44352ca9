"""Bytes that move when a model changes from an earlier placement to another placement.

The weights of a group and their optimizer state move to every device that lacks them, as ``placement.moves`` counts.

Legend: D devices, O devices of the earlier placement, N devices of the new placement; G groups, E options with places,
S shards of an option (padded), F shards of these options, A shards of all options, P earlier parts of a table, Q
places, W devices of a place, M placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig
from evenshard.placement.memory import SGD, state_bytes
from evenshard.placement.moves import EarlierPlacement, device_kinds, larger_machine, match_devices
from evenshard.placement.parts import Span, TablePart, row_spans
from evenshard.placement.placement import find_broken_limit, parts_by_table
from evenshard.placement.sharding import TYPES
from evenshard.price.loads import Indices, repeat_numbers
from evenshard.search.sharding_option import Choice, arrays_of, choices_from
from evenshard.search.space import SearchSpace, find_choice, parts_of_group
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

# Energy of moving all bytes, relative to a step: of placements with equal times, fewer moved bytes are better.
PRICE = 1e-3
# Smallest penalty for placements beyond the limit, as a share of all bytes.
BEYOND = 0.01


class Moves:
    """Cost of moving from an earlier placement; adds that placement's options to the search space.

    Attributes:
        home_G, home_GS: each group's option and devices (or blocks) in the earlier placement; the option is -1 if the
            group has no legal earlier placement.
        costless_groups: groups that may move at no cost: replicas, and groups whose option is -1.
        all_bytes: bytes of all tables in the earlier placement.
        most_bytes: limit of the moved bytes of a placement.
    """

    def __init__(self, space: SearchSpace, earlier: EarlierPlacement) -> None:
        self.space, self.earlier, self.most_bytes = space, earlier, float("inf")
        self._machine = larger_machine(earlier.machine, space.task.machine)
        homes = [self._home(group) for group in range(len(space.groups))]
        self.table = space.table
        option_G, self.home_GS = arrays_of(self.table, [home or Choice(0) for home in homes])
        self._tabulate()
        has_home_G = np.array([home is not None for home in homes])
        self.home_G = np.where(has_home_G & (self.count_bytes(option_G, self.home_GS) == 0), option_G, -1)
        is_replica_G = (self.home_G >= 0) & self.table.is_replica_O[self.home_G]
        self.costless_groups = np.flatnonzero((self.home_G < 0) | is_replica_G)
        kept = (table.size_bytes for table in space.task.tables if table.name in earlier.parts_of_table)
        self.all_bytes = max(sum(kept), 1)

    def _home(self, group: int) -> Choice | None:
        task, tables = self.space.task, self.space.groups[group].tables
        found = [self.earlier.parts_of_table.get(task.tables[position].name, ()) for position in tables]
        if not all(found) or any(
            device >= task.num_devices for own in found for part in own for device in part.devices
        ):
            return None
        with suppress(BadConfig):  # rows over the devices of another machine
            if all(find_broken_limit(task, position, own) is None for position, own in zip(tables, found, strict=True)):
                return find_choice(self.space, group, found[0])
        return None

    # Bytes ------------------------------------------------------------------------------------------------------------

    def weigh(self, moved_M: Indices, overflow: float) -> FloatArray:
        """Return the annealing energy of moved bytes, [M]; bytes over the limit are penalized by ``overflow``."""
        beyond_M = np.maximum(moved_M - self.most_bytes, 0.0)
        overflow_M = overflow * (beyond_M / self.all_bytes + BEYOND * (beyond_M > 0))
        return np.asarray(PRICE * moved_M / self.all_bytes + overflow_M)

    def parts_bytes(self, parts: Sequence[TablePart]) -> int:
        """Return the bytes that move if a model changes to a placement with these parts."""
        task = self.space.task
        shards = self.earlier.list_overlaps(task.tables, parts_by_table(task, parts), task.machine)
        return sum(shard.moved_bytes for shard in shards)

    def count_bytes(self, option_E: Indices, place_ES: Indices) -> Indices:
        """Return the bytes that move if groups take these options (in ``table``) on these devices or blocks, [E]."""
        from_F, slot_F = repeat_numbers(self.table.count_O[option_E])
        bytes_F = self.shard_bytes(option_E[from_F], slot_F, place_ES[from_F, slot_F])
        return np.bincount(from_F, bytes_F, len(option_E)).astype(np.int64)

    def shard_bytes(self, option_F: Indices, slot_F: Indices, place_F: Indices) -> FloatArray:
        """Return the bytes that move to shard number ``slot_F`` of each option at this device or block, [F]."""
        table = self.table
        column_F = np.where(table.span_O[option_F] == 1, self._column_GD[table.group_O[option_F], place_F], place_F)
        return np.asarray(self._bytes[self._first_A[table.first_O[option_F] + slot_F] + column_F])

    def _tabulate(self) -> None:
        """Tabulate the bytes that move to each shard of each option, for each device or block of devices.

        Devices that have the same earlier parts of a group share an entry.
        """
        groups, devices, table = self.space.groups, self.space.task.num_devices, self.table
        columns_A = self.space.shard_arrays.columns_P[table.shard_A]
        start_A = np.cumsum(columns_A) - columns_A
        start_A -= start_A[table.first_O][table.option_A]
        kind_A = (2 * table.type_O + table.is_on_device_O)[table.option_A]
        self._column_GD = np.zeros((len(groups), devices), dtype=np.int32)
        self._first_A = np.zeros(len(columns_A), dtype=np.int64)
        found: list[FloatArray] = []
        size = 0
        shards_G = np.split(np.arange(len(columns_A)), table.first_O[table.first_option_G[1:]])
        for number, (group, shards) in enumerate(zip(groups, shards_G, strict=True)):
            tables = [self.space.task.tables[position] for position in group.tables]
            reach = [self._reach_DP(one, by_host) for one in tables for by_host in (False, True)]
            marks = np.concatenate([np.zeros((devices, 1), dtype=bool), *reach], axis=1)
            _, first_Q, column_D = np.unique(marks, axis=0, return_index=True, return_inverse=True)
            self._column_GD[number] = column_D.reshape(-1)
            for kind in np.unique(kind_A[shards]).tolist():
                own = shards[kind_A[shards] == kind]
                span, sharding_type = int(table.span_O[table.option_A[own[0]]]), TYPES[table.types[kind // 2]]
                devices_QW = first_Q[:, None] if span == 1 else np.arange(devices).reshape(-1, span)
                cut = np.stack([start_A[own], start_A[own] + columns_A[own]], axis=1)
                bytes_AQ = np.zeros((len(own), len(devices_QW)))
                for one in tables:
                    columns = cut if len(tables) == 1 else np.tile([0, one.embedding_dim], (len(own), 1))
                    bytes_AQ += self._lacking_bytes(one, columns, devices_QW, sharding_type.cuts_rows, kind % 2 == 1)
                self._first_A[own] = size + np.arange(len(own)) * len(devices_QW)
                found.append(bytes_AQ.reshape(-1))
                size += bytes_AQ.size
        self._bytes = np.concatenate(found)

    def _reach_DP(self, table: Table, by_host: bool) -> npt.NDArray[np.bool_]:
        """Mark the devices that have each earlier part of a table, or if ``by_host``, all devices of its host."""
        before, machine = self.earlier.parts_of_table.get(table.name, ()), self._machine
        found = np.zeros((machine.num_devices, len(before)), dtype=bool)
        for number, part in enumerate(before):
            found[list(part.devices), number] = True
        if by_host:
            of_node = found.reshape(machine.num_nodes, machine.devices_per_node, len(before)).any(axis=1)
            found = of_node.repeat(machine.devices_per_node, axis=0)
        return found[: self.space.task.num_devices]

    def _lacking_bytes(
        self, table: Table, columns: Indices, devices_QW: Indices, cuts_rows: bool, is_on_device: bool
    ) -> FloatArray:
        """Return the bytes of these columns that each set of devices lacks, in all rows or equal row blocks, [A, Q]."""
        before, span = self.earlier.parts_of_table.get(table.name, ()), devices_QW.shape[1]
        if not before:
            return np.zeros((len(columns), len(devices_QW)))
        rows = row_spans(table, span) if cuts_rows else [Span(0, table.num_rows)] * span
        columns_A1P = _overlaps(columns, [part.columns for part in before])[:, None]
        rows_AWP = np.where(columns_A1P > 0, _overlaps(rows, [part.rows for part in before]), 0)
        shards: Any = replace(table, num_rows=rows_AWP, embedding_dim=columns_A1P)  # type: ignore[arg-type]
        bytes_AWP = shards.size_bytes + state_bytes(shards, self.earlier.optimizer_of.get(table.name, SGD))
        by_host = not (before[0].storage.is_on_device and is_on_device)
        lacks_QWP = ~self._reach_DP(table, by_host)[devices_QW[:, : len(rows)]]
        return np.tensordot(bytes_AWP.astype(np.float64), lacks_QWP.astype(np.float64), ([1, 2], [1, 2]))

    # Placements -------------------------------------------------------------------------------------------------------

    def earlier_parts(self) -> tuple[TablePart, ...] | None:
        """Return the earlier placement; None if it lacks a table or uses devices that the task does not have."""
        task = self.space.task
        found = [self.earlier.parts_of_table.get(table.name, ()) for table in task.tables]
        parts = tuple(part for own in found for part in own)
        gone = any(device >= task.num_devices for part in parts for device in part.devices)
        return None if gone or not all(found) else parts

    def rename_devices(self, option_G: Indices, place_GS: Indices) -> Indices:
        """Renumber devices so that the fewest bytes move; return the new device or block of each shard, [G, S]."""
        task, span_G1 = self.space.task, self.table.span_O[option_G][:, None]
        after = {
            task.tables[position].name: parts
            for group, choice in enumerate(choices_from(self.table, option_G, place_GS))
            if not 1 < span_G1[group] == task.num_devices
            for position, parts in parts_of_group(self.space, group, choice).items()
        }
        shards = self.earlier.list_overlaps(task.tables, after, task.machine)
        names = match_devices(shards, device_kinds(task), task.machine)
        is_shard_GS = np.arange(self.table.most_shards) < self.table.count_O[option_G][:, None]
        return np.where(is_shard_GS, names[place_GS * span_G1] // span_G1, 0)


def _overlaps(ones: Sequence[Span] | Indices, others: Sequence[Span]) -> Indices:
    """Return the number of rows or columns shared by each pair of spans."""
    one, other = np.array(ones, dtype=np.int64), np.array(others, dtype=np.int64)
    shared = np.minimum.outer(one[:, 1], other[:, 1]) - np.maximum.outer(one[:, 0], other[:, 0])
    return np.asarray(np.maximum(shared, 0))
