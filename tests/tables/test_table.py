"""Table: its size, and what makes it impossible."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evenshard.tables.table import Table, duplicate_name

GOOD = Table("ads", 1000, 16, 2.5)


@pytest.mark.parametrize(("weight_bits", "size_bytes"), [(32, 64_000), (16, 32_000), (8, 16_000)])
def test_size_is_rows_times_dim_times_weight_bytes(weight_bits: int, size_bytes: int) -> None:
    assert replace(GOOD, weight_bits=weight_bits).size_bytes == size_bytes


def test_with_fields_changes_a_copy_alone() -> None:
    known = GOOD.with_fields(name="other", embedding_dim=4)
    assert known == replace(GOOD, name="other", embedding_dim=4) and hash(known) == hash(replace(known))
    assert (GOOD.name, GOOD.embedding_dim) == ("ads", 16)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pooling_factor": 0.0},
        {"num_rows": 1},
        {"reuse_bins": (1.0,) + (0.0,) * 16},
        {"weight_bits": 8},
        {"miss_ratios": (1.0,) * 14 + (0.0,)},
        {"miss_ratios": (0.0,) * 15},
    ],
)
def test_possible_tables_have_no_problem(change: dict[str, Any]) -> None:
    assert replace(GOOD, **change).problem() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name"),
        ({"num_rows": 0}, "num_rows is 0"),
        ({"num_rows": -5}, "num_rows is -5"),
        ({"num_rows": 10.0}, "num_rows is 10.0"),
        ({"num_rows": True}, "num_rows is True"),
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"pooling_factor": math.nan}, "pooling_factor is nan"),
        ({"pooling_factor": math.inf}, "pooling_factor is inf"),
        ({"pooling_factor": -0.1}, "pooling_factor is -0.1, not"),
        ({"weight_bits": 64}, "weight_bits is 64"),
        ({"name": "a\ud800"}, "surrogate"),
        ({"num_rows": 2**51}, "num_rows is 2251799813685248, not a whole number from 1 to"),
        ({"num_rows": 2**40, "embedding_dim": 2**9}, "562,949,953,421,312 bytes" if False else "bytes, more than"),
        ({"reuse_bins": (1.0,)}, "1 values, not 17"),
        ({"reuse_bins": (1.5, -0.5) + (0.0,) * 15}, "negative"),
        ({"reuse_bins": (math.nan,) + (0.0,) * 16}, "non-finite"),
        ({"reuse_bins": (0.5,) + (0.0,) * 16}, "0.5000, not 1"),
        ({"miss_ratios": (0.5, 0.0)}, "miss_ratios has 2 values, not 15"),
        ({"miss_ratios": (1.5,) + (0.5,) * 13 + (0.0,)}, "not from 0 to 1"),
        ({"miss_ratios": (0.5,) * 13 + (-0.1, 0.0)}, "not from 0 to 1"),
        ({"miss_ratios": (math.nan,) + (0.5,) * 13 + (0.0,)}, "not from 0 to 1"),
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
