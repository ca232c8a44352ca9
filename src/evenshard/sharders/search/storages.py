"""Changes of where weights are kept: tables of the slow device with more of them in device memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from evenshard.sharders.search.pieces import Pieces
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.sharders.search.state import Choice, State

TRIED_STORAGES = 8
# Storages that would make the slow device faster, and those in exchange for each, that a step thinks of.
MOST_FASTER, MOST_INSTEAD = 16, 3


class _OtherStorage(NamedTuple):
    """Another storage of a group in place: what its device saves, ms, and its further memory."""

    group: int
    choice: Choice
    gain_ms: float
    taken_bytes: int


def other_storages(
    pieces: Pieces, state: State, slow: int, groups: Sequence[int]
) -> Iterator[list[tuple[int, Choice]]]:
    """Tables of the slow device with more of them in device memory; where it is full, in exchange for others."""
    if not pieces.space.offloads:
        return
    free_D = pieces.room_D - state.used_3D[0]
    kept = [one for group in groups for one in _kept_otherwise(pieces, state, group, slow)]
    faster = sorted((one for one in kept if one.gain_ms > 0), key=lambda one: -one.gain_ms)[:MOST_FASTER]
    smaller = sorted((one for one in kept if one.taken_bytes < 0), key=lambda one: -one.gain_ms)
    found = []
    for one in faster:
        missing = max(one.taken_bytes - int(free_D[where].min()) for where, _ in pieces.of_group(state, one.group))
        if missing <= 0:
            found.append((one.gain_ms, [(one.group, one.choice)]))
            continue
        instead = (other for other in smaller if other.group != one.group and -other.taken_bytes >= missing)
        for other in islice(instead, MOST_INSTEAD):
            changes = [(other.group, other.choice), (one.group, one.choice)]
            found.append((one.gain_ms + other.gain_ms, changes))
    found.sort(key=lambda one: -one[0])
    yield from (changes for gain_ms, changes in found[:TRIED_STORAGES] if gain_ms > 0)


def _kept_otherwise(pieces: Pieces, state: State, group: int, device: int) -> Iterator[_OtherStorage]:
    """Yield a group's other storages, sharded and placed as it is."""
    option, choice = state.option(group), state.choices[group]
    at = choice.places.index(device) if option.span == 1 else 0
    kind = int(pieces.costs.kind_of_D[device])
    now = option.pieces[at]
    for number, other in enumerate(pieces.space.groups[group].options):
        if other.storage != option.storage and _shape(other) == _shape(option):
            then = other.pieces[at]
            gain_ms = now.offload_ms(kind) - then.offload_ms(kind)
            taken = then.size_bytes - now.size_bytes
            yield _OtherStorage(group, Choice(number, choice.places), gain_ms, taken)


def _shape(option: ShardingOption) -> tuple[str, tuple[int, ...]]:
    """Identify an option without its storage."""
    return option.sharding_type, tuple(piece.columns for piece in option.pieces)
