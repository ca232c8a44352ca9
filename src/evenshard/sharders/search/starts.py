"""Placements that a search begins with: the best constructions of many sets of sharding types, and rules of thumb."""

from __future__ import annotations

import time
from dataclasses import dataclass

from evenshard.placement.sharding import COLUMNS_ALONE, GRIDS, NODE_ROWS, REPLICATED, ROWS_OF_ALL, TABLE_WISE
from evenshard.sharders.search.construction import Construction, Works
from evenshard.sharders.search.narrow_starts import narrow_starts
from evenshard.sharders.search.rules_of_thumb import rules_of_thumb
from evenshard.sharders.search.space import FULL_SHARE
from evenshard.sharders.search.state import Choice, State
from evenshard.sharders.search.whole_starts import whole_starts

LIMITS = (8.0, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06, 0.04)
# Sets of types that constructions use: each type that is used costs a kernel call and its collectives.
TYPE_SETS = tuple(
    {*columns, *rows, *replicas}
    for columns in ((), (TABLE_WISE,), COLUMNS_ALONE, (TABLE_WISE, *COLUMNS_ALONE))
    for rows in ((), ROWS_OF_ALL, tuple(one for one in NODE_ROWS if one not in GRIDS), NODE_ROWS)
    for replicas in ((), REPLICATED)
    if columns or rows
)
# Parts of all memory that constructions fill: the next one where large pieces found no room.
FULL_SHARES = (FULL_SHARE, 0.85, 0.7, 0.5)
REPLICA_PRICES = (1.0, 0.3)
# Ratio of the mean device's time to the best start's, beyond which a construction is skipped.
HOPELESS = 1.5
MOST_RULES = 6
# Groups times devices up to which every rule of thumb is tried; beyond, hopeless ones are skipped as constructions are.
EVERY_RULE = 8_192
LARGE_TYPE_SETS = tuple(types for types in TYPE_SETS if TABLE_WISE in types and not types.intersection(GRIDS))


@dataclass
class Start:
    """A placement to improve, with the types that it may use; some keep devices for narrow pieces."""

    choices: list[Choice]
    types: set[str]
    cost_ms: float = float("inf")
    is_narrow: bool = False


def construct_starts(construction: Construction, deadline: float = float("inf")) -> list[Start]:
    """The best construction of each set of types, by the work of pieces alone and beside the widest table; each once.

    Args:
        construction: makes them.
        deadline: of ``time.monotonic``, after which there are no more than one.
    """
    space = construction.space
    constructions = [construction]
    if space.is_small and any(price.num_maxima for price in space.costs.prices):
        constructions.append(Construction(space, Works.of(space, beside_largest=True)))
    found: dict[tuple[Choice, ...], Start] = {}
    for one in constructions:
        known: dict[bytes, tuple[float, list[Choice]] | None] = {}
        for types in TYPE_SETS if space.is_small else LARGE_TYPE_SETS:
            if found and time.monotonic() >= deadline:
                break
            for price in REPLICA_PRICES if types.intersection(REPLICATED) and space.is_small else (1.0,):
                most_ms = HOPELESS * min((start.cost_ms for start in found.values()), default=float("inf"))
                best = _best_of(one, types, price, known, most_ms)
                if best is not None:
                    found.setdefault(tuple(best[1]), Start(best[1], types, best[0]))
    if not (found and time.monotonic() >= deadline):
        for state in narrow_starts(construction, deadline):
            types = {state.option(group).sharding_type for group in range(len(state.choices))}
            start = Start(state.choices, {TABLE_WISE, *COLUMNS_ALONE, *types}, state.cost_ms, is_narrow=True)
            found.setdefault(tuple(start.choices), start)
    if space.is_small and not (found and time.monotonic() >= deadline):
        for choices in whole_starts(space):
            state = State(space, choices)
            if state.fits():
                found.setdefault(tuple(choices), Start(choices, {TABLE_WISE, *COLUMNS_ALONE}, state.cost_ms))
        most_ms = float("inf")
        if found and len(space.groups) * space.task.num_devices > EVERY_RULE:
            most_ms = HOPELESS * min(start.cost_ms for start in found.values())
        for rule in rules_of_thumb(construction, most_ms)[:MOST_RULES]:
            found.setdefault(rule.choices, Start(list(rule.choices), set(rule.types), rule.cost_ms))
    return list(found.values())


def _best_of(
    construction: Construction,
    types: set[str],
    price: float,
    known: dict[bytes, tuple[float, list[Choice]] | None],
    most_ms: float,
) -> tuple[float, list[Choice]] | None:
    """Return the best construction and its cost; ``known`` caches by options, work above ``most_ms`` is skipped."""
    space, best = construction.space, None
    for limit in LIMITS if space.is_small else LIMITS[::3]:
        for share in FULL_SHARES if space.offloads else FULL_SHARES[:1]:
            options_G = construction.options(limit * construction.even_ms, types, price, share)
            key = options_G.tobytes()
            if key not in known and construction.mean_ms(options_G) > most_ms:
                continue
            if key not in known:
                choices = construction.place(options_G) or construction.place(options_G, by_memory=True)
                known[key] = None if choices is None else (State(space, choices).cost_ms, choices)
            if (one := known[key]) is not None:
                best = one if best is None or one[0] < best[0] else best
                break  # what takes less memory is slower
    return best
