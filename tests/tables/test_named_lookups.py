"""Pooling factors that a user names, by table and by feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenshard.base.errors import BadConfig
from evenshard.tables.assumptions import Assumption, TableSet, apply_pooling_factors
from evenshard.tables.table import Table

USER = Table("user", 90, 8, 1.0)
ITEM = Table("item", 90, 8, 4.0, feature_names=("seen", "bought"), feature_pooling_factors=(2.0, 2.0))
UNNAMED = Table("shared", 90, 8, 3.0, feature_pooling_factors=(1.0, 2.0))
EVEN = Assumption("item", "feature_pooling_factors", "pooling_factor, split evenly over 2 features")
EVEN_TOO = Assumption("shared", EVEN.column, EVEN.text)
LOOKUPS, REUSE = Assumption("user", "pooling_factor", "1, the default"), Assumption("user", "reuse_bins", "some")
OF_ITEM = Assumption("item", "pooling_factor", "2 for each feature")
KNOWN = TableSet((USER, ITEM, UNNAMED), (LOOKUPS, REUSE, OF_ITEM), ("a note",))


@pytest.mark.parametrize(
    ("given", "lookups", "left"),
    [
        (None, [(1,), (2, 2), (1, 2)], (LOOKUPS, REUSE, OF_ITEM)),
        ({"user": 20}, [(20,), (2, 2), (1, 2)], (REUSE, OF_ITEM)),
        ({"user": [20.0]}, [(20,), (2, 2), (1, 2)], (REUSE, OF_ITEM)),
        ({"user": np.float32(20)}, [(20,), (2, 2), (1, 2)], (REUSE, OF_ITEM)),
        ({"item": 7.0, "shared": 8}, [(1,), (3.5, 3.5), (4, 4)], (LOOKUPS, REUSE, EVEN, EVEN_TOO)),
        ({"item": (5, 7), "shared": np.array([0, 9])}, [(1,), (5, 7), (0, 9)], (LOOKUPS, REUSE)),
        ({"seen": 9.5}, [(1,), (9.5, 2), (1, 2)], (LOOKUPS, REUSE, OF_ITEM)),
        ({"seen": [9.5], "bought": 0}, [(1,), (9.5, 0), (1, 2)], (LOOKUPS, REUSE)),
    ],
)
def test_what_is_named_stands(given: Any, lookups: list[tuple[float, ...]], left: tuple[Assumption, ...]) -> None:
    """A number of a table is all its features together; a list has one for each, as TorchRec's have."""
    found = apply_pooling_factors(KNOWN, given)
    assert [one.feature_lookups for one in found.tables] == lookups
    assert [one.pooling_factor for one in found.tables] == [sum(one) for one in lookups]
    assert {*found.assumptions} == {*left}
    assert found.notes == KNOWN.notes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([20.0], r"pooling_factors is \[20.0\], not a mapping"),
        ({"users": 1.0}, "is given for 'users', which is neither a table nor a feature. Correct the name"),
        ({"user": "20"}, r"pooling_factors\.user is '20', not a number or a list \(write 20\)"),
        ({"user": []}, "of 'user' has 0 numbers for 1 feature"),
        ({"user": [1, 2]}, "of 'user' has 2 numbers for 1 feature. Give one per feature"),
        ({"item": [1]}, "of 'item' has 1 number for 2 features. Give one per feature"),
        ({"seen": [1, 2]}, "of 'seen' has 2 numbers for 1 feature. Give one per feature"),
        ({"user": -1.0}, "table 'user': pooling_factor is -1.0"),
        ({"user": float("nan")}, "table 'user': pooling_factor is nan"),
    ],
)
def test_what_makes_no_sense_is_one_line(given: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message) as error:
        apply_pooling_factors(KNOWN, given)
    assert "\n" not in str(error.value)
