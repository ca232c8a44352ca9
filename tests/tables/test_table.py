"""Table: its size, and what makes it impossible."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evenshard.tables.table import Table, duplicate_name

GOOD = Table("ads", 1000, 16, 2.5)


def test_size_is_rows_times_dim_times_weight_bytes() -> None:
    assert [replace(GOOD, weight_bits=bits).size_bytes for bits in (32, 16, 8)] == [64_000, 32_000, 16_000]


def test_outputs_are_one_per_feature_or_per_lookup_of_a_sequence() -> None:
    two = replace(GOOD, feature_pooling_factors=(1.0, 1.5))
    assert (GOOD.outputs_per_sample, two.outputs_per_sample) == (1.0, 2.0)
    assert replace(two, pooling="none").outputs_per_sample == 2.5


def test_with_fields_changes_a_copy_alone() -> None:
    known = GOOD.with_fields(name="other", embedding_dim=4)
    assert known == replace(GOOD, name="other", embedding_dim=4) and hash(known) == hash(replace(known))
    assert (GOOD.name, GOOD.embedding_dim) == ("ads", 16)


def test_possible_tables_have_no_problem() -> None:
    assert GOOD.problem() is replace(GOOD, num_rows=1, pooling_factor=0.0, weight_bits=8).problem() is None
    assert replace(GOOD, num_rows=2**44, embedding_dim=16).problem() is None  # 2**50 bytes
    for ratios in ((1.0,) * 14 + (0.0,), (0.0,) * 15):
        assert replace(GOOD, reuse_bins=(1.0,) + (0.0,) * 16, miss_ratios=ratios).problem() is None
    assert replace(GOOD, row_shares=(0.25, 0.75), feature_pooling_factors=(1.0, 1.5)).problem() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name"),
        ({"num_rows": 0}, "num_rows is 0"),
        ({"num_rows": 10.0}, "num_rows is 10.0"),
        ({"num_rows": True}, "num_rows is True"),
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"pooling_factor": math.nan}, "pooling_factor is nan"),
        ({"pooling_factor": -0.1}, "pooling_factor is -0.1, not"),
        ({"weight_bits": 64}, "weight_bits is 64"),
        ({"name": "a\ud800"}, "surrogate"),
        ({"num_rows": 2**51}, "num_rows is 2251799813685248, not a whole number from 1 to"),
        ({"num_rows": 2**44 + 1, "embedding_dim": 16}, "bytes, more than"),
        ({"feature_pooling_factors": (1.0, 1.5001)}, "add up to 2.5001, but pooling_factor is 2.5"),
        ({"row_shares": (0.5, 0.4)}, "row_shares are not non-negative numbers that add up to 1"),
        ({"row_shares": (0.5, 0.5), "num_rows": 1}, "row_shares has 2 values, not 1 to 1"),
        ({"feature_names": ("a",), "feature_pooling_factors": (1.0, 1.5)}, "1 values, but feature_pooling_factors has"),
        ({"reuse_bins": (1.0,)}, "1 values, not 17"),
        ({"reuse_bins": (1.5, -0.5) + (0.0,) * 15}, "negative"),
        ({"reuse_bins": (0.5,) + (0.0,) * 16}, "0.5000, not 1"),
        ({"miss_ratios": (0.5, 0.0)}, "miss_ratios has 2 values, not 15"),
        ({"miss_ratios": (1.5,) + (0.5,) * 13 + (0.0,)}, "not from 0 to 1"),
        ({"miss_ratios": (0.5,) * 13 + (-0.1, 0.0)}, "not from 0 to 1"),
        ({"miss_ratios": (0.4,) + (0.5,) * 13 + (0.0,)}, "a larger cache cannot miss more"),
        ({"miss_ratios": (0.5,) * 15}, "end with 0.5, not 0, but a cache of all rows misses none"),
    ],
)
def test_each_impossible_value_is_named(change: dict[str, Any], words: str) -> None:
    problem = replace(GOOD, **change).problem()
    assert problem is not None and words in problem


def test_duplicate_name_finds_the_shared_name() -> None:
    tables = [GOOD, replace(GOOD, name="users"), replace(GOOD, num_rows=7)]
    assert duplicate_name(tables) == "ads"
    assert duplicate_name(tables[:2]) is None
    assert duplicate_name([]) is None
