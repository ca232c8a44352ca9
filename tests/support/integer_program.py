"""Integer programs of tests, written as sums and comparisons. A solution is checked in whole numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


@dataclass(frozen=True, eq=False)
class Sum:
    """A weighted sum of variables and a constant."""

    weights: Counter[int] = field(default_factory=Counter)
    constant: int = 0

    def __add__(self, other: Sum | int) -> Sum:
        other = other if isinstance(other, Sum) else Sum(constant=other)
        weights = Counter(self.weights)
        weights.update(other.weights)
        return Sum(weights, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, times: int) -> Sum:
        return Sum(Counter({at: times * weight for at, weight in self.weights.items()}), times * self.constant)

    __rmul__ = __mul__

    def __le__(self, other: Sum | int) -> Limit:
        return Limit(self + -1 * other, is_equal=False)

    def __ge__(self, other: Sum | int) -> Limit:
        return Limit(-1 * self + other, is_equal=False)

    def __eq__(self, other: object) -> Limit:  # type: ignore[override]
        assert isinstance(other, Sum | int)
        return Limit(self + -1 * other, is_equal=True)


class Limit(NamedTuple):
    """A sum that is 0, or at most 0."""

    total: Sum
    is_equal: bool


class Answer(NamedTuple):
    """Values of all variables, if there are any; if not, whether that is proven."""

    values: tuple[int, ...] | None
    is_infeasible: bool = False

    def value(self, of: Sum | int) -> int:
        """Return the value of a sum."""
        assert self.values is not None
        if isinstance(of, int):
            return of
        return of.constant + sum(weight * self.values[at] for at, weight in of.weights.items())


@dataclass
class Program:
    """Variables from 0 up, and limits on sums of them."""

    most: list[int] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)

    def variable(self, most: int = 1) -> Sum:
        """Add a variable of at most so much."""
        self.most.append(most)
        return Sum(Counter({len(self.most) - 1: 1}))

    def add(self, limit: Limit | bool) -> None:
        """Add a comparison; of numbers alone, it is known already."""
        if isinstance(limit, Limit):
            self.limits.append(limit)
        elif not limit:
            self.limits.append(Limit(Sum(constant=1), is_equal=True))

    def solve(self, seconds: float) -> Answer:
        """Return some values that all limits allow."""
        known = [one for one in self.limits if not any(one.total.weights.values())]
        if any(one.total.constant > 0 or (one.is_equal and one.total.constant) for one in known):
            return Answer(None, is_infeasible=True)
        if not self.most:
            return Answer(())
        entries: list[tuple[int, int, float]] = []
        sides = []
        for row, (total, is_equal) in enumerate(self.limits):
            scale = max(10**4, *map(abs, total.weights.values()), abs(total.constant)) / 10**4
            entries += [(row, at, weight / scale) for at, weight in total.weights.items()]
            sides.append((-total.constant / scale if is_equal else -np.inf, -total.constant / scale))
        rows, columns, weights = zip(*entries, strict=True)
        matrix = coo_array((weights, (rows, columns)), shape=(len(self.limits), len(self.most)))
        ended = milp(
            np.zeros(len(self.most)),
            integrality=np.ones(len(self.most)),
            bounds=Bounds(0, self.most),
            constraints=LinearConstraint(matrix.tocsr(), *zip(*sides, strict=True)),
            options={"time_limit": seconds},
        )
        if ended.x is None:
            return Answer(None, ended.status == 2)
        answer = Answer(tuple(np.rint(ended.x).astype(int).tolist()))
        totals = [(answer.value(total), is_equal) for total, is_equal in self.limits]
        return answer if all(size == 0 if is_equal else size <= 0 for size, is_equal in totals) else Answer(None)


def total(sums: Iterable[Sum | int]) -> Sum:
    """Return the sum of sums, which is never a plain number."""
    return sum(sums, Sum())
