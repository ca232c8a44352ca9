"""The changes that a step of the search tries out, and the best of them.

Pieces of a slow device move to others or change places with what is there; units of it are sharded another way. What
each change makes of all devices is counted exactly, for all changes at once.

Legend: N changes, O pieces of other devices, P pieces of the slow one, D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.storage import ON_DEVICE
from evenshard.sharders.search.arrays import PieceChanges
from evenshard.sharders.search.pieces import Pieces
from evenshard.sharders.search.state import Change, Choice, State, scores_of
from evenshard.sharders.search.storages import other_storages
from evenshard.tables.reuse import FloatArray

MOVE_TARGETS, SWAP_TARGETS = 16, 8
"""Devices, the least busy ones, that pieces of a slow one may move to, or change places with."""
MOST_SWAPS = 96
"""Swaps that a step tries out; of more, the most promising ones."""
MOST_OTHER_WAYS, TRIED_HOMEWARD, TRIED_ON_PLACE = 12, 6, 4
"""Units that a step shards another way, brings home, or swaps with rows of another node."""
SLOW_DEVICES = 1
"""Devices, the slowest ones, that a descent tries to relieve, one after the other."""
LEAST_STEP = 1e-4
"""Of the score, relatively: less is no step."""


class Neighbours:
    """The changes that a search thinks of.

    Attributes:
        types: sharding types that they use.
        usual_cuts_only: whether they cut columns as usual alone (``usual_cuts``).
        tried: changes that have been tried out.

    Args:
        pieces: what is known of pieces and devices.
        rng: chooses where there are too many.
    """

    def __init__(self, pieces: Pieces, rng: np.random.Generator) -> None:
        self.pieces, self._rng = pieces, rng
        self.types = set(SHARDING_TYPES)
        self.usual_cuts_only = False
        self.tried = 0

    def step(self, state: State) -> Change | None:
        """A change that makes the score better; None where none was found."""
        for slow in np.argsort(-state.device_ms_D, kind="stable")[:SLOW_DEVICES].tolist():
            found = self._best_exchange(state, slow) or self.best(state, list(self._others(state, slow)))
            if found is not None:
                return found
        return None

    def best(self, state: State, changes: Sequence[Change]) -> Change | None:
        """The best of some changes, if it makes the score better."""
        if not changes:
            return None
        scores_N = self.scores(state, changes)
        best = int(scores_N.argmin())
        return changes[best] if scores_N[best] < state.score * (1 - LEAST_STEP) else None

    def scores(self, state: State, changes: Sequence[Change]) -> FloatArray:
        """[N] the score after each change; infinite where it takes too much memory, or too much moves."""
        scores_N = self._scores(state, state.piece_changes(changes), len(changes))
        return scores_N if state.moves is None else self._with_moves(state, changes, scores_N)

    def _scores(self, state: State, pieces: PieceChanges, count: int) -> FloatArray:
        self.tried += count
        total_ND, fits_N = state.after(pieces, count)
        return np.where(fits_N, scores_of(total_ND), np.inf)

    def _with_moves(self, state: State, changes: Sequence[Change], scores_N: FloatArray) -> FloatArray:
        """The scores with what moves from an earlier placement."""
        moves = state.moves
        assert moves is not None
        for number, change in enumerate(changes):
            if moves.affords(state, change) and all(
                self.pieces.keeps_apart(state, unit, choice) for unit, choice in change
            ):
                scores_N[number] += moves.price_ms(moves.moved_after(state, change))
            else:
                scores_N[number] = np.inf
        return scores_N

    # Moves and swaps --------------------------------------------------------------------------------------------------

    def _best_exchange(self, state: State, slow: int) -> Change | None:
        """The best move of a piece of the slow device, or swap of it for another, if it makes the score better."""
        own = sorted(state.on_device[slow])
        if not own:
            return None
        order = [one for one in np.argsort(state.device_ms_D, kind="stable").tolist() if one != slow]
        targets, partners = order[:MOVE_TARGETS], order[:SWAP_TARGETS]
        may_UD = self._may_go(state, own, targets)
        unit_M, to_M = np.nonzero(may_UD[:, targets])
        to_M = np.array(targets, dtype=np.int64)[to_M]
        theirs = [(device, unit) for device in partners for unit in sorted(state.on_device[device])]
        unit_S, other_S = self._swaps(state, slow, own, theirs, may_UD)
        if not len(unit_M) + len(unit_S):
            return None
        own_P = np.array([self.pieces.number_on(state, unit, slow) for unit in own], dtype=np.int64)
        other_O = np.array([self.pieces.number_on(state, unit, device) for device, unit in theirs], dtype=np.int64)
        device_O = np.array([device for device, _ in theirs], dtype=np.int64)
        pieces = _exchanged(slow, own_P[unit_M], to_M, own_P[unit_S], other_O[other_S], device_O[other_S])
        scores_N = self._scores(state, pieces, len(unit_M) + len(unit_S))

        def change(number: int) -> Change:
            if number < len(unit_M):
                unit = own[unit_M[number]]
                return [(unit, _moved(state.choices[unit], slow, int(to_M[number])))]
            unit, (device, other) = own[unit_S[number - len(unit_M)]], theirs[other_S[number - len(unit_M)]]
            return [
                (unit, _moved(state.choices[unit], slow, device)),
                (other, _moved(state.choices[other], device, slow)),
            ]

        if state.moves is not None:
            scores_N = self._with_moves(state, list(map(change, range(len(scores_N)))), scores_N)
        best = int(scores_N.argmin())
        return change(best) if scores_N[best] < state.score * (1 - LEAST_STEP) else None

    def _may_go(self, state: State, units: Sequence[int], devices: Sequence[int]) -> np.ndarray:
        """[units, D] whether rules let a piece of each unit go to these devices; memory left aside."""
        may_UD = np.zeros((len(units), self.pieces.costs.task.num_devices), dtype=bool)
        may_UD[:, devices] = True
        for number, unit in enumerate(units):
            if self.pieces.is_bound(state, unit):
                may_UD[number, devices] = [self.pieces.may_go(state, unit, device) for device in devices]
        return may_UD

    def _swaps(
        self, state: State, slow: int, own: Sequence[int], theirs: Sequence[tuple[int, int]], may_UD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the units of the slow device and of others that may change places."""
        devices, others = [device for device, _ in theirs], [unit for _, unit in theirs]
        may_UO = (np.array(own)[:, None] != np.array(others)[None]) & may_UD[:, devices]
        for at, other in enumerate(others):
            if self.pieces.is_bound(state, other):
                may_UO[:, at] &= self.pieces.may_go(state, other, slow)
        apart_U, apart_O = (
            np.array([bool(self.pieces.construction.groups_of(one)) for one in units], dtype=bool)
            for units in (own, others)
        )
        for number, at in np.argwhere(apart_U[:, None] | apart_O[None]):  # one may make room for the other
            may_UO[number, at] = (
                own[number] != others[at]
                and self.pieces.may_go(state, own[number], devices[at], others[at])
                and self.pieces.may_go(state, others[at], slow, own[number])
            )
        unit_S, other_S = np.nonzero(may_UO)
        if len(unit_S) > MOST_SWAPS:
            gains = self._gains(state, [*((slow, unit) for unit in own), *theirs])
            saved_S = gains[unit_S] - gains[len(own) + other_S]
            ahead_S = state.device_ms_D[slow] - state.device_ms_D[devices][other_S]
            chosen = np.argsort(np.maximum(-saved_S, saved_S - ahead_S), kind="stable")[:MOST_SWAPS]
            unit_S, other_S = unit_S[chosen], other_S[chosen]
        return unit_S, other_S

    def _gains(self, state: State, held: Sequence[tuple[int, int]]) -> FloatArray:
        """What devices save without units, each on its device; of exchanges, as if all devices had as much."""
        device_N = np.array([device for device, _ in held], dtype=np.int64)
        piece_N = np.array([self.pieces.number_on(state, unit, device) for device, unit in held], dtype=np.int64)
        arrays, costs, number_N = state.options.piece_arrays, self.pieces.costs, np.arange(len(held))
        cells = arrays.cells(PieceChanges(number_N, piece_N, device_N, np.full(len(held), -1)))
        left_N = state.loads.changed_ms(cells, len(held))[number_N, device_N]
        offload_N = arrays.offload_PK[piece_N, costs.kind_of_D[device_N]]
        exchanged_N = arrays.volume_PV[piece_N] @ costs.exchange_slopes[0]
        return np.asarray(state.loads.compute_ms_D[device_N] - left_N + offload_N + exchanged_N)

    # Other changes ----------------------------------------------------------------------------------------------------

    def _others(self, state: State, slow: int) -> Iterator[Change]:
        """Units of the slow device back to where they were, kept elsewhere, on other nodes, or sharded another way."""
        movable, spread = self.pieces.units_on(state, slow)
        if state.moves is not None:
            yield from self._homeward(state, slow)
        yield from other_storages(self.pieces, state, slow, [*movable, *spread])
        for span in self.pieces.spans:
            yield from self._spread_changes(state, slow, span)
        yield from self._other_ways(state, [*movable, *spread])

    def _homeward(self, state: State, slow: int) -> Iterator[Change]:
        """Units back to where they were: those of the slow device; of all, where too much has moved."""
        moves = state.moves
        assert moves is not None
        is_over = state.moved_bytes > moves.most_bytes
        movable, spread = self.pieces.units_on(state, slow)
        away = list(moves.away(state)) if is_over or moves.price else []
        if not is_over:
            away = [unit for unit in away if unit in movable or unit in spread]
        away.sort(key=lambda unit: -moves.bytes_of(unit, state.choices[unit]))
        for unit in away[:TRIED_HOMEWARD]:
            home = moves.homes[unit]
            assert home is not None
            yield [(unit, home)]

    def _spread_changes(self, state: State, slow: int, span: int) -> Iterator[Change]:
        """Moves of rows that so many devices have, such as a node's, from the slow device's to less busy ones, and
        exchanges with what is there.
        """
        home, units_at = slow // span, state.units_at[span]
        load_P = state.device_ms_D.reshape(-1, span).max(axis=1)
        places = [place for place in np.argsort(load_P, kind="stable").tolist() if place != home][:SWAP_TARGETS]
        for unit in sorted(units_at[home]):
            for place in places:
                if place in state.choices[unit].places or not self.pieces.place_may(unit, place, span):
                    continue
                yield [(unit, _moved(state.choices[unit], home, place))]
                for other in sorted(units_at[place] - units_at[home])[:TRIED_ON_PLACE]:
                    if self.pieces.place_may(other, home, span):
                        yield [
                            (unit, _moved(state.choices[unit], home, place)),
                            (other, _moved(state.choices[other], place, home)),
                        ]

    def _other_ways(self, state: State, units: Sequence[int]) -> Iterator[Change]:
        """Other ways to shard some units, each placed where least is to do."""
        if len(units) > MOST_OTHER_WAYS:
            units = [units[number] for number in self._rng.permutation(len(units))[:MOST_OTHER_WAYS].tolist()]
        numbers = {unit: list(self._other_numbers(state, unit)) for unit in units}
        units = [unit for unit in units if numbers[unit]]
        for unit, without_D in zip(units, self.without(state, units), strict=True):
            for choice in self.choices_in(state, unit, numbers[unit], without_D):
                yield [(unit, choice)]

    def _other_numbers(self, state: State, unit: int) -> Iterator[int]:
        """The ways that a unit may have instead: as it is kept now, or in device memory."""
        kept = (state.way(unit).storage, ON_DEVICE)
        for number, way in enumerate(self.pieces.options.units[unit].ways):
            if number != state.choices[unit].way and way.storage in kept and self.may_be(unit, number):
                yield number

    def without(self, state: State, units: Sequence[int]) -> FloatArray:
        """[units, D] times of devices without each unit."""
        if not units:
            return np.zeros((0, len(state.device_ms_D)))
        rows = [
            (number, piece.number, where.start)
            for number, unit in enumerate(units)
            for where, piece in self.pieces.of_unit(state, unit)
        ]
        change_E, piece_E, device_E = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return state.after(PieceChanges(change_E, piece_E, device_E, np.full(len(rows), -1)), len(units))[0]

    def choices_in(self, state: State, unit: int, numbers: Sequence[int], without_D: FloatArray) -> Iterator[Choice]:
        """A unit in some ways, where least is to do; and where most of it is already, if moves have a bound.

        Args:
            without_D: times of devices without the unit.
        """
        choices = dict.fromkeys(self.pieces.placed(state, unit, numbers, without_D))
        if state.moves is not None:
            near = (state.moves.nearest(unit, number) for number in numbers)
            choices |= dict.fromkeys(one for one in near if one is not None)
        yield from (one for one in choices if one != state.choices[unit])

    def may_be(self, unit: int, number: int) -> bool:
        """Whether the types of this start have a way; all ways of a unit that they have none of."""
        ways = self.pieces.options.units[unit].ways
        if self.usual_cuts_only and not ways[number].is_usual and any(way.is_usual for way in ways):
            return False
        return ways[number].sharding_type in self.types or all(way.sharding_type not in self.types for way in ways)


def _moved(choice: Choice, old: int, new: int) -> Choice:
    return Choice(choice.way, tuple(new if place == old else place for place in choice.places))


def _exchanged(
    slow: int,
    moved_M: np.ndarray,
    to_M: np.ndarray,
    moved_S: np.ndarray,
    other_S: np.ndarray,
    device_S: np.ndarray,
) -> PieceChanges:
    """Moves of pieces from the slow device, then swaps of pieces of it with those of others."""
    moves, swaps = len(moved_M), len(moved_S)
    slow_M, slow_S = np.full(moves, slow), np.full(swaps, slow)
    number_M, number_S = np.arange(moves), np.arange(moves, moves + swaps)
    return PieceChanges(
        np.concatenate([number_M, number_M, *[number_S] * 4]),
        np.concatenate([moved_M, moved_M, moved_S, moved_S, other_S, other_S]),
        np.concatenate([slow_M, to_M, slow_S, device_S, device_S, slow_S]),
        np.repeat([-1, 1, -1, 1, -1, 1], [moves, moves, *[swaps] * 4]),
    )
