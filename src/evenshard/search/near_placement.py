"""Search for the best placement within a limit of bytes moved from the placement in use.

It anneals under a series of increasing limits that is the same in every search, so a larger limit hardly ever gives a
worse answer. Each step starts with the best placement of the previous limit, and with placements of the unlimited
search. The devices of the latter are renumbered so that few bytes move, and tables return to earlier devices until the
limit is met. The first limit is zero bytes, or the fewest that have to move.

Legend: N placements, G groups, S shards of an option (padded), V variables of the integer program, F shards of their
options, Q places, R devices, hosts and SSDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.process import on_interrupt
from evenshard.base.units import bytes_to_gb
from evenshard.placement.moves import EarlierPlacement
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import is_legal_sharding
from evenshard.price.loads import Indices, repeat_numbers
from evenshard.price.step import PredictedParts
from evenshard.price.step_time import round_for_sorting
from evenshard.search.annealing import OVERFLOW, Best
from evenshard.search.chains import Chains, round_last_digits
from evenshard.search.integer_program import IntegerProgram
from evenshard.search.moves import Moves
from evenshard.search.placer import GreedyPlacer
from evenshard.search.search import MOST_CANDIDATES, PlanSearch, PlanSearchResult
from evenshard.search.sharding_option import Edits, arrays_of, choices_from
from evenshard.search.space import choices_of, parts_of

# Among placements within this share of the best time, the placement that moves the fewest bytes is the answer.
ALIKE = 1e-3
# Candidates of the unlimited search to renumber, and how many of them start each limit: the best, and the least moved.
CANDIDATES, RETURNING = 8, 3
# Limits, as shares of the bytes that the best placement without a limit moves.
RUNGS = (1 / 64, 1 / 16, 1 / 4, 1.0)
# Chains that continue from the best placement within the previous limit.
COPIES = 2
# Number of rounds in which the groups of a placement return to their earlier devices, an equal share in each.
RETURN_ROUNDS = 32
# Number of the first run, whose random numbers the unlimited search does not use.
FIRST_RUN = 16
# Phases of annealing, see ``annealing.PHASES``: placements stay near the starts, which are good.
PHASES = ((0.6, None, 1.0, 0.01), (0.4, 2, 0.3, 0.003))
# Limits of the integer program for the fewest bytes.
MOVES_TIME_LIMIT_S = 20.0
MOST_VARIABLES = 200_000  # with more choices of groups, the program is not solved
# Share of each memory that is left free, because the solver rounds.
_SLACK = 1e-5
# Shares of all changes: for the fewest bytes, within each limit, and within the last limit.
STAY_SHARE, RUNG_SHARE, LAST_SHARE = 1 / 4, 1 / 12, 1 / 2


@dataclass(frozen=True)
class NearResult:
    """Result of the search: the best placement within the limit of moved bytes, and all candidates.

    ``stay`` is the best placement that moves the fewest bytes. The best placement without a limit moves ``free_bytes``.
    """

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    moved_bytes: int
    stay: PredictedParts
    stay_bytes: int
    free_bytes: int
    is_interrupted: bool


@dataclass(frozen=True)
class _Found:
    """A placement whose moved bytes are within the limit."""

    predicted: PredictedParts
    moved_bytes: int
    ms: float


_Placement = tuple[Indices, Indices]  # options [G], places [G, S]


class NearSearch:
    """Search near the placement in use.

    Args:
        search: the finished search without a limit of moved bytes.
        earlier: placement in use.
        most_bytes: limit of moved bytes; infinite for no limit.
    """

    def __init__(self, search: PlanSearch, earlier: EarlierPlacement, most_bytes: float = float("inf")) -> None:
        self._search, self._earlier, self._most_bytes = search, earlier, most_bytes
        self._found: dict[tuple[TablePart, ...], _Found] = {}

    def run(self, free: PlanSearchResult) -> NearResult:
        """Search for the best placement that moves at most ``most_bytes``.

        Args:
            free: the result of the search without a limit.

        Raises:
            BadConfig: if every placement moves more; the message has the limit needed and the tables that must move.
        """
        space = self._search.space
        of_free = [one for parts in free.candidates[:CANDIDATES] if (one := choices_of(space, parts)) is not None]
        moves = self._moves = Moves(space, self._earlier)
        self._placer = GreedyPlacer(space)
        freed = [arrays_of(moves.table, choices) for choices in of_free]
        renamed = [(option_G, moves.rename_devices(option_G, place_GS)) for option_G, place_GS in freed]
        if not renamed:  # rows that are cut unevenly
            option_G = moves.table.first_option_G
            renamed = [(option_G, self._placer.place(option_G[None], np.zeros(1, dtype=bool))[0])]
        renamed = [renamed[0], *sorted(renamed[1:], key=self._bytes)[: RETURNING - 1]]
        free_bytes = self._bytes(renamed[0]) if of_free else moves.parts_bytes(free.best.parts)
        self._record_legal(moves.earlier_parts(), free.best.parts)
        free_ms = free.best.predicted_ms + self._search.costs.divisions_ms(free.best.parts)
        with on_interrupt(self._search.interrupt):
            best = self._anneal_fewest_moves(renamed[0])
            least, ms = 0 if best is None else self._bytes(best), self._record_found(best)
            rungs = {self._most_bytes, *(share * free_bytes for share in RUNGS)}
            bounds = sorted(bound for bound in rungs if least < bound <= self._most_bytes)
            for number, bound in enumerate(bounds, 1):
                if ms <= free_ms * (1 + ALIKE):
                    break
                returned = [self._return_home(one, bound) for one in renamed]
                starts = returned if best is None else [best] * COPIES + returned
                best = self._anneal(starts, bound, number, LAST_SHARE if bound == self._most_bytes else RUNG_SHARE)
                ms = self._record_found(best)
        if not self._found:
            raise self._near_error(best)
        return self._result(free_bytes, free.is_interrupted or self._search.is_interrupted)

    def _anneal(self, starts: Sequence[_Placement], bound: float, number: int, share: float) -> _Placement | None:
        """Return the best placement that moves at most ``bound`` bytes; None if none was found."""
        moves, search = self._moves, self._search
        moves.most_bytes = bound
        option_NG, place_NGS = map(np.stack, zip(*starts, strict=True))
        begun = search.legal_starts(self._placer, option_NG, place_NGS, moves)
        if not len(begun.cost_N):
            return None
        changes = round(share * search.num_changes)
        ended = Best.join(search.anneal(begun, changes, FIRST_RUN + number, self._placer, PHASES, moves))
        at = int(ended.cost_N.argmin())
        return (ended.option_NG[at], ended.place_NGS[at]) if np.isfinite(ended.cost_N[at]) else None

    def _return_home(self, placement: _Placement, bound: float) -> _Placement:
        """Move groups back to their earlier devices, cheapest per byte first, until the limit is met."""
        moves = self._moves
        option_G, place_GS = (array.copy() for array in placement)
        chains = Chains(self._search.space, option_G[None], place_GS[None], moves=moves)
        while chains.moved_N[0] > bound:
            moved_G = moves.count_bytes(option_G, place_GS)
            away = np.flatnonzero((moved_G > 0) & (moves.home_G >= 0))
            if not len(away):
                break
            edits, chain_M = Edits(np.arange(len(away)), away, moves.home_G[away], moves.home_GS[away]), 0 * away
            after = chains.try_out(chain_M, chains.list_changed_shards(chain_M, edits))
            cost_M = after.windows_BMD.max(axis=-1).sum(axis=0) * (1 + OVERFLOW * after.overflow_M)
            order = np.argsort(round_last_digits((cost_M - chains.cost_N) / moved_G[away]), kind="stable")
            chosen = away[order[: -(-len(away) // RETURN_ROUNDS)]]
            option_G[chosen], place_GS[chosen] = moves.home_G[chosen], moves.home_GS[chosen]
            chains.replace(np.array([0]), option_G[None], place_GS[None])
        return option_G, place_GS

    def _bytes(self, placement: _Placement) -> int:
        return int(self._moves.count_bytes(*placement).sum())

    def _anneal_fewest_moves(self, free: _Placement) -> _Placement | None:
        starts = self._earlier_placements(free)
        best = self._anneal(starts, self._bytes(starts[0]), 0, STAY_SHARE)
        if best is not None and not self._bytes(best):
            return best
        fewest = least_moves(self._moves)
        if fewest is None or (best is not None and self._bytes(best) <= self._bytes(fewest)):
            return best
        return self._anneal([fewest], self._bytes(fewest), 0, STAY_SHARE) or best

    def _earlier_placements(self, free: _Placement) -> list[_Placement]:
        """Return the earlier placement with new tables as in ``free``, without and with changes that move no bytes."""
        is_new_G = self._moves.home_G < 0
        is_free_NG = (is_new_G, is_new_G | (self._moves.count_bytes(*free) == 0))
        homes = self._moves.home_G, self._moves.home_GS
        return [(np.where(own, free[0], homes[0]), np.where(own[:, None], free[1], homes[1])) for own in is_free_NG]

    def _record_legal(self, *placements: Sequence[TablePart] | None) -> None:
        """Record each legal placement as a candidate, even if the search space cannot represent it."""
        for parts in placements:
            if parts is not None and is_legal_sharding(self._search.costs.task, parts):
                self._record(tuple(parts), self._moves.parts_bytes(parts))

    def _record(self, parts: tuple[TablePart, ...], moved_bytes: int) -> float:
        """Record a placement as a candidate if it is within the limit; return its predicted time, ms."""
        costs = self._search.costs
        predicted = costs.predict(parts)
        found = _Found(predicted, moved_bytes, round_for_sorting(predicted.predicted_ms + costs.divisions_ms(parts)))
        if moved_bytes <= self._most_bytes:
            self._found[parts] = found
        return found.ms

    def _record_found(self, placement: _Placement | None) -> float:
        if placement is None:
            return float("inf")
        parts = parts_of(self._search.space, choices_from(self._moves.table, *placement))
        return self._record(parts, self._bytes(placement))

    def _result(self, free_bytes: int, is_interrupted: bool) -> NearResult:
        found = sorted(self._found.values(), key=lambda one: one.ms)
        best = min((one for one in found if one.ms <= found[0].ms * (1 + ALIKE)), key=lambda one: one.moved_bytes)
        stay = min(found, key=lambda one: one.moved_bytes)
        candidates = tuple(dict.fromkeys(one.predicted.parts for one in (best, *found)))
        return NearResult(
            best=best.predicted,
            candidates=candidates[:MOST_CANDIDATES],
            moved_bytes=best.moved_bytes,
            stay=stay.predicted,
            stay_bytes=stay.moved_bytes,
            free_bytes=free_bytes,
            is_interrupted=is_interrupted,
        )

    def _near_error(self, best: _Placement | None) -> BadConfig:
        if best is None:
            return BadConfig("no placement near the earlier placement was found. Remove near to allow any placement.")
        groups, tables = self._search.space.groups, self._search.costs.task.tables
        away = np.flatnonzero(self._moves.count_bytes(*best)).tolist()
        names = [tables[groups[group].tables[0]].name for group in away]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        need = f"{np.ceil(bytes_to_gb(self._bytes(best)) * 1e4) / 1e4:.10g}"
        return BadConfig(
            f"max_move_gb is {bytes_to_gb(self._most_bytes):.4g}, but the earlier placement is no longer "
            f"legal: {', '.join(map(brief, names[:3]))}{more} must move. Raise max_move_gb to {need}."
        )


# The fewest moves -----------------------------------------------------------------------------------------------------


def least_moves(moves: Moves) -> tuple[Indices, Indices] | None:
    """Find options [G] and devices (or blocks) [G, S] that move the fewest bytes, by an integer program, or None.

    Each group stays on its earlier devices, or takes one of its options on consecutive devices or on the devices that
    lack the least of it. Other devices are not tried, although they could move less.
    """
    space, table = moves.space, moves.table
    of_group = [list(dict.fromkeys(_choices(moves, group))) for group in range(len(space.groups))]
    choices = [choice for own in of_group for choice in own]
    if len(choices) > MOST_VARIABLES or not all(of_group):
        return None
    option_V = np.array([option for option, _ in choices])
    place_VS = np.zeros((len(choices), table.most_shards), dtype=table.place_type)
    for place_S, (_, places) in zip(place_VS, choices, strict=True):
        place_S[: len(places)] = places
    program = IntegerProgram()
    for own in of_group:
        program.equate([(program.variable(), 1) for _ in own], constant=1)
    _limit_memory(program, moves, option_V, place_VS)
    apart: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for variable, (option, places) in enumerate(choices):
        for rule in space.groups[table.group_O[option]].apart if table.span_O[option] == 1 else ():
            for place in places:
                apart.setdefault((rule, place), []).append((variable, 1))
    for present in apart.values():
        program.limit(present, most=1)
    moved_V = moves.count_bytes(option_V, place_VS) / moves.all_bytes
    chosen = np.flatnonzero(program.solve(MOVES_TIME_LIMIT_S, moved_V.tolist()).values)
    return (option_V[chosen], place_VS[chosen]) if len(chosen) else None


def _choices(moves: Moves, group: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the options of a group, each with devices (or blocks of devices) for its shards that its rules allow."""
    table, devices, allowed_D = moves.table, moves.space.task.num_devices, moves.space.groups[group].allowed_D
    first = int(table.first_option_G[group])
    for option in range(first, first + int(table.num_options_G[group])):
        shards, span, home_span = (int(of_O[option]) for of_O in (table.count_O, table.span_O, table.home_O))
        count = devices // span
        found = [tuple((start + step) % count for step in range(shards)) for start in range(count)]
        found.append(_nearest(moves, option, shards, count))
        if option == moves.home_G[group]:
            found.append(tuple(moves.home_GS[group, :shards].tolist()))
        for places in found:
            firsts = [place * span for place in places]
            is_allowed = allowed_D is None or all(allowed_D[one : one + span].all() for one in firsts)
            if is_allowed and len({*places}) == shards and len({one // home_span for one in firsts}) == 1:
                yield option, places


def _nearest(moves: Moves, option: int, shards: int, count: int) -> tuple[int, ...]:
    """Return a different device (or block) for each shard in turn, to which the fewest bytes move."""
    slot_SQ, place_SQ = np.indices((shards, count))
    bytes_SQ = moves.shard_bytes(np.full_like(slot_SQ, option), slot_SQ, place_SQ)
    places: list[int] = []
    for bytes_Q in bytes_SQ:
        bytes_Q[places] = np.inf
        places.append(int(bytes_Q.argmin()))
    return tuple(places)


def _limit_memory(program: IntegerProgram, moves: Moves, option_V: Indices, place_VS: Indices) -> None:
    table, machine, arrays = moves.table, moves.space.task.machine, moves.space.shard_arrays
    devices, nodes = machine.num_devices, machine.num_nodes
    variable_F, slot_F = repeat_numbers(table.count_O[option_V])
    option_F = option_V[variable_F]
    shard_F, span_F = table.shard_A[table.first_O[option_F] + slot_F], table.span_O[option_F]
    from_F, offset_F = repeat_numbers(span_F)
    device_F = (place_VS[variable_F, slot_F] * span_F)[from_F] + offset_F
    shard_F, variable_F = shard_F[from_F], variable_F[from_F]
    node_F = devices + device_F // machine.devices_per_node
    room_R = np.array(
        [*moves.space.memory_D, *(machine.host_bytes or (0,) * nodes), *(machine.ssd_bytes or (0,) * nodes)]
    )
    used = ((device_F, arrays.size_P), (node_F, arrays.host_P), (node_F + nodes, arrays.ssd_P))
    for rooms_F, bytes_P in used:
        for room in np.unique(rooms_F).tolist():
            own = np.flatnonzero((rooms_F == room) & (bytes_P[shard_F] > 0))
            shares = bytes_P[shard_F[own]] / max(float(room_R[room]), 1.0)
            program.limit(zip(variable_F[own].tolist(), shares.tolist(), strict=True), most=1 - _SLACK)
