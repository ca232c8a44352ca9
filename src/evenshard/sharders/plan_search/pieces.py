"""The pieces of a placement under search: where rules let them go, what they save and add there, and the best places.

Legend: D devices, N devices or pieces asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.placement.sharding import DEVICE, NODE, TYPES
from evenshard.sharders.plan_search.construction import Construction, Places
from evenshard.sharders.plan_search.options import Piece, volume_numbers
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
        stays = len(places) > 1 and TYPES[state.way(unit).sharding_type].on_one_node
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
        """[N] what the device saves without each unit's piece, ms; of exchanges, as if all devices had as much."""
        known = state.gains.setdefault(device, {})
        if new := [unit for unit in units if unit not in known]:
            known.update(zip(new, self._gains_ms(state, new, device).tolist(), strict=True))
        return np.array([known[unit] for unit in units])

    def _gains_ms(self, state: State, units: Sequence[int], device: int) -> npt.NDArray[np.float64]:
        kind = int(self.costs.kind_of_D[device])
        pieces = [state.way(unit).pieces[self.piece_on(state, unit, device)] for unit in units]
        rest_N = state.loads.without_ms([piece.cells for piece in pieces], device, device)
        offload_N = np.array([piece.offload_K[kind] if piece.offload_K else 0.0 for piece in pieces])
        exchange_N = np.array([self._exchange_ms(piece) for piece in pieces])
        return np.asarray(state.loads.compute_ms_D[device] - rest_N + offload_N + exchange_N)

    def adds_ms(self, state: State, pieces: Sequence[Piece], devices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """[pieces, N] what devices take longer with each piece, ms; exchanges as in ``gains_ms``."""
        added_PN = state.loads.with_ms([piece.cells for piece in pieces], devices) - state.loads.compute_ms_D[devices]
        for number, piece in enumerate(pieces):
            if piece.offload_K:
                added_PN[number] += np.array(piece.offload_K)[self.costs.kind_of_D[devices]]
        return np.asarray(added_PN + np.array([self._exchange_ms(piece) for piece in pieces])[:, None])

    def _exchange_ms(self, piece: Piece) -> float:
        slopes_4, _ = self.costs.exchange_slopes
        return float(volume_numbers(piece.volume) @ slopes_4)

    # Places -----------------------------------------------------------------------------------------------------------

    def placed(
        self, state: State, unit: int, number: int, order_D: npt.NDArray[np.float64] | None = None
    ) -> Choice | None:
        """A unit in another way, where least is to do without it.

        Args:
            order_D: [D] devices with room are taken in the order of these numbers instead.
        """
        old = state.way(unit)
        free_D = self.room_D - state.used_D
        load_D = state.device_ms_D.copy() if order_D is None else order_D
        for where, piece in self.of_unit(state, unit):
            free_D[where] += piece.size_bytes
        if old.scope == DEVICE and order_D is None:
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
