"""Rules of thumb, as placements: small tables on every device, the costliest ones cut, the rest whole, placed greedily.

Or the costliest ones are cut by rows, and all others by columns. A construction with one limit on the time of a piece
makes none of these: "24 tables whole, 2 cut in four" has two.

Legend: G groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
MOST_REPLICATED = (0, 10**4, 10**5, 2 * 10**5, 10**6, 10**7, 10**8)
NUMBERS_CUT = (1, 2, 4, 8, 16, None)
COLUMN_PARTS = (2, 4, 8, 16)
# Where all others are cut by columns, so many are cut by rows.
NUMBERS_BESIDE_COLUMNS = (1, 2, 4, 8)
# Cuts are tried with so many of the limits on replicated tables, the fastest ones.
MOST_WITH_CUTS = 2
# So many rules are tried with every limit on replicated tables, the fastest ones.
MOST_WITH_LIMITS = 4


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


def rules_of_thumb(construction: Construction, most_ms: float = np.inf) -> list[RuleOfThumb]:
    """The placements of all rules that find room, the fastest first, each once.

    Args:
        construction: makes them.
        most_ms: of the mean device's work, beyond which a rule is skipped.
    """
    rules = _Rules(construction, most_ms)
    uncut = sorted(map(_Rule, MOST_REPLICATED), key=rules.cost_ms)
    for rule in [one for one in uncut if np.isfinite(rules.cost_ms(one))][:MOST_WITH_CUTS] or [_Rule(0)]:
        for cuts in rules.cuts:
            rules.cost_ms(replace(rule, cuts=cuts))
    for rule in rules.fastest(MOST_WITH_LIMITS):
        for most in MOST_REPLICATED:
            rules.cost_ms(replace(rule, most=most))
    return sorted(rules.made.values(), key=lambda one: one.cost_ms)


# A way to cut tables, and how many: of those that are not cut yet, the costliest ones.
_Cut = tuple[str, int | None]


@dataclass(frozen=True)
class _Rule:
    """A limit on the weights of replicated tables, and cuts of the others, one after the other."""

    most: int
    cuts: tuple[_Cut, ...] = ()

    def __str__(self) -> str:
        said = [f"replicated below {self.most:,} weights"] if self.most else []
        if not said and all(number is not None for _, number in self.cuts):
            said.append(WHOLE)
        for way, number in self.cuts:
            said.append(f"{number or ('the others' if said else 'all')} {way}")
        return ", ".join(said)


class _Rules:
    """Placements of rules, each made once; a rule with a mean work above ``most_ms`` is skipped."""

    def __init__(self, construction: Construction, most_ms: float) -> None:
        self._construction, self._most_ms = construction, most_ms
        self._numbers_of, self._weights_G = _numbers_by_way(construction), _weights(construction)
        rows = [way for way in self._numbers_of if way in (IN_ROWS, IN_NODE_ROWS)]
        columns = [way for way in self._numbers_of if way not in (WHOLE, REPLICATED, *rows)]
        self.cuts: list[tuple[_Cut, ...]] = [(cut,) for cut in product((*rows, *columns), NUMBERS_CUT)]
        self.cuts += product(product(rows, NUMBERS_BESIDE_COLUMNS), product(columns, (None,)))
        self.made: dict[tuple[int, ...], RuleOfThumb] = {}
        self._cost_ms: dict[_Rule, float] = {}
        self._without_room: set[tuple[int, ...]] = set()

    def cost_ms(self, rule: _Rule) -> float:
        """Return infinity if there is no room, or too much work for the mean device."""
        if rule not in self._cost_ms:
            made = self._make(rule)
            self._cost_ms[rule] = np.inf if made is None else made.cost_ms
        return self._cost_ms[rule]

    def fastest(self, count: int) -> list[_Rule]:
        """Return the fastest rules with placements of their own."""
        by_cost = {cost_ms: rule for rule, cost_ms in reversed(self._cost_ms.items()) if np.isfinite(cost_ms)}
        return [by_cost[cost_ms] for cost_ms in sorted(by_cost)[:count]]

    def _make(self, rule: _Rule) -> RuleOfThumb | None:
        construction = self._construction
        options_G = self._options(rule)
        key = tuple(options_G.tolist())
        if key in self._without_room or construction.mean_ms(options_G) > self._most_ms:
            return None
        if key not in self.made:
            choices = construction.place(options_G) or construction.place(options_G, by_memory=True)
            if choices is None:
                self._without_room.add(key)
                return None
            state = State(construction.space, choices)
            types = frozenset(state.option(group).sharding_type for group in range(len(choices)))
            self.made[key] = RuleOfThumb(str(rule), tuple(choices), types, state.cost_ms)
        return self.made[key]

    def _options(self, rule: _Rule) -> npt.NDArray[np.int64]:
        options_G = self._with_replicas(rule.most)
        order = np.argsort(-self._construction.total_ms(options_G), kind="stable")
        uncut_G = options_G != self._numbers_of.get(REPLICATED, -1)
        for way, number in rule.cuts:
            chosen = order[uncut_G[order] & (self._numbers_of[way][order] >= 0)][:number]
            options_G[chosen] = self._numbers_of[way][chosen]
            uncut_G[chosen] = False
        return options_G

    def _with_replicas(self, most: int) -> npt.NDArray[np.int64]:
        """Replicate tables of at most ``most`` weights where allowed; keep the others whole if they fit."""
        options_G = self._construction.options(np.inf, NOT_REPLICATED).copy()  # the construction keeps its own
        for way, may_G in ((WHOLE, True), (REPLICATED, self._weights_G <= most)):
            if way in self._numbers_of:
                numbers_G = self._numbers_of[way]
                options_G = np.where(may_G & (numbers_G >= 0), numbers_G, options_G)
        return options_G


def _weights(construction: Construction) -> npt.NDArray[np.int64]:
    space = construction.space
    tables = ([space.task.tables[at] for at in group.tables] for group in space.groups)
    return np.array([sum(one.num_rows * one.embedding_dim for one in group) for group in tables], dtype=np.int64)


def _numbers_by_way(construction: Construction) -> dict[str, npt.NDArray[np.int64]]:
    """Return each way's option of each group, -1 where not allowed or without room."""
    groups, devices = construction.space.groups, construction.space.task.num_devices
    found: dict[str, npt.NDArray[np.int64]] = {}
    for group, one in enumerate(groups):
        for number, way in enumerate(_way(option, devices) for option in one.options):
            if way is not None and construction.fits_GW[group, number]:
                numbers_G = found.setdefault(way, np.full(len(groups), -1))
                numbers_G[group] = number if numbers_G[group] < 0 else numbers_G[group]
    return found


def _way(option: ShardingOption, num_devices: int) -> str | None:
    """Name a way to shard in words; None if no rule of thumb uses it."""
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
