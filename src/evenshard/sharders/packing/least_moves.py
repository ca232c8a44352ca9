"""The placement that moves the fewest bytes, where not every table can stay: an integer program over choices of groups.

Each group is at home, or has one of its options on neighbouring devices or where most of it was. Other places are left
out, although they could move less.

Legend: V variables, S pieces of an option, Q places, F pieces of all variables by device, R devices, hosts and SSDs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evenshard.measure.price.loads import Indices, repeat_numbers
from evenshard.sharders.packing.program import IntegerProgram
from evenshard.sharders.search.moves import Moves

MOVES_TIME_LIMIT_S = 20.0
MOST_VARIABLES = 200_000
# Share of each memory that is left free, because the solver rounds.
_SLACK = 1e-5


def least_moves(moves: Moves) -> tuple[Indices, Indices] | None:
    """Return [G] options and [G, S] places that move the fewest bytes, or None if none are found."""
    space, table = moves.space, moves.table
    of_group = [list(dict.fromkeys(_choices(moves, group))) for group in range(len(space.groups))]
    choices = [choice for own in of_group for choice in own]
    if len(choices) > MOST_VARIABLES or not all(of_group):
        return None
    option_V = np.array([option for option, _ in choices])
    place_VS = np.zeros((len(choices), table.most_pieces), dtype=table.place_type)
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
    moved_V = moves.moved_bytes(option_V, place_VS) / moves.all_bytes
    chosen = np.flatnonzero(program.solve(MOVES_TIME_LIMIT_S, moved_V.tolist()).values)
    return (option_V[chosen], place_VS[chosen]) if len(chosen) else None


def _choices(moves: Moves, group: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield options and places that the rules of a group allow."""
    table, devices, allowed_D = moves.table, moves.space.task.num_devices, moves.space.groups[group].allowed_D
    first = int(table.first_option_G[group])
    for option in range(first, first + int(table.num_options_G[group])):
        pieces, span, home_span = (int(of_O[option]) for of_O in (table.count_O, table.span_O, table.home_O))
        count = devices // span
        found = [tuple((start + step) % count for step in range(pieces)) for start in range(count)]
        found.append(_nearest(moves, option, pieces, count))
        if option == moves.home_G[group]:
            found.append(tuple(moves.home_GS[group, :pieces].tolist()))
        for places in found:
            firsts = [place * span for place in places]
            is_allowed = allowed_D is None or all(allowed_D[one : one + span].all() for one in firsts)
            if is_allowed and len({*places}) == pieces and len({one // home_span for one in firsts}) == 1:
                yield option, places


def _nearest(moves: Moves, option: int, pieces: int, count: int) -> tuple[int, ...]:
    """Return the place where each piece moves the fewest bytes, the first piece first."""
    slot_SQ, place_SQ = np.indices((pieces, count))
    bytes_SQ = moves.piece_bytes(np.full_like(slot_SQ, option), slot_SQ, place_SQ)
    places: list[int] = []
    for bytes_Q in bytes_SQ:
        bytes_Q[places] = np.inf
        places.append(int(bytes_Q.argmin()))
    return tuple(places)


def _limit_memory(program: IntegerProgram, moves: Moves, option_V: Indices, place_VS: Indices) -> None:
    """Limit the memory of devices, hosts and SSDs to what they have."""
    table, machine, arrays = moves.table, moves.space.task.machine, moves.space.piece_arrays
    devices, nodes = machine.num_devices, machine.num_nodes
    variable_F, slot_F = repeat_numbers(table.count_O[option_V])
    option_F = option_V[variable_F]
    piece_F, span_F = table.piece_A[table.first_O[option_F] + slot_F], table.span_O[option_F]
    from_F, offset_F = repeat_numbers(span_F)
    device_F = (place_VS[variable_F, slot_F] * span_F)[from_F] + offset_F
    piece_F, variable_F = piece_F[from_F], variable_F[from_F]
    node_F = devices + device_F // machine.devices_per_node
    room_R = np.array(
        [*moves.space.room_D, *(machine.host_bytes or (0,) * nodes), *(machine.ssd_bytes or (0,) * nodes)]
    )
    used = ((device_F, arrays.size_P), (node_F, arrays.host_P), (node_F + nodes, arrays.ssd_P))
    for rooms_F, bytes_P in used:
        for room in np.unique(rooms_F).tolist():
            own = np.flatnonzero((rooms_F == room) & (bytes_P[piece_F] > 0))
            shares = bytes_P[piece_F[own]] / max(float(room_R[room]), 1.0)
            program.limit(zip(variable_F[own].tolist(), shares.tolist(), strict=True), most=1 - _SLACK)
