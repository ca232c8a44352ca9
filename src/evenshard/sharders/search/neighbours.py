"""The changes that a step of the search tries out, and the best of them.

Pieces of a slow device move to others or change places with what is there; groups of it take another option. What
each change makes of all devices is counted exactly, for all changes at once.

Legend: N changes (M moves, S swaps), H pieces that devices hold, O those of other devices, G those of the slow one, D
devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evenshard.measure.step_time import first_of_lowest
from evenshard.placement.parts import ON_DEVICE
from evenshard.placement.sharding import COLUMNS_ALONE, SHARDING_TYPES
from evenshard.sharders.search.arrays import PieceChanges
from evenshard.sharders.search.column_shifts import column_shifts
from evenshard.sharders.search.pieces import Pieces
from evenshard.sharders.search.state import Change, Choice, Indices, State, scores_of
from evenshard.sharders.search.storages import other_storages
from evenshard.tables.reuse import FloatArray

MOVE_TARGETS, SWAP_TARGETS = 16, 8
MOST_SWAPS = 96
MOST_OTHER_OPTIONS, TRIED_HOMEWARD, TRIED_ON_PLACE = 12, 6, 4
# A step counts as at most this many changes, however many it tries: all of them together take hardly longer.
MOST_COUNTED = 64
LEAST_STEP = 1e-4


@dataclass(frozen=True)
class _Held:
    """Pieces on devices: group, number of the piece in the space, device."""

    groups: list[int]
    piece_H: Indices
    device_H: Indices


class Neighbours:
    """The changes that a search thinks of.

    Attributes:
        types: sharding types that they use.
        usual_cuts_only: whether they cut columns as usual alone (``usual_cuts``).
        shifts_columns: whether columns are shifted between parts, too (``column_shifts``).
        tried: changes that have been tried out, of a step no more than ``MOST_COUNTED``.

    Args:
        pieces: what is known of pieces and devices.
        rng: chooses where there are too many.
    """

    def __init__(self, pieces: Pieces, rng: np.random.Generator) -> None:
        self.pieces, self._rng = pieces, rng
        self.types = set(SHARDING_TYPES)
        self.usual_cuts_only = self.shifts_columns = False
        self.tried = 0

    def step(self, state: State) -> Change | None:
        """A change that makes the score better; None where none was found."""
        for slow in state.slow_devices:
            found = self._best_exchange(state, slow) or self.best(state, list(self._others(state, slow)))
            if found is not None:
                return found
        return None

    def best(self, state: State, changes: Sequence[Change]) -> Change | None:
        """The best of some changes, if it makes the score better."""
        if not changes:
            return None
        scores_N = self.scores(state, changes)
        best = first_of_lowest(scores_N)
        return changes[best] if scores_N[best] < state.score * (1 - LEAST_STEP) else None

    def scores(self, state: State, changes: Sequence[Change]) -> FloatArray:
        """[N] the score after each change; infinite where it takes too much memory, or too much moves."""
        scores_N = self._scores(state, state.piece_changes(changes), len(changes))
        return scores_N if state.moves is None else self._with_moves(state, changes, scores_N)

    def _scores(self, state: State, pieces: PieceChanges, count: int) -> FloatArray:
        self.tried += min(count, MOST_COUNTED)
        windows_WND, fits_N = state.after(pieces, count)
        return np.where(fits_N, scores_of(windows_WND), np.inf)

    def _with_moves(self, state: State, changes: Sequence[Change], scores_N: FloatArray) -> FloatArray:
        """Add the price of moves from an earlier placement."""
        moves = state.moves
        assert moves is not None
        for number, change in enumerate(changes):
            if moves.affords(state, change) and all(
                self.pieces.keeps_apart(state, group, choice) for group, choice in change
            ):
                scores_N[number] += moves.price_ms(moves.moved_after(state, change))
            else:
                scores_N[number] = np.inf
        return scores_N

    def _best_exchange(self, state: State, slow: int) -> Change | None:
        own_groups = sorted(state.on_device[slow])
        if not own_groups:
            return None
        order = [one for one in np.argsort(state.device_ms_D, kind="stable").tolist() if one != slow]
        targets, partners = order[:MOVE_TARGETS], order[:SWAP_TARGETS]
        may_GD = self._may_go(state, own_groups, targets)
        own_M, to_M = np.nonzero(may_GD[:, targets])
        to_M = np.array(targets, dtype=np.int64)[to_M]
        own = self._find_pieces(state, [(slow, group) for group in own_groups])
        theirs = self._find_pieces(
            state, [(device, group) for device in partners for group in sorted(state.on_device[device])]
        )
        own_S, other_S = self._swaps(state, slow, own, theirs, may_GD)
        if not len(own_M) + len(own_S):
            return None
        pieces = _exchange_pieces(
            slow, own.piece_H[own_M], to_M, own.piece_H[own_S], theirs.piece_H[other_S], theirs.device_H[other_S]
        )
        scores_N = self._scores(state, pieces, len(own_M) + len(own_S))

        def change(number: int) -> Change:
            if number < len(own_M):
                group = own_groups[own_M[number]]
                return [(group, _move(state.choices[group], slow, int(to_M[number])))]
            at = other_S[number - len(own_M)]
            group, other, device = own_groups[own_S[number - len(own_M)]], theirs.groups[at], int(theirs.device_H[at])
            return [
                (group, _move(state.choices[group], slow, device)),
                (other, _move(state.choices[other], device, slow)),
            ]

        if state.moves is not None:
            scores_N = self._with_moves(state, list(map(change, range(len(scores_N)))), scores_N)
        best = first_of_lowest(scores_N)
        return change(best) if scores_N[best] < state.score * (1 - LEAST_STEP) else None

    def _may_go(self, state: State, groups: Sequence[int], devices: Sequence[int]) -> np.ndarray:
        """Return where rules, memory aside, let each group go, [groups, D]."""
        may_GD = np.zeros((len(groups), self.pieces.costs.task.num_devices), dtype=bool)
        may_GD[:, devices] = True
        for number, group in enumerate(groups):
            if self.pieces.is_bound(state, group):
                may_GD[number, devices] = [self.pieces.may_go(state, group, device) for device in devices]
        return may_GD

    def _find_pieces(self, state: State, held: Sequence[tuple[int, int]]) -> _Held:
        pieces = [self.pieces.number_on(state, group, device) for device, group in held]
        device_H = np.array([device for device, _ in held], dtype=np.int64)
        return _Held([group for _, group in held], np.array(pieces, dtype=np.int64), device_H)

    def _swaps(self, state: State, slow: int, own: _Held, theirs: _Held, may_GD: np.ndarray) -> tuple[Indices, Indices]:
        devices = theirs.device_H.tolist()
        may_GO = (np.array(own.groups)[:, None] != np.array(theirs.groups)[None]) & may_GD[:, devices]
        for at, other in enumerate(theirs.groups):
            if self.pieces.is_bound(state, other):
                may_GO[:, at] &= self.pieces.may_go(state, other, slow)
        apart_G, apart_O = (
            np.array([bool(self.pieces.space.groups[one].apart) for one in held.groups], dtype=bool)
            for held in (own, theirs)
        )
        for number, at in np.argwhere(apart_G[:, None] | apart_O[None]):  # one may make room for the other
            group, other = own.groups[number], theirs.groups[at]
            may_GO[number, at] = (
                group != other
                and self.pieces.may_go(state, group, devices[at], other)
                and self.pieces.may_go(state, other, slow, group)
            )
        own_S, other_S = np.nonzero(may_GO)
        if len(own_S) > MOST_SWAPS:
            saved_S = self._gains(state, own)[own_S] - self._gains(state, theirs)[other_S]
            device_ms_D = state.device_ms_D
            ahead_S = device_ms_D[slow] - device_ms_D[theirs.device_H][other_S]
            left_S = np.maximum(-saved_S, saved_S - ahead_S)
            few = np.flatnonzero(left_S <= np.partition(left_S, MOST_SWAPS)[MOST_SWAPS])  # far fewer to sort
            chosen = few[np.argsort(left_S[few], kind="stable")[:MOST_SWAPS]]
            own_S, other_S = own_S[chosen], other_S[chosen]
        return own_S, other_S

    def _gains(self, state: State, held: _Held) -> FloatArray:
        """Return what devices save without each piece; for exchanges, as if all devices had as much."""
        count = len(held.groups)
        arrays, costs, number_H = state.space.piece_arrays, self.pieces.costs, np.arange(count)
        cells = arrays.cells(PieceChanges(number_H, held.piece_H, held.device_H, np.full(count, -1)))
        left_2H = state.loads.changed_ms(cells, count)[:, number_H, held.device_H]
        offload_H2 = arrays.offload_PK2[held.piece_H, costs.kind_of_D[held.device_H]]
        exchanged_H = arrays.volume_PV[held.piece_H] @ costs.exchange_slopes[0]
        saved_2H = state.loads.compute_2D[:, held.device_H] - left_2H
        return np.asarray(saved_2H.sum(axis=0) + offload_H2.sum(axis=1) + exchanged_H)

    def _others(self, state: State, slow: int) -> Iterator[Change]:
        movable, spread = self.pieces.groups_on(state, slow)
        if state.moves is not None:
            yield from self._homeward(state, slow)
        yield from other_storages(self.pieces, state, slow, [*movable, *spread])
        for span in self.pieces.spans:
            yield from self._spread_changes(state, slow, span)
        if self.shifts_columns and not self.usual_cuts_only and self.types.intersection(COLUMNS_ALONE):
            yield from column_shifts(self.pieces, state, slow, self._some(movable))
        yield from self._other_options(state, [*movable, *spread])

    def _homeward(self, state: State, slow: int) -> Iterator[Change]:
        """Yield returns of the slow device's groups, or of all groups where too much has moved."""
        moves = state.moves
        assert moves is not None
        is_over = state.moved_bytes > moves.most_bytes
        movable, spread = self.pieces.groups_on(state, slow)
        away = list(moves.away(state)) if is_over or moves.price else []
        if not is_over:
            away = [group for group in away if group in movable or group in spread]
        away.sort(key=lambda group: -moves.bytes_of(group, state.choices[group]))
        for group in away[:TRIED_HOMEWARD]:
            home = moves.homes[group]
            assert home is not None
            yield [(group, home)]

    def _spread_changes(self, state: State, slow: int, span: int) -> Iterator[Change]:
        """Yield moves and swaps of rows that ``span`` devices have, such as a node's."""
        home, groups_at = slow // span, state.groups_at[span]
        load_P = state.device_ms_D.reshape(-1, span).max(axis=1)
        places = [place for place in np.argsort(load_P, kind="stable").tolist() if place != home][:SWAP_TARGETS]
        for group in sorted(groups_at[home]):
            for place in places:
                if place in state.choices[group].places or not self.pieces.place_may(group, place, span):
                    continue
                yield [(group, _move(state.choices[group], home, place))]
                for other in sorted(groups_at[place] - groups_at[home])[:TRIED_ON_PLACE]:
                    if self.pieces.place_may(other, home, span):
                        yield [
                            (group, _move(state.choices[group], home, place)),
                            (other, _move(state.choices[other], place, home)),
                        ]

    def _other_options(self, state: State, groups: Sequence[int]) -> Iterator[Change]:
        groups = self._some(groups)
        numbers = {group: list(self._other_numbers(state, group)) for group in groups}
        groups = [group for group in groups if numbers[group]]
        for group, without_D in zip(groups, self.without(state, groups), strict=True):
            for choice in self.choices_in(state, group, numbers[group], without_D):
                yield [(group, choice)]

    def _some(self, groups: Sequence[int]) -> Sequence[int]:
        """Sample from many groups."""
        if len(groups) <= MOST_OTHER_OPTIONS:
            return groups
        return [groups[number] for number in self._rng.permutation(len(groups))[:MOST_OTHER_OPTIONS].tolist()]

    def _other_numbers(self, state: State, group: int) -> Iterator[int]:
        """Yield a group's options with its present storage, or in device memory."""
        kept = (state.option(group).storage, ON_DEVICE)
        for number, option in enumerate(self.pieces.space.groups[group].options):
            if number != state.choices[group].option and option.storage in kept and self.may_be(group, number):
                yield number

    def without(self, state: State, groups: Sequence[int]) -> FloatArray:
        """[groups, D] times of devices without each group."""
        if not groups:
            return np.zeros((0, state.task.num_devices))
        rows = [
            (number, piece.number, where.start)
            for number, group in enumerate(groups)
            for where, piece in self.pieces.of_group(state, group)
        ]
        change_E, piece_E, device_E = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        pieces = PieceChanges(change_E, piece_E, device_E, np.full(len(rows), -1))
        return np.asarray(state.after(pieces, len(groups))[0].sum(axis=0))

    def choices_in(self, state: State, group: int, numbers: Sequence[int], without_D: FloatArray) -> Iterator[Choice]:
        """A group with some options, where least is to do; and where most of it is already, if moves have a bound.

        Args:
            without_D: times of devices without the group.
        """
        choices = dict.fromkeys(self.pieces.place_options(state, group, numbers, without_D))
        if state.moves is not None:
            near = (state.moves.nearest(group, number) for number in numbers)
            choices |= dict.fromkeys(one for one in near if one is not None)
        yield from (one for one in choices if one != state.choices[group])

    def may_be(self, group: int, number: int) -> bool:
        """Whether the types of this start have an option; all options of a group that they have none of.

        Options that columns were shifted to are for shifts alone.
        """
        options = self.pieces.space.groups[group].options
        if (group, number) in self.pieces.space.shifted:
            return False
        if self.usual_cuts_only and not options[number].is_usual and any(option.is_usual for option in options):
            return False
        return options[number].sharding_type in self.types or all(
            option.sharding_type not in self.types for option in options
        )


def _move(choice: Choice, old: int, new: int) -> Choice:
    return Choice(choice.option, tuple(new if place == old else place for place in choice.places))


def _exchange_pieces(
    slow: int,
    moved_M: np.ndarray,
    to_M: np.ndarray,
    moved_S: np.ndarray,
    other_S: np.ndarray,
    device_S: np.ndarray,
) -> PieceChanges:
    moves, swaps = len(moved_M), len(moved_S)
    slow_M, slow_S = np.full(moves, slow), np.full(swaps, slow)
    number_M, number_S = np.arange(moves), np.arange(moves, moves + swaps)
    return PieceChanges(
        np.concatenate([number_M, number_M, *[number_S] * 4]),
        np.concatenate([moved_M, moved_M, moved_S, moved_S, other_S, other_S]),
        np.concatenate([slow_M, to_M, slow_S, device_S, device_S, slow_S]),
        np.repeat([-1, 1, -1, 1, -1, 1], [moves, moves, *[swaps] * 4]),
    )
