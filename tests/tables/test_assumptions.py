"""A table file without pooling factors: a default stands in, is reported, and hides no mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.tables.assumptions import Assumption
from evenshard.tables.files import load_tables, load_tables_with_assumptions, save_tables
from evenshard.tables.formats import TABLE_SUFFIXES
from evenshard.tables.records import REUSE_COLUMNS
from evenshard.tables.table import Table

UNIFORM = [1 / 17] * 17
RECORD = {"name": "ads", "num_rows": 1000, "embedding_dim": 16, "pooling_factor": 2.5}
ASSUMED_BINS = "DLRM 2021 index reuse, rescaled per table"
ASSUMED_POOLING = "1.5, the default, since the file gives none"
WHOLE = {**RECORD, "reuse_bins": UNIFORM, "weight_bits": 16}


def complaint(path: Path) -> str:
    """What ``load_tables``, which knows no default, says of the file."""
    with pytest.raises(BadFile) as caught:
        load_tables(path)
    return str(caught.value)


def save_records(path: Path, records: list[dict[str, Any]]) -> Path:
    """As a user's own tools write them: a column that no record has is left out, a missing value is blank."""
    columns = list(dict.fromkeys(column for record in records for column in record))
    if path.suffix == ".csv":
        rows = [
            {key: json.dumps(value) if isinstance(value, list) else value for key, value in r.items()} for r in records
        ]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(columns) | record for record in records]), path)
    else:
        path.write_text(json.dumps(records))  # JSON text is YAML too
    return path


@pytest.mark.parametrize("suffix", TABLE_SUFFIXES)
def test_a_column_that_is_not_there_takes_the_default_and_is_reported(tmp_path: Path, suffix: str) -> None:
    record = {key: value for key, value in RECORD.items() if key != "pooling_factor"}
    path = save_records(tmp_path / f"t{suffix}", [record])
    found = load_tables_with_assumptions(path, 1.5)
    assert found.tables == (Table("ads", 1000, 16, 1.5),)
    assert found.assumptions == (
        Assumption("ads", "pooling_factor", ASSUMED_POOLING),
        Assumption("ads", "reuse_bins", ASSUMED_BINS),
        Assumption("ads", "weight_bits", "32, the default"),
    )
    assert "column 'pooling_factor' is missing" in complaint(path) or "pooling_factor is empty" in complaint(path)


@pytest.mark.parametrize("suffix", TABLE_SUFFIXES)
def test_a_blank_cell_takes_the_default_and_the_other_tables_keep_theirs(tmp_path: Path, suffix: str) -> None:
    blank = {**WHOLE, "name": "b", "pooling_factor": None}
    path = save_records(tmp_path / f"t{suffix}", [WHOLE, blank, {**RECORD, "name": "c", "weight_bits": 8}])
    found = load_tables_with_assumptions(path, 1.5)
    assert [(one.name, one.pooling_factor, one.weight_bits) for one in found.tables] == [
        ("ads", 2.5, 16),
        ("b", 1.5, 16),
        ("c", 2.5, 8),
    ]
    assert found.assumptions == (
        Assumption("b", "pooling_factor", ASSUMED_POOLING),
        Assumption("c", "reuse_bins", ASSUMED_BINS),
    )
    assert "pooling_factor is empty" in complaint(path)


def test_a_whole_file_is_read_as_load_tables_does_and_nothing_is_assumed(tmp_path: Path) -> None:
    tables = [Table("ads", 1000, 16, 0.0, tuple(UNIFORM)), Table("b", 7, 4, 3.0, tuple(UNIFORM), 8)]
    save_tables(tables, tmp_path / "t.json")
    found = load_tables_with_assumptions(tmp_path / "t.json", 1.5)
    assert (found.tables, found.assumptions, found.notes) == (tuple(tables), (), ())


def test_seventeen_columns_are_a_histogram_too(tmp_path: Path) -> None:
    record = {**RECORD, "weight_bits": 32, **dict(zip(REUSE_COLUMNS, UNIFORM, strict=True))}
    assert load_tables_with_assumptions(save_records(tmp_path / "t.csv", [record]), 1.5).assumptions == ()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"name": "ads", "num_rows": 5, "emb_dim": 4}, "'embedding_dim' is missing. .*'emb_dim'"),
        ({**RECORD, "pooling_factor": float("nan")}, "'NaN' is not a valid number"),
        ({**RECORD, "pooling_factor": "many"}, "pooling_factor is 'many', not a number"),
        ({**RECORD, "num_rows": None}, "num_rows is empty"),
        (3, "is 3, not a record"),
    ],
)
def test_the_default_covers_nothing_that_is_wrong(tmp_path: Path, record: Any, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([record]))
    with pytest.raises(BadFile, match=words):
        load_tables_with_assumptions(path, 1.5)


@pytest.mark.parametrize("default", [-1.0, float("nan"), float("inf")])
def test_an_impossible_default_is_refused(tmp_path: Path, default: float) -> None:
    with pytest.raises(BadConfig, match=r"default_pooling_factor is .*from 0 to"):
        load_tables_with_assumptions(tmp_path / "t.json", default)
