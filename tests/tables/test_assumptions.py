"""What a source of tables leaves out: defaults stand in and are reported; pooling factors that a user names stand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.tables.assumptions import Assumption, TableSet, apply_pooling_factors, list_approximations
from evenshard.tables.files import load_tables, load_tables_with_assumptions
from evenshard.tables.records import REUSE_COLUMNS
from evenshard.tables.table import Table

UNIFORM = [1 / 17] * 17
RECORD = {"name": "ads", "num_rows": 1000, "embedding_dim": 16, "pooling_factor": 2.5}
WHOLE = {**RECORD, "reuse_bins": UNIFORM, "weight_bits": 16}
ASSUMED_BINS = "DLRM 2021 index reuse, rescaled per table"
ASSUMED_POOLING = "1.5, the default, since the file gives none"


def save_records(path: Path, records: list[dict[str, Any]]) -> Path:
    """As a user's own tools write them: a column that no record has is left out, a missing value is blank."""
    columns = list(dict.fromkeys(column for record in records for column in record))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for one in records:
                writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in one.items()})
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(columns) | record for record in records]), path)
    else:
        path.write_text(json.dumps(records))  # JSON text is YAML too
    return path


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".csv", ".parquet"])
def test_a_missing_column_and_a_blank_cell_take_the_default_and_are_reported(tmp_path: Path, suffix: str) -> None:
    record = {key: value for key, value in RECORD.items() if key != "pooling_factor"}
    found = load_tables_with_assumptions(save_records(tmp_path / f"a{suffix}", [record]), 1.5)
    assert found.tables == (Table("ads", 1000, 16, 1.5),)
    assert found.assumptions == (
        Assumption("ads", "pooling_factor", ASSUMED_POOLING),
        Assumption("ads", "reuse_bins", ASSUMED_BINS),
        Assumption("ads", "weight_bits", "32, the default"),
    )
    blank = {**WHOLE, "name": "b", "pooling_factor": None}
    path = save_records(tmp_path / f"b{suffix}", [WHOLE, blank, {**RECORD, "name": "c", "weight_bits": 8}])
    found = load_tables_with_assumptions(path, 1.5)
    given = [(one.name, one.pooling_factor, one.weight_bits) for one in found.tables]
    assert given == [("ads", 2.5, 16), ("b", 1.5, 16), ("c", 2.5, 8)]
    assert found.assumptions == (
        Assumption("b", "pooling_factor", ASSUMED_POOLING),
        Assumption("c", "reuse_bins", ASSUMED_BINS),
    )
    with pytest.raises(BadFile, match="pooling_factor is empty"):
        load_tables(path)  # which knows no default


def test_nothing_is_assumed_of_a_whole_record(tmp_path: Path) -> None:
    record = {**RECORD, "pooling_factor": 0.0, "weight_bits": 32, **dict(zip(REUSE_COLUMNS, UNIFORM, strict=True))}
    found = load_tables_with_assumptions(save_records(tmp_path / "t.csv", [record]), 1.5)
    assert found == TableSet((Table("ads", 1000, 16, 0.0, tuple(UNIFORM)),))


def test_what_kernels_only_approximate() -> None:
    plain = Table("a", 9, 4, 1.0)
    for exact in (plain, replace(plain, weight_bits=16)):
        assert [*list_approximations(exact)] == []
    rough = replace(plain, weight_bits=16, data_type="bf16", pooling="mean", is_weighted=True)
    assert [one.column for one in list_approximations(rough)] == ["data_type", "pooling", "is_weighted"]
    assert [one.text[:11] for one in list_approximations(replace(plain, weight_bits=8))] == ["8-bit data "]


# Pooling factors that a user names -----------------------------------------------------------------------------------

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
        ({"user": [20.0]}, [(20,), (2, 2), (1, 2)], (REUSE, OF_ITEM)),
        ({"user": np.float32(20)}, [(20,), (2, 2), (1, 2)], (REUSE, OF_ITEM)),
        ({"item": 7.0, "shared": 8}, [(1,), (3.5, 3.5), (4, 4)], (LOOKUPS, REUSE, EVEN, EVEN_TOO)),
        ({"item": (5, 7), "shared": np.array([0, 9])}, [(1,), (5, 7), (0, 9)], (LOOKUPS, REUSE)),
        ({"seen": 9.5}, [(1,), (9.5, 2), (1, 2)], (LOOKUPS, REUSE, OF_ITEM)),
        ({"seen": [9.5], "bought": 0}, [(1,), (9.5, 0), (1, 2)], (LOOKUPS, REUSE)),
    ],
)
def test_named_lookups_stand(given: Any, lookups: list[tuple[float, ...]], left: tuple[Assumption, ...]) -> None:
    """A number of a table is all its features together; a list has one for each, as TorchRec's have."""
    found = apply_pooling_factors(KNOWN, given)
    assert [one.feature_lookups for one in found.tables] == lookups
    assert [one.pooling_factor for one in found.tables] == [sum(one) for one in lookups]
    assert {*found.assumptions} == {*left} and found.notes == KNOWN.notes


def test_a_name_of_a_table_and_a_feature_means_the_feature_beside_other_features() -> None:
    twins = replace(ITEM, feature_names=("item", "bought"))
    known = TableSet((twins,))
    assert apply_pooling_factors(known, {"item": 6}).tables[0].feature_lookups == (3, 3)
    assert apply_pooling_factors(known, {"item": 6, "bought": 1}).tables[0].feature_lookups == (6, 1)
    with pytest.raises(BadConfig, match="'user', which is both a table and a feature of table 'item'"):
        apply_pooling_factors(TableSet((USER, replace(ITEM, feature_names=("user", "bought")))), {"user": 6})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([20.0], r"pooling_factors is \[20.0\], not a mapping"),
        ({"users": 1.0}, "is given for 'users', which is neither a table nor a feature. Correct the name"),
        ({"user": "20"}, r"pooling_factors\.user is '20', not a number or a list \(write 20\)"),
        ({"item": [1]}, "of 'item' has 1 number for 2 features. Give one per feature"),
        ({"seen": [1, 2]}, "of 'seen' has 2 numbers for 1 feature. Give one per feature"),
        ({"user": -1.0}, "table 'user': pooling_factor is -1.0"),
    ],
)
def test_senseless_lookups_are_one_line(given: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message) as error:
        apply_pooling_factors(KNOWN, given)
    assert "\n" not in str(error.value)
