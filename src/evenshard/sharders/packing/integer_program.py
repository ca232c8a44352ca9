"""Integer programs, solved by HiGHS (SciPy)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

Terms = Iterable[tuple[int, float]]
# HiGHS checks limits to 1e-6 and ignores coefficients below 1e-9: larger numbers than this are scaled down.
_LARGEST = 1e4


class Solution(NamedTuple):
    """The outcome of a solver: the value of each variable, if any were found; a proof that there are none."""

    values: Sequence[int] = ()
    is_infeasible: bool = False


@dataclass
class IntegerProgram:
    """Integer variables from 0 up, and limits on weighted sums of them.

    Attributes:
        most: the largest value of each variable.
    """

    most: list[int] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _weights: list[float] = field(default_factory=list)
    _limits: list[tuple[float, float]] = field(default_factory=list)

    def variable(self, most: int = 1) -> int:
        """Add a variable and return its number."""
        self.most.append(most)
        return len(self.most) - 1

    def limit(self, terms: Terms, most: float = np.inf, least: float = -np.inf) -> None:
        """Add a constraint: the sum of all terms is from ``least`` to ``most``."""
        terms = list(terms)
        finite = [abs(limit) for limit in (most, least) if np.isfinite(limit)]
        scale = max([_LARGEST, *finite, *(abs(weight) for _, weight in terms)]) / _LARGEST
        self._rows += [len(self._limits)] * len(terms)
        self._columns += [variable for variable, _ in terms]
        self._weights += [weight / scale for _, weight in terms]
        self._limits.append((least / scale, most / scale))

    def equate(self, terms: Terms, others: Terms = (), constant: float = 0) -> None:
        """Add a constraint: the sum of all terms equals that of the others and a constant."""
        self.limit([*terms, *((variable, -weight) for variable, weight in others)], constant, constant)

    def solve(self, time_limit_s: float, costs: Sequence[float] | None = None) -> Solution:
        """Return values that cost least, or any values without costs."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        if not self.most:
            return Solution(is_infeasible=any(least > 0 or most < 0 for least, most in self._limits))
        shape = len(self._limits), len(self.most)
        weights = coo_array((self._weights, (self._rows, self._columns)), shape=shape).tocsr()
        ended = milp(
            np.zeros(len(self.most)) if costs is None else np.asarray(costs, dtype=np.float64),
            integrality=np.ones(len(self.most)),
            bounds=Bounds(0, self.most),
            constraints=LinearConstraint(weights, *zip(*self._limits, strict=True)),
            options={"time_limit": time_limit_s},
        )
        if ended.x is None:
            return Solution(is_infeasible=ended.status == 2)
        return Solution(np.rint(ended.x).astype(np.int64).tolist())
