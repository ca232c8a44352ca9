"""The search over all ways to shard: many constructions, the best of them improved step by step.

A step looks at the slowest device: pieces on it may move, change places with others, or their tables may be sharded
another way; tables that live on many devices may change too. What makes the score better is kept. Where nothing does, a
kick changes a few tables at random and the descent starts over; it is undone if that ended worse. The same arguments
give the same placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.storage import ON_DEVICE
from evenshard.sharders.plan_search.construction import Construction, Places, Works
from evenshard.sharders.plan_search.costs import PartCosts, PredictedParts
from evenshard.sharders.plan_search.moves import Moves
from evenshard.sharders.plan_search.options import DEVICE, FULL_SHARE, NODE, Options, Piece, Way
from evenshard.sharders.plan_search.state import Choice, State, choices_of
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.process import on_interrupt

LIMITS = (8.0, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06, 0.04)
"""Limits on the time of a piece that constructions try, in mean works of a device."""
TYPE_SETS = tuple(
    {*columns, *rows, *replicas}
    for columns in ((), (TABLE_WISE,), (COLUMN_WISE, TABLE_COLUMN_WISE), (TABLE_WISE, COLUMN_WISE, TABLE_COLUMN_WISE))
    for rows in ((), (ROW_WISE,), (TABLE_ROW_WISE,), (TABLE_ROW_WISE, GRID_SHARD))
    for replicas in ((), (DATA_PARALLEL,))
    if columns or rows
)
"""Sets of types that constructions use: each type that is used costs a kernel call and its collectives."""
FULL_SHARES = (FULL_SHARE, 0.85, 0.7, 0.5)
"""Parts of all memory that constructions fill: the next one where large pieces found no room."""
REPLICA_PRICES = (1.0, 0.3)
"""Factors on the work of replicas that constructions try."""
LARGE_TYPE_SETS = tuple(types for types in TYPE_SETS if TABLE_WISE in types and GRID_SHARD not in types)
MOST_LARGE_STARTS = 4
_STAGES = ((0.5, 0.45), (0.15, 0.35), (0.0, 0.2))
"""Share of the starts that is improved, at least one, and of all changes that are tried for it; stage after stage."""
_LEAST_GAIN = 1e-4
"""Of the score, relatively: less is no step."""


@dataclass(frozen=True)
class PlanSearchEffort:
    """How long to look.

    Attributes:
        changes: changes that are tried out, all together, whatever becomes of them; more where devices are more.
        idle_kicks: kicks, one after the other, that made nothing better, until the search ends.
        kicked: units that a kick changes at most.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit.
    """

    changes: int = 1_500
    idle_kicks: int = 100
    kicked: int = 3
    time_limit_s: float | None = None


@dataclass(frozen=True)
class PlanSearchResult:
    """What the search found.

    Attributes:
        best: the answer.
        candidates: other placements that ended well, the best first, the answer among them.
        is_interrupted: Ctrl-C ended the search, which answers with the best until then.
    """

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    is_interrupted: bool = False


@dataclass
class _Start:
    """A placement to improve, with the types that it may use."""

    choices: list[Choice]
    types: set[str]
    cost_ms: float = float("inf")


class _OtherStorage(NamedTuple):
    """Another storage of a unit where it is: what its device saves, ms, and what it takes more of its memory."""

    unit: int
    choice: Choice
    gain_ms: float
    taken_bytes: int


Progress = Callable[[float], None]
"""Takes the best cost so far, ms."""


class PlanSearch:
    """The search on one task.

    Args:
        costs: what placements cost.
        effort: how long to look.
        seed: of the kicks.
        progress: called with the best cost so far.
        offloads: whether tables may be kept outside of device memory; where left out, where that is short.
    """

    def __init__(
        self,
        costs: PartCosts,
        effort: PlanSearchEffort | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        offloads: bool | None = None,
    ) -> None:
        self.costs, self.effort = costs, effort or PlanSearchEffort()
        self.options = Options(costs, offloads)
        self.room_D = np.array(costs.task.room_bytes, dtype=np.int64)
        self.construction = Construction(self.options, Works.of(self.options), self.room_D)
        self._rng = np.random.default_rng(seed)
        self._changes_left = self._changes_in_all = self._scaled(self.effort.changes)
        self._types = set(SHARDING_TYPES)
        self._progress = progress
        limit_s = self.effort.time_limit_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self._is_interrupted = False
        self._best_ms = float("inf")

    def run(self, known: Sequence[Sequence[TablePart]] = ()) -> PlanSearchResult:
        """The best placement that was found.

        Args:
            known: legal placements to begin with, too.

        Raises:
            InfeasibleTask: if none was found.
        """
        begun = [choices_of(self.options, parts) for parts in known]
        starts = [
            _Start(choices, set(SHARDING_TYPES)) for choices in begun if choices is not None and self._fits(choices)
        ]
        starts += self._constructed()
        if not starts and known:  # its rows are uneven, as its memory is
            return PlanSearchResult(self.costs.predict(known[0]), tuple(map(tuple, known)))
        if not starts:
            raise InfeasibleTask("no placement was found: the tables' pieces found no room.", "Raise memory_cap_gb.")
        with on_interrupt(self._interrupt):
            for share, of_changes in _STAGES:
                starts = sorted(starts, key=lambda one: one.cost_ms)
                kept = max(
                    1, round(share * (len(starts) if self.options.is_small else min(len(starts), MOST_LARGE_STARTS)))
                )
                for start in starts[:kept]:
                    self._changes_left = int(self._changes_in_all * of_changes / kept)
                    self._types = start.types if share else set(SHARDING_TYPES)
                    state = State(self.options, start.choices)
                    self._report(state)
                    self._improve(state)
                    start.choices, start.cost_ms = list(state.choices), state.cost_ms
        starts = sorted(starts, key=lambda one: one.cost_ms)[:MOST_CANDIDATES]
        candidates = tuple(dict.fromkeys(State(self.options, start.choices).parts() for start in starts))
        predicted = [self.costs.predict(parts) for parts in candidates]
        order = sorted(range(len(predicted)), key=lambda number: predicted[number].predicted_ms)
        return PlanSearchResult(
            predicted[order[0]], tuple(candidates[number] for number in order), self._is_interrupted
        )

    def _fits(self, choices: list[Choice]) -> bool:
        return State(self.options, choices).fits(self.room_D)

    def _scaled(self, changes: int) -> int:
        """More changes for more devices, and where tables may leave device memory; of a large task each takes long."""
        devices = min(self.costs.task.num_devices, MOST_COUNTED_DEVICES)
        changes *= OFFLOAD_CHANGES if self.options.offloads else 1
        return round(changes * (1 + 3 * devices / MOST_COUNTED_DEVICES)) if self.options.is_small else 2 * changes

    def _interrupt(self) -> None:
        self._is_interrupted = True

    def _report(self, state: State) -> None:
        """Calls ``progress`` where the state is the best so far."""
        if self._progress is not None and state.cost_ms < self._best_ms:
            self._best_ms = state.cost_ms
            self._progress(self._best_ms)

    # Starts -----------------------------------------------------------------------------------------------------------

    def _constructed(self) -> list[_Start]:
        """The best construction of each set of types; equal ones once."""
        found: dict[tuple[Choice, ...], _Start] = {}
        even_ms = self.construction.even_ms
        known: dict[bytes, tuple[float, list[Choice]] | None] = {}
        for types in TYPE_SETS if self.options.is_small else LARGE_TYPE_SETS:
            if found and time.monotonic() >= self._deadline:
                break
            limits = LIMITS if self.options.is_small else LIMITS[::3]
            prices = REPLICA_PRICES if DATA_PARALLEL in types and self.options.is_small else (1.0,)
            for price in prices:
                best: tuple[float, list[Choice]] | None = None
                for limit in limits:
                    for share in FULL_SHARES if self.options.offloads else FULL_SHARES[:1]:
                        ways_U = self.construction.ways(limit * even_ms, types, price, share)
                        key = ways_U.tobytes()
                        if key not in known:
                            choices = self.construction.place(ways_U) or self.construction.place(ways_U, by_memory=True)
                            known[key] = None if choices is None else (State(self.options, choices).cost_ms, choices)
                        one = known[key]
                        if one is not None:
                            break  # what takes less memory is slower
                    if one is not None and (best is None or one[0] < best[0]):
                        best = one
                if best is not None and tuple(best[1]) not in found:
                    found[tuple(best[1])] = _Start(best[1], types, best[0])
        return list(found.values())

    def improve(self, state: State, changes: int, kicks: bool = True) -> None:
        """Makes a placement better by trying so many changes, of all types; without kicks until no step helps."""
        self._changes_left, self._types = changes, set(SHARDING_TYPES)
        with on_interrupt(self._interrupt):
            if kicks:
                self._improve(state)
            else:
                self._descend(state)

    def beside(self, choices: Sequence[Choice], units: Sequence[int], moves: Moves) -> list[Choice]:
        """Choices of some units where least is to do beside the others, which stay; memory may not suffice.

        Args:
            choices: of all units; those of the units to place do not count.
            units: to place.
            moves: prices what moves.
        """
        self._types = set(SHARDING_TYPES)
        state = State(
            self.options, [self._anywhere(one) if one in units else own for one, own in enumerate(choices)], moves
        )
        numbers_U = self.construction.ways(self.construction.even_ms, SHARDING_TYPES)
        by_size = sorted(units, key=lambda unit: -sum(piece.size_bytes for piece in state.way(unit).pieces))
        for unit in (*by_size, *by_size):
            count = len(self.options.units[unit].ways)
            numbers = range(count) if len(units) <= MOST_BESIDE else (int(numbers_U[unit]),)
            found = [one for number in numbers for one in self._choices_in(state, unit, number)]
            scores: list[tuple[bool, float, int]] = []
            for choice in (state.choices[unit], *found):
                old, times_D = state.choices[unit], state.device_ms_D
                state.replace(unit, choice)
                is_legal = state.fits(self.room_D) and self.keeps_apart(state, unit, choice)
                scores.append((not is_legal, state.score, len(scores)))
                state.undo([(unit, old)], times_D)
            state.replace(unit, (state.choices[unit], *found)[min(scores)[2]])
        return list(state.choices)

    def _anywhere(self, unit: int) -> Choice:
        """A unit in its first way on the first devices that it may live on."""
        own, machine = self.options.units[unit], self.costs.task.machine
        way, pieces = own.ways[0], len(own.ways[0].pieces)
        if way.scope == DEVICE:
            allowed = range(machine.num_devices) if own.allowed_D is None else np.flatnonzero(own.allowed_D).tolist()
            return Choice(0, tuple(allowed[:pieces]))
        return Choice(0, tuple(range(pieces)) if way.scope == NODE else ())

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has ended it."""
        return self._is_interrupted

    @property
    def changes_in_all(self) -> int:
        """That a search tries out."""
        return self._changes_in_all

    # Improvement ------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return self._changes_left <= 0 or self._is_interrupted or time.monotonic() >= self._deadline

    def _improve(self, state: State) -> None:
        """Descends, kicks and descends again; the state ends as the best that was seen."""
        self._descend(state)
        best, times_D, idle = state.score, state.device_ms_D, 0
        while not self._over() and idle < self.effort.idle_kicks:
            undo = self._kick(state)
            undo += self._descend(state)
            if state.score < best * (1 - _LEAST_GAIN):
                best, times_D, idle = state.score, state.device_ms_D, 0
                self._report(state)
                continue
            idle += 1
            state.undo(undo, times_D)

    def _descend(self, state: State) -> list[tuple[int, Choice]]:
        """Takes steps until none helps; what it takes to undo them."""
        undo: list[tuple[int, Choice]] = []
        while not self._over():
            steps = self._step(state)
            if not steps:
                break
            undo += steps
            self._report(state)
        return undo

    def _step(self, state: State) -> list[tuple[int, Choice]]:
        """One step that makes the score better, or none; what it takes to undo it."""
        for changes in self._changes(state):
            undo = self._try(state, changes)
            if undo:
                return undo
            if self._over():
                break
        return []

    def _try(self, state: State, changes: Sequence[tuple[int, Choice]]) -> list[tuple[int, Choice]]:
        before, times_D = state.score, state.device_ms_D
        undo = [(unit, state.choices[unit]) for unit, _ in changes]
        state.replace_all(changes)
        self._changes_left -= 1
        if state.moves is not None and not all(self.keeps_apart(state, unit, choice) for unit, choice in changes):
            state.undo(undo, times_D)
            return []
        if state.score < before * (1 - _LEAST_GAIN) and state.fits(self.room_D):
            return undo
        state.undo(undo, times_D)
        return []

    def _changes(self, state: State) -> Iterator[list[tuple[int, Choice]]]:
        """Promising changes, the cheapest to find first."""
        slow = int(state.device_ms_D.argmax())
        movable, spread = self._units_on(state, slow)
        if state.moves is not None:
            yield from self._homeward(state, slow)
        yield from self._moves(state, slow, movable)
        yield from self._other_storages(state, slow, [*movable, *spread])
        yield from self._swaps(state, slow, movable)
        yield from self._node_changes(state, slow)
        yield from self._other_ways(state, slow, [*movable, *spread])

    def _units_on(self, state: State, device: int) -> tuple[list[int], list[int]]:
        """Units with a piece on a device that can move, and those that live on many devices."""
        node = self.costs.task.machine.node_of(device)
        return sorted(state.on_device[device]), sorted(state.on_node[node] | state.everywhere)

    def _may_go(self, state: State, unit: int, device: int, leaves: int | None = None) -> bool:
        """Whether rules let a piece of a unit go to a device; memory left aside.

        Args:
            leaves: a unit that leaves the device at the same time.
        """
        allowed_D = self.options.units[unit].allowed_D
        if allowed_D is not None and not allowed_D[device]:
            return False
        if device in state.choices[unit].places:
            return False
        if state.way(unit).sharding_type == "table_column_wise":
            return False
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for other in state.on_device[device]
            if other not in (unit, leaves)
        )

    def _piece_on(self, state: State, unit: int, device: int) -> int:
        return state.choices[unit].places.index(device)

    def _gains(self, state: State, units: Sequence[int], device: int) -> npt.NDArray[np.float64]:
        """[N] what the device saves in computing without each unit's piece, ms."""
        kind = int(self.costs.kind_of_D[device])
        columns_PH = self.options.columns_KPH[kind]
        pieces = [state.way(unit).pieces[self._piece_on(state, unit, device)] for unit in units]
        if not pieces:
            return np.zeros(0)
        columns_NH = np.array([columns_PH[[row for _, row in piece.cells]].sum(axis=0) for piece in pieces])
        emptied_N = np.array([sum(state.held_CD[call, device] == 1 for call, _ in piece.cells) for piece in pieces])
        rest_N = self.costs.networks[kind].compute_ms(
            state.sums_DH[device] - columns_NH, state.calls_D[device] - emptied_N
        )
        offload_N = np.array([piece.offload_K[kind] if piece.offload_K else 0.0 for piece in pieces])
        return np.asarray(state.compute_ms_D[device] - rest_N + offload_N)

    def _adds(self, state: State, unit: int, number: int, devices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
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

    def _moves(self, state: State, slow: int, movable: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """The most promising moves of a piece to a less busy device."""
        if not movable:
            return
        targets = np.argsort(state.device_ms_D, kind="stable")[:MOVE_TARGETS]
        gains = self._gains(state, movable, slow)
        found = []
        for unit, gain in zip(movable, gains, strict=True):
            number = self._piece_on(state, unit, slow)
            size = state.way(unit).pieces[number].size_bytes
            may = np.array([self._may_go(state, unit, int(device)) for device in targets])
            may &= state.used_D[targets] + size <= self.room_D[targets]
            if state.moves is not None:
                changes = ([(unit, _moved(state.choices[unit], slow, int(device)))] for device in targets)
                may &= [state.moves.affords(state, change) for change in changes]
            if not may.any():
                continue
            own = targets[may]
            after = np.maximum(
                state.device_ms_D[own] + self._adds(state, unit, number, own), state.device_ms_D[slow] - gain
            )
            best = int(after.argmin())
            found.append((float(after[best]), unit, int(own[best])))
        found.sort()
        for expected, unit, device in found[:TRIED_MOVES]:
            if expected >= state.device_ms_D[slow] * (1 + _LEAST_GAIN):
                return
            yield [(unit, _moved(state.choices[unit], slow, device))]

    def _swaps(self, state: State, slow: int, movable: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """The most promising exchanges of a piece for a smaller one of a less busy device."""
        if not movable:
            return
        targets = np.argsort(state.device_ms_D, kind="stable")[:SWAP_TARGETS].tolist()
        gains = self._gains(state, movable, slow)
        slow_ms = float(state.device_ms_D[slow])
        found = []
        for device in targets:
            if device == slow:
                continue
            theirs, _ = self._units_on(state, device)
            their_gains = self._gains(state, theirs, device)
            fast_ms = float(state.device_ms_D[device])
            for unit, gain in zip(movable, gains, strict=True):
                for other, other_gain in zip(theirs, their_gains, strict=True):
                    if other == unit or other_gain >= gain:
                        continue
                    after = max(slow_ms - gain + other_gain, fast_ms + gain - other_gain)
                    if after < slow_ms:
                        found.append((after, unit, other, device))
        found.sort()
        tried = 0
        for _, unit, other, device in found:
            changes = [
                (unit, _moved(state.choices[unit], slow, device)),
                (other, _moved(state.choices[other], device, slow)),
            ]
            if state.moves is not None and not state.moves.affords(state, changes):
                continue
            tried += 1
            if tried > TRIED_SWAPS:
                return
            if self._may_go(state, unit, device, other) and self._may_go(state, other, slow, unit):
                yield changes

    def _homeward(self, state: State, slow: int) -> Iterator[list[tuple[int, Choice]]]:
        """Units back to where they were: those of the slow device; of all, where too much has moved."""
        assert state.moves is not None
        is_over = state.moved_bytes > state.moves.most_bytes
        movable, spread = self._units_on(state, slow)
        away = list(state.moves.away(state)) if is_over or state.moves.price else []
        if not is_over:
            away = [unit for unit in away if unit in movable or unit in spread]
        away.sort(key=lambda unit: -state.moves.bytes_of(unit, state.choices[unit]) if state.moves else 0)
        for unit in away[:TRIED_HOMEWARD]:
            yield self._home_of(state, unit)

    def _home_of(self, state: State, unit: int) -> list[tuple[int, Choice]]:
        """The change that brings a unit home."""
        home = None if state.moves is None else state.moves.homes[unit]
        assert home is not None
        return [(unit, home)]

    def _node_changes(self, state: State, slow: int) -> Iterator[list[tuple[int, Choice]]]:
        """Moves of rows from the node of the slow device to less busy nodes, and exchanges with what is there."""
        machine = self.costs.task.machine
        home = machine.node_of(slow)
        load_N = state.device_ms_D.reshape(machine.num_nodes, -1).max(axis=1)
        nodes = [node for node in np.argsort(load_N, kind="stable").tolist() if node != home][:SWAP_TARGETS]
        free_N = (self.room_D - state.used_D).reshape(machine.num_nodes, -1).min(axis=1)
        for unit in sorted(state.on_node[home]):
            size = state.way(unit).pieces[0].size_bytes
            for node in nodes:
                if node in state.choices[unit].places or not self._node_may(unit, node):
                    continue
                if size <= free_N[node]:
                    yield [(unit, _moved(state.choices[unit], home, node))]
                for other in sorted(state.on_node[node] - state.on_node[home])[:TRIED_SWAPS]:
                    if self._node_may(other, home):
                        yield [
                            (unit, _moved(state.choices[unit], home, node)),
                            (other, _moved(state.choices[other], node, home)),
                        ]

    def _node_may(self, unit: int, node: int) -> bool:
        """Whether rules let rows of a unit live on a node."""
        allowed_D = self.options.units[unit].allowed_D
        own = self.costs.task.machine.devices_of_node(node)
        return allowed_D is None or bool(allowed_D[own.start : own.stop].all())

    def _other_ways(self, state: State, slow: int, units: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """Other ways to shard the units of the slow device, each placed where least is to do."""
        if len(units) > MOST_OTHER_WAYS:
            units = [units[number] for number in self._rng.permutation(len(units))[:MOST_OTHER_WAYS].tolist()]
        for unit in units:
            kept = (state.way(unit).storage, ON_DEVICE)
            for number, way in enumerate(self.options.units[unit].ways):
                if number == state.choices[unit].way or way.storage not in kept or not self._may_be(unit, number):
                    continue
                for choice in self._choices_in(state, unit, number):
                    yield [(unit, choice)]

    def _choices_in(self, state: State, unit: int, number: int) -> Iterator[Choice]:
        """A unit in another way, where least is to do; and where most of it is already, if moves have a bound."""
        choices = [self._placed(state, unit, number)]
        if state.moves is not None:
            choices = [state.moves.nearest(unit, number), *choices]
        for choice in dict.fromkeys(choices):
            if choice is None or choice == state.choices[unit]:
                continue
            if state.moves is None or state.moves.affords(state, [(unit, choice)]):
                yield choice

    def _may_be(self, unit: int, number: int) -> bool:
        """Whether the types of this start have a way; all ways of a unit that they have none of."""
        ways = self.options.units[unit].ways
        return ways[number].sharding_type in self._types or all(way.sharding_type not in self._types for way in ways)

    def _placed(self, state: State, unit: int, number: int) -> Choice | None:
        """A unit in another way, where least is to do without it."""
        way, old = self.options.units[unit].ways[number], state.way(unit)
        free_D = self.room_D - state.used_D
        load_D = state.device_ms_D.copy()
        for where, piece in self._own_pieces(state, unit):
            free_D[where] += piece.size_bytes
        if old.scope == DEVICE:
            for device in state.choices[unit].places:
                load_D[device] -= float(self._gains(state, [unit], device)[0])
        places = Places(self.construction, len(load_D))
        places.load_D, places.free_D = load_D, free_D
        if state.offloaded:
            host_D, ssd_D = state.host_D.copy(), state.ssd_D.copy()
            for where, piece in self._own_pieces(state, unit):
                host_D[where] -= piece.host_bytes
                ssd_D[where] -= piece.ssd_bytes
            places.take_hosts(host_D, ssd_D)
        for other, choice in enumerate(state.choices if self.construction.groups_of(unit) else ()):
            if other != unit and state.way(other).scope == DEVICE:
                for group in self.construction.groups_of(other):
                    places.apart.setdefault(group, set()).update(choice.places)
        assert way
        return places.take(unit, number, 0.0)

    def _own_pieces(self, state: State, unit: int) -> Iterator[tuple[int | slice, Piece]]:
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

    # Storages ---------------------------------------------------------------------------------------------------------

    def _other_storages(self, state: State, slow: int, units: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """Tables of the slow device with more of them in device memory; where it is full, in exchange for others."""
        if not self.options.offloads:
            return
        free_D = self.room_D - state.used_D
        kept = [one for unit in units for one in self._kept_otherwise(state, unit, slow)]
        faster = sorted((one for one in kept if one.gain_ms > 0), key=lambda one: -one.gain_ms)[:MOST_FASTER]
        smaller = sorted((one for one in kept if one.taken_bytes < 0), key=lambda one: -one.gain_ms)
        found = []
        for one in faster:
            missing = max(one.taken_bytes - int(free_D[where].min()) for where, _ in self._own_pieces(state, one.unit))
            if missing <= 0:
                found.append((one.gain_ms, [(one.unit, one.choice)]))
                continue
            instead = (other for other in smaller if other.unit != one.unit and -other.taken_bytes >= missing)
            for other in islice(instead, MOST_INSTEAD):
                changes = [(other.unit, other.choice), (one.unit, one.choice)]
                found.append((one.gain_ms + other.gain_ms, changes))
        found.sort(key=lambda one: -one[0])
        yield from (changes for gain_ms, changes in found[:TRIED_STORAGES] if gain_ms > 0)

    def _kept_otherwise(self, state: State, unit: int, device: int) -> Iterator[_OtherStorage]:
        """The other storages of a unit, sharded and placed as it is."""
        way, choice = state.way(unit), state.choices[unit]
        at = self._piece_on(state, unit, device) if way.scope == DEVICE else 0
        kind = int(self.costs.kind_of_D[device])
        now = way.pieces[at]
        for number, other in enumerate(self.options.units[unit].ways):
            if other.storage != way.storage and _shape(other) == _shape(way):
                then = other.pieces[at]
                gain_ms = (now.offload_K[kind] if now.offload_K else 0.0) - (
                    then.offload_K[kind] if then.offload_K else 0.0
                )
                taken = then.size_bytes - now.size_bytes
                yield _OtherStorage(unit, Choice(number, choice.places), gain_ms, taken)

    # Kicks ------------------------------------------------------------------------------------------------------------

    def _kick(self, state: State) -> list[tuple[int, Choice]]:
        """Changes a few units at random; what it takes to undo it."""
        undo: list[tuple[int, Choice]] = []
        slow = int(state.device_ms_D.argmax())
        movable, spread = self._units_on(state, slow)
        near = [*movable, *spread]
        for _ in range(1 + int(self._rng.integers(self.effort.kicked))):
            if near and self._rng.random() < 0.5:
                unit = near[int(self._rng.integers(len(near)))]
            else:
                unit = int(self._rng.integers(len(state.choices)))
            numbers = [n for n in range(len(self.options.units[unit].ways)) if self._may_be(unit, n)]
            number = numbers[int(self._rng.integers(len(numbers)))]
            choice = self._placed(state, unit, number)
            if state.moves is not None:
                unit, choice = self._kicked_near(state, state.moves, unit, choice)
            if choice is None or choice == state.choices[unit]:
                continue
            undo.append((unit, state.choices[unit]))
            state.replace(unit, choice)
        return undo

    def _kicked_near(self, state: State, moves: Moves, unit: int, choice: Choice | None) -> tuple[int, Choice | None]:
        """The kick of a unit where moves have a bound: one that moves too much brings another unit home instead."""
        if choice is not None and moves.affords(state, [(unit, choice)]):
            return unit, choice
        away = list(moves.away(state))
        if not away:
            return unit, None
        unit = away[int(self._rng.integers(len(away)))]
        home = moves.homes[unit]
        undo = [(unit, state.choices[unit])]
        before = state.device_ms_D
        assert home is not None
        state.replace(unit, home)
        fits = state.fits(self.room_D)
        state.undo(undo, before)
        return unit, home if fits and self.keeps_apart(state, unit, home) else None

    def keeps_apart(self, state: State, unit: int, choice: Choice) -> bool:
        """Whether a unit may have a choice beside what has to stay apart from it."""
        groups = set(self.construction.groups_of(unit))
        return not groups or not any(
            groups & set(self.construction.groups_of(other))
            for place in choice.places
            for other in state.on_device[place]
            if other != unit
        )


def _shape(way: Way) -> tuple[str, tuple[int, ...]]:
    """A way without its storage."""
    return way.sharding_type, tuple(piece.columns for piece in way.pieces)


MOST_COUNTED_DEVICES = 128
"""Devices from which on a search takes four times as many changes as on one."""
OFFLOAD_CHANGES = 3
"""Times as many where every table comes again for every cache."""
MOST_CANDIDATES = 16
"""Placements that a search gives back."""
MOST_BESIDE = 64
"""Units that are placed beside others by trying all their ways; of more, one way."""
TRIED_HOMEWARD = 6
"""Units that a step tries to bring home."""
MOVE_TARGETS, SWAP_TARGETS = 16, 6
"""Devices, the least busy ones, that pieces of the slowest one may move to, or change places with."""
TRIED_MOVES, TRIED_SWAPS, TRIED_STORAGES, MOST_OTHER_WAYS = 3, 4, 8, 12
"""Changes of each kind that a step tries out."""
MOST_FASTER, MOST_INSTEAD = 16, 3
"""Storages that would make the slow device faster, and those in exchange for each, that a step thinks of."""


def _moved(choice: Choice, old: int, new: int) -> Choice:
    return Choice(choice.way, tuple(new if place == old else place for place in choice.places))
