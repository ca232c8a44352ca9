"""The pieces of a placement under search: where rules let them go, and where another option of a group has a place.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenshard.placement.sharding import spans
from evenshard.sharders.search.construction import Construction, Places, SpreadPlaces
from evenshard.sharders.search.sharding_option import Piece
from evenshard.sharders.search.state import Choice, Indices, State, firsts_of
from evenshard.tables.reuse import FloatArray


class Pieces:
    """What is known of pieces and devices, whatever is tried with them.

    Args:
        construction: groups, options, and tables that stay apart.
    """

    def __init__(self, construction: Construction) -> None:
        self.construction, self.space, self.room_D = construction, construction.space, construction.space.room_D
        self.costs = construction.space.costs

    def groups_on(self, state: State, device: int) -> tuple[list[int], list[int]]:
        """Groups with a piece on a device that can move, and those that live on many devices."""
        spread = set[int]().union(*(at[device // span] for span, at in state.groups_at.items() if span > 1))
        return sorted(state.on_device[device]), sorted(spread)

    def may_go(self, state: State, group: int, device: int, leaves: int | None = None) -> bool:
        """Whether rules let a piece of a group go to a device; memory left aside.

        Args:
            leaves: a group that leaves the device at the same time.
        """
        allowed_D = self.space.groups[group].allowed_D
        if allowed_D is not None and not allowed_D[device]:
            return False
        places, home_span = state.choices[group].places, state.option(group).home_span
        if device in places or (len(places) > 1 and device // home_span != places[0] // home_span):
            return False
        rules = set(self.space.groups[group].apart)
        return not rules or not any(
            rules & set(self.space.groups[other].apart)
            for other in state.on_device[device]
            if other not in (group, leaves)
        )

    def is_bound(self, state: State, group: int) -> bool:
        """Whether there may be devices that rules do not let a piece of a group go to."""
        limited = self.space.groups[group].allowed_D is not None or len(state.choices[group].places) > 1
        return limited or bool(self.space.groups[group].apart)

    def place_may(self, group: int, place: int, span: int) -> bool:
        """Whether rules let rows of a group live on all of so many devices."""
        allowed_D = self.space.groups[group].allowed_D
        return allowed_D is None or bool(allowed_D[place * span : (place + 1) * span].all())

    @property
    def spans(self) -> tuple[int, ...]:
        """Numbers of devices, neither one nor all, that pieces may live on."""
        return tuple(span for span in spans(self.costs.task.machine) if 1 < span < self.costs.task.num_devices)

    def keeps_apart(self, state: State, group: int, choice: Choice) -> bool:
        """Whether a group may have a choice beside what has to stay apart from it."""
        rules = set(self.space.groups[group].apart)
        return not rules or not any(
            rules & set(self.space.groups[other].apart)
            for device in state.devices_of(self.space.groups[group].options[choice.option], choice)
            for other in state.on_device[device]
            if other != group
        )

    def number_on(self, state: State, group: int, device: int) -> int:
        """The number, among all pieces of the space, of the piece of a group on a device."""
        return state.option(group).pieces[state.choices[group].places.index(device)].number

    def place_options(self, state: State, group: int, numbers: Sequence[int], order_D: FloatArray) -> list[Choice]:
        """A group with each of some options, on the first devices with memory for it; none for those without a place.

        Args:
            order_D: [D] the order of the devices, such as how busy they are without the group.
        """
        free_3D = -state.used_3D
        for where, piece in self.of_group(state, group):
            free_3D[:, where] += np.array([[piece.size_bytes], [piece.host_bytes], [piece.ssd_bytes]])
        free_D = self.room_D + free_3D[0]
        options, rules = self.space.groups[group].options, set(self.space.groups[group].apart)
        devices = np.argsort(order_D, kind="stable")
        allowed_D = self.space.groups[group].allowed_D
        of_span: dict[int, SpreadPlaces] = {}
        found: list[Choice] = []
        for number in numbers:
            option = options[number]
            simple = option.storage.is_on_device and not rules and option.home_span == len(free_D)
            if not simple:
                choice = self._place_option(state, group, number, order_D, free_D, -free_3D[1:])
            elif option.span == 1:
                fits_D = free_D >= max(piece.size_bytes for piece in option.pieces)
                fits_D = fits_D if allowed_D is None else fits_D & allowed_D
                places = devices[fits_D[devices]][: len(option.pieces)].tolist()
                choice = Choice(number, tuple(places)) if len(places) == len(option.pieces) else None
            else:
                if option.span not in of_span:
                    of_span[option.span] = SpreadPlaces.of(option.span, order_D, free_D, allowed_D)
                chosen = of_span[option.span].place(option.pieces)
                choice = None if chosen is None else Choice(number, chosen)
            if choice is not None:
                found.append(choice)
        return found

    def _place_option(
        self, state: State, group: int, number: int, order_D: FloatArray, free_D: Indices, used_2D: Indices
    ) -> Choice | None:
        """Place a group by a construction's rules; ``free_D`` and ``used_2D`` are without the group."""
        places = Places(self.construction, len(order_D))
        places.load_D, places.free_D = order_D.copy(), free_D.copy()
        if used_2D.any():
            places.take_hosts(*used_2D)
        for other, choice in enumerate(state.choices if self.space.groups[group].apart else ()):
            if other != group and state.option(other).span == 1:
                for rule in self.space.groups[other].apart:
                    places.apart.setdefault(rule, set()).update(choice.places)
        return places.take(group, number, 0.0)

    def of_group(self, state: State, group: int) -> Iterator[tuple[slice, Piece]]:
        """The pieces of a group, and the devices where they are now."""
        option = state.option(group)
        for piece, first in zip(option.pieces, firsts_of(option, state.choices[group]), strict=True):
            yield slice(first, first + piece.span), piece
