"""The pieces of a placement under search: where rules let them go, and where another way of a unit has a place.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenshard.placement.sharding import spans
from evenshard.sharders.search.construction import Construction, Places
from evenshard.sharders.search.sharding_option import Piece
from evenshard.sharders.search.state import Choice, Indices, State, firsts_of
from evenshard.tables.reuse import FloatArray


class Pieces:
    """What is known of pieces and devices, whatever is tried with them.

    Args:
        construction: units, ways, and tables that stay apart.
    """

    def __init__(self, construction: Construction) -> None:
        self.construction, self.options, self.room_D = construction, construction.options, construction.options.room_D
        self.costs = construction.options.costs

    # Rules ------------------------------------------------------------------------------------------------------------

    def units_on(self, state: State, device: int) -> tuple[list[int], list[int]]:
        """Units with a piece on a device that can move, and those that live on many devices."""
        spread = set[int]().union(*(at[device // span] for span, at in state.units_at.items() if span > 1))
        return sorted(state.on_device[device]), sorted(spread)

    def may_go(self, state: State, unit: int, device: int, leaves: int | None = None) -> bool:
        """Whether rules let a piece of a unit go to a device; memory left aside.

        Args:
            leaves: a unit that leaves the device at the same time.
        """
        allowed_D = self.options.units[unit].allowed_D
        if allowed_D is not None and not allowed_D[device]:
            return False
        places, home_span = state.choices[unit].places, state.way(unit).home_span
        if device in places or (len(places) > 1 and device // home_span != places[0] // home_span):
            return False
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for other in state.on_device[device]
            if other not in (unit, leaves)
        )

    def is_bound(self, state: State, unit: int) -> bool:
        """Whether there may be devices that rules do not let a piece of a unit go to."""
        limited = self.options.units[unit].allowed_D is not None or len(state.choices[unit].places) > 1
        return limited or bool(self.construction.groups_of(unit))

    def place_may(self, unit: int, place: int, span: int) -> bool:
        """Whether rules let rows of a unit live on all of so many devices."""
        allowed_D = self.options.units[unit].allowed_D
        return allowed_D is None or bool(allowed_D[place * span : (place + 1) * span].all())

    @property
    def spans(self) -> tuple[int, ...]:
        """Numbers of devices, neither one nor all, that pieces may live on."""
        return tuple(span for span in spans(self.costs.task.machine) if 1 < span < self.costs.task.num_devices)

    def keeps_apart(self, state: State, unit: int, choice: Choice) -> bool:
        """Whether a unit may have a choice beside what has to stay apart from it."""
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for device in state.devices_of(self.options.units[unit].ways[choice.way], choice)
            for other in state.on_device[device]
            if other != unit
        )

    # Places -----------------------------------------------------------------------------------------------------------

    def number_on(self, state: State, unit: int, device: int) -> int:
        """The number, among all pieces of the options, of the piece of a unit on a device."""
        return state.way(unit).pieces[state.choices[unit].places.index(device)].number

    def placed(self, state: State, unit: int, numbers: Sequence[int], order_D: FloatArray) -> list[Choice]:
        """A unit in each of some ways, on the first devices with memory for it; without ways that have no place.

        Args:
            order_D: [D] the order of the devices, such as how busy they are without the unit.
        """
        free_3D = -state.used_3D
        for where, piece in self.of_unit(state, unit):
            free_3D[:, where] += np.array([[piece.size_bytes], [piece.host_bytes], [piece.ssd_bytes]])
        free_D = self.room_D + free_3D[0]
        ways, groups = self.options.units[unit].ways, set(self.construction.groups_of(unit))
        devices = np.argsort(order_D, kind="stable")
        allowed_D = self.options.units[unit].allowed_D
        found: list[Choice] = []
        for number in numbers:
            way = ways[number]
            simple = way.storage.is_on_device and not groups and way.home_span == len(free_D)
            if not simple or 1 < way.span < len(free_D):
                choice = self._taken(state, unit, number, order_D, free_D, -free_3D[1:])
            elif way.span == 1:
                fits_D = free_D >= max(piece.size_bytes for piece in way.pieces)
                fits_D = fits_D if allowed_D is None else fits_D & allowed_D
                places = devices[fits_D[devices]][: len(way.pieces)].tolist()
                choice = Choice(number, tuple(places)) if len(places) == len(way.pieces) else None
            else:
                choice = Choice(number) if (free_D >= way.pieces[0].size_bytes).all() else None
            if choice is not None:
                found.append(choice)
        return found

    def _taken(
        self, state: State, unit: int, number: int, order_D: FloatArray, free_D: Indices, used_2D: Indices
    ) -> Choice | None:
        """A unit in one way, by the rules of a construction.

        Args:
            free_D: memory of the devices without the unit.
            used_2D: what is taken of hosts and of SSDs without it, by device.
        """
        places = Places(self.construction, len(order_D))
        places.load_D, places.free_D = order_D.copy(), free_D.copy()
        if used_2D.any():
            places.take_hosts(*used_2D)
        for other, choice in enumerate(state.choices if self.construction.groups_of(unit) else ()):
            if other != unit and state.way(other).span == 1:
                for group in self.construction.groups_of(other):
                    places.apart.setdefault(group, set()).update(choice.places)
        return places.take(unit, number, 0.0)

    def of_unit(self, state: State, unit: int) -> Iterator[tuple[slice, Piece]]:
        """The pieces of a unit, and the devices where they are now."""
        way = state.way(unit)
        for piece, first in zip(way.pieces, firsts_of(way, state.choices[unit]), strict=True):
            yield slice(first, first + piece.span), piece
