"""Rules of thumb, as placements: small tables on every device, the costliest ones cut, the rest whole, placed greedily.

Or the costliest ones are cut by rows, and the rest by columns. A construction with one limit on the time of a piece
makes none of these: "24 tables whole, 2 cut in four" has two.

Legend: G groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from evenshard.placement.sharding import REPLICATED as REPLICATED_TYPES
from evenshard.placement.sharding import SHARDING_TYPES, TYPES
from evenshard.sharders.search.construction import Construction
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.sharders.search.state import Choice, State

WHOLE, REPLICATED, IN_ROWS, IN_NODE_ROWS = "whole", "replicated", "in rows", "in rows of a node"
NOT_REPLICATED = frozenset(SHARDING_TYPES) - frozenset(REPLICATED_TYPES)
# Tables of at most so many weights are replicated; at 0, no table is.
MOST_REPLICATED = (0, 10**4, 10**5, 2 * 10**5, 10**6, 10**7, 10**8)
# How many of the other tables are cut, the costliest ones first.
NUMBERS_CUT = (1, 2, 4, 8, 16)
# The same by rows where all others are cut by columns.
NUMBERS_BESIDE_COLUMNS = (1, 2, 4, 8)
# Parts that the columns of a cut table are split into.
COLUMN_PARTS = (2, 4, 8, 16)
# Cuts are tried with so many of the limits on replicated tables, the fastest ones.
MOST_WITH_CUTS = 2


@dataclass(frozen=True)
class RuleOfThumb:
    """A placement by a rule.

    Attributes:
        name: the rule in words.
        choices: of all groups.
        types: sharding types in use.
        cost_ms: what it costs.
    """

    name: str
    choices: tuple[Choice, ...]
    types: frozenset[str]
    cost_ms: float


@dataclass(frozen=True)
class _Cut:
    """What is cut in one way: so many of the tables that are not cut yet, the costliest ones first; None for all."""

    way: str
    number: int | None

    def __str__(self) -> str:
        return f"{'the others' if self.number is None else self.number} {self.way}"


def rules_of_thumb(construction: Construction, most_ms: float = np.inf) -> list[RuleOfThumb]:
    """The placements of all rules that find room, the fastest first, each once.

    Args:
        construction: makes them.
        most_ms: of the mean device's work, beyond which a rule is skipped.
    """
    numbers_of = _numbers_by_way(construction)
    found: dict[tuple[int, ...], RuleOfThumb | None] = {}
    weights_G = _weights(construction)
    uncut: list[tuple[float, int]] = []
    for most in MOST_REPLICATED:
        options_G = _with_replicas(construction, numbers_of, weights_G, most)
        made = _make_once(construction, found, _name(most), options_G, most_ms)
        if made is not None:
            uncut.append((made.cost_ms, most))
    mosts = [most for _, most in sorted(uncut)[:MOST_WITH_CUTS]] or [0]
    for most, cuts in product(mosts, _cuts(numbers_of, len(weights_G))):
        options_G = _with_replicas(construction, numbers_of, weights_G, most)
        works_G = construction.total_ms(options_G)
        may_G = options_G != numbers_of.get(REPLICATED, -1)
        for cut in cuts:
            may_be_G = may_G & (numbers_of[cut.way] >= 0)
            chosen = [group for group in np.argsort(-works_G, kind="stable").tolist() if may_be_G[group]][: cut.number]
            options_G[chosen] = numbers_of[cut.way][chosen]
            may_G[chosen] = False
        name = ", ".join([_name(most), *map(str, cuts)])
        _make_once(construction, found, name, options_G, most_ms)
    return sorted(filter(None, found.values()), key=lambda one: one.cost_ms)


def _cuts(numbers_of: Collection[str], num_groups: int) -> Iterator[tuple[_Cut, ...]]:
    """Cuts of one way, and those of some tables by rows and all others by columns.

    Args:
        numbers_of: ways to shard a table.
        num_groups: G.
    """
    rows = [way for way in numbers_of if way in (IN_ROWS, IN_NODE_ROWS)]
    columns = [way for way in numbers_of if way not in (WHOLE, REPLICATED, *rows)]
    for way, number in product((*rows, *columns), (*NUMBERS_CUT, num_groups)):
        yield (_Cut(way, number),)
    for way, number, others in product(rows, NUMBERS_BESIDE_COLUMNS, columns):
        yield _Cut(way, number), _Cut(others, None)


def _name(most: int) -> str:
    return f"replicated below {most:,} weights" if most else "whole"


def _make_once(
    construction: Construction,
    found: dict[tuple[int, ...], RuleOfThumb | None],
    name: str,
    options_G: npt.NDArray[np.int64],
    most_ms: float,
) -> RuleOfThumb | None:
    """The placement of these options, made once; None where there is no room, or the mean device has too much work."""
    key = tuple(options_G.tolist())
    if construction.mean_ms(options_G) > most_ms:
        return None
    if key not in found:
        choices = construction.place(options_G) or construction.place(options_G, by_memory=True)
        found[key] = None if choices is None else _rule(construction, name, choices)
    return found[key]


def _rule(construction: Construction, name: str, choices: Sequence[Choice]) -> RuleOfThumb:
    state = State(construction.space, choices)
    types = frozenset(state.option(group).sharding_type for group in range(len(choices)))
    return RuleOfThumb(name, tuple(choices), types, state.cost_ms)


def _with_replicas(
    construction: Construction,
    numbers_of: dict[str, npt.NDArray[np.int64]],
    weights_G: npt.NDArray[np.int64],
    most: int,
) -> npt.NDArray[np.int64]:
    """[G] replicas of tables with at most so many weights, where replicas are allowed; others whole, if they fit."""
    options_G = construction.options(np.inf, NOT_REPLICATED).copy()  # the construction keeps its own
    if WHOLE in numbers_of:
        options_G = np.where(numbers_of[WHOLE] >= 0, numbers_of[WHOLE], options_G)
    if REPLICATED in numbers_of:
        small_G = (weights_G <= most) & (numbers_of[REPLICATED] >= 0)
        options_G = np.where(small_G, numbers_of[REPLICATED], options_G)
    return options_G


def _weights(construction: Construction) -> npt.NDArray[np.int64]:
    """[G] weights of the tables of each group."""
    space = construction.space
    tables = ([space.task.tables[at] for at in group.tables] for group in space.groups)
    return np.array([sum(one.num_rows * one.embedding_dim for one in group) for group in tables], dtype=np.int64)


def _numbers_by_way(construction: Construction) -> dict[str, npt.NDArray[np.int64]]:
    """[G] the number of the option of each way to shard a table; -1 where it is not allowed, or finds no room."""
    groups, devices = construction.space.groups, construction.space.task.num_devices
    found: dict[str, npt.NDArray[np.int64]] = {}
    for group, one in enumerate(groups):
        for number, way in enumerate(_way(option, devices) for option in one.options):
            if way is not None and construction.fits_GW[group, number]:
                numbers_G = found.setdefault(way, np.full(len(groups), -1))
                numbers_G[group] = number if numbers_G[group] < 0 else numbers_G[group]
    return found


def _way(option: ShardingOption, num_devices: int) -> str | None:
    """What an option does to a table, in words; None for options that no rule of thumb uses."""
    own, parts = TYPES[option.sharding_type], len(option.pieces)
    if not option.storage.is_on_device or (parts > 1 and own.cuts_rows):
        return None
    if own.is_replicated:
        return REPLICATED
    if own.cuts_rows:
        return IN_ROWS if option.span == num_devices else IN_NODE_ROWS
    if parts == 1:
        return WHOLE
    return f"in {parts} parts of columns" if parts in COLUMN_PARTS else None
