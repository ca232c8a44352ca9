"""State of the parallel annealing chains: one placement per chain, with per-device sums, as arrays.

Changes of all chains are scored in one call. Changes that are applied to the same chain touch different devices. A
place is a device, or the block of devices that a shard spans.

Legend: N chains, D devices, G groups, O options of all groups, P shards of all options, S shards of an option (padded),
M changes that are tried out, E edits (a group's new option and places), F shards added or removed, C kernel calls, V
volumes, B windows of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenshard.price.collectives import VOLUMES, Volumes, exchange_times
from evenshard.price.loads import CellChanges, Indices, Loads, repeat_numbers
from evenshard.price.step import dense_ms
from evenshard.price.step_time import Phases, windows
from evenshard.search.sharding_option import Choice, Edits, Shards, arrays_of
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

if TYPE_CHECKING:  # only the search near a placement needs it
    from evenshard.search.moves import Moves


def round_last_digits(values: FloatArray) -> FloatArray:
    """Round to 32 bits, so that sums whose last digits differ between CPUs compare equal."""
    return values.astype(np.float32).astype(np.float64)


@dataclass
class _Sums:
    """Sums over each placement's shards, such as communication volumes and memory of devices, without kernel times."""

    volumes_VND: FloatArray
    used_3ND: Indices
    offload_2ND: FloatArray
    values_N: FloatArray
    users_NC: Indices
    rows_NK: Indices

    @staticmethod
    def empty(num: int, devices: int, calls: int, collections: int) -> _Sums:
        return _Sums(
            np.zeros((len(VOLUMES), num, devices)),
            np.zeros((3, num, devices), dtype=np.int64),
            np.zeros((2, num, devices)),
            np.zeros(num),
            np.zeros((num, calls), dtype=np.int64),
            np.zeros((num, 2 * collections), dtype=np.int64),
        )

    def select(self, chain_M: Indices) -> _Sums:
        return _Sums(*(np.take(one, chain_M, axis=1 if one.ndim == 3 else 0) for one in vars(self).values()))


@dataclass(frozen=True)
class Outcome:
    """Result of trial changes: device times, memory use and overflow (``Chains.overflow_N``)."""

    windows_BMD: FloatArray
    used_3MD: Indices
    overflow_M: FloatArray


class Chains:
    """State of N placements: options of groups, places (devices or blocks of devices) of shards, and sums.

    Attributes:
        option_NG, place_NGS: the option of each group, and the places of its shards.
        all_shards, all_group_F, all_slot_F: all chains' shards, the group of each, and its position in its option.
        windows_BND: times of devices in each window (from barrier to barrier) of a step, ms.
        moves, moved_N: the earlier placement, if any, and the bytes that move from it to each placement.
    """

    def __init__(
        self,
        space: SearchSpace,
        option_NG: Indices,
        place_NGS: Indices,
        *,
        moves: Moves | None = None,
    ) -> None:
        self.moves = moves
        self.space, self.table, self.task, self.costs = space, space.table, space.task, space.costs
        self.arrays = space.shard_arrays
        self.option_NG, self.place_NGS = option_NG, place_NGS
        self._means = space.means
        self._active_V = np.flatnonzero(self.arrays.volume_PV.any(axis=0)).tolist()
        self._spans: list[int] = np.unique(self.arrays.span_P).tolist()
        self._has_offload = bool(self.arrays.offload_PK2.any())
        self._has_replicas = bool(self.arrays.values_P.any())
        self._loads = Loads(space.lookups, self.costs.prices, self.costs.kind_of_D, space.span_of_call, self.num)
        self.recompute()

    def with_placements(self, option_NG: Indices, place_NGS: Indices) -> Chains:
        """Create chains for other placements in the same search space."""
        return Chains(self.space, option_NG, place_NGS, moves=self.moves)

    @property
    def num(self) -> int:
        """Return the number of chains."""
        return len(self.option_NG)

    @property
    def used_3ND(self) -> Indices:
        """Return the used memory of devices, hosts and SSDs, bytes."""
        return self._sums.used_3ND

    @property
    def cost_N(self) -> FloatArray:
        """Return the step time of each chain's placement, ms."""
        return np.asarray(self.windows_BND.max(axis=-1).sum(axis=0))

    # Shards and cells -------------------------------------------------------------------------------------------------

    def list_shards(
        self, number_E: Indices, option_E: Indices, place_ES: Indices, sign: int
    ) -> tuple[Shards, Indices, Indices]:
        """Return the shards of these options on these devices (or blocks), and the edit and index of each shard."""
        table = self.table
        from_F, slot_F = repeat_numbers(table.count_O[option_E])
        option_F = option_E[from_F]
        shard_F = table.shard_A[table.first_O[option_F] + slot_F]
        device_F = place_ES[from_F, slot_F] * table.span_O[option_F]
        return Shards(number_E[from_F], shard_F, device_F, np.full(len(from_F), sign)), from_F, slot_F

    def expand_to_devices(self, shards: Shards) -> Shards:
        """Expand shards that span several devices to one entry per device."""
        from_F, offset_F = repeat_numbers(self.arrays.span_P[shards.shard_F])
        found = shards.select(from_F)
        return replace(found, device_F=found.device_F + offset_F)

    def list_changed_shards(self, chain_M: Indices, edits: Edits) -> Shards:
        """Return the shards that the changes add or remove, excluding unchanged ones."""
        chain_E = chain_M[edits.change_E]
        old_E = self.option_NG[chain_E, edits.group_E]
        old_ES = self.place_NGS[chain_E, edits.group_E]
        stays_ES = (old_E == edits.option_E)[:, None] & (old_ES == edits.place_ES)
        found = []
        for option_E, place_ES, sign in ((old_E, old_ES, -1), (edits.option_E, edits.place_ES, 1)):
            shards, from_F, slot_F = self.list_shards(edits.change_E, option_E, place_ES, sign)
            found.append(shards.select(~stays_ES[from_F, slot_F]))
        return Shards.join(found)

    def _cells(self, shards: Shards) -> CellChanges:
        from_C, at_C = self.arrays.cells_of(shards.shard_F)
        own = shards.select(from_C)
        return CellChanges(own.change_F, self.arrays.call_C[at_C], self.arrays.row_C[at_C], own.device_F, own.sign_F)

    def _list_all_shards(self) -> CellChanges:
        groups = self.option_NG.shape[1]
        numbers = np.arange(self.num).repeat(groups)
        options, places = self.option_NG.reshape(-1), self.place_NGS.reshape(self.num * groups, -1)
        self.all_shards, from_F, self.all_slot_F = self.list_shards(numbers, options, places, 1)
        self.all_group_F = from_F % groups
        self.moved_N: Indices = self._count_moved_bytes(options, places).reshape(self.num, -1).sum(axis=1)
        return self._cells(self.all_shards)

    # Sums -------------------------------------------------------------------------------------------------------------

    def recompute(self) -> None:
        """Recompute the sums of all chains."""
        cells = self._list_all_shards()
        self._loads.recompute(cells)
        self._sums = _Sums.empty(self.num, self.task.num_devices, len(self.space.calls), len(self._means.names))
        self._add(self._sums, self.all_shards, cells)
        self.windows_BND = self._windows(self._sums, self._loads.compute_2ND)

    def try_out(self, chain_M: Indices, shards: Shards) -> Outcome:
        """Compute times and memory for each change applied alone to its chain."""
        sums, cells = self._sums.select(chain_M), self._cells(shards)
        self._add(sums, shards, cells)
        windows_BMD = self._windows(sums, self._loads.try_out(chain_M, cells))
        return Outcome(windows_BMD, sums.used_3ND, self._overflow(sums))

    def apply(self, chain_M: Indices, edits: Edits, shards: Shards, chosen_M: Indices) -> None:
        """Apply the chosen changes; changes of the same chain must not share a device or a group."""
        is_chosen = np.zeros(len(chain_M), dtype=bool)
        is_chosen[chosen_M] = True
        edits, shards = edits.select(is_chosen[edits.change_E]), shards.select(is_chosen[shards.change_F])
        chain_E = chain_M[edits.change_E]
        self.option_NG[chain_E, edits.group_E] = edits.option_E
        self.place_NGS[chain_E, edits.group_E] = edits.place_ES
        of_chains = replace(shards, change_F=chain_M[shards.change_F])
        cells = self._cells(of_chains)
        self._add(self._sums, of_chains, cells)
        self._loads.apply(cells, self._list_all_shards())
        own_N = np.unique(chain_M[chosen_M])
        compute_2ND = np.take(self._loads.compute_2ND, own_N, axis=1)
        self.windows_BND[:, own_N] = self._windows(self._sums.select(own_N), compute_2ND)

    def replace(self, number_M: Indices, option_MG: Indices, place_MGS: Indices) -> None:
        """Replace the placements of the chains ``number_M``."""
        self.option_NG[number_M], self.place_NGS[number_M] = option_MG, place_MGS
        self.recompute()

    def _add(self, sums: _Sums, shards: Shards, cells: CellChanges) -> None:
        """Add shards and their lookups (cells) to each change's sums, or subtract those with the sign -1."""
        (count, calls), arrays = sums.users_NC.shape, self.arrays
        for at in self._active_V:
            sums.volumes_VND[at] += self.sum_by_device(shards, arrays.volume_PV[:, at], count)
        sums.used_3ND[0] += self.sum_by_device(shards, arrays.size_P, count).astype(np.int64)
        if self._has_offload:
            sums.used_3ND[1] += self.sum_by_device(shards, arrays.host_P, count).astype(np.int64)
            sums.used_3ND[2] += self.sum_by_device(shards, arrays.ssd_P, count).astype(np.int64)
            for kind in range(arrays.offload_PK2.shape[1]):
                is_kind_D = self.costs.kind_of_D == kind
                for own_ND, own_P in zip(sums.offload_2ND, arrays.offload_PK2[:, kind].T, strict=True):
                    own_ND += is_kind_D * self.sum_by_device(shards, own_P, count)
        if self._has_replicas:
            sums.values_N += np.bincount(shards.change_F, shards.sign_F * arrays.values_P[shards.shard_F], count)
        more = np.bincount(cells.change_E * calls + cells.call_E, cells.sign_E, count * calls)
        sums.users_NC += more.reshape(count, calls).astype(np.int64)
        if self._means.names:
            sums.rows_NK += self._means.count_rows(shards, count)

    def sum_by_device(self, shards: Shards, values_P: npt.NDArray[Any], count: int) -> FloatArray:
        """Sum values of shards by device for each of ``count`` changes, [M, D]."""
        devices, span_F = self.task.num_devices, self.arrays.span_P[shards.shard_F]
        value_F = shards.sign_F * values_P[shards.shard_F]
        found_MD = np.zeros((count, devices))
        for span in self._spans:
            own = span_F == span
            at_F = shards.change_F[own] * (devices // span) + shards.device_F[own] // span
            sums_MQ = np.bincount(at_F, value_F[own], count * devices // span).reshape(count, -1)
            found_MD += sums_MQ.repeat(span, axis=1) if span > 1 else sums_MQ
        return found_MD

    def _windows(self, sums: _Sums, compute_2ND: FloatArray) -> FloatArray:
        volumes = Volumes(*np.maximum(sums.volumes_VND, 0.0))
        volumes.replicated_values = sums.values_N
        times = [*exchange_times(self.task, volumes, self.costs.links)]
        if self.task.num_devices > 1:
            latencies_3N = self.space.latencies(sums.users_NC > 0)
            times = [one + latency_N[:, None] for one, latency_N in zip(times, latencies_3N, strict=True)]
        inputs, out, back = times
        forward, backward = compute_2ND + sums.offload_2ND if self._has_offload else compute_2ND
        if sums.values_N.any():
            kinds = [kind.bytes_per_ns for kind in self.costs.kinds]
            per_kind = np.stack([dense_ms(sums.values_N, one, self.task.optimizer) for one in kinds])
            backward = backward + per_kind[self.costs.kind_of_D].T
        phases = Phases(inputs, forward, out, back, backward)
        found = np.stack([one.total for one in windows(phases, self.costs.pipeline)])
        if self._means.names:
            found[0] += self._means.division_ms(sums.rows_NK)[:, None]
        return found

    @property
    def overflow_N(self) -> FloatArray:
        """Return each chain's memory overflow as a share of capacity, plus the penalty ``MeanCollections.overflow``."""
        return self._overflow(self._sums)

    def _overflow(self, sums: _Sums) -> FloatArray:
        machine, memory_D, used_3MD = self.task.machine, self.space.memory_D, sums.used_3ND
        found = (np.maximum(used_3MD[0] - memory_D, 0) / np.maximum(memory_D, 1)).sum(axis=-1)
        if self._has_offload:
            for used_MD, rooms in zip(used_3MD[1:], (machine.host_bytes, machine.ssd_bytes), strict=True):
                by_host = used_MD.reshape(len(used_MD), machine.num_nodes, -1).sum(axis=-1)
                room = np.array(rooms or (0,) * machine.num_nodes)
                found = found + (np.maximum(by_host - room, 0) / np.maximum(room, 1)).sum(axis=-1)
        if self._means.names:
            found = found + self._means.overflow(sums.rows_NK)
        return np.asarray(found)

    # Unusual cuts -----------------------------------------------------------------------------------------------------

    @property
    def unusual_N(self) -> FloatArray:
        """Return the fraction of groups with an unusual column cut (``OptionTable.is_unusual_O``), [N]."""
        return np.asarray(self.table.is_unusual_O[self.option_NG].mean(axis=1))

    def unusual_share_after(self, chain_M: Indices, edits: Edits) -> FloatArray:
        """Return the fraction of groups whose option is marked unusual (``is_unusual_O``) after each change, [M]."""
        is_unusual_O, groups = self.table.is_unusual_O, self.option_NG.shape[1]
        old_E = self.option_NG[chain_M[edits.change_E], edits.group_E]
        more_E = is_unusual_O[edits.option_E].astype(np.int64) - is_unusual_O[old_E]
        return np.asarray(self.unusual_N[chain_M] + np.bincount(edits.change_E, more_E, len(chain_M)) / groups)

    # Moved bytes ------------------------------------------------------------------------------------------------------

    def moved_bytes_after(self, chain_M: Indices, edits: Edits) -> Indices:
        """Return the moved bytes after each change, [M]."""
        chain_E = chain_M[edits.change_E]
        old_E = self._count_moved_bytes(self.option_NG[chain_E, edits.group_E], self.place_NGS[chain_E, edits.group_E])
        more_E = self._count_moved_bytes(edits.option_E, edits.place_ES) - old_E
        return self.moved_N[chain_M] + np.bincount(edits.change_E, more_E, len(chain_M)).astype(np.int64)

    def _count_moved_bytes(self, option_E: Indices, place_ES: Indices) -> Indices:
        return np.zeros_like(option_E) if self.moves is None else self.moves.count_bytes(option_E, place_ES)


def chains_of(space: SearchSpace, placements: Sequence[Sequence[Choice]]) -> Chains:
    """Create annealing chains from placements, each with a choice for every group."""
    arrays = [arrays_of(space.table, one) for one in placements]
    return Chains(space, *map(np.stack, zip(*arrays, strict=True)))
