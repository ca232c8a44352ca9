"""Data frames and lists of dicts are read as table files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.tables.sources import tables_from, tables_in_python
from evenshard.tables.table import Table
from support.traffic_builders import TRAFFIC, write_parquet

RECORDS = [
    {"name": "ads", "hash_size": 1000, "dim": 16, "pooling": 2.5, "weight_bits": 16},
    {"name": "user", "hash_size": 50, "dim": 8},
]
FRAME = pd.DataFrame(RECORDS)


@pytest.mark.parametrize("tables", [RECORDS, tuple(RECORDS), FRAME, FRAME.convert_dtypes()])
def test_a_frame_and_records_are_read_as_their_file_is(tmp_path: Path, tables: Any) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    found = tables_in_python(tables, 1024)
    of_file = tables_from(tmp_path / "t.csv", 1024)
    assert found is not None and (found.tables, found.assumptions) == (of_file.tables, of_file.assumptions)
    assert found.tables == (Table("ads", 1000, 16, 2.5, None, 16), Table("user", 50, 8, 1.0))
    assert type(found.tables[0].num_rows) is int and type(found.tables[0].pooling_factor) is float


def test_cells_may_hold_lists_and_numbers_of_numpy() -> None:
    record = {"name": "ads", "rows": np.int64(9), "dim": np.int32(8), "feature_pooling_factors": np.array([1.0, 2.0])}
    for tables in ([record], pd.DataFrame([record])):
        found = tables_in_python(tables, 1024)
        assert found is not None
        assert found.tables == (Table("ads", 9, 8, 3.0, feature_pooling_factors=(1.0, 2.0)),)


def test_what_is_wrong_and_what_is_extra_is_said_as_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"tables, record 2 \(table 'user'\): embedding_dim is 0"):
        tables_in_python(FRAME.assign(dim=[16, 0]), 1024)
    with pytest.raises(BadFile, match=r"record 2: is 5, not a record"):
        tables_in_python([RECORDS[0], 5], 1024)
    found = tables_in_python(FRAME.assign(owner="x"), 1024)
    assert found is not None and found.notes == ("tables: 1 column is not used: 'owner'.",)
    with pytest.raises(BadConfig, match="columns renames 'ttl', which is not a column of tables"):
        tables_in_python(FRAME, 1024, columns={"ttl": ""})
    assert tables_in_python([Table("a", 5, 4, 1.0)], 1024) is None


def test_traffic_and_precision_apply_to_them(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    found = tables_in_python(FRAME, 2, traffic, weight_bits=8)
    assert found is not None
    assert [(one.pooling_factor, one.weight_bits) for one in found.tables] == [(1.5, 8), (1.0, 8)]


@pytest.mark.slow
def test_pandas_is_not_imported_unless_it_is_given() -> None:
    script = (
        "import sys; sys.modules['pandas'] = None\n"
        "from evenshard.tables.sources import tables_in_python\n"
        "assert len(tables_in_python([{'name': 'a', 'rows': 5, 'dim': 4}], 64).tables) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
