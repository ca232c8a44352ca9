"""The pieces of a placement under search: where rules let them go, what they save and add there, and the best places.

Legend: D devices, N devices or pieces asked for, P rows of the matrix of columns, H its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.placement.sharding import TABLE_COLUMN_WISE
from evenshard.sharders.plan_search.construction import Construction, Places
from evenshard.sharders.plan_search.options import DEVICE, NODE, Piece
from evenshard.sharders.plan_search.state import Choice, State


class Pieces:
    """What is known of pieces and devices, whatever is tried with them.

    Args:
        construction: units, ways, and tables that stay apart.
    """

    def __init__(self, construction: Construction) -> None:
        self.construction, self.options, self.room_D = construction, construction.options, construction.room_D
        self.costs = construction.options.costs

    # Rules ------------------------------------------------------------------------------------------------------------

    def units_on(self, state: State, device: int) -> tuple[list[int], list[int]]:
        """Units with a piece on a device that can move, and those that live on many devices."""
        node = self.costs.task.machine.node_of(device)
        return sorted(state.on_device[device]), sorted(state.on_node[node] | state.everywhere)

    def may_go(self, state: State, unit: int, device: int, leaves: int | None = None) -> bool:
        """Whether rules let a piece of a unit go to a device; memory left aside.

        Args:
            leaves: a unit that leaves the device at the same time.
        """
        allowed_D = self.options.units[unit].allowed_D
        if allowed_D is not None and not allowed_D[device]:
            return False
        places, machine = state.choices[unit].places, self.costs.task.machine
        if device in places:
            return False
        stays = len(places) > 1 and state.way(unit).sharding_type == TABLE_COLUMN_WISE
        if stays and machine.node_of(device) != machine.node_of(places[0]):
            return False
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for other in state.on_device[device]
            if other not in (unit, leaves)
        )

    def node_may(self, unit: int, node: int) -> bool:
        """Whether rules let rows of a unit live on a node."""
        allowed_D = self.options.units[unit].allowed_D
        own = self.costs.task.machine.devices_of_node(node)
        return allowed_D is None or bool(allowed_D[own.start : own.stop].all())

    def keeps_apart(self, state: State, unit: int, choice: Choice) -> bool:
        """Whether a unit may have a choice beside what has to stay apart from it."""
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for place in choice.places
            for other in state.on_device[place]
            if other != unit
        )

    # Times ------------------------------------------------------------------------------------------------------------

    def piece_on(self, state: State, unit: int, device: int) -> int:
        """The number of the piece of a unit on a device."""
        return state.choices[unit].places.index(device)

    def gains_ms(self, state: State, units: Sequence[int], device: int) -> npt.NDArray[np.float64]:
        """[N] what the device saves in computing without each unit's piece, ms."""
        kind = int(self.costs.kind_of_D[device])
        columns_PH = self.options.columns_KPH[kind]
        pieces = [state.way(unit).pieces[self.piece_on(state, unit, device)] for unit in units]
        if not pieces:
            return np.zeros(0)
        columns_NH = np.array([columns_PH[[row for _, row in piece.cells]].sum(axis=0) for piece in pieces])
        emptied_N = np.array([sum(state.held_CD[call, device] == 1 for call, _ in piece.cells) for piece in pieces])
        rest_N = self.costs.networks[kind].compute_ms(
            state.sums_DH[device] - columns_NH, state.calls_D[device] - emptied_N
        )
        offload_N = np.array([piece.offload_K[kind] if piece.offload_K else 0.0 for piece in pieces])
        return np.asarray(state.compute_ms_D[device] - rest_N + offload_N)

    def adds_ms(self, state: State, unit: int, number: int, devices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """[N] what devices compute more with a piece of a unit, ms."""
        piece = state.way(unit).pieces[number]
        rows = [row for _, row in piece.cells]
        added = np.zeros(len(devices))
        calls = state.calls_D[devices] + sum(
            (state.held_CD[call, devices] == 0).astype(np.int64) for call, _ in piece.cells
        )
        kinds = self.costs.kind_of_D[devices]
        for kind, network in enumerate(self.costs.networks):
            own = kinds == kind
            if own.any():
                sums = state.sums_DH[devices[own]] + self.options.columns_KPH[kind][rows].sum(axis=0)
                added[own] = network.compute_ms(sums, calls[own]) - state.compute_ms_D[devices[own]]
                added[own] += piece.offload_K[kind] if piece.offload_K else 0.0
        return added

    # Places -----------------------------------------------------------------------------------------------------------

    def placed(self, state: State, unit: int, number: int) -> Choice | None:
        """A unit in another way, where least is to do without it."""
        old = state.way(unit)
        free_D = self.room_D - state.used_D
        load_D = state.device_ms_D.copy()
        for where, piece in self.of_unit(state, unit):
            free_D[where] += piece.size_bytes
        if old.scope == DEVICE:
            for device in state.choices[unit].places:
                load_D[device] -= float(self.gains_ms(state, [unit], device)[0])
        places = Places(self.construction, len(load_D))
        places.load_D, places.free_D = load_D, free_D
        if state.offloaded:
            host_D, ssd_D = state.host_D.copy(), state.ssd_D.copy()
            for where, piece in self.of_unit(state, unit):
                host_D[where] -= piece.host_bytes
                ssd_D[where] -= piece.ssd_bytes
            places.take_hosts(host_D, ssd_D)
        for other, choice in enumerate(state.choices if self.construction.groups_of(unit) else ()):
            if other != unit and state.way(other).scope == DEVICE:
                for group in self.construction.groups_of(other):
                    places.apart.setdefault(group, set()).update(choice.places)
        return places.take(unit, number, 0.0)

    def of_unit(self, state: State, unit: int) -> Iterator[tuple[int | slice, Piece]]:
        """The pieces of a unit, and the devices where they are now."""
        way, choice = state.way(unit), state.choices[unit]
        if way.scope == DEVICE:
            yield from zip(choice.places, way.pieces, strict=True)
        elif way.scope == NODE:
            for piece, node in zip(way.pieces, choice.places, strict=True):
                own = self.costs.task.machine.devices_of_node(node)
                yield slice(own.start, own.stop), piece
        else:
            yield slice(None), way.pieces[0]
